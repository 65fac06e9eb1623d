"""The interface of backbones, and their registry."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gpldla.backbones.names import ModelName
from gpldla.data.preprocessing import Preprocessing, Reads, TextPreprocessing
from gpldla.utils.errors import UserError
from gpldla.utils.registry import Registry

Loader = TypeVar("Loader", bound="Callable[[ModelName], Backbone]")


class Backbone(nn.Module, ABC):
    """A network from images [n, channels, size, size] to features [n, feature_dim].

    reads:      kind of its inputs; a backbone that reads texts is a `TextBackbone`
    pretrained: whether its weights come from an installed package, so that files name the backbone instead of
                storing its weights
    traceable:  whether a graph that is traced once computes the same as the network
    any_size:   whether it also takes pictures of other sizes than `preprocessing.size`
    name:       what `create_backbone` finds the same weights by, where that is not the name that was given
    """

    reads: ClassVar[Reads] = "pictures"
    pretrained: ClassVar[bool] = False
    traceable: bool = True
    any_size: ClassVar[bool] = False
    name: str | None = None
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

    def text_features(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim] of texts, such as names, in the space of `features`.

        Only text encoders and networks that were trained on pictures with texts have them.
        """
        raise UserError(
            f"{self.name or type(self).__name__} has no encoder of texts, so names of classes mean nothing"
            " to it; choose a text-image model such as CLIP or SigLIP (hf:ORG/NAME)."
        )

    def facts(self) -> dict[str, Any]:
        """Return what else determines the features, such as a foreign architecture, as JSON."""
        return {}

    def fingerprint(self) -> str:
        """Return a hash of what the network computes, 64 hexadecimal digits.

        It depends on the class, the weights and the preprocessing, not on the device or the memory format.
        """
        # Of one class: conv4 and conv4np have weights of the same names and shapes.
        facts = [_class_name(type(self)), self.preprocessing.as_json()]
        if more := self.facts():
            facts.append(json.dumps(more, sort_keys=True))
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

    def text_features(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim]."""
        return self.features(texts)

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


class TokenBackbone(TextBackbone):
    """A network from tokens to features, with its own tokens; other engines can run it."""

    preprocessing: TextPreprocessing

    @abstractmethod
    def tokenise(self, texts: list[str]) -> list[list[int]]:
        """Return the numbers of the tokens of each text, cut at the network's own length."""

    def tokenizer_json(self) -> str | None:
        """Return the rules of `tokenise` as the library `tokenizers` writes them; None if they are others."""
        return None

    @abstractmethod
    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the features [n, feature_dim] of tokens [n, longest]; mask: 0 where they are filled up."""

    def forward(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim]."""
        device = next(self.parameters()).device
        tokens, mask = (torch.from_numpy(array).to(device) for array in padded(self.tokenise(texts)))
        return self.encode(tokens, mask)


def padded(tokens: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Fill lists of tokens up to the longest: their numbers and the mask, int64 [n, longest] each."""
    numbers = np.zeros((len(tokens), max(map(len, tokens), default=0)), np.int64)
    mask = np.zeros_like(numbers)
    for row, own in enumerate(tokens):
        numbers[row, : len(own)], mask[row, : len(own)] = own, 1
    return numbers, mask


_BACKBONES: Registry[type[Backbone]] = Registry("backbone", group="gpldla.backbones")
register_backbone = _BACKBONES.register


_LOADERS: dict[str, Callable[[ModelName], Backbone]] = {}  # by the prefix of a name


def register_loader(prefix: str) -> Callable[[Loader], Loader]:
    """Return a decorator for a function to the backbone with a name such as `prefix:NAME`."""

    def remember(loader: Loader) -> Loader:
        _LOADERS[prefix] = loader
        return loader

    return remember


def is_backbone_name(name: str) -> bool:
    """Return whether `create_backbone` knows this name, or at least its prefix."""
    return name in _BACKBONES or has_loader(name) or ModelName.parse(name).name in _BACKBONES


def has_loader(name: str) -> bool:
    """Return whether a name has the prefix of another library; these names are many and not listed."""
    return name not in _BACKBONES and name.partition(":")[0] in _LOADERS and ":" in name


def list_backbones(*, pretrained: bool = False) -> list[str]:
    """Return the names that `create_backbone` knows; on request only those with trained weights."""
    return sorted(name for name in _BACKBONES if _BACKBONES[name].pretrained or not pretrained)


def backbone_preprocessing(name: str) -> Preprocessing:
    """Return the preprocessing of a backbone's images, if possible without creating the backbone."""
    backbone = _BACKBONES[name] if name in _BACKBONES else create_backbone(name)
    if backbone.reads != "pictures":
        raise UserError(f"Backbone {name!r} reads {backbone.reads}, not pictures; choose another one.")
    return backbone.preprocessing


def create_backbone(name: str) -> Backbone:
    """Create a backbone by name, with fresh random weights unless it is a pretrained one.

    `NAME,size=PIXELS` reads pictures of another size, where the network takes several.
    """
    if has_loader(name):
        return _LOADERS[name.partition(":")[0]](ModelName.parse(name))
    parsed = ModelName.parse(name)
    if name in _BACKBONES or parsed.size is None:
        return _BACKBONES.find(name)()
    backbone = _BACKBONES.find(parsed.name)()
    if not backbone.any_size:
        raise UserError(f"Backbone {parsed.name!r} reads one size of pictures only; leave out the size.")
    backbone.preprocessing = backbone.preprocessing.with_size(parsed.size)
    return backbone
