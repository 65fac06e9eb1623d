"""The base stage: the network learns to classify the base classes, where a method or a recipe wants that."""

import hashlib
import math
from typing import cast

import torch
from torch import Tensor, nn

from gpldla.backbones import Backbone
from gpldla.training.last_layers import LAYERS, LastLayer
from gpldla.training.stage import Stage, StageContext
from gpldla.utils.counter_random import splitmix64, stream


class BaseStage(Stage):
    """The network learns to tell all base classes apart, with a last layer that is then thrown away.

    classifier: the kind of the last layer, one of `LAYERS`
    """

    step_name, unit = "base_batch", "batches"
    network: "_BaseNetwork"

    def __init__(self, context: StageContext, classifier: str) -> None:
        settings, model = context.recipe.base, context.model
        counts = context.part.counts
        self.batches_per_epoch = math.ceil(int(counts.sum()) / settings.batch)
        batches = max(1, round(settings.epochs * self.batches_per_epoch))
        margin = model.head.base_margin if classifier == model.head.base_stage else 0.0
        layer = LAYERS[classifier](model.backbone.feature_dim, len(counts), margin)
        network = _BaseNetwork(model.backbone, layer).to(context.fabric.device)
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
        """Rise from a sixteenth to 1, then follow the schedule: "step" is a tenth after 1/2 and after 3/4."""
        settings, progress = self.context.recipe.base, self.done / self.total
        schedule, warmup = settings.schedule, settings.warmup
        if progress < warmup:
            return (1 + 15 * progress / warmup) / 16  # as in arXiv 2003.12060
        progress = (progress - warmup) / (1 - warmup)
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
        loss = self.network.layer.loss(scores, labels)
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
    def __init__(self, backbone: Backbone, layer: LastLayer) -> None:
        super().__init__()
        self.backbone, self.layer = backbone, layer

    def forward(self, images: Tensor) -> Tensor:
        """[n, channels, size, size] → scores [n, classes]."""
        features = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return cast(Tensor, self.layer(features))
