"""What every few-shot method looks like from outside, and the registry of methods."""

import inspect
from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from gpldla.utils.errors import UserError, did_you_mean
from gpldla.utils.registry import Registry

Size = TypeVar("Size")
Thing = TypeVar("Thing")

SAFE_NORM2 = (1e-18, 1e18)


class Posterior(ABC):
    """A head adapted to a task (or to a batch of tasks)."""

    @abstractmethod
    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S) of each query: [..., q, d] → [..., q, n_way]."""


def to_device(thing: Thing, device: torch.device) -> Thing:
    """Return a posterior on another device: any dataclass, tuple or dict of tensors and of such."""
    if isinstance(thing, Tensor):
        return thing.to(device)  # type: ignore[return-value]
    if isinstance(thing, tuple):
        return tuple(to_device(part, device) for part in thing)  # type: ignore[return-value]
    if isinstance(thing, dict):
        return {name: to_device(part, device) for name, part in thing.items()}  # type: ignore[return-value]
    if is_dataclass(thing) and not isinstance(thing, type):
        return replace(thing, **{f.name: to_device(getattr(thing, f.name), device) for f in fields(thing)})
    return thing


class Head(nn.Module, ABC):
    """A few-shot method: from a support set to a posterior over classifiers.

    The parameters of the module are what meta-training learns beside the network.

    consumes:   what `support` and `query` are. "features": [..., n, d]; "maps": feature maps
                [..., n, channels, height, width]; "backbone": images, together with the network that
                the head adapts (see `adapt`).
    base_stage: the classifier that the network is trained with on the base classes before episodes start,
                "linear" or "cosine", or None. After that stage the network stays as it is, and episodes
                train the head's own parameters, if it has any.
    capturable: whether `loss` can be recorded as a CUDA graph, for a batch of episodes too: it never looks at
                values, and the loss of a batch is the mean of its episodes' losses.
    needs_base_mean: whether the head has a buffer `base_mean` [d] to be filled with the mean feature of
                the base classes once the network is trained on them.
    """

    consumes: ClassVar[Literal["features", "maps", "backbone"]] = "features"
    base_stage: ClassVar[Literal["linear", "cosine"] | None] = None
    capturable: ClassVar[bool] = False
    needs_base_mean: bool = False

    @abstractmethod
    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> Posterior:
        """Adapt to support examples [..., n, d] with labels [..., n] in 0..n_way-1.

        Any leading axes are a batch of episodes. Only heads that consume the "backbone" look at `backbone`;
        without one they adapt a linear layer on plain features.
        """

    def loss(
        self,
        support: Tensor,
        labels: Tensor,
        query: Tensor,
        query_labels: Tensor,
        n_way: int,
        *,
        backbone: nn.Module | None = None,
    ) -> Tensor:
        """Return what meta-training minimises, a scalar.

        The default is Eq. 10 as a mean: −log p(y | x, S) over the query [..., q, d], [..., q]. A method with
        a training objective of its own, such as a marginal likelihood, overrides this.
        """
        log_prob = self.adapt(support, labels, n_way, backbone=backbone).log_prob(query)
        return -log_prob.gather(-1, query_labels.unsqueeze(-1)).mean()

    def scalars(self) -> dict[str, float]:
        """Return the learned numbers worth watching during training, by name."""
        return {}


_HEADS: Registry[type[Head]] = Registry("head", group="gpldla.heads")
register_head = _HEADS.register


def list_heads() -> list[str]:
    """Return the names that `create_head` knows."""
    return sorted(_HEADS)


def head_class(name: str) -> type[Head]:
    """Return the class of a head, which says what it consumes."""
    return _HEADS.find(name)


def head_options(name: str) -> dict[str, Any]:
    """Return the options of a head with their defaults."""
    parameters = list(inspect.signature(head_class(name).__init__).parameters.values())[1:]
    return {p.name: p.default for p in parameters if p.name != "feature_dim"}


def create_head(name: str, feature_dim: int | tuple[int, int, int] | None = None, **options: Any) -> Head:
    """Make a head by name.

    feature_dim is the number of features; only heads with parameters of that size need it. A head that
    consumes maps takes their shape (channels, height, width), or a number d for plain features, [d, 1, 1].
    """
    known = head_options(name)
    for option in options:
        if option not in known:
            raise UserError(f"Head {name!r} has no option {option!r}{did_you_mean(option, known)}")
        if isinstance(known[option], bool) and not isinstance(options[option], bool):
            raise UserError(f"{option} of head {name!r} must be True or False, not {options[option]!r}.")
    return _HEADS[name](feature_dim, **options)


def require_feature_dim(name: str, feature_dim: Size | None) -> Size:
    """Return feature_dim for a head that has parameters of that size."""
    if feature_dim is None:
        raise UserError(f"Head {name!r} has parameters as long as the features; give feature_dim.")
    return feature_dim


def unit_length(x: Tensor) -> Tensor:
    """Scale features [..., d] to length 1; a zero feature stays zero."""
    if torch.compiler.is_compiling():
        x = rescale_rows(x)  # a graph has to be prepared for everything
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if can_read_values(norm) and not norms_in_safe_range(norm.square()):
        x = rescale_rows(x)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.where(norm > 0, 1)


def rescale_rows(x: Tensor) -> Tensor:
    """Divide each row of features [..., d] by its largest entry: at unit length that makes no difference."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    return x / largest.where(largest > 0, 1)


def norms_in_safe_range(norm2: Tensor) -> bool:
    """Look whether float32 keeps all these ‖x‖², and 1/‖x‖², with all digits."""
    if not norm2.numel():
        return True
    lowest, highest = norm2.detach().aminmax()
    return SAFE_NORM2[0] < lowest.item() and highest.item() < SAFE_NORM2[1]


def class_one_hot(labels: Tensor, n_way: int, dtype: torch.dtype) -> Tensor:
    """Return the membership matrix of the support set, [..., n] → [..., n, n_way]."""
    classes = torch.arange(n_way, device=labels.device)
    return (labels.unsqueeze(-1) == classes).to(dtype)


def can_read_values(tensor: Tensor) -> bool:
    """Say whether values may decide what is computed: a GPU would be waited for, a graph has none yet."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_episode(support: Tensor, labels: Tensor, n_way: int) -> None:
    """Say in a sentence what is wrong with a support set; looks at values only where that is free."""
    if n_way < 2:
        raise UserError(f"A task needs at least 2 classes, not {n_way}.")
    if support.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"Support features must be floating-point numbers, 32 or 64 bits, not {support.dtype}."
        )
    if labels.shape != support.shape[: labels.ndim] or labels.shape[-1:] == (0,):
        raise UserError(
            f"Support labels {tuple(labels.shape)} must match the leading axes of the support"
            f" {tuple(support.shape)} with at least one example."
        )
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise UserError(f"Support labels must be whole numbers from 0 to {n_way - 1}, not {labels.dtype}.")
    if labels.numel() and can_read_values(labels):
        lowest, highest = (extreme.item() for extreme in torch.aminmax(labels))
        if lowest < 0 or highest >= n_way:
            raise UserError(
                f"Support labels run from {lowest} to {highest}; with n_way={n_way} they must lie"
                f" in 0..{n_way - 1}."
            )
