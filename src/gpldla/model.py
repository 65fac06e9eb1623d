"""FewShotModel: backbone, head and preprocessing as one thing to train, save, load and adapt."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gpldla.backbones import Backbone, Preprocessing, create_backbone
from gpldla.calibration import apply_temperature
from gpldla.data.transforms import evaluation_images
from gpldla.errors import UserError
from gpldla.files import read_json, read_tensors, write_json, write_tensors
from gpldla.heads import Head, Posterior, create_head

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1

ImageLike = Image.Image | str | Path | np.ndarray
"""A picture, the path of one, or an array [h, w], [h, w, 3] (uint8, or floats in 0..1)."""


class FewShotModel(nn.Module):
    """A network that adapts to new classes from a few examples.

    temperature: fitted on validation classes; `FewShotClassifier.predict_proba` applies it
    info: free facts that travel with the model (recipe, validation accuracy, ...)
    """

    def __init__(
        self,
        backbone: str,
        head: str = "gpldla",
        *,
        head_options: dict[str, Any] | None = None,
        temperature: float = 1.0,
        info: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.backbone_name, self.head_name, self.head_options = backbone, head, dict(head_options or {})
        # Channels last: what convolutions are fastest with, on CPUs as on GPUs.
        self.backbone: Backbone = create_backbone(backbone).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.head: Head = create_head(head, feature_dim=self.backbone.feature_dim, **self.head_options)
        self.temperature = temperature
        self.info = dict(info or {})

    @property
    def preprocessing(self) -> Preprocessing:
        """What images are turned to before the backbone sees them."""
        return self.backbone.preprocessing

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters(), torch.empty(0)).device  # on the CPU if it has nothing to learn

    def set_head_options(self, options: dict[str, Any]) -> None:
        """Change options of the head, such as the predictive; those that are None stay.

        The learned parameters stay as they are.
        """
        changed = {name: value for name, value in options.items() if value is not None}
        if changed:
            learned = self.head.state_dict()
            self.head_options = {**self.head_options, **changed}
            self.head = create_head(self.head_name, self.backbone.feature_dim, **self.head_options)
            self.head.load_state_dict(learned)
            self.head.train(self.training)

    def represent(self, images: Tensor) -> Tensor:
        """Turn prepared images [n, c, h, w] to what the head consumes, float32 [n, ...]."""
        images = images.contiguous(memory_format=torch.channels_last)
        if self.head.consumes == "features":
            return self.backbone(images).float()
        if self.head.consumes == "maps":
            return self.backbone.maps(images).float()
        return images

    def posterior(self, support: Tensor, labels: Tensor, n_way: int) -> Posterior:
        """Adapt to represented support examples [..., n, ...] with labels [..., n]."""
        return self.head.adapt(support, labels, n_way, backbone=self._adaptable_backbone())

    def forward(
        self, images: Tensor, labels: Tensor, query_labels: Tensor, n_way: int
    ) -> tuple[Tensor, Tensor]:
        """Return the training loss of one episode and what the head consumed.

        images: prepared, support first, then query [n + q, c, h, w]. BatchNorm sees them together.
        labels [n], query_labels [q].
        """
        represented = self.represent(images)
        # The head's matrices are tiny and its accuracy matters: no reduced precision there.
        with torch.autocast(images.device.type, enabled=False):
            support, query = represented[: len(labels)], represented[len(labels) :]
            loss = self.head.loss(
                support, labels, query, query_labels, n_way, backbone=self._adaptable_backbone()
            )
        return loss, represented.detach()

    def _adaptable_backbone(self) -> Backbone | None:
        return self.backbone if self.head.consumes == "backbone" else None

    @torch.inference_mode()
    def embed(self, images: Sequence[ImageLike], *, batch_size: int = 256) -> Tensor:
        """Turn pictures to what the head consumes, [n, ...]."""
        self.eval()
        parts = []
        for start in range(0, len(images), batch_size):
            stacked = torch.stack(
                [_to_tensor(image, self.preprocessing) for image in images[start : start + batch_size]]
            )
            parts.append(self.represent(evaluation_images(stacked.to(self.device), self.preprocessing)))
        return torch.cat(parts)

    def adapt(self, images: Sequence[ImageLike], labels: Sequence[Any]) -> "FewShotClassifier":
        """Make a classifier from a few labelled pictures; labels may be of any type that sorts."""
        return FewShotClassifier(self, self.embed(_non_empty(images)), labels)

    def config(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON."""
        return {
            "format": FORMAT,
            "backbone": self.backbone_name,
            "head": self.head_name,
            "head_options": self.head_options,
            "preprocessing": asdict(self.preprocessing),
            "temperature": self.temperature,
            "info": self.info,
        }

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors and config.json."""
        folder = Path(folder)
        write_tensors(folder / WEIGHTS, self.state_dict())
        write_json(folder / CONFIG, self.config())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "FewShotModel":
        """Load a folder written by `save`, ready for evaluation."""
        folder = Path(folder)
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder} is not a model: it has no {CONFIG}; train one with `gpldla train`.")
        config = read_json(folder / CONFIG)
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise UserError(f"{folder / CONFIG} is not a model configuration of format {FORMAT}.")
        try:
            model = cls(
                config["backbone"],
                config["head"],
                head_options=config["head_options"],
                temperature=float(config["temperature"]),
                info=config["info"],
            )
        except (KeyError, TypeError) as error:
            raise UserError(f"{folder / CONFIG} is not a whole model configuration ({error!r}).") from None
        weights, _ = read_tensors(folder / WEIGHTS)
        try:
            model.load_state_dict(weights)
        except RuntimeError:
            raise UserError(
                f"{folder / WEIGHTS} does not fit {model.backbone_name} with {model.head_name}."
            ) from None
        return model.eval()


class FewShotClassifier:
    """A FewShotModel adapted to a task."""

    def __init__(self, model: FewShotModel, support: Tensor, labels: Sequence[Any]) -> None:
        """Adapt `model` to represented support examples [n, ...] with one label each."""
        names = np.asarray(labels)
        if names.ndim != 1 or len(names) != len(support):
            raise UserError(
                f"There are {len(support)} images and {names.size} labels; give one label an image."
            )
        self.classes, codes = np.unique(names, return_inverse=True)
        if len(self.classes) < 2:
            raise UserError(
                f"All examples are of class {self.classes[0]!r}; give examples of at least two classes."
            )
        self._model, self._support, self._labels = model, support, names
        with torch.inference_mode():
            codes_tensor = torch.from_numpy(codes).to(support.device)
            self._posterior = model.posterior(support, codes_tensor, len(self.classes))

    def predict_proba(self, images: Sequence[ImageLike]) -> np.ndarray:
        """Return p(class | image), [n, n_classes] in the order of `classes`, with the model's temperature."""
        with torch.inference_mode():
            log_prob = self._posterior.log_prob(self._model.embed(_non_empty(images)))
            return apply_temperature(log_prob, self._model.temperature).exp().cpu().numpy()

    def predict(self, images: Sequence[ImageLike]) -> np.ndarray:
        """Return the most probable class of each image."""
        return self.classes[self.predict_proba(images).argmax(-1)]

    def add(self, images: Sequence[ImageLike], labels: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier that has seen these examples, of known or new classes, as well."""
        support = torch.cat([self._support, self._model.embed(_non_empty(images))])
        return FewShotClassifier(self._model, support, [*self._labels.tolist(), *labels])


def _non_empty(images: Sequence[ImageLike]) -> Sequence[ImageLike]:
    if isinstance(images, (str, Path, Image.Image)):
        raise UserError("Give a list of images, not a single one.")
    if len(images) == 0:
        raise UserError("There are no images; give at least one.")
    return images


def _to_tensor(image: ImageLike, preprocessing: Preprocessing) -> Tensor:
    """Read one picture as uint8 [channels, resized, resized]."""
    if isinstance(image, (str, Path)):
        try:
            with Image.open(image) as opened:
                picture = opened.convert("L" if preprocessing.channels == 1 else "RGB")
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"{image} cannot be read as an image ({error}).") from None
    else:
        if isinstance(image, np.ndarray):
            if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (3, 4)):
                raise UserError(f"An image array must be [h, w] or [h, w, 3], not {list(image.shape)}.")
            if np.issubdtype(image.dtype, np.floating):
                image = (image.clip(0, 1) * 255).round()
            image = Image.fromarray(image.astype(np.uint8))
        picture = image.convert("L" if preprocessing.channels == 1 else "RGB")
    side = preprocessing.resized
    if picture.size != (side, side):
        picture = picture.resize((side, side), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture)).view(side, side, -1).permute(2, 0, 1)
