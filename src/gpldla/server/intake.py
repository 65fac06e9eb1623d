"""What a request holds: pictures as files of a form, or texts as JSON, within the limits."""

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.datastructures import UploadFile

from gpldla.server.pictures import check_picture, plain_name
from gpldla.server.problems import Problem
from gpldla.server.schemas import Label, LabelledTexts, Texts
from gpldla.server.settings import Limits

FIELDS = 8  # of a form, besides its files
FIELD_BYTES = 1 << 16
WANTED = {
    "images": "This task takes pictures; send them as files of a form, multipart/form-data.",
    "texts": "This task takes texts; send them as JSON, application/json.",
}
_LABEL: TypeAdapter[str] = TypeAdapter(Label)


@dataclass(frozen=True)
class Items:
    """Pictures (bytes) or texts of a request; label: None if it has none."""

    kind: str
    items: list[Any]
    names: list[str]
    label: str | None = None

    @property
    def texts(self) -> list[str | None]:
        """The texts; None for each picture."""
        return [item if self.kind == "texts" else None for item in self.items]


async def read_items(request: Request, limits: Limits, *, labelled: bool) -> Items:
    """Return what a request holds: pictures of a form, or texts of JSON."""
    form = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if form == "multipart/form-data":
        return await _pictures(request, limits, labelled)
    if form == "application/json":
        return _texts(await request.body(), limits, labelled)
    raise Problem(415, "Send pictures as files of a form, multipart/form-data, or texts as application/json.")


def check_items(given: Items, kind: str, limits: Limits) -> None:
    """Refuse items of another kind than the task's, and files that are no pictures."""
    if given.kind != kind:
        raise Problem(415, WANTED[kind])
    if kind == "images":
        for picture, name in zip(given.items, given.names):
            check_picture(picture, name, limits.pixels)


async def _pictures(request: Request, limits: Limits, labelled: bool) -> Items:
    most = limits.items_per_request
    async with request.form(max_files=most, max_fields=FIELDS, max_part_size=FIELD_BYTES) as form:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        pictures = [await file.read() for file in files]
        names = [plain_name(file.filename, f"picture {i + 1}") for i, file in enumerate(files)]
        label = form.get("label")
    if not pictures:
        raise Problem(422, "The form holds no files; send at least one picture.")
    return Items("images", pictures, names, _checked_label(label) if labelled else None)


def _checked_label(label: Any) -> str:
    if not isinstance(label, str):
        raise Problem(422, "The form has no field 'label'; name the class of the pictures.")
    try:
        return _LABEL.validate_python(label)
    except ValidationError as error:
        faults = [{**fault, "loc": ("label",)} for fault in error.errors()]
        raise RequestValidationError(faults) from None


def _texts(body: bytes, limits: Limits, labelled: bool) -> Items:
    schema: type[LabelledTexts | Texts] = LabelledTexts if labelled else Texts
    try:
        given = schema.model_validate(_object(body, len(schema.model_fields), limits.items_per_request))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    texts = given.texts
    if not texts:
        raise Problem(422, "There are no texts; send at least one.")
    for index, text in enumerate(texts):
        if len(text) > limits.text_characters:
            raise Problem(
                413,
                f"texts[{index}] has {len(text)} characters; send at most {limits.text_characters}.",
            )
        if not text.strip() or "\0" in text:
            raise Problem(422, f"texts[{index}] is empty or holds a null character; leave it out.")
    names = [
        plain_name(" ".join(text.split())[:80].replace("/", "∕"), f"text {i + 1}")
        for i, text in enumerate(texts)
    ]
    label = given.label if isinstance(given, LabelledTexts) else None
    return Items("texts", texts, names, label)


def _object(body: bytes, fields: int, most: int) -> dict[str, Any]:
    """Return a JSON object with texts.

    What it holds is counted before it is checked: a million faults would be described for minutes.
    """
    try:
        found = from_json(body)
    except ValueError as error:
        raise Problem(422, f"The body is not JSON: {error}.") from None
    if not isinstance(found, dict) or len(found) > fields:
        raise Problem(422, "The body must be a JSON object without other fields than the documented ones.")
    texts = found.get("texts")
    if isinstance(texts, list) and len(texts) > most:
        raise Problem(413, f"There are {len(texts)} texts; send at most {most} at a time.")
    return found
