"""The two files of a model's folder: weights with their configuration, and the latter again to be read.

The file of the weights holds the configuration, too, so that both change at once: a process that is stopped
between the two files leaves the new model, whole, beside an old config.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gpldla.classifier.shipped import CONFIG, WEIGHTS
from gpldla.utils.checksums import CHECKSUM
from gpldla.utils.errors import UserError
from gpldla.utils.files import (
    read_json,
    read_tensors,
    require_finite,
    tensors_checksum,
    write_json,
    write_tensors,
)

EMBEDDED = "config"  # the key of the configuration in the file of the weights


def write_model_files(folder: Path, weights: Mapping[str, Tensor], config: dict[str, Any]) -> None:
    """Write model.safetensors, which is the model, and config.json, with the checksum of both."""
    digest = write_tensors(folder / WEIGHTS, weights, {EMBEDDED: config})
    write_json(folder / CONFIG, {**config, CHECKSUM: digest})


def read_model_files(folder: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the weights and the configuration; refuse files that were changed since they were written.

    Folders of earlier versions have no checksums, and their configuration is that of config.json.
    """
    readable = folder / CONFIG
    if not readable.is_file() and not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder} is not a model: it has no {CONFIG}; train one with `gpldla train`.")
    written = read_json(readable) if readable.is_file() else None
    weights, info = read_tensors(folder / WEIGHTS)
    require_finite(folder / WEIGHTS, weights)
    named = written.pop(CHECKSUM, None) if isinstance(written, dict) else None
    if not isinstance(info, dict) or EMBEDDED not in info:
        if named not in (None, tensors_checksum(weights, {EMBEDDED: written})):
            raise UserError(f"{folder} is damaged: its checksum does not match; get its files anew.")
        return weights, written
    config = info[EMBEDDED]
    is_older = named is not None and named != info.get(CHECKSUM)  # left by a process that was stopped
    if written is not None and not is_older and json.dumps(written) != json.dumps(config):
        raise UserError(
            f"{readable} was changed or damaged: it differs from the configuration in {WEIGHTS}; delete it,"
            " and that one counts."
        )
    return weights, config
