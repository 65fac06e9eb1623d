"""Networks of timm, by names such as `timm:resnet18.a1_in1k` or `timm:/path/to/folder`."""

import math
from dataclasses import replace
from typing import Any

from torch import nn

from gpldla.backbones.base import Backbone, register_loader
from gpldla.backbones.foreign import ForeignNetwork
from gpldla.backbones.local_files import LocalModel, find_locally
from gpldla.backbones.names import ModelName, is_folder
from gpldla.data.preprocessing import INTERPOLATIONS, Preprocessing
from gpldla.utils.errors import UserError, first_line

WEIGHTS = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
CROP = 0.875  # timm's own default


@register_loader("timm")
def timm_network(name: ModelName) -> Backbone:
    """Return a network of timm with its pretrained weights, from this machine, and its preprocessing."""
    try:
        import timm.data
        import timm.models
    except (ImportError, RuntimeError) as error:  # a torchvision that does not fit is a RuntimeError
        raise UserError(
            f"Model '{name}' needs timm, which cannot be imported ({first_line(error)}); pip install timm."
        ) from None
    try:
        network, found = _create(timm, name)
    except UserError:
        raise
    except Exception as error:  # an unknown name, or weights that do not fit
        raise UserError(f"timm cannot make {name.name!r} ({first_line(error)}).") from None
    facts = timm.data.resolve_model_data_config(network)
    backbone = ForeignNetwork(network, _preprocessing(facts, name), traceable=True)
    backbone.name = str(found.name if is_folder(name.name) else replace(found.name, name=name.name))
    return backbone


def _create(timm: Any, name: ModelName) -> tuple[nn.Module, LocalModel]:
    """Return the network without its classes, and where its weights are."""
    options: dict[str, Any] = {"pretrained": True, "num_classes": 0}
    if is_folder(name.name):
        found = find_locally(name)
        called = f"local-dir:{found.folder}"
    else:
        known = timm.models.get_pretrained_cfg(name.name)
        hub_id = getattr(known, "hf_hub_id", None)
        if not hub_id:
            raise UserError(
                f"timm knows no weights of {name.name!r} on the hub; name another model, or give its folder"
                " as timm:/path/to/folder."
            )
        found = find_locally(replace(name, prefix="timm", name=hub_id))
        weights = found.file(*WEIGHTS)
        if weights is None:
            raise UserError(f"Model '{name}' has no weights in {found.folder}; download its files again.")
        called, options["pretrained_cfg_overlay"] = name.name, {"file": str(weights)}
    if name.size is not None:
        try:
            return timm.create_model(called, img_size=name.size, **options), found
        except TypeError:  # a network without positions takes any size
            pass
    return timm.create_model(called, **options), found


def _preprocessing(facts: dict[str, Any], name: ModelName) -> Preprocessing:
    channels, side, _ = facts["input_size"]
    size, mode = name.size or side, facts.get("crop_mode", "center")
    interpolation = facts.get("interpolation", "bicubic")
    if mode not in ("center", "squash") or interpolation not in INTERPOLATIONS:
        raise UserError(
            f"Model '{name}' wants pictures resized by {interpolation} and cropped by {mode}, which is not"
            " known here; give it as a torch module with preprocessing=Preprocessing(...)."
        )
    return Preprocessing(
        size,
        channels,
        tuple(facts["mean"]),
        tuple(facts["std"]),
        before_crop=math.floor(size / (facts.get("crop_pct") or CROP)),
        keep_aspect=mode == "center",
        interpolation=interpolation,
    )
