"""What the stages of a training share: the context that they work in, and how they take steps."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gpldla.classifier.model import FewShotModel
from gpldla.data import Part
from gpldla.data.augment.training_images import training_transform
from gpldla.data.part_images import PartImages
from gpldla.training import checkpoint
from gpldla.training.batch_norm import BatchNormSchedule
from gpldla.training.process_group import ProcessGroup
from gpldla.training.recipe import Recipe
from gpldla.training.weight_average import WeightAverage
from gpldla.utils.counter_random import uniforms
from gpldla.utils.errors import UserError

MAX_EMA_SPAN = 0.2  # of a stage's updates: averaged weights should not remember the first ones


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


@dataclass(frozen=True)
class Acceleration:
    """What makes updates on a GPU faster; results differ by rounding only.

    graphs: record whole updates as CUDA graphs, where model and device allow it
    compile_from_updates: compile the head's loss in trainings of at least so many updates, None in none;
    compiling takes ten seconds and saves a third of a millisecond per update
    """

    graphs: bool = True
    compile_from_updates: int | None = 30_000


@dataclass
class StageContext:
    """What a stage works with: the model that it changes, and the images of the base classes."""

    recipe: Recipe
    model: FewShotModel
    part: Part
    fabric: Fabric
    acceleration: Acceleration = field(default_factory=Acceleration)

    def __post_init__(self) -> None:
        self.processes = ProcessGroup(self.fabric)
        self.images = PartImages(self.part, self.fabric.device)
        recipe = self.recipe
        self._transform = training_transform(
            recipe.augment, smallest_crop=recipe.smallest_crop, colour_jitter=recipe.colour_jitter
        )

    def sample_augmentations(self, indices: Tensor, keys: Tensor) -> Tensor:
        """Draw augmentations [n, ...] of images, by indices and keys (both int64 [n])."""
        shapes, stored = self.images.original_shapes(indices), self.images.stored_shape
        return self._transform.draw(uniforms(keys, self._transform.numbers), shapes, stored)

    def apply_augmentations(self, pixels: Tensor, augmentations: Tensor) -> Tensor:
        """Turn stored images, uint8 [n, c, h, w], to what the network sees, [n, channels, size, size]."""
        return self._transform.apply(pixels, augmentations, self.model.preprocessing)


class Stage(ABC):
    """One way to train: how far it has come, and what takes a step.

    step_name: what a position is called in the metrics
    unit:      what is counted, for people
    network:   what is trained in this stage
    average:   the averaged weights that are validated and kept, where the recipe wants them
    """

    step_name: ClassVar[str]
    unit: ClassVar[str]

    def __init__(self, context: StageContext, network: nn.Module, total: int, *, updates: int) -> None:
        self.context, self.network, self.total, self.done = context, network, total, 0
        self.window = RunningMeans()
        self.batch_norm = BatchNormSchedule(network)
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
        """Steps between validations; 0: only at the end."""

    def collect(self) -> None:
        """Bring the means of all processes together in the window of the first; the others' are emptied."""
        processes, names = self.context.processes, ("loss", "accuracy")
        if processes.world_size == 1:
            return
        pairs = [self.window.sums.get(name, [0.0, 0.0]) for name in names]
        sums = torch.tensor(pairs, dtype=torch.float64, device=self.context.fabric.device)
        processes.all_reduce_sum([sums])
        kept = {name: pair for name, pair in zip(names, sums.tolist()) if pair[1]}
        self.window = RunningMeans(kept if processes.is_first else None)

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

    def _all_reduce_gradients(self, fraction: float) -> None:
        """Sum gradients and statistics over all processes; this one saw `fraction` of the update."""
        processes, network = self.context.processes, self.network
        if processes.world_size == 1:
            return
        learned = [p for p in network.parameters() if p.requires_grad]
        for parameter in learned:
            if parameter.grad is None:  # this process had no part of the update
                parameter.grad = torch.zeros_like(parameter)
        statistics = self.batch_norm.running_statistics() if network.training else []
        for tensor in statistics:
            tensor.mul_(fraction)
        processes.all_reduce_sum([*(p.grad for p in learned if p.grad is not None), *statistics])

    def _take_step(self) -> None:
        self.optimizer.step()
        if self.average is not None:
            self.average.update()

    def _not_finite(self, setting: str) -> UserError:
        return UserError(
            f"The loss is not finite after {self.done} {self.unit};"
            f" use a smaller {setting} or another precision."
        )
