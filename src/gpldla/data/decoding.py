"""From the bytes of an image file to pixels."""

from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps

Mode = Literal["L", "RGB"]

# Accepted encodings. Pillow knows more, some of them programs: it would run Ghostscript on EPS.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")


def open_picture(file: str | Path | BytesIO) -> Image.Image:
    """Open an image file; raises whatever the decoder raises."""
    Image.init()
    opened = Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])
    if opened.mode == "I" and opened.format == "TIFF":  # in other formats such pixels have 16 bits
        opened.close()
        raise ValueError("its pixels are 32-bit numbers of no known range")
    return opened


def mode_of(channels: int) -> Mode:
    """Return Pillow's mode for grey or colour."""
    return "L" if channels == 1 else "RGB"


def read_picture(file: str | Path, mode: Mode) -> Image.Image:
    """Decode an image file, rotated by its EXIF orientation; raises whatever the decoder raises."""
    with open_picture(file) as opened:
        return in_mode(ImageOps.exif_transpose(opened), mode)


def in_mode(picture: Image.Image, mode: Mode) -> Image.Image:
    """Convert to grey or colour, transparent pixels on a white background, 16 bits reduced to 8."""
    if picture.mode == "F":
        raise ValueError("its pixels are floating-point numbers of no known range")
    if picture.mode.startswith("I"):
        eight_bits = (np.asarray(picture) / 257).round().clip(0, 255).astype(np.uint8)
        return Image.fromarray(eight_bits).convert(mode)
    if picture.has_transparency_data:
        paper = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(paper, picture.convert("RGBA"))
    return picture.convert(mode)


def square_pixels(content: bytes, channels: int, side: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode and resize to a square: uint8 [channels, side, side], and the original (height, width)."""
    mode = mode_of(channels)
    with open_picture(BytesIO(content)) as opened:
        rotated = opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5  # by a quarter turn
        shape = opened.size if rotated else opened.size[::-1]
        # JPEGs decode at 1/2, 1/4 or 1/8 size; down to twice the side that costs no sharpness.
        opened.draft(mode, (2 * side, 2 * side))
        picture = in_mode(ImageOps.exif_transpose(opened), mode)
    if picture.size != (side, side):
        picture = picture.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(side, side, channels).transpose(2, 0, 1), shape


def picture_side(content: bytes) -> int:
    """Return the longer side of a picture without decoding it."""
    with open_picture(BytesIO(content)) as opened:
        return max(opened.size)
