"""The base stage: the network learns to classify the base classes, where a method or a recipe wants that."""

import hashlib
import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpldla.backbones import Backbone
from gpldla.heads.base import unit_length
from gpldla.training.stage import Stage, StageContext
from gpldla.utils.counter_random import splitmix64, stream


class BaseStage(Stage):
    """The network learns to tell all base classes apart, with a last layer that is then thrown away.

    classifier: "linear", or "cosine": class-wise norms and directions on features of unit length
    """

    step_name, unit = "base_batch", "batches"
    network: "_BaseNetwork"

    def __init__(self, context: StageContext, classifier: str) -> None:
        settings, model = context.recipe.base, context.model
        counts = context.part.counts
        self.batches_per_epoch = math.ceil(int(counts.sum()) / settings.batch)
        batches = max(1, round(settings.epochs * self.batches_per_epoch))
        network = _BaseNetwork(
            model.backbone, _LAYERS[classifier](model.backbone.feature_dim, len(counts))
        ).to(context.fabric.device)
        super().__init__(context, network, batches, updates=batches)
        self.class_of_image = torch.repeat_interleave(torch.arange(len(counts)), torch.from_numpy(counts))
        parameters, rate, decay = network.parameters(), settings.learning_rate, settings.weight_decay
        optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=decay)
            if settings.optimizer == "sgd"
            else torch.optim.Adam(parameters, rate, weight_decay=decay)
        )
        self.base_rates = [rate]
        self._epoch = -1  # that the batches are shuffled for
        self._batches: tuple[Tensor, ...] = ()
        self.wrapped, self.optimizer = context.fabric.setup(network, optimizer)

    @property
    def validate_every(self) -> int:
        """Batches between validations."""
        return self.context.recipe.base.validate_every * self.batches_per_epoch

    def rate_factor(self) -> float:
        """Follow the recipe's schedule; "step" is a tenth after half and again after three quarters."""
        schedule, progress = self.context.recipe.base.schedule, self.done / self.total
        if schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        if schedule == "step":
            return float(0.1 ** ((progress >= 0.5) + (progress >= 0.75)))
        return 1.0

    def update(self) -> None:
        """Take one optimiser step on the cross-entropy of a batch, of which each process takes a part."""
        context = self.context
        self.wrapped.train()
        self._set_rates()
        self.optimizer.zero_grad()
        batch = self._next_batch()
        local = torch.tensor(context.processes.local_indices(len(batch)), dtype=torch.int64)
        fraction = len(local) / len(batch)
        if len(local):
            loss = self._local_loss(batch[local], local)
            context.fabric.backward(loss * fraction)
        self._all_reduce_gradients(fraction)
        self._take_step()
        self.done += 1

    def _local_loss(self, images: Tensor, positions: Tensor) -> Tensor:
        """Return the loss of images with these indices, at these positions in their batch, int64 [n] both."""
        context, seed = self.context, self.context.recipe.seed
        device = context.fabric.device
        labels = self.class_of_image[images].to(device)
        keys = splitmix64(positions + stream(seed, "base changes", self.done)).to(device)
        augmentations = context.sample_augmentations(images.to(device), keys)
        torch.manual_seed(stream(seed, "base noise", self.done) & (2**62 - 1))
        scores = self.wrapped(context.apply_augmentations(context.images[images], augmentations)).float()
        loss = F.cross_entropy(scores, labels)
        if not torch.isfinite(loss):
            raise self._not_finite("base.learning_rate")
        self.window.add("loss", loss.item() * len(images), len(images))
        correct = (scores.argmax(-1) == labels).float().sum().item()
        self.window.add("accuracy", 100 * correct, len(images))
        return loss

    def extra_tensors(self) -> dict[str, Tensor]:
        """Return the weights of the last layer."""
        return self.network.layer.state_dict()

    def restore_extra(self, tensors: dict[str, Tensor]) -> None:
        """Put back the weights of the last layer."""
        self.network.layer.load_state_dict(tensors)

    def _next_batch(self) -> Tensor:
        """Return image indices: each epoch shuffles all images anew, by (seed, epoch) alone."""
        epoch, batch = divmod(self.done, self.batches_per_epoch)
        if epoch != self._epoch:
            key = f"base {self.context.recipe.seed} {epoch}".encode()
            generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7]))
            shuffled = torch.randperm(len(self.class_of_image), generator=generator)
            self._epoch, self._batches = epoch, torch.tensor_split(shuffled, self.batches_per_epoch)
        return self._batches[batch]


class _BaseNetwork(nn.Module):
    def __init__(self, backbone: Backbone, layer: nn.Module) -> None:
        super().__init__()
        self.backbone, self.layer = backbone, layer

    def forward(self, images: Tensor) -> Tensor:
        """[n, channels, size, size] → scores [n, classes]."""
        features = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return cast(Tensor, self.layer(features))


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


_LAYERS: dict[str, type[nn.Linear] | type[_CosineLayer]] = {"linear": nn.Linear, "cosine": _CosineLayer}
