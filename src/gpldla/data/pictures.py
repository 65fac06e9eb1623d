"""The user's pictures, as files, arrays or Pillow images, turned into tensors of one size."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gpldla.data.decoding import in_mode, mode_of, read_picture
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.errors import UserError

ImageLike = Image.Image | str | Path | np.ndarray
"""A picture, the path of one, or an array [h, w], [h, w, 3] (uint8, or floats in 0..1)."""


def picture_tensor(image: ImageLike, preprocessing: Preprocessing) -> Tensor:
    """Read one picture as uint8 [channels, resized, resized]."""
    mode = mode_of(preprocessing.channels)
    if isinstance(image, (str, Path)):
        try:
            picture = read_picture(image, mode)
        except Exception as error:  # decoders of damaged files raise all kinds
            raise UserError(f"{image} cannot be read as an image ({error}); replace or remove it.") from None
    elif isinstance(image, Image.Image):
        picture = in_mode(image, mode)
    elif isinstance(image, np.ndarray):
        picture = in_mode(_picture_of_array(image), mode)
    else:
        raise UserError(f"An image must be a picture, a path or an array, not {type(image).__name__}.")
    if 0 in picture.size:
        raise UserError("An image has no pixels.")
    side = preprocessing.resized
    if picture.size != (side, side):
        picture = picture.resize((side, side), Image.Resampling[preprocessing.interpolation.upper()])
    return torch.from_numpy(np.array(picture)).view(side, side, -1).permute(2, 0, 1)


def _picture_of_array(array: np.ndarray) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)) or array.size == 0:
        raise UserError(f"An image array must be [h, w] or [h, w, 3], not {list(array.shape)}.")
    if array.dtype.kind not in "buif":
        raise UserError(f"An image array must hold numbers, not {array.dtype}.")
    top = 1 if array.dtype.kind in "bf" else 255
    if not (-0.01 * top <= array.min() and array.max() <= 1.01 * top):
        values = f"{array.min()} to {array.max()}"
        raise UserError(f"An image array of {array.dtype} must hold values from 0 to {top}, not {values}.")
    return Image.fromarray((array * (255 / top)).round().clip(0, 255).astype(np.uint8))
