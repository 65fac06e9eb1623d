"""The manifest of an output folder, which identifies its run, so that no other run is mixed with it."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpldla import __version__
from gpldla.bulk.job import Settings
from gpldla.bulk.sources import Survey
from gpldla.classifier.answer import json_class_names
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_json, write_json

MANIFEST, FORMAT = "_manifest.json", 1  # readers of Parquet folders skip names with an underscore
# What must be the same in a run that is resumed.
COMPARED = {"classifier": "another classifier", "settings": "other settings", "source": "other items"}


def make_manifest(
    classifier: Path, classes: np.ndarray, survey: Survey, settings: Settings, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the answers depend on. given: the settings that are about the source."""
    return {
        "format": FORMAT,
        "gpldla": __version__,
        "classifier": _sha256(classifier),
        "source": survey.fingerprint,
        "settings": asdict(settings) | dict(given),
        "classes": json_class_names(classes),
        "chunks": len(survey.chunks),
        "rows": sum(rows for _, rows in survey.chunks),
    }


def start_or_resume(output: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, or refuse a folder that holds something else."""
    file = output / MANIFEST
    if not file.exists():
        if output.exists() and any(not path.name.startswith(".") for path in output.iterdir()):
            raise UserError(f"{output} holds other files and no {MANIFEST}; choose another folder.")
        write_json(file, manifest)
        return
    before = read_json(file)
    if not isinstance(before, dict) or before.get("format") != FORMAT:
        raise UserError(f"{file} is not a manifest of format {FORMAT}; choose another folder.")
    for key, what in COMPARED.items():
        if _without_skip_bad(before.get(key)) != _without_skip_bad(manifest[key]):
            raise UserError(
                f"{output} holds the answers of a run with {what}{_difference(key, before, manifest)};"
                " choose another folder, or delete this one."
            )


def _without_skip_bad(value: Any) -> Any:
    """Return what is compared: a resumed run may skip bad items that stopped the earlier one."""
    return {name: v for name, v in value.items() if name != "skip_bad"} if isinstance(value, dict) else value


def _difference(key: str, before: dict[str, Any], now: dict[str, Any]) -> str:
    if key != "settings" or not isinstance(before.get(key), dict):
        return ""
    changed = [
        f"{name} {before[key].get(name)}, now {value}"
        for name, value in now[key].items()
        if value != before[key].get(name)
    ]
    return f" ({'; '.join(changed)})"


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
