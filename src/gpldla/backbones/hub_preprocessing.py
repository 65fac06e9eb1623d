"""The preprocessing that a model of the hub asks for, from its preprocessor_config.json.

It is read here because transformers' own image processors need torchvision, or do not stretch, crop and scale
as one step that heads, caches and exported graphs share.
"""

import json
import math
from typing import Any

from gpldla.backbones.local_files import LocalModel
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.errors import UserError

FILE, NESTED = "preprocessor_config.json", "processor_config.json"  # newer versions write the second
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
CONVNEXT_STRETCHED_FROM = 384  # pixels: ConvNeXt stretches pictures from this size on, and crops below it
CONVNEXT_CROP = 224 / 256  # the share that it keeps below


def read_preprocessing(model: LocalModel, channels: int, *, resample: int, stretched: bool) -> Preprocessing:
    """Return what pictures are turned into for a model.

    resample, stretched: what this family does where the file leaves it open, in Pillow's number and for a
        size that is a single number
    """
    facts = _read(model)
    try:
        return _Reader(facts, resample, stretched).preprocessing(channels)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise UserError(
            f"The preprocessing of model '{model.name}' cannot be followed ({reason}); give the network as"
            " a module with preprocessing=Preprocessing(...)."
        ) from None


def _read(model: LocalModel) -> dict[str, Any]:
    file = model.file(FILE, NESTED)
    if file is None:
        raise UserError(
            f"Model '{model.name}' has no {FILE} in {model.folder}, which says how pictures are resized;"
            " download all of its files again."
        )
    facts = read_facts(file, model)
    facts = facts.get("image_processor", facts) if file.name == NESTED else facts
    if not isinstance(facts, dict):
        raise UserError(f"{file} is damaged; download the model's files again.")
    return facts


def read_facts(file: Any, model: LocalModel) -> dict[str, Any]:
    """Return the JSON object in a file of a model."""
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError):
        facts = None
    if not isinstance(facts, dict):
        raise UserError(f"{file} is damaged; download the files of model '{model.name}' again.")
    return facts


class _Reader:
    """The facts of one file, with the defaults of its family."""

    def __init__(self, facts: dict[str, Any], resample: int, stretched: bool) -> None:
        self.facts, self.resample, self.stretched = facts, resample, stretched
        kind = str(facts.get("image_processor_type", facts.get("feature_extractor_type", "")))
        self.is_convnext = kind.startswith("ConvNext")

    def preprocessing(self, channels: int) -> Preprocessing:
        facts = self.facts
        if not facts.get("do_resize", True):
            raise ValueError("it does not resize pictures")
        resample = facts.get("resample", self.resample)
        if resample not in RESAMPLE:
            raise ValueError(f"it resizes with Pillow's filter {resample}; known are 2 and 3")
        size, before_crop, keep_aspect = self._shape()
        mean, std = self._standardisation(channels)
        return Preprocessing(
            size, channels, mean, std, before_crop, keep_aspect, interpolation=RESAMPLE[resample]
        )

    def _shape(self) -> tuple[int, int, bool]:
        """Return the size, the side before the crop, and whether the aspect is kept."""
        given = self.facts["size"]
        if self.is_convnext:
            side = _side(given.get("shortest_edge", given) if isinstance(given, dict) else given)
            if side >= CONVNEXT_STRETCHED_FROM:
                return side, side, False
            return side, int(side / float(self.facts.get("crop_pct") or CONVNEXT_CROP)), True
        if isinstance(given, dict) and "shortest_edge" in given:
            side, keep_aspect = _side(given["shortest_edge"]), True
        elif isinstance(given, dict):
            side, keep_aspect = _side(given), False
        else:
            side, keep_aspect = _side(given), not self.stretched
        crops = self.facts.get("do_center_crop", "crop_size" in self.facts)
        if not crops:
            if keep_aspect:
                raise ValueError("it gives pictures of different shapes")
            return side, side, False
        size = _side(self.facts["crop_size"])
        if size > side:
            raise ValueError(f"it crops {size} pixels of {side}")
        return size, side, keep_aspect

    def _standardisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        facts = self.facts
        # Ours are in 0..1; the network's are pixels times the factor, minus the mean, over the deviation.
        scale = (
            255 * float(facts.get("rescale_factor") or 1 / 255) if facts.get("do_rescale", True) else 255.0
        )
        if not facts.get("do_normalize", True):
            return (0.0,) * channels, (1 / scale,) * channels
        mean, std = (_per_channel(facts[name], channels) for name in ("image_mean", "image_std"))
        if math.isclose(scale, 1, rel_tol=1e-6):
            return mean, std
        return tuple(value / scale for value in mean), tuple(value / scale for value in std)


def _side(given: Any) -> int:
    if isinstance(given, dict):
        height, width = given["height"], given["width"]
        if height != width:
            raise ValueError(f"its pictures are not square: {height} × {width}")
        given = height
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"size {given!r} is not a number of pixels")
    return given


def _per_channel(values: Any, channels: int) -> tuple[float, ...]:
    listed = [values] * channels if isinstance(values, (int, float)) else list(values)
    if len(listed) != channels:
        raise ValueError(f"{len(listed)} values for {channels} channels")
    return tuple(float(value) for value in listed)
