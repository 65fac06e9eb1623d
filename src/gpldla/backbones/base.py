"""The interface of backbones, and their registry."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from gpldla.data.preprocessing import Preprocessing, Reads, TextPreprocessing
from gpldla.utils.errors import UserError
from gpldla.utils.registry import Registry

Loader = TypeVar("Loader", bound="Callable[[str], Backbone]")


class Backbone(nn.Module, ABC):
    """A network from images [n, channels, size, size] to features [n, feature_dim].

    reads:      kind of its inputs; a backbone that reads texts is a `TextBackbone`
    pretrained: whether its weights come from an installed package, so that files name the backbone instead of
                storing its weights
    """

    reads: ClassVar[Reads] = "pictures"
    pretrained: ClassVar[bool] = False
    preprocessing: Preprocessing  # of the class, or of the instance where a model chose settings
    feature_dim: int
    map_shape: tuple[int, int, int]  # channels, height and width of the last feature maps

    @abstractmethod
    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps [n, c, h, w]."""

    @abstractmethod
    def forward(self, images: Any) -> Tensor:  # a Tensor, but for those that read texts
        """Return the features [n, feature_dim] of prepared images."""

    def features(self, images: Any) -> Tensor:
        """Return the features [n, feature_dim] that are used outside of training.

        With `preprocessing.mirrored` they are the mean of those of an image and of its mirror image.
        """
        features: Tensor = self(images)
        if self.preprocessing.mirrored:
            features = (features + self(images.flip(-1))) / 2
        return features

    def fingerprint(self) -> str:
        """Return a hash of what the network computes, 64 hexadecimal digits.

        It depends on the class, the weights and the preprocessing, not on the device or the memory format.
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

    It is a backbone because heads, files and caches treat both alike; only code that prepares inputs asks
    `reads`.
    """

    reads: ClassVar[Reads] = "texts"
    preprocessing: TextPreprocessing  # type: ignore[assignment]

    @abstractmethod
    def forward(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim]."""

    def features(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim]."""
        features: Tensor = self(texts)
        return features

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


_LOADERS: dict[str, Callable[[str], Backbone]] = {}  # by the prefix of a name


def register_loader(prefix: str) -> Callable[[Loader], Loader]:
    """Return a decorator for a function from NAME to the backbone that is called `prefix:NAME`."""

    def remember(loader: Loader) -> Loader:
        _LOADERS[prefix] = loader
        return loader

    return remember


def is_backbone_name(name: str) -> bool:
    """Return whether `create_backbone` knows this name, or at least its prefix."""
    return name in _BACKBONES or name.partition(":")[0] in _LOADERS


def list_backbones(*, pretrained: bool = False) -> list[str]:
    """Return the names that `create_backbone` knows; on request only those with trained weights."""
    return sorted(name for name in _BACKBONES if _BACKBONES[name].pretrained or not pretrained)


def backbone_preprocessing(name: str) -> Preprocessing:
    """Return the preprocessing of a backbone's images, if possible without creating the backbone."""
    backbone = create_backbone(name) if name.partition(":")[0] in _LOADERS else _BACKBONES.find(name)
    if backbone.reads != "pictures":
        raise UserError(f"Backbone {name!r} reads {backbone.reads}, not pictures; choose another one.")
    return backbone.preprocessing


def create_backbone(name: str) -> Backbone:
    """Create a backbone by name, with fresh random weights unless it is a pretrained one."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _LOADERS and name not in _BACKBONES:
        return _LOADERS[prefix](rest)
    return _BACKBONES.find(name)()
