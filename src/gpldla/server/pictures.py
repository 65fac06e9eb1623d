"""Pictures that strangers send: checked before anything is decoded."""

import re
from io import BytesIO
from pathlib import PurePosixPath

from gpldla.data.decoding import open_picture, reads_heic
from gpldla.server.problems import Problem

NAME_LENGTH = 200
BRANDS = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "HEIF",
    b"heix": "HEIF",
    b"mif1": "HEIF",
    b"msf1": "HEIF",
}
SIGNATURES = ((b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF8", "GIF"), (b"BM", "BMP"))
ACCEPTED = "JPEG, PNG, WebP, GIF, BMP, AVIF"


def format_of(content: bytes) -> str | None:
    """Return the format of a picture file by its first bytes; None of anything else."""
    for signature, name in SIGNATURES:
        if content.startswith(signature):
            return name
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    return BRANDS.get(content[8:12]) if content[4:8] == b"ftyp" else None


def check_picture(content: bytes, name: str, most: int) -> None:
    """Refuse what is no picture by its first bytes, or by its header has more than so many pixels."""
    kind = format_of(content)
    if kind is None or (kind == "HEIF" and not reads_heic()):
        heic = ", HEIC" if reads_heic() else ""
        raise Problem(415, f"{name} is no picture of a kind that this server reads: {ACCEPTED}{heic}.")
    try:
        with open_picture(BytesIO(content)) as opened:
            width, height = opened.size
            found = opened.format
    except Exception:  # decoders of damaged files raise all kinds, and quote what they were given
        raise unreadable(name) from None
    if width * height > most:
        raise Problem(413, f"{name} has {width} × {height} pixels; make it smaller than {most} pixels.")
    if found not in (kind, "MPO"):  # MPO: JPEGs with a second picture, as some cameras write
        raise unreadable(name)


def unreadable(name: str) -> Problem:
    """Return what to answer to a damaged picture."""
    return Problem(422, f"{name} cannot be read as a picture; send it whole, or save it anew.")


def plain_name(name: str | None, fallback: str) -> str:
    """Return the last part of a file's name as a client gives it, on one line; it is only ever shown."""
    last = PurePosixPath((name or "").replace("\\", "/")).name
    shown = last.encode("utf-8", "replace").decode()
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", "", shown).strip()
    return shown[:NAME_LENGTH] or fallback
