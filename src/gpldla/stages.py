"""The stages of a training: a classifier of the base classes, where a method wants one, and episodes."""

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from gpldla import checkpoint
from gpldla.backbones import Backbone
from gpldla.data import Part
from gpldla.data.part_images import PartImages
from gpldla.data.training_images import TRAINING_TRANSFORMS
from gpldla.episodes import Episodes, EpisodeSampler
from gpldla.errors import UserError
from gpldla.evaluation import Task
from gpldla.heads.base import unit_length
from gpldla.model import FewShotModel
from gpldla.recipe import Recipe

EPISODES_DRAWN_AT_ONCE = 256
ACCURACY_EVERY = 5  # episodes, at most, between looks at the training accuracy: a second pass of the head


class Window:
    """Means since the last report: sums and counts by name."""

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in (sums or {}).items()}

    def add(self, name: str, value: float) -> None:
        """Count one more value."""
        pair = self.sums.setdefault(name, [0.0, 0.0])
        pair[0] += value
        pair[1] += 1

    def means(self) -> dict[str, float]:
        """Return the means by name."""
        return {name: total / count for name, (total, count) in self.sums.items()}


@dataclass
class Material:
    """What a stage works with: the model that it changes, and the images of the base classes."""

    recipe: Recipe
    model: FewShotModel
    part: Part
    fabric: Fabric

    def __post_init__(self) -> None:
        self._images = PartImages(self.part, self.fabric.device)
        self._transform = TRAINING_TRANSFORMS[self.recipe.augment]

    def training_images(self, numbers: Tensor) -> Tensor:
        """Return augmented images [n, channels, size, size] by their numbers in the part."""
        stored = self._images[numbers]
        return self._transform(stored.pixels, self.model.preprocessing, stored.shapes)


class Stage(ABC):
    """One way to learn: how far it has come, and what takes a step.

    step_name: what a position is called in the metrics
    unit:      what is counted, for people
    """

    step_name: ClassVar[str]
    unit: ClassVar[str]

    def __init__(self, material: Material, total: int) -> None:
        self.material, self.total, self.done = material, total, 0
        self.window = Window()
        self.base_rates: list[float] = []
        self.optimizer: torch.optim.Optimizer

    @abstractmethod
    def update(self) -> None:
        """Take one optimiser step and move on."""

    @abstractmethod
    def rate_factor(self) -> float:
        """Return what the learning rates are multiplied with now."""

    @property
    @abstractmethod
    def validate_every(self) -> int:
        """How often the validation classes are looked at; 0: only at the end."""

    def own_tensors(self) -> dict[str, Tensor]:
        """Return what the stage learns beside the model."""
        return {}

    def restore_own(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027 (most have nothing)
        """Put back what `own_tensors` returned."""

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the optimiser's state."""
        return checkpoint.optimizer_tensors(self._plain_optimizer())

    def restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `optimizer_tensors` returned."""
        checkpoint.restore_optimizer(self._plain_optimizer(), tensors)

    def _plain_optimizer(self) -> torch.optim.Optimizer:
        return getattr(self.optimizer, "optimizer", self.optimizer)  # without Fabric's wrapper

    def _set_rates(self) -> None:
        factor = self.rate_factor()
        for group, rate in zip(self.optimizer.param_groups, self.base_rates):
            group["lr"] = rate * factor

    def _check_finite(self, loss: Tensor, setting: str) -> None:
        if not torch.isfinite(loss):
            raise UserError(
                f"The loss is not a number any more after {self.done} {self.unit};"
                f" use a smaller {setting} or another precision."
            )


# ---- episodes


def episode_sampler(material: Material) -> EpisodeSampler:
    """Return what draws the training episodes; episodes that the base classes cannot fill are refused."""
    recipe = material.recipe
    task = Task(recipe.ways, recipe.shots, recipe.queries, recipe.separate_groups)
    return task.sampler(material.part, seed=recipe.seed, split="base")


class EpisodeStage(Stage):
    """Meta-training: episodes of the base classes, one after the other.

    frozen_backbone: the network stays as it is, and only the head's parameters learn
    """

    step_name, unit = "episode", "episodes"

    def __init__(self, material: Material, *, frozen_backbone: bool) -> None:
        recipe, model = material.recipe, material.model
        super().__init__(material, recipe.episodes)
        self.sampler = episode_sampler(material)
        self.frozen_backbone = frozen_backbone
        model.backbone.requires_grad_(not frozen_backbone)
        groups = [{"params": list(model.head.parameters()), "lr": recipe.head_learning_rate}]
        if not frozen_backbone:
            groups.insert(0, {"params": list(model.backbone.parameters()), "lr": recipe.learning_rate})
        self.base_rates = [float(group["lr"]) for group in groups]  # type: ignore[arg-type]
        self.wrapped, self.optimizer = material.fabric.setup(model, torch.optim.Adam(groups))
        self._drawn_from, self._drawn = 0, self._draw(0)

    @property
    def validate_every(self) -> int:
        """Episodes between looks at the validation classes."""
        return self.material.recipe.validate_every

    def rate_factor(self) -> float:
        """Follow the recipe's schedule."""
        return self.material.recipe.learning_rate_factor(self.done)

    def update(self) -> None:
        """Take one optimiser step on the mean loss of some episodes; BatchNorm sees one episode at a time."""
        material, recipe = self.material, self.material.recipe
        self.wrapped.train()
        if self.frozen_backbone:
            material.model.backbone.eval()
        self._set_rates()
        episodes = self._next_episodes()
        device = material.fabric.device
        labels, query_labels = episodes.labels.to(device), episodes.query_labels.to(device)
        for support, query in zip(episodes.support, episodes.query):
            images = material.training_images(torch.cat([support, query]))
            loss, represented = self.wrapped(images, labels, query_labels, recipe.ways)
            self._check_finite(loss, "head_learning_rate" if self.frozen_backbone else "learning_rate")
            material.fabric.backward(loss / len(episodes.support))
            self.window.add("loss", loss.item())
            if self.done % min(ACCURACY_EVERY, recipe.log_every) == 0:
                self.window.add("accuracy", self._accuracy(represented, labels, query_labels))
            self.done += 1
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _next_episodes(self) -> Episodes:
        """Return the episodes of the next update; they are drawn many at once."""
        size = min(self.material.recipe.episodes_per_update, self.total - self.done)
        first = self.done - self._drawn_from
        if not 0 <= first <= len(self._drawn.support) - size:
            self._drawn_from, self._drawn, first = self.done, self._draw(self.done), 0
        chosen, drawn = slice(first, first + size), self._drawn
        return Episodes(
            drawn.support[chosen],
            drawn.labels,
            drawn.query[chosen],
            drawn.query_labels,
            drawn.classes[chosen],
        )

    def _draw(self, first: int) -> Episodes:
        at_once = max(self.material.recipe.episodes_per_update, EPISODES_DRAWN_AT_ONCE)
        return self.sampler.draw(first, min(at_once, self.total - first))

    @torch.no_grad()
    def _accuracy(self, represented: Tensor, labels: Tensor, query_labels: Tensor) -> float:
        support, query = represented[: len(labels)], represented[len(labels) :]
        log_prob = self.material.model.posterior(support, labels, self.material.recipe.ways).log_prob(query)
        return 100 * (log_prob.argmax(-1) == query_labels).float().mean().item()


# ---- a classifier of the base classes


class BaseStage(Stage):
    """The network learns to tell all base classes apart, with a last layer that is then thrown away.

    classifier: "linear", or "cosine": class-wise norms and directions on features of unit length
    """

    step_name, unit = "base_batch", "batches"

    def __init__(self, material: Material, classifier: str) -> None:
        recipe, model = material.recipe, material.model
        counts = material.part.counts
        self.batches_an_epoch = math.ceil(int(counts.sum()) / recipe.base_batch)
        super().__init__(material, max(1, round(recipe.base_epochs * self.batches_an_epoch)))
        self.class_of_image = torch.repeat_interleave(torch.arange(len(counts)), torch.from_numpy(counts))
        self.network = _BaseNetwork(
            model.backbone, _LAYERS[classifier](model.backbone.feature_dim, len(counts))
        )
        self.network.to(material.fabric.device)
        parameters = self.network.parameters()
        rate, decay = recipe.base_learning_rate, recipe.base_weight_decay
        optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=decay)
            if recipe.base_optimizer == "sgd"
            else torch.optim.Adam(parameters, rate, weight_decay=decay)
        )
        self.base_rates = [rate]
        self._epoch = -1  # that the batches are shuffled for
        self._batches: tuple[Tensor, ...] = ()
        self.wrapped, self.optimizer = material.fabric.setup(self.network, optimizer)

    @property
    def validate_every(self) -> int:
        """Batches between looks at the validation classes."""
        return self.material.recipe.base_validate_every * self.batches_an_epoch

    def rate_factor(self) -> float:
        """Follow the recipe's schedule; "step" is a tenth after half and again after three quarters."""
        schedule, progress = self.material.recipe.base_schedule, self.done / self.total
        if schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        if schedule == "step":
            return 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
        return 1.0

    def update(self) -> None:
        """Take one optimiser step on the cross-entropy of a batch."""
        self.wrapped.train()
        self._set_rates()
        numbers = self._next_batch()
        labels = self.class_of_image[numbers].to(self.material.fabric.device)
        scores = self.wrapped(self.material.training_images(numbers)).float()
        loss = F.cross_entropy(scores, labels)
        self._check_finite(loss, "base_learning_rate")
        self.material.fabric.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.window.add("loss", loss.item())
        self.window.add("accuracy", 100 * (scores.argmax(-1) == labels).float().mean().item())
        self.done += 1

    def own_tensors(self) -> dict[str, Tensor]:
        """Return the weights of the last layer."""
        return self.network.layer.state_dict()

    def restore_own(self, tensors: dict[str, Tensor]) -> None:
        """Put back the weights of the last layer."""
        self.network.layer.load_state_dict(tensors)

    def _next_batch(self) -> Tensor:
        """Return image numbers: each epoch shuffles all images anew, by (seed, epoch) alone."""
        epoch, batch = divmod(self.done, self.batches_an_epoch)
        if epoch != self._epoch:
            key = f"base {self.material.recipe.seed} {epoch}".encode()
            generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))
            shuffled = torch.randperm(len(self.class_of_image), generator=generator)
            self._epoch, self._batches = epoch, shuffled.tensor_split(self.batches_an_epoch)
        return self._batches[batch]


class _BaseNetwork(nn.Module):
    def __init__(self, backbone: Backbone, layer: nn.Module) -> None:
        super().__init__()
        self.backbone, self.layer = backbone, layer

    def forward(self, images: Tensor) -> Tensor:
        """[n, channels, size, size] → scores [n, classes]."""
        return self.layer(self.backbone(images.contiguous(memory_format=torch.channels_last)))


class _CosineLayer(nn.Module):
    """scale · g_j · cos(v_j, φ), as Baseline++ has it."""

    def __init__(self, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.scale = 2.0 if classes <= 200 else 10.0  # as in arXiv 1904.04232
        self.directions = nn.Parameter(nn.Linear(feature_dim, classes, bias=False).weight.detach())
        self.norms = nn.Parameter(torch.linalg.vector_norm(self.directions.detach(), dim=-1))

    def forward(self, features: Tensor) -> Tensor:
        """[n, feature_dim] → [n, classes]."""
        cosine = unit_length(features) @ unit_length(self.directions).mT.to(features.dtype)
        return self.scale * self.norms * cosine


_LAYERS = {"linear": nn.Linear, "cosine": _CosineLayer}
