"""The stages of a training: a classifier of the base classes, where a method wants one, and episodes."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from gpldla.backbones import Backbone
from gpldla.classifier.model import FewShotModel
from gpldla.data import Part
from gpldla.data.augment.training_images import training_transform
from gpldla.data.episodes import EpisodeSampler, fold_indices
from gpldla.data.part_images import PartImages
from gpldla.evaluation import Task
from gpldla.heads.base import unit_length
from gpldla.training import checkpoint, compiled_loss
from gpldla.training.graphed_update import GraphedUpdate
from gpldla.training.ranks import Ranks
from gpldla.training.recipe import Recipe
from gpldla.training.running_statistics import (
    count_batches,
    episode_momentum,
    frozen_running_stats,
    running_statistics,
)
from gpldla.training.weight_average import WeightAverage
from gpldla.utils.counter_random import splitmix64, stream, uniforms
from gpldla.utils.errors import UserError

EPISODES_PER_DRAW = 256
MAX_EMA_SPAN = 0.2  # of a stage's updates: averaged weights should not remember the first ones
ACCURACY_INTERVAL = 5  # episodes, at most, between looks at the training accuracy: a second pass of the head


class RunningMeans:
    """Means since the last report: sums and counts by name."""

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in (sums or {}).items()}

    def add(self, name: str, value: float, count: int = 1) -> None:
        """Count one more value, or the sum of several."""
        pair = self.sums.setdefault(name, [0.0, 0.0])
        pair[0] += value
        pair[1] += count

    def means(self) -> dict[str, float]:
        """Return the means by name."""
        return {name: total / count for name, (total, count) in self.sums.items()}


@dataclass
class StageContext:
    """What a stage works with: the model that it changes, and the images of the base classes."""

    recipe: Recipe
    model: FewShotModel
    part: Part
    fabric: Fabric

    def __post_init__(self) -> None:
        self.ranks = Ranks(self.fabric)
        self.images = PartImages(self.part, self.fabric.device)
        recipe = self.recipe
        self._transform = training_transform(
            recipe.augment, smallest_crop=recipe.smallest_crop, colour_jitter=recipe.colour_jitter
        )

    def sample_augmentations(self, numbers: Tensor, keys: Tensor) -> Tensor:
        """Draw what happens to images with these numbers; it follows from their keys, int64 [n] both."""
        shapes, stored = self.images.original_shapes(numbers), self.images.stored_shape
        return self._transform.draw(uniforms(keys, self._transform.n_uniforms), shapes, stored)

    def apply_augmentations(self, pixels: Tensor, changes: Tensor) -> Tensor:
        """Turn stored images, uint8 [n, c, h, w], to what the network sees, [n, channels, size, size]."""
        return self._transform.apply(pixels, changes, self.model.preprocessing)


class Stage(ABC):
    """One way to learn: how far it has come, and what takes a step.

    step_name: what a position is called in the metrics
    unit:      what is counted, for people
    average:   the averaged weights that are validated and kept, where the recipe wants them
    """

    step_name: ClassVar[str]
    unit: ClassVar[str]

    def __init__(self, context: StageContext, total: int, *, updates: int) -> None:
        self.context, self.total, self.done = context, total, 0
        self.window = RunningMeans()
        self.base_rates: list[float] = []
        self.optimizer: torch.optim.Optimizer
        ema = context.recipe.ema
        decay = min(ema, max(0.0, 1 - 1 / (MAX_EMA_SPAN * updates)))
        self.average = WeightAverage(context.model, decay) if ema else None

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

    def collect(self) -> None:
        """Bring the means of all processes together in the window of the first; the others' are emptied."""
        ranks, names = self.context.ranks, ("loss", "accuracy")
        if ranks.world_size == 1:
            return
        pairs = [self.window.sums.get(name, [0.0, 0.0]) for name in names]
        sums = torch.tensor(pairs, dtype=torch.float64, device=self.context.fabric.device)
        ranks.all_reduce_sum([sums])
        kept = {name: pair for name, pair in zip(names, sums.tolist()) if pair[1]}
        self.window = RunningMeans(kept if ranks.is_first else None)

    def extra_tensors(self) -> dict[str, Tensor]:
        """Return what the stage learns beside the model."""
        return {}

    def restore_extra(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027 (most have nothing)
        """Put back what `extra_tensors` returned."""

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the optimiser's state."""
        return checkpoint.optimizer_tensors(self._unwrapped_optimizer())

    def restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `optimizer_tensors` returned."""
        checkpoint.restore_optimizer(self._unwrapped_optimizer(), tensors)

    def _unwrapped_optimizer(self) -> torch.optim.Optimizer:
        return getattr(self.optimizer, "optimizer", self.optimizer)  # without Fabric's wrapper

    def _set_rates(self) -> None:
        factor = self.rate_factor()
        for group, rate in zip(self.optimizer.param_groups, self.base_rates):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def _all_reduce_gradients(self, network: nn.Module, share: float) -> None:
        """Bring gradients and statistics of all processes together; this one saw `share` of the update."""
        ranks = self.context.ranks
        if ranks.world_size == 1:
            return
        learned = [p for p in network.parameters() if p.requires_grad]
        for parameter in learned:
            if parameter.grad is None:  # this process had nothing to do
                parameter.grad = torch.zeros_like(parameter)
        statistics = running_statistics(network) if network.training else []
        for tensor in statistics:
            tensor.mul_(share)
        ranks.all_reduce_sum([*(p.grad for p in learned if p.grad is not None), *statistics])

    def _take_step(self) -> None:
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    def _not_finite(self, setting: str) -> UserError:
        return UserError(
            f"The loss is not a number any more after {self.done} {self.unit};"
            f" use a smaller {setting} or another precision."
        )


# ---- episodes


def episode_sampler(context: StageContext) -> EpisodeSampler:
    """Return what draws the training episodes; episodes that the base classes cannot fill are refused."""
    recipe = context.recipe
    task = Task(recipe.ways, recipe.shots, recipe.queries, recipe.separate_groups)
    return task.sampler(context.part, seed=recipe.seed, split="base", device=context.fabric.device)


@dataclass(frozen=True)
class _Drawn:
    """Episodes drawn ahead: image numbers [E, n + q], support first, and changes to them [E, n + q, ...]."""

    first: int
    numbers: Tensor
    changes: Tensor

    def __contains__(self, episode: int) -> bool:
        return self.first <= episode < self.first + len(self.numbers)


class EpisodeStage(Stage):
    """Meta-training: episodes of the base classes, one after the other.

    An update has `episodes_per_update` of them, shared among the processes, or one a process if that is more.

    frozen_backbone: the network stays as it is, and only the head's parameters learn
    """

    step_name, unit = "episode", "episodes"

    def __init__(self, context: StageContext, *, frozen_backbone: bool) -> None:
        recipe, model = context.recipe, context.model
        self.episodes_per_update = max(recipe.episodes_per_update, context.ranks.world_size)
        updates = math.ceil(recipe.episodes / self.episodes_per_update)
        super().__init__(context, recipe.episodes, updates=updates)
        self.frozen_backbone = frozen_backbone
        model.backbone.requires_grad_(not frozen_backbone)
        settings: list[tuple[nn.Module, float, float]] = [(model.head, recipe.head_learning_rate, 0.0)]
        if not frozen_backbone:
            settings.insert(0, (model.backbone, recipe.learning_rate, recipe.weight_decay))
        groups: list[dict[str, Any]] = [
            {"params": list(module.parameters()), "lr": rate, "weight_decay": decay}
            for module, rate, decay in settings
        ]
        self.base_rates = [group["lr"] for group in groups]
        graphs = GraphedUpdate.is_supported(model, context.fabric.device) and not frozen_backbone
        if graphs:  # they read the rates where they lie
            for group in groups:
                group["lr"] = torch.tensor(group["lr"], device=context.fabric.device)
        kind = torch.optim.AdamW if recipe.weight_decay else torch.optim.Adam
        optimizer = kind(groups, fused=graphs or None, capturable=graphs)
        self.wrapped, self.optimizer = context.fabric.setup(model, optimizer)
        self._sampler = episode_sampler(context)
        self._drawn = self._draw(0)
        labels = self._sampler.draw(0, 1)
        self._labels, self._query_labels = labels.labels, labels.query_labels
        self._folds = None
        if recipe.turns > 1:
            turns = fold_indices(recipe.ways, recipe.shots, recipe.queries, recipe.turns)
            self._folds = turns.to(context.fabric.device)
        self._graphed = self._make_graphed() if graphs else None

    @property
    def images_per_episode(self) -> int:
        """Support and query together."""
        return len(self._labels) + len(self._query_labels)

    @property
    def validate_every(self) -> int:
        """Episodes between looks at the validation classes."""
        return self.context.recipe.validate_every

    def rate_factor(self) -> float:
        """Follow the recipe's schedule."""
        return self.context.recipe.learning_rate_factor(self.done)

    def update(self) -> None:
        """Take one optimiser step on the mean loss of some episodes; BatchNorm sees each by itself."""
        self.wrapped.train()
        if self.frozen_backbone:
            self.context.model.backbone.eval()
        self._set_rates()
        size = min(self.episodes_per_update, self.total - self.done)
        own = [self.done + place for place in self.context.ranks.share(size)]
        if self._graphed is not None and size == self.episodes_per_update:  # a smaller one has other shares
            numbers, changes = zip(*(self._episode(episode) for episode in own))
            self._graphed.update(torch.stack(numbers), torch.stack(changes), self._noise_seed(own[0]))
        else:
            self._update_eagerly(own, size)
        self.done += size

    def _update_eagerly(self, own: Sequence[int], size: int) -> None:
        """Go through this process's episodes of an update with `size` in all, one after the other."""
        context, ways = self.context, self.context.recipe.ways
        self.optimizer.zero_grad()
        for place, episode in enumerate(own):
            numbers, changes = self._episode(episode)
            torch.manual_seed(self._noise_seed(episode))
            images = context.apply_augmentations(context.images[numbers], changes)
            with episode_momentum(context.model, place, len(own)):
                loss, represented = self.wrapped(
                    images, self._labels, self._query_labels, ways, 1, self._folds
                )
            if not torch.isfinite(loss):
                raise self._not_finite(self._rate_setting)
            context.fabric.backward(loss / size)
            self.window.add("loss", loss.item())
            if episode % min(ACCURACY_INTERVAL, context.recipe.log_every) == 0:
                self.window.add("accuracy", self._accuracy(represented))
        self._all_reduce_gradients(context.model, len(own) / size)
        count_batches(context.model, size - len(own))
        self._take_step()

    def collect(self) -> None:
        """Fetch what a GPU has counted, too."""
        if self._graphed is not None:
            loss, episodes = self._graphed.fetch_losses()
            if not math.isfinite(loss):
                raise self._not_finite(self._rate_setting)
            if episodes:
                self.window.add("loss", loss, episodes)
                self.window.add("accuracy", self._accuracy(self._graphed.represented))
        super().collect()

    @property
    def _rate_setting(self) -> str:
        return "head_learning_rate" if self.frozen_backbone else "learning_rate"

    def _make_graphed(self) -> GraphedUpdate | None:
        """Return what does whole updates on a GPU; a last one with fewer episodes goes the plain way."""
        context, recipe = self.context, self.context.recipe
        context.model.train()  # the validation of a stage before has left it in evaluation
        own = len(context.ranks.share(self.episodes_per_update))
        share = own / self.episodes_per_update
        if self.total >= compiled_loss.MIN_UPDATES * self.episodes_per_update:
            together = own * recipe.turns
            batch = () if together == 1 else (together,)
            labels, query_labels = (y.expand(*batch, -1) for y in (self._labels, self._query_labels))
            head, backbone = context.model.head, context.model.backbone
            shape = backbone.map_shape if head.consumes == "maps" else (backbone.feature_dim,)
            compiled_loss.compile_loss(head, labels, query_labels, recipe.ways, shape)

        def all_reduce_sum() -> None:
            self._all_reduce_gradients(context.model, share)
            count_batches(context.model, self.episodes_per_update - own)

        def loss(pixels: Tensor, changes: Tensor, episodes: int) -> tuple[Tensor, Tensor]:
            images = context.apply_augmentations(pixels, changes)
            return self.wrapped(images, self._labels, self._query_labels, recipe.ways, episodes, self._folds)

        return GraphedUpdate(
            context.model,
            self._unwrapped_optimizer(),
            context.images,
            episodes=own,
            loss=loss,
            backward=lambda loss: context.fabric.backward(loss * share),
            all_reduce_sum=all_reduce_sum,
            take_step=self._take_step,
        )

    def _episode(self, episode: int) -> tuple[Tensor, Tensor]:
        """Return image numbers [n + q] of an episode and what happens to them; drawn many at once."""
        if episode not in self._drawn:
            self._drawn = self._draw(episode)
        place = episode - self._drawn.first
        return self._drawn.numbers[place], self._drawn.changes[place]

    def _draw(self, first: int) -> _Drawn:
        context = self.context
        count = min(max(self.episodes_per_update, EPISODES_PER_DRAW), self.total - first)
        drawn = self._sampler.draw(first, max(count, 1))
        numbers = torch.cat([drawn.support, drawn.query], dim=1)  # [E, n + q]
        places = torch.arange(numbers.shape[1], device=numbers.device)
        episodes = torch.arange(first, first + len(numbers), device=numbers.device)
        keys = splitmix64(episodes + stream(context.recipe.seed, "changes")).unsqueeze(1) + places
        changes = context.sample_augmentations(numbers.flatten(), keys.flatten())
        return _Drawn(first, numbers, changes.view(*numbers.shape, -1))

    def _noise_seed(self, episode: int) -> int:
        """Return the seed of what a head draws: it follows from the episode, not from what came before."""
        return stream(self.context.recipe.seed, "noise", episode) & (2**62 - 1)

    @torch.no_grad()
    def _accuracy(self, represented: Tensor) -> float:
        """Return the accuracy in percent on what the head has seen of an episode, [n + q, ...]."""
        represented = represented.to(self.context.model.dtype)  # Fabric answers in float32
        support, query = represented.split([len(self._labels), len(self._query_labels)])
        with frozen_running_stats(self.context.model):
            posterior = self.context.model.posterior(support, self._labels, self.context.recipe.ways)
            answers = posterior.log_prob(query).argmax(-1)
        return 100 * (answers == self._query_labels).float().mean().item()


# ---- a classifier of the base classes


class BaseStage(Stage):
    """The network learns to tell all base classes apart, with a last layer that is then thrown away.

    classifier: "linear", or "cosine": class-wise norms and directions on features of unit length
    """

    step_name, unit = "base_batch", "batches"

    def __init__(self, context: StageContext, classifier: str) -> None:
        recipe, model = context.recipe, context.model
        counts = context.part.counts
        self.batches_per_epoch = math.ceil(int(counts.sum()) / recipe.base_batch)
        batches = max(1, round(recipe.base_epochs * self.batches_per_epoch))
        super().__init__(context, batches, updates=batches)
        self.class_of_image = torch.repeat_interleave(torch.arange(len(counts)), torch.from_numpy(counts))
        self.network = _BaseNetwork(
            model.backbone, _LAYERS[classifier](model.backbone.feature_dim, len(counts))
        )
        self.network.to(context.fabric.device)
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
        self.wrapped, self.optimizer = context.fabric.setup(self.network, optimizer)

    @property
    def validate_every(self) -> int:
        """Batches between looks at the validation classes."""
        return self.context.recipe.base_validate_every * self.batches_per_epoch

    def rate_factor(self) -> float:
        """Follow the recipe's schedule; "step" is a tenth after half and again after three quarters."""
        schedule, progress = self.context.recipe.base_schedule, self.done / self.total
        if schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        if schedule == "step":
            return 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
        return 1.0

    def update(self) -> None:
        """Take one optimiser step on the cross-entropy of a batch, of which each process takes a part."""
        context = self.context
        self.wrapped.train()
        self._set_rates()
        self.optimizer.zero_grad()
        batch = self._next_batch()
        own = torch.tensor(context.ranks.share(len(batch)), dtype=torch.int64)
        numbers, share = batch[own], len(own) / len(batch)
        if len(own):
            labels = self.class_of_image[numbers].to(context.fabric.device)
            keys = splitmix64(own + stream(context.recipe.seed, "base changes", self.done)).to(
                context.fabric.device
            )
            changes = context.sample_augmentations(numbers.to(context.fabric.device), keys)
            torch.manual_seed(stream(context.recipe.seed, "base noise", self.done) & (2**62 - 1))
            scores = self.wrapped(context.apply_augmentations(context.images[numbers], changes)).float()
            loss = F.cross_entropy(scores, labels)
            if not torch.isfinite(loss):
                raise self._not_finite("base_learning_rate")
            context.fabric.backward(loss * share)
            self.window.add("loss", loss.item() * len(own), len(own))
            right = (scores.argmax(-1) == labels).float().sum().item()
            self.window.add("accuracy", 100 * right, len(own))
        self._all_reduce_gradients(self.network, share)
        self._take_step()
        self.done += 1

    def extra_tensors(self) -> dict[str, Tensor]:
        """Return the weights of the last layer."""
        return self.network.layer.state_dict()

    def restore_extra(self, tensors: dict[str, Tensor]) -> None:
        """Put back the weights of the last layer."""
        self.network.layer.load_state_dict(tensors)

    def _next_batch(self) -> Tensor:
        """Return image numbers: each epoch shuffles all images anew, by (seed, epoch) alone."""
        epoch, batch = divmod(self.done, self.batches_per_epoch)
        if epoch != self._epoch:
            key = f"base {self.context.recipe.seed} {epoch}".encode()
            generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))
            shuffled = torch.randperm(len(self.class_of_image), generator=generator)
            self._epoch, self._batches = epoch, shuffled.tensor_split(self.batches_per_epoch)
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
