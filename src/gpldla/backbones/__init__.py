"""Networks from images or texts to features, one family per file; importing this package registers all."""

from importlib import import_module
from pkgutil import iter_modules

from gpldla.backbones.base import (
    Backbone,
    TextBackbone,
    backbone_preprocessing,
    create_backbone,
    is_backbone_name,
    list_backbones,
    register_backbone,
)
from gpldla.backbones.foreign import ForeignNetwork
from gpldla.data.preprocessing import Preprocessing, TextPreprocessing

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Backbone",
    "ForeignNetwork",
    "Preprocessing",
    "TextBackbone",
    "TextPreprocessing",
    "backbone_preprocessing",
    "create_backbone",
    "is_backbone_name",
    "list_backbones",
    "register_backbone",
]
