"""Associative alignment: base images that look like a new class help to fit the network to it."""

import copy
import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from gpldla.heads.base import BaseClassifier, Head, Posterior, check_episode, register_head, unit_length
from gpldla.heads.common.adapted_network import as_tasks, present_classes
from gpldla.heads.common.cosine_layer import START_LENGTH, widened_cosine
from gpldla.utils.errors import require_count, require_positive
from gpldla.utils.modules import shared_copy

FIRST_SCALE, SCALE = 5.0, 15.0  # of the cosines: when the layer is fitted alone, and with the network
MARGIN = 0.001  # in both


@register_head("assoc-align")
class AssociativeAlignment(Head):
    """A cosine layer and the network, fitted to the support together with related images of the base classes.

    Afrasiyabi, Lalonde and Gagné, "Associative Alignment for Few-shot Image Classification", 2020 (arXiv
    1912.05094), with the alignment to class centroids. The network is trained on the base classes with an
    angular margin. The model keeps images of the base classes; without them, or on plain features without a
    network, there is nothing to align, and the new layer alone is fitted.

    rounds:    of alignment and fit, each with three steps of Adam
    related:   base classes that belong to each new class, at most
    images:    of each base class that the model keeps, and related images of each class in a round, at most
    first_steps: of the layer alone, before related classes are chosen
    step_size: of all steps
    """

    consumes = "backbone"
    base_stage: BaseClassifier | None = "arcmax"
    base_margin = 0.01
    needs_base_images = 50

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        rounds: int = 150,
        related: int = 10,
        images: int = 50,
        first_steps: int = 200,
        step_size: float = 0.001,
    ) -> None:
        super().__init__()
        require_count(rounds=rounds, related=related, images=images, first_steps=first_steps)
        require_positive(step_size=step_size)
        self.rounds, self.related, self.first_steps, self.step_size = rounds, related, first_steps, step_size
        self.needs_base_images = images
        self.base_images: Tensor
        self.base_labels: Tensor
        self.register_buffer("base_images", torch.empty(0, dtype=torch.uint8))
        self.register_buffer("base_labels", torch.empty(0, dtype=torch.int64))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Load base images, of whatever number."""
        for name in ("base_images", "base_labels"):
            if prefix + name in state_dict:
                stored = state_dict[prefix + name]
                setattr(self, name, torch.empty_like(stored, device=self.base_labels.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "AlignedPosterior":
        """Fit to images [..., n, c, h, w] with a network, or a layer to features [..., n, d]."""
        check_episode(support, labels, n_way)
        present = present_classes(labels, n_way)
        tasks = as_tasks(support.detach(), labels, present)
        with torch.enable_grad():
            fits = [self._fit(x, y, possible, backbone) for x, y, possible in zip(*tasks)]
        return AlignedPosterior(tuple(fits), present, backbone)

    def _fit(
        self, support: Tensor, labels: Tensor, present: Tensor, backbone: nn.Module | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the weights of a task's network and of its layer [C, d], as `AlignedPosterior` has them."""
        task = _TaskFit(support, labels, present, backbone, self.step_size)
        for _ in range(self.first_steps):
            task.fit_layer(task.features(support).detach(), labels, FIRST_SCALE)
        related: list[Tensor] = []
        if backbone is not None and len(self.base_labels):
            predicted = task.predict(self.standardised_base(backbone))
            related = related_images(predicted, self.base_labels, present, self.related)
        generator, fewest = torch.Generator().manual_seed(0), min((len(r) for r in related), default=0)
        for _ in range(self.rounds):
            if fewest:
                count = min(fewest, self.needs_base_images)
                drawn = [r[torch.randperm(len(r), generator=generator)[:count].to(r.device)] for r in related]
                images = self.standardised_base(backbone, torch.cat(drawn))
                new_labels = present.nonzero().flatten().repeat_interleave(count)
                task.align(images, new_labels)
                task.fit_layer(task.features(images).detach(), new_labels, SCALE)
            task.fit_all(SCALE)
        return task.result()

    def standardised_base(self, backbone: Any, indices: Tensor | None = None) -> Tensor:
        """Return base images as the network wants them, [m, c, size, size]."""
        facts = backbone.preprocessing
        pixels = self.base_images if indices is None else self.base_images[indices]
        mean, std = (torch.tensor(v, device=pixels.device).view(-1, 1, 1) for v in (facts.mean, facts.std))
        images: Tensor = (pixels / 255 - mean) / std
        return images.to(next(backbone.parameters()).dtype)


def related_images(predicted: Tensor, base_labels: Tensor, present: Tensor, related: int) -> list[Tensor]:
    """Return for each new class that has examples the indices of related base images.

    Related to a class are the base classes with the largest share of images that are predicted to be of it
    (each base class belongs to one new class, the first that asks), and of these classes the images that are.

    predicted [m]: new classes of base images; base_labels [m]; present [C]
    """
    base_classes, new_classes = int(base_labels.max()) + 1, present.nonzero().flatten().tolist()
    counts = torch.zeros(base_classes, len(present), device=base_labels.device)
    counts.index_put_((base_labels, predicted), torch.ones((), device=base_labels.device), accumulate=True)
    shares = counts / counts.sum(-1, keepdim=True).clamp_min(1)
    most, chosen = min(related, base_classes // len(new_classes)), []
    for new in new_classes:
        classes = shares[:, new].argsort(descending=True, stable=True)[:most]
        shares[classes] = -1.0
        chosen.append((torch.isin(base_labels, classes) & (predicted == new)).nonzero().flatten())
    return chosen


class _TaskFit:
    """A copy of the network and a new layer of directions, and the steps that fit them to a task.

    A direction has an axis of its own that no feature has a part in; it is there that it starts.
    """

    def __init__(
        self, support: Tensor, labels: Tensor, present: Tensor, backbone: nn.Module | None, step_size: float
    ) -> None:
        self.support, self.labels, self.present = support, labels, present
        self.network = None if backbone is None else copy.deepcopy(backbone).requires_grad_(True).eval()
        d = self.features(support[:1]).shape[-1]
        self.rows = support.new_zeros(len(present), d).requires_grad_()
        self.own = support.new_full((len(present), 1), START_LENGTH).requires_grad_()
        self.of_layer = torch.optim.Adam([self.rows, self.own], step_size)
        parameters = [] if self.network is None else list(self.network.parameters())
        self.of_network = torch.optim.Adam(parameters, step_size) if parameters else None

    def features(self, x: Tensor) -> Tensor:
        """Return features of images, or the features that were given."""
        return x if self.network is None else cast(Tensor, self.network(x)).to(x.dtype)

    def directions(self) -> Tensor:
        """Return the part of each unit direction that lies among the features, [C, d]."""
        whole = torch.cat([self.rows, self.own], -1)
        directions: Tensor = self.rows / torch.linalg.vector_norm(whole, dim=-1, keepdim=True)
        return directions

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Return the class of each image, [m]."""
        scores = [unit_length(self.features(part)) @ self.directions().mT for part in images.split(256)]
        return torch.cat(scores).masked_fill(~self.present, -math.inf).argmax(-1)

    def fit_layer(self, features: Tensor, labels: Tensor, scale: float) -> None:
        """Take a step of the layer alone."""
        self._step(self._layer_loss(features, labels, scale), self.of_layer)

    def fit_all(self, scale: float) -> None:
        """Take a step of network and layer on the support."""
        features = self._training_features(self.support)
        self._step(self._layer_loss(features, self.labels, scale), self.of_layer, self.of_network)

    def align(self, images: Tensor, labels: Tensor) -> None:
        """Take a step of the network that brings related images to the class means of the support."""
        together = self._training_features(torch.cat([self.support, images]))
        of_support, of_images = together.split([len(self.support), len(images)])
        member = F.one_hot(self.labels, len(self.present)).to(together.dtype)
        means = member.mT @ of_support / member.sum(0).clamp_min(1).unsqueeze(-1)
        scores = -(of_images.unsqueeze(1) - means).square().sum(-1).masked_fill(~self.present, math.inf)
        self._step(F.cross_entropy(scores, labels), self.of_network)

    def result(self) -> tuple[dict[str, Tensor], Tensor]:
        """Return the weights and statistics of the network, and those of the layer [C, d], scaled."""
        state = {} if self.network is None else {n: t.detach() for n, t in self.network.state_dict().items()}
        return state, SCALE * self.directions().detach()

    def _training_features(self, x: Tensor) -> Tensor:
        if self.network is None:
            return x
        self.network.train()
        features = self.features(x)
        self.network.eval()
        return features

    def _layer_loss(self, features: Tensor, labels: Tensor, scale: float) -> Tensor:
        cosine = unit_length(features) @ self.directions().mT
        of_true = F.one_hot(labels, len(self.present)).bool()
        scores = scale * torch.where(of_true, widened_cosine(cosine, MARGIN), cosine)
        return F.cross_entropy(scores.masked_fill(~self.present, -math.inf), labels)

    def _step(self, loss: Tensor, *optimizers: torch.optim.Optimizer | None) -> None:
        used = [optimizer for optimizer in optimizers if optimizer is not None]
        for optimizer in used:
            optimizer.zero_grad()
        torch.autograd.backward(loss)
        for optimizer in used:
            optimizer.step()


@dataclass
class AlignedPosterior(Posterior):
    """For each task the state of its network, empty without one, and weights of unit features, [C, d].

    present [..., C]: whether each class has examples
    """

    fits: tuple[tuple[dict[str, Tensor], Tensor], ...]
    present: Tensor
    backbone: nn.Module | None

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S) of images [..., q, c, h, w] or features [..., q, d] as [..., q, C]."""
        batch = self.present.shape[:-1]
        tasks = query.reshape(batch.numel(), *query.shape[len(batch) :])
        network = None if self.backbone is None else shared_copy(self.backbone).eval()
        scores = query.new_zeros(*tasks.shape[:2], self.present.shape[-1])
        if self.fits:
            features = [
                x if network is None else functional_call(network, state, (x,)).to(x.dtype)
                for x, (state, _) in zip(tasks, self.fits)
            ]
            scores = torch.stack([unit_length(x) @ rows.mT for x, (_, rows) in zip(features, self.fits)])
        scores = scores.view(*batch, *scores.shape[1:])
        return scores.masked_fill(~self.present.unsqueeze(-2), -math.inf).log_softmax(-1)
