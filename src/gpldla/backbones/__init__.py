"""Networks from images to features, one family a file; importing this package registers them all."""

from gpldla.backbones import conv4, pixels, resnet
from gpldla.backbones.base import (
    Backbone,
    Preprocessing,
    backbone_preprocessing,
    create_backbone,
    list_backbones,
    register_backbone,
)

__all__ = [
    "Backbone",
    "Preprocessing",
    "backbone_preprocessing",
    "conv4",
    "create_backbone",
    "list_backbones",
    "pixels",
    "register_backbone",
    "resnet",
]
