"""Small versions of pictures, for pages."""

from contextlib import suppress
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps

from gpldla.data.decoding import in_mode, open_picture
from gpldla.data.pixel_budget import room_for

SIDE, QUALITY = 160, 80


def thumbnail_of(picture: bytes | str | Path) -> bytes | None:
    """Return a small WebP of a picture file or its content; None of one that cannot be decoded."""
    source = BytesIO(picture) if isinstance(picture, bytes) else picture
    with suppress(Exception), open_picture(source) as opened, room_for(opened):
        opened.draft("RGB", (2 * SIDE, 2 * SIDE))  # JPEGs are decoded at a fraction of their size
        small = in_mode(ImageOps.exif_transpose(opened), "RGB")
        small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
        buffer = BytesIO()
        small.save(buffer, "WEBP", quality=QUALITY)  # without EXIF: no place, no date
        return buffer.getvalue()
    return None
