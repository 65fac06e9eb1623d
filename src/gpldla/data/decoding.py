"""From the bytes of an image file to pixels."""

from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from gpldla.data.pixel_budget import max_pixels, room_for

Mode = Literal["L", "RGB"]

# Accepted encodings. Pillow knows more, some of them programs: it would run Ghostscript on EPS.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
QUICK_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM")  # those whose decoders Pillow loads at first
HEIC_TYPES = (".heic", ".heif")  # where pillow-heif is installed
REDUCING_GAP = 3.0  # pictures are averaged in whole blocks down to this times the side, then resized


@cache
def reads_heic() -> bool:
    """Return whether HEIC is read, which iPhones write: where pillow-heif is installed."""
    if find_spec("pillow_heif") is None:
        return False
    import pillow_heif

    pillow_heif.register_heif_opener()
    return True


def how_to_read_heic(file: str | Path) -> str:
    """Return what to do about a HEIC file that cannot be read; "" for other files, or if they are read."""
    if Path(file).suffix.lower() not in HEIC_TYPES or reads_heic():
        return ""
    return "HEIC pictures are read where pillow-heif is installed: pip install 'gpldla[heic]'."


def open_picture(file: str | Path | BytesIO) -> Image.Image:
    """Open an image file; raises whatever the decoder raises."""
    max_pixels()  # which may raise Pillow's own limit
    Image.preinit()
    try:
        opened = Image.open(file, formats=QUICK_FORMATS)
    except UnidentifiedImageError:
        opened = Image.open(file, formats=_all_formats())
    if opened.mode == "I" and opened.format == "TIFF":  # in other formats such pixels have 16 bits
        opened.close()
        raise ValueError("its pixels are 32-bit numbers of no known range")
    return opened


def _all_formats() -> list[str]:
    """Return all that can be read here; loading their decoders takes as long as decoding some pictures."""
    Image.init()
    known = (*FORMATS, "HEIF") if reads_heic() else FORMATS
    return [name for name in known if name in Image.OPEN]


def mode_of(channels: int) -> Mode:
    """Return Pillow's mode for grey or colour."""
    return "L" if channels == 1 else "RGB"


def read_picture(file: str | Path | BytesIO, mode: Mode) -> Image.Image:
    """Decode an image file, rotated by its EXIF orientation; raises whatever the decoder raises."""
    with open_picture(file) as opened, room_for(opened):
        return in_mode(upright(opened), mode)


def read_square(
    file: str | Path | BytesIO,
    mode: Mode,
    side: int,
    interpolation: str,
    reading: int,
    crop: int | None = None,
) -> Image.Image:
    """Decode an image file as `read_picture` does and resize it to side × side.

    crop: see `to_square`
    reading: 1 decodes all pixels; 2 decodes a JPEG at 1/2, 1/4 or 1/8 of its size where that is at least
        twice the side, which is much faster and costs no sharpness
    """
    with open_picture(file) as opened:
        if reading >= 2:
            opened.draft(mode, (2 * side, 2 * side))  # does nothing to other formats
        with room_for(opened):
            square = to_square(in_mode(upright(opened), mode), side, interpolation, reading, crop)
            if square is not opened:
                opened.close()  # its pixels, before others are decoded
            return square


def to_square(
    picture: Image.Image, side: int, interpolation: str, reading: int, crop: int | None = None
) -> Image.Image:
    """Resize a picture to side × side, stretched unless `crop` is given; reading: see `read_square`.

    crop: the shorter side becomes `side`, and the longer one is cut off; a centre crop of so many pixels is
        then the middle of the whole picture
    """
    if picture.size == (side, side):
        return picture
    gap, resample = REDUCING_GAP if reading >= 2 else None, Image.Resampling[interpolation.upper()]
    if crop is None or picture.width == picture.height:
        return picture.resize((side, side), resample, reducing_gap=gap)
    shorter = min(picture.size)
    width, height = (side * length // shorter for length in picture.size)
    left, top = ((length - crop) // 2 - (side - crop) // 2 for length in (width, height))
    return picture.resize((width, height), resample, reducing_gap=gap).crop(
        (left, top, left + side, top + side)
    )


def upright(picture: Image.Image) -> Image.Image:
    """Rotate by the EXIF orientation; without one, return the picture itself, not a copy."""
    picture.load()  # a PNG's EXIF data may follow its pixels
    turned = picture.getexif().get(ExifTags.Base.Orientation, 1) != 1
    return ImageOps.exif_transpose(picture) if turned else picture


def in_mode(picture: Image.Image, mode: Mode) -> Image.Image:
    """Convert to grey or colour, transparent pixels on a white background, 16 bits reduced to 8."""
    if picture.mode == "F":
        raise ValueError("its pixels are floating-point numbers of no known range")
    if picture.mode.startswith("I"):
        levels = np.asarray(picture).astype(np.int32)
        eight_bits = ((levels + 128) // 257).clip(0, 255).astype(np.uint8)  # levels / 257, rounded
        return Image.fromarray(eight_bits).convert(mode)
    if picture.has_transparency_data:
        paper = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(paper, picture.convert("RGBA"))
    return picture if picture.mode == mode else picture.convert(mode)


def square_pixels(content: bytes, channels: int, side: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode and resize to a square: uint8 [channels, side, side], and the original (height, width)."""
    mode = mode_of(channels)
    with open_picture(BytesIO(content)) as opened:
        rotated = opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5  # by a quarter turn
        shape = opened.size if rotated else opened.size[::-1]
        # JPEGs decode at 1/2, 1/4 or 1/8 size; down to twice the side that costs no sharpness.
        opened.draft(mode, (2 * side, 2 * side))
        with room_for(opened):
            picture = to_square(in_mode(upright(opened), mode), side, "bilinear", reading=1)
            if picture is not opened:
                opened.close()
    return np.asarray(picture).reshape(side, side, channels).transpose(2, 0, 1), shape


def picture_side(content: bytes) -> int:
    """Return the longer side of a picture without decoding it."""
    with open_picture(BytesIO(content)) as opened:
        return max(opened.size)
