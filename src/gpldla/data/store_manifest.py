"""The manifest of a store: what its files hold, and their checksums."""

import hashlib
import json
from pathlib import Path
from typing import Any

from gpldla.utils.checksums import CHECKSUM
from gpldla.utils.files import write_json

FORMAT = 2
MANIFEST = "manifest.json"
LARGEST = 2**62  # bytes; products of sizes stay far from the end of int64


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Write the manifest, which makes a folder a store."""
    manifest = {"format": FORMAT, **facts}
    write_json(folder / MANIFEST, {**manifest, CHECKSUM: manifest_checksum(manifest)}, indent=1)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a store; raises OSError or ValueError where it cannot be read or was changed.

    Those of earlier versions have no checksums.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except RecursionError as error:
        raise ValueError(f"the manifest is nested too deeply ({error})") from None
    if not isinstance(manifest, dict):
        raise ValueError("the manifest is not a table")
    if manifest.get("format") != FORMAT:
        raise ValueError(f"format {manifest.get('format')}, not {FORMAT}")
    has_checksums = CHECKSUM in manifest or "files" in manifest
    if has_checksums and manifest.get(CHECKSUM) != manifest_checksum(manifest):
        raise ValueError("the checksum of the manifest does not match")
    _check(manifest)
    return manifest


def manifest_checksum(manifest: dict[str, Any]) -> str:
    """Return a digest of everything in a manifest except the digest itself."""
    facts = {name: value for name, value in manifest.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _check(manifest: dict[str, Any]) -> None:
    """Raise ValueError if a value has another type or range than the packers write."""
    shape, classes, source = (manifest.get(key) for key in ("shape", "classes", "source"))
    if not isinstance(manifest.get("name"), str):
        raise ValueError("its name is no text")
    if not (isinstance(shape, list) and len(shape) == 4 and all(map(_is_count, shape))):
        raise ValueError("its shape is not four numbers")
    if not (isinstance(classes, list) and all(isinstance(one, dict) for one in classes)):
        raise ValueError("its classes are no list")
    for one in classes:
        if not (isinstance(one.get("name"), str) and _is_count(one.get("images"))):
            raise ValueError("a class has no name or no number of images")
    if not isinstance(source, dict):
        raise ValueError("its source is not a table")
    files = manifest.get("files", {})
    if not (isinstance(files, dict) and all(isinstance(digest, str) for digest in files.values())):
        raise ValueError("its checksums are no table")
    left_out = source.get("left_out", [])
    if not (isinstance(left_out, list) and all(isinstance(one, str) for one in left_out)):
        raise ValueError("what was left out is no list of sentences")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
