"""From the bytes of an image file to pixels."""

from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image, ImageOps

Mode = Literal["L", "RGB"]


def mode_of(channels: int) -> Mode:
    """Return Pillow's word for grey or colour."""
    return "L" if channels == 1 else "RGB"


def read_picture(file: str | Path | BinaryIO, mode: Mode, *, at_least: int | None = None) -> Image.Image:
    """Decode an image file, turned as its EXIF note says; raises whatever the decoder raises.

    at_least: a JPEG may be decoded at a half, quarter or eighth as long as its sides stay as large as this
    """
    with Image.open(file) as opened:
        if at_least is not None:
            opened.draft(mode, (at_least, at_least))
        return in_mode(ImageOps.exif_transpose(opened), mode)


def in_mode(picture: Image.Image, mode: Mode) -> Image.Image:
    """Convert to grey or colour: what is transparent lies on white paper, 16 bits become 8."""
    if picture.mode.startswith("I"):
        eight_bits = (np.asarray(picture) / 257).round().clip(0, 255).astype(np.uint8)
        return Image.fromarray(eight_bits).convert(mode)
    if picture.has_transparency_data:
        paper = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(paper, picture.convert("RGBA"))
    return picture.convert(mode)


def square_pixels(content: bytes, channels: int, side: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode and resize to a square: uint8 [channels, side, side] and the picture's own (height, width)."""
    # Twice the side: reducing by half while decoding then costs no sharpness.
    picture = read_picture(BytesIO(content), mode_of(channels), at_least=2 * side)
    width, height = picture.size
    if picture.size != (side, side):
        picture = picture.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(side, side, channels).transpose(2, 0, 1), (height, width)


def picture_side(content: bytes) -> int:
    """Return the longer side of a picture without decoding it."""
    with Image.open(BytesIO(content)) as opened:
        return max(opened.size)
