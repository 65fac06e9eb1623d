"""What a backbone looks like from outside, and the registry of backbones."""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn

from gpldla.errors import UserError
from gpldla.registry import Registry

Reads = Literal["pictures", "texts"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ZOOM = 1.15  # what images are usually enlarged by before their centre is cropped


def resized_side(size: int, zoom: float = ZOOM) -> int:
    """Return the side of an image before the centre crop: 96 for 84, 32 for 28, 257 for 224."""
    return int(size * zoom)


@dataclass(frozen=True)
class Preprocessing:
    """What images must be turned to before a backbone sees them; travels with the weights.

    Images are resized to zoom × size on both sides, cropped at the centre, and standardised a channel.

    mirrored: outside of training an image has the mean of its own features and those of its mirror image
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    zoom: float = ZOOM
    mirrored: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.zoom, bool) or not isinstance(self.zoom, (int, float)) or not 1 <= self.zoom <= 2:
            raise UserError(f"zoom must be a number from 1 to 2, not {self.zoom!r}.")
        if not isinstance(self.mirrored, bool):
            raise UserError(f"mirrored must be true or false, not {self.mirrored!r}.")

    def as_json(self) -> dict[str, object]:
        """Return the facts as they stand in a model's config.json: zoom and mirrored if they are unusual."""
        facts = {"size": self.size, "channels": self.channels, "mean": list(self.mean), "std": list(self.std)}
        unusual = {"zoom": self.zoom} if self.zoom != ZOOM else {}
        return facts | unusual | ({"mirrored": True} if self.mirrored else {})

    @property
    def resized(self) -> int:
        """Side of the image before the centre crop."""
        return resized_side(self.size, self.zoom)


@dataclass(frozen=True)
class TextPreprocessing:
    """What texts are cut to before a backbone sees them."""

    max_tokens: int

    def as_json(self) -> dict[str, object]:
        """Return the facts as they stand in a model's config.json."""
        return {"max_tokens": self.max_tokens}


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
        facts = [type(self).__name__, self.preprocessing.as_json()]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


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


_BACKBONES: Registry[type[Backbone]] = Registry("backbone")
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
