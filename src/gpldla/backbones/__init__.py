"""Networks from images or texts to features, one family a file; importing this package registers them all."""

from gpldla.backbones import conv4, efficientnet_lite, minilm, pixels, resnet
from gpldla.backbones.base import (
    Backbone,
    Preprocessing,
    TextBackbone,
    TextPreprocessing,
    backbone_preprocessing,
    create_backbone,
    list_backbones,
    register_backbone,
)

__all__ = [
    "Backbone",
    "Preprocessing",
    "TextBackbone",
    "TextPreprocessing",
    "backbone_preprocessing",
    "conv4",
    "create_backbone",
    "efficientnet_lite",
    "list_backbones",
    "minilm",
    "pixels",
    "register_backbone",
    "resnet",
]
