"""Checksums: of tensors with facts, as in our safetensors files, and of whole files. No torch needed."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpldla.utils.errors import UserError

CHECKSUM = "checksum"  # the key under which the facts in a file hold it


def checksum(tensors: Iterable[tuple[str, str, list[int], memoryview]], info: dict[str, Any]) -> str:
    """Return a digest of everything in a file except the digest itself.

    tensors: name, type as torch writes it, shape and bytes of each, in any order
    """
    # Through JSON once, as in the file, where every key is a string.
    facts = json.loads(json.dumps({name: value for name, value in info.items() if name != CHECKSUM}))
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, dtype, shape, content in sorted(tensors, key=lambda tensor: tensor[0]):
        digest.update(f"\n{name} {dtype} {shape}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def file_checksum(file: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def require_file(file: Path, sha256: str, package: str) -> Path:
    """Return a file of an installed package; refuse one that differs from the file that was tested."""
    try:
        found = file_checksum(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error}); install it again: pip install {package}") from None
    if found != sha256:
        raise UserError(
            f"{file} is damaged or of another version of its package; install the one that was tested:"
            f" pip install --force-reinstall {package}"
        )
    return file
