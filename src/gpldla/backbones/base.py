"""What a backbone looks like from outside, and the registry of backbones."""

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from gpldla.data.preprocessing import Preprocessing, Reads, TextPreprocessing
from gpldla.utils.errors import UserError
from gpldla.utils.registry import Registry


class Backbone(nn.Module, ABC):
    """A network from images [n, channels, size, size] to features [n, feature_dim].

    reads: what it is for; one that reads texts is a `TextBackbone`
    pretrained: its weights come from an installed package, so files name them instead of holding them
    """

    reads: ClassVar[Reads] = "pictures"
    pretrained: ClassVar[bool] = False
    preprocessing: Preprocessing  # its class's, or its own where they differ
    feature_dim: int
    map_shape: tuple[int, int, int]  # channels, height and width of the last feature maps

    @abstractmethod
    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps [n, c, h, w]."""

    @abstractmethod
    def forward(self, images: Any) -> Tensor:  # a Tensor, but for those that read texts
        """Return the features [n, feature_dim] of images as they are."""

    def features(self, images: Any) -> Tensor:
        """Return the features [n, feature_dim] that stand for images outside of training.

        Where `preprocessing` has mirrored they are the same for an image and its mirror image.
        """
        features = self(images)
        if self.preprocessing.mirrored:
            features = (features + self(images.flip(-1))) / 2
        return features

    def fingerprint(self) -> str:
        """Return a name for what the network computes now, 64 hexadecimal digits.

        Two networks of one class with the same weights and preprocessing have the same fingerprint, wherever
        their weights lie: neither the device nor the memory format counts. Training changes it.
        """
        # Of one class: conv4 and conv4np have weights of the same names and shapes.
        facts = [_class_name(type(self)), self.preprocessing.as_json()]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


def _class_name(kind: type[Backbone]) -> str:
    """Return the name of a class, with its module where it comes from another package."""
    of_this_package = kind.__module__.startswith("gpldla.")
    return kind.__name__ if of_this_package else f"{kind.__module__}.{kind.__name__}"


class TextBackbone(Backbone):
    """A network from n texts to features [n, feature_dim].

    It stands among the backbones because heads, files and caches need not know the difference. What prepares
    inputs does: it asks `reads` before it hands them over.
    """

    reads: ClassVar[Reads] = "texts"
    preprocessing: TextPreprocessing  # type: ignore[assignment]

    @abstractmethod
    def forward(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim]."""

    def features(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim]."""
        return self(texts)

    @property
    def map_shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Texts have no feature maps: this raises."""
        self._refuse_maps()

    def maps(self, images: Tensor) -> Tensor:
        """Texts have no feature maps: this raises."""
        self._refuse_maps()

    def _refuse_maps(self) -> NoReturn:
        raise UserError(
            f"{type(self).__name__} reads texts and has no feature maps;"
            " choose a head that consumes features."
        )


_BACKBONES: Registry[type[Backbone]] = Registry("backbone", group="gpldla.backbones")
register_backbone = _BACKBONES.register


def list_backbones() -> list[str]:
    """Return the names that `create_backbone` knows."""
    return sorted(_BACKBONES)


def backbone_preprocessing(name: str) -> Preprocessing:
    """Return what a backbone wants its images to be, without making it."""
    backbone = _BACKBONES.find(name)
    if backbone.reads != "pictures":
        raise UserError(f"Backbone {name!r} reads {backbone.reads}, not pictures; choose another one.")
    return backbone.preprocessing


def create_backbone(name: str) -> Backbone:
    """Make a backbone by name, with fresh random weights unless it is a pretrained one."""
    return _BACKBONES.find(name)()
