"""FewShotModel: backbone, head and preprocessing as one thing to train, save, load and adapt."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpldla.backbones import Backbone, Preprocessing, create_backbone
from gpldla.calibration import apply_temperature
from gpldla.data.transforms import evaluation_images
from gpldla.errors import UserError
from gpldla.files import read_json, read_tensors, write_json, write_tensors
from gpldla.heads import Head, Posterior, create_head, head_class
from gpldla.pictures import ImageLike, picture_tensor

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1


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
        self.head: Head = self._make_head(self.head_options)
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
            all_options = {**self.head_options, **changed}
            head = self._make_head(all_options)
            try:
                head.load_state_dict(self.head.state_dict())
            except RuntimeError:
                raise UserError(
                    f"{', '.join(changed)} of head {self.head_name!r} changes what it has learned;"
                    " train a model with it."
                ) from None
            self.head_options, self.head = all_options, head.to(self.device).train(self.training)

    def _make_head(self, options: dict[str, Any]) -> Head:
        backbone = self.backbone
        sees_maps = head_class(self.head_name).consumes == "maps"
        return create_head(
            self.head_name, backbone.map_shape if sees_maps else backbone.feature_dim, **options
        )

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

    @torch.no_grad()
    def embed(self, images: Sequence[ImageLike], *, batch_size: int = 256) -> Tensor:
        """Turn pictures to what the head consumes, [n, ...]."""
        self.eval()
        parts = []
        for start in range(0, len(images), batch_size):
            stacked = torch.stack(
                [picture_tensor(image, self.preprocessing) for image in images[start : start + batch_size]]
            )
            parts.append(self.represent(evaluation_images(stacked.to(self.device), self.preprocessing)))
        return torch.cat(parts)

    def adapt(self, images: Sequence[ImageLike], labels: Sequence[Any]) -> "FewShotClassifier":
        """Make a classifier from a few labelled pictures; labels may be of any type."""
        return FewShotClassifier(self, self.embed(_non_empty(images)), labels)

    def config(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON."""
        return {
            "format": FORMAT,
            "backbone": self.backbone_name,
            "head": self.head_name,
            "head_options": self.head_options,
            "preprocessing": self.preprocessing.as_json(),
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
        except UserError as error:
            raise UserError(f"{folder / CONFIG}: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / CONFIG} is not a whole model configuration ({error!r}).") from None
        if not 0 < model.temperature < math.inf:
            raise UserError(
                f"{folder / CONFIG} has the temperature {model.temperature}; it must be positive."
            )
        if config.get("preprocessing") != model.config()["preprocessing"]:
            raise UserError(f"{folder} was trained with another {model.backbone_name} than this version has.")
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
        """Adapt `model` to represented support examples [n, ...] with one label each.

        `classes` are sorted where labels can be compared, else in the order in which they come.
        """
        listed = _list_of_labels(labels)
        if len(listed) != len(support):
            raise UserError(
                f"There are {len(support)} images and {len(listed)} labels; give one label an image."
            )
        classes = _distinct(listed)
        if len(classes) < 2:
            raise UserError(
                f"All examples are of class {classes[0]!r}; give examples of at least two classes."
            )
        self.classes = _label_array(classes)
        self._model, self._support, self._labels = model, support, listed
        number_of = {label: number for number, label in enumerate(classes)}
        with torch.no_grad():
            numbers = torch.tensor([number_of[label] for label in listed], device=support.device)
            self._posterior = model.posterior(support, numbers, len(classes))

    def predict_proba(self, images: Sequence[ImageLike]) -> np.ndarray:
        """Return p(class | image), [n, n_classes] in the order of `classes`, with the model's temperature."""
        with torch.no_grad():
            log_prob = self._posterior.log_prob(self._model.embed(_non_empty(images)))
            return apply_temperature(log_prob, self._model.temperature).exp().cpu().numpy()

    def predict(self, images: Sequence[ImageLike]) -> np.ndarray:
        """Return the most probable class of each image."""
        return self.classes[self.predict_proba(images).argmax(-1)]

    def add(self, images: Sequence[ImageLike], labels: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier that has seen these examples, of known or new classes, as well."""
        support = torch.cat([self._support, self._model.embed(_non_empty(images))])
        return FewShotClassifier(self._model, support, [*self._labels, *_list_of_labels(labels)])


def _non_empty(images: Sequence[ImageLike]) -> Sequence[ImageLike]:
    if isinstance(images, (str, Path)) or not isinstance(images, Sequence | np.ndarray):
        raise UserError("Give a list of images, not a single one.")
    if len(images) == 0:
        raise UserError("There are no images; give at least one.")
    return images


def _list_of_labels(labels: Sequence[Any]) -> list[Any]:
    """Return labels as plain Python values."""
    listed = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise UserError("Give a list of labels, not a single one.")
    return [label.item() if isinstance(label, np.generic) else label for label in listed]


def _distinct(labels: list[Any]) -> list[Any]:
    try:
        distinct = dict.fromkeys(labels)
    except TypeError:
        raise UserError("Labels must be values such as strings, numbers or tuples, one an image.") from None
    try:
        return sorted(distinct)
    except TypeError:  # such as a string and a number
        return list(distinct)


def _label_array(labels: list[Any]) -> np.ndarray:
    """Return strings or numbers as an array of those, anything else as an array of objects."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1 and kinds <= {str, int, float, bool}:
        return np.array(labels)
    return np.fromiter(labels, dtype=object, count=len(labels))
