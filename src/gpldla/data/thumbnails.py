"""Small versions of pictures, for pages."""

from contextlib import suppress
from io import BytesIO
from pathlib import Path

from PIL import Image

from gpldla.data.decoding import in_mode, open_picture, upright
from gpldla.data.pixel_budget import room_for

SIDE, QUALITY = 160, 80
REDUCED_LATER = ("1", "P", "PA", "I", "I;16", "I;16B", "F")  # pixels that cannot be averaged as they are


def thumbnail_of(picture: bytes | str | Path) -> bytes | None:
    """Return a small WebP of a picture file or its content; None of one that cannot be decoded."""
    source = BytesIO(picture) if isinstance(picture, bytes) else picture
    with suppress(Exception), open_picture(source) as opened, room_for(opened):
        opened.draft("RGB", (2 * SIDE, 2 * SIDE))  # JPEGs are decoded at a fraction of their size
        small = upright(opened)
        if small.mode not in REDUCED_LATER:  # before it is converted, which takes copies of all pixels
            small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
        small = in_mode(small, "RGB")
        small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
        if small is not opened:
            opened.close()
        buffer = BytesIO()
        small.save(buffer, "WEBP", quality=QUALITY, exif=b"")  # no place, no date
        return buffer.getvalue()
    return None
