"""The user's pictures, as files, arrays or Pillow images, turned into tensors of one size."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import url2pathname

import numpy as np
from PIL import Image

from gpldla.data.decoding import (
    Mode,
    how_to_read_heic,
    in_mode,
    mode_of,
    read_square,
    to_square,
    upright,
)
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.errors import UserError

if TYPE_CHECKING:  # which takes a second to import
    from torch import Tensor

ImageLike = Image.Image | str | Path | bytes | np.ndarray
"""A picture, its path or file URL, the bytes of its file, or an array [h, w], [h, w, 3] (uint8, or 0..1)."""


def local_file(item: str | Path) -> str | Path:
    """Return the path that a file URL names, and any other path as it is; other URLs are refused."""
    if not isinstance(item, str) or "://" not in item:
        return item
    kind, _, rest = item.partition("://")
    if kind.lower() == "file":
        return Path(url2pathname(rest.removeprefix("localhost") if rest.startswith("localhost/") else rest))
    if kind.lower() in ("http", "https", "ftp", "s3", "gs", "data"):
        raise UserError(f"{item} is not downloaded; save the picture and give its file.")
    return item


def picture_tensor(image: ImageLike, preprocessing: Preprocessing) -> "Tensor":
    """Read one picture as uint8 [channels, resized, resized]."""
    import torch

    return torch.from_numpy(picture_pixels(image, preprocessing)).permute(2, 0, 1)


def picture_pixels(image: ImageLike, preprocessing: Preprocessing) -> np.ndarray:
    """Read one picture as uint8 [resized, resized, channels]; errors name its file."""
    if not isinstance(image, (str, Path)):
        return decoded_pixels(image, preprocessing)
    try:
        return decoded_pixels(image, preprocessing)
    except Exception as error:  # decoders of damaged files raise all kinds
        hint = how_to_read_heic(image)
        raise UserError(
            f"{image} cannot be read as an image ({error}); {hint or 'replace or remove it.'}"
        ) from None


def decoded_pixels(image: ImageLike, preprocessing: Preprocessing) -> np.ndarray:
    """As `picture_pixels`, but raises whatever the decoder raises."""
    mode, side = mode_of(preprocessing.channels), preprocessing.resized
    crop = preprocessing.size if preprocessing.keep_aspect else None
    how = (side, preprocessing.interpolation, preprocessing.reading, crop)
    if isinstance(image, (str, Path)):
        square = read_square(image, mode, *how)
    elif isinstance(image, bytes):
        square = read_square(BytesIO(image), mode, *how)
    else:
        square = to_square(picture_in_memory(image, mode), *how)
    return np.array(square).reshape(side, side, preprocessing.channels)


def picture_in_memory(image: Image.Image | np.ndarray, mode: Mode) -> Image.Image:
    """Return a picture that is no file in grey or colour, rotated by its EXIF orientation if it has one."""
    if isinstance(image, Image.Image):
        picture = in_mode(upright(image), mode)
    elif isinstance(image, np.ndarray):
        picture = in_mode(_picture_of_array(image), mode)
    else:
        raise UserError(f"An image must be a picture, a path or an array, not {type(image).__name__}.")
    if 0 in picture.size:
        raise UserError("An image has no pixels.")
    return picture


def _picture_of_array(array: np.ndarray) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)) or array.size == 0:
        raise UserError(f"An image array must be [h, w] or [h, w, 3], not {list(array.shape)}.")
    if array.dtype.kind not in "buif":
        raise UserError(f"An image array must hold numbers, not {array.dtype}.")
    if array.dtype == np.uint8:
        return Image.fromarray(array)
    top = 1 if array.dtype.kind in "bf" else 255
    if not (-0.01 * top <= array.min() and array.max() <= 1.01 * top):
        values = f"{array.min()} to {array.max()}"
        raise UserError(f"An image array of {array.dtype} must hold values from 0 to {top}, not {values}.")
    return Image.fromarray((array * (255 / top)).round().clip(0, 255).astype(np.uint8))
