"""What both clients are told."""

from collections.abc import Sequence
from typing import Any, Literal

from gpldla.client.calls import PictureFile

Kind = Literal["images", "texts"]
FileForm = Literal["safetensors", "onnx"]
Pictures = Sequence[PictureFile] | None
Texts = Sequence[str] | None


def http_options(url: str, token: str | None, timeout: float) -> dict[str, Any]:
    """Return the options of httpx's clients."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {"base_url": url, "headers": headers, "timeout": timeout}
