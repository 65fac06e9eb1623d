"""Meta-training: episodes of the base classes, one after the other or several per update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gpldla.data.episodes import EpisodeSampler, fold_indices
from gpldla.evaluation import Task
from gpldla.training.compiled_loss import LossFunction, compile_loss
from gpldla.training.graphed_update import GraphedUpdate
from gpldla.training.stage import Stage, StageContext
from gpldla.utils.counter_random import splitmix64, stream

EPISODES_PER_DRAW = 256
# Episodes, at most, between measurements of the training accuracy, which takes a second pass of the head.
ACCURACY_INTERVAL = 5


def episode_sampler(context: StageContext) -> EpisodeSampler:
    """Return the sampler of training episodes; episodes that the base classes cannot fill are refused."""
    recipe = context.recipe
    task = Task(recipe.ways, recipe.shots, recipe.queries, recipe.separate_groups)
    return task.sampler(context.part, seed=recipe.seed, split="base", device=context.fabric.device)


@dataclass(frozen=True)
class _EpisodeBuffer:
    """Episodes drawn ahead: image indices [E, n + q], support first, and augmentations [E, n + q, ...]."""

    first: int
    images: Tensor
    augmentations: Tensor

    def __contains__(self, episode: int) -> bool:
        return self.first <= episode < self.first + len(self.images)


class EpisodeStage(Stage):
    """Meta-training by episodes of the base classes.

    An update has `episodes_per_update` of them, shared among the processes, or one per process if that is
    more.

    frozen_backbone: only the head's parameters are trained
    """

    step_name, unit = "episode", "episodes"

    def __init__(self, context: StageContext, *, frozen_backbone: bool) -> None:
        recipe, model = context.recipe, context.model
        self.episodes_per_update = max(recipe.episodes_per_update, context.processes.world_size)
        updates = math.ceil(recipe.episodes / self.episodes_per_update)
        super().__init__(context, model, recipe.episodes, updates=updates)
        self.frozen_backbone = frozen_backbone
        graphs = (
            context.acceleration.graphs
            and not frozen_backbone
            and GraphedUpdate.is_supported(model, context.fabric.device)
        )
        self.wrapped, self.optimizer = context.fabric.setup(model, self._make_optimizer(graphs))
        self._sampler = episode_sampler(context)
        self._buffer = self._draw(0)
        labels = self._sampler.draw(0, 1)
        self._labels, self._query_labels = labels.labels, labels.query_labels
        self._folds = None
        if recipe.folds > 1:
            folds = fold_indices(recipe.ways, recipe.shots, recipe.queries, recipe.folds)
            self._folds = folds.to(context.fabric.device)
        self._loss: LossFunction = model.head.loss
        self._graphed = self._make_graphed() if graphs else None

    def _make_optimizer(self, graphs: bool) -> torch.optim.Optimizer:
        """Return Adam for what is trained; CUDA graphs read the rates from tensors."""
        recipe, model = self.context.recipe, self.context.model
        model.backbone.requires_grad_(not self.frozen_backbone)
        trained: list[tuple[nn.Module, float, float]] = [(model.head, recipe.head_learning_rate, 0.0)]
        if not self.frozen_backbone:
            trained.insert(0, (model.backbone, recipe.learning_rate, recipe.weight_decay))
        groups: list[dict[str, Any]] = [
            {"params": list(module.parameters()), "lr": rate, "weight_decay": decay}
            for module, rate, decay in trained
        ]
        self.base_rates = [group["lr"] for group in groups]
        if graphs:
            for group in groups:
                group["lr"] = torch.tensor(group["lr"], device=self.context.fabric.device)
        kind = torch.optim.AdamW if recipe.weight_decay else torch.optim.Adam
        return kind(groups, fused=graphs or None, capturable=graphs)

    @property
    def images_per_episode(self) -> int:
        """Support and query together."""
        return len(self._labels) + len(self._query_labels)

    @property
    def validate_every(self) -> int:
        """Episodes between validations."""
        return self.context.recipe.validation.every

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
        local = [self.done + index for index in self.context.processes.local_indices(size)]
        if (
            self._graphed is not None and size == self.episodes_per_update
        ):  # a smaller one is shared differently
            images, augmentations = zip(*(self._episode(episode) for episode in local))
            self._graphed.update(torch.stack(images), torch.stack(augmentations), self._noise_seed(local[0]))
        else:
            self._update_eagerly(local, size)
        self.done += size

    def _update_eagerly(self, local: Sequence[int], size: int) -> None:
        """Go through this process's episodes of an update with `size` in all, one after the other."""
        context = self.context
        self.optimizer.zero_grad()
        for index, episode in enumerate(local):
            images, augmentations = self._episode(episode)
            torch.manual_seed(self._noise_seed(episode))
            pixels = context.apply_augmentations(context.images[images], augmentations)
            with self.batch_norm.episode(index, len(local)):
                loss, represented = self._forward(pixels, 1)
            if not torch.isfinite(loss):
                raise self._not_finite(self._rate_setting)
            context.fabric.backward(loss / size)
            self.window.add("loss", loss.item())
            if episode % min(ACCURACY_INTERVAL, context.recipe.log_every) == 0:
                self.window.add("accuracy", self._accuracy(represented))
        self._all_reduce_gradients(len(local) / size)
        self.batch_norm.count_batches(size - len(local))
        self._take_step()

    def _forward(self, images: Tensor, episodes: int) -> tuple[Tensor, Tensor]:
        """Return the mean loss of so many episodes in one batch of images, and what the head consumed."""
        return cast(
            tuple[Tensor, Tensor],
            self.wrapped(
                images,
                self._labels,
                self._query_labels,
                self.context.recipe.ways,
                episodes,
                self._folds,
                self._loss,
            ),
        )

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

    def _make_graphed(self) -> GraphedUpdate:
        """Return what does whole updates on a GPU; a last one with fewer episodes is done eagerly."""
        context = self.context
        context.model.train()  # the validation of a stage before has left it in evaluation mode
        local = len(context.processes.local_indices(self.episodes_per_update))
        fraction = local / self.episodes_per_update
        threshold = context.acceleration.compile_from_updates
        if threshold is not None and self.total >= threshold * self.episodes_per_update:
            self._loss = self._compiled_loss(local * context.recipe.folds)

        def all_reduce_sum() -> None:
            self._all_reduce_gradients(fraction)
            self.batch_norm.count_batches(self.episodes_per_update - local)

        def loss(pixels: Tensor, augmentations: Tensor, episodes: int) -> tuple[Tensor, Tensor]:
            return self._forward(context.apply_augmentations(pixels, augmentations), episodes)

        return GraphedUpdate(
            context.model,
            self._unwrapped_optimizer(),
            context.images,
            self.batch_norm,
            episodes=local,
            loss=loss,
            backward=lambda loss: context.fabric.backward(loss * fraction),
            all_reduce_sum=all_reduce_sum,
            take_step=self._take_step,
        )

    def _compiled_loss(self, batch_size: int) -> LossFunction:
        """Return the head's loss, compiled for batches of so many episodes (times folds)."""
        batch = () if batch_size == 1 else (batch_size,)
        labels, query_labels = (y.expand(*batch, -1) for y in (self._labels, self._query_labels))
        head, backbone = self.context.model.head, self.context.model.backbone
        shape = backbone.map_shape if head.consumes == "maps" else (backbone.feature_dim,)
        return compile_loss(head, labels, query_labels, self.context.recipe.ways, shape)

    def _episode(self, episode: int) -> tuple[Tensor, Tensor]:
        """Return image indices [n + q] of an episode and their augmentations; many are drawn at once."""
        if episode not in self._buffer:
            self._buffer = self._draw(episode)
        index = episode - self._buffer.first
        return self._buffer.images[index], self._buffer.augmentations[index]

    def _draw(self, first: int) -> _EpisodeBuffer:
        context = self.context
        count = min(max(self.episodes_per_update, EPISODES_PER_DRAW), self.total - first)
        drawn = self._sampler.draw(first, max(count, 1))
        images = torch.cat([drawn.support, drawn.query], dim=1)  # [E, n + q]
        positions = torch.arange(images.shape[1], device=images.device)
        episodes = torch.arange(first, first + len(images), device=images.device)
        keys = splitmix64(episodes + stream(context.recipe.seed, "changes")).unsqueeze(1) + positions
        augmentations = context.sample_augmentations(images.flatten(), keys.flatten())
        return _EpisodeBuffer(first, images, augmentations.view(*images.shape, -1))

    def _noise_seed(self, episode: int) -> int:
        """Return the seed of what a head draws: it follows from the episode, not from what came before."""
        return stream(self.context.recipe.seed, "noise", episode) & (2**62 - 1)

    @torch.no_grad()
    def _accuracy(self, represented: Tensor) -> float:
        """Return the accuracy in percent on what the head has seen of an episode, [n + q, ...]."""
        represented = represented.to(self.context.model.dtype)  # Fabric answers in float32
        support, query = torch.split(represented, [len(self._labels), len(self._query_labels)])
        with self.batch_norm.frozen_running_stats():
            posterior = self.context.model.posterior(support, self._labels, self.context.recipe.ways)
            answers = posterior.log_prob(query).argmax(-1)
        return 100 * (answers == self._query_labels).float().mean().item()
