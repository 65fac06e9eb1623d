"""The grammar of model names: PREFIX:NAME, optionally with @REVISION and ,size=PIXELS."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from gpldla.utils.errors import UserError, require_count

_SIZE = re.compile(r",size=([^,]*)$")


@dataclass(frozen=True)
class ModelName:
    """A model name taken apart.

    prefix:   the library that has the model, such as "hf" or "timm"; "" for backbones of this package
    name:     what that library calls it, or the path of a folder
    revision: a commit, tag or branch of the hub
    size:     side of the pictures in pixels; None is the model's own
    """

    prefix: str
    name: str
    revision: str | None = None
    size: int | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Take a name apart; the parts are not looked up."""
        text, size = _split_size(text)
        prefix, colon, rest = text.partition(":")
        if not colon:
            return cls("", text, size=size)
        if is_folder(rest):
            return cls(prefix, rest, size=size)
        name, _, revision = rest.partition("@")
        return cls(prefix, name, revision or None, size)

    def __str__(self) -> str:
        prefix = f"{self.prefix}:" if self.prefix else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{prefix}{self.name}{revision}" + (f",size={self.size}" if self.size else "")


def is_folder(name: str) -> bool:
    """Return whether a name is meant as a folder: it can only be a path, or there is such a folder."""
    looks_so = name.startswith(("/", "./", "../", "~", "\\")) or re.match(r"[A-Za-z]:[\\/]", name)
    return bool(looks_so) or (name != "" and Path(name).is_dir())


def with_size(name: str, size: int | None) -> str:
    """Return a model's name with another size of its pictures; None changes nothing."""
    if size is None:
        return name
    require_count(size=size)
    return str(replace(ModelName.parse(name), size=int(size)))


def _split_size(text: str) -> tuple[str, int | None]:
    found = _SIZE.search(text)
    if found is None:
        return text, None
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", found[1]):
        raise UserError(f"Model {text!r}: size must be a whole number of pixels, such as size=448.")
    return text[: found.start()], int(found[1])
