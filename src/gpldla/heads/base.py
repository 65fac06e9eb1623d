"""The interface of few-shot methods, and their registry."""

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from gpldla.utils.errors import UserError, did_you_mean
from gpldla.utils.registry import Registry

Size = TypeVar("Size")
BaseClassifier = Literal["linear", "cosine", "neg-softmax", "neg-cosine", "arcmax"]

SAFE_NORM2 = (1e-18, 1e18)  # ‖x‖² in between, and its inverse, have full precision in float32


class Posterior(ABC):
    """A head adapted to a task (or to a batch of tasks).

    Only `log_prob` is required. `logits`, `class_fit`, `nearest_mean_cosine` and `representation` raise a
    `UserError` unless overridden.

    has_novelty: whether `class_fit` and `nearest_mean_cosine` work, and with them "none of these"
    has_logits:  whether `logits` works, and with it aleatoric and epistemic uncertainty
    has_representation: whether `representation` works, and with it suggestions of what to label
    """

    has_novelty: ClassVar[bool] = False
    has_logits: ClassVar[bool] = False
    has_representation: ClassVar[bool] = False

    @abstractmethod
    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S) of each query: [..., q, d] → [..., q, n_way]."""

    def logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean [..., q, C] and variance [..., q, C] or covariance [..., q, C, C] of the logits."""
        raise self._unsupported("logits with a variance")

    def rescaled(self, mean: Tensor, t: Tensor) -> Tensor | None:
        """Return the means [..., q, C] of the logits if their scale is t standard deviations from expected.

        None where the scale is taken as known; t broadcasts with the means.
        """
        return None

    def class_fit(self, query: Tensor, classes: "KnownClasses") -> Tensor:
        """Return how well each query fits the class that it fits best, [..., q, d] → [..., q]."""
        raise self._unsupported('"none of these"')

    def nearest_mean_cosine(self, query: Tensor) -> Tensor:
        """Return the cosine between each query and the nearest class mean, [..., q, d] → [..., q].

        Where "none of these" is calibrated on base classes, it is calibrated on this.
        """
        raise self._unsupported('"none of these"')

    def representation(self, query: Tensor) -> Tensor:
        """Return φ [..., q, d], in which logits are linear: the kernel is φ·φ'."""
        raise self._unsupported("kernel")

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `Head.restore` needs, by name; empty if it needs the support examples."""
        return {}

    def fix_draws(self, seed: int = 0) -> None:  # noqa: B027 (most posteriors draw nothing)
        """Fix the draws of a Monte Carlo predictive, unless they are fixed already, for all later calls."""

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with a function applied to every tensor, including those in nested fields."""
        mapped: Self = map_tensors(self, function)
        return mapped

    def to(self, device: str | torch.device) -> Self:
        """Return the posterior on another device."""
        return self.map_tensors(lambda tensor: tensor.to(device))

    def _unsupported(self, what: str) -> UserError:
        return UserError(f"{type(self).__name__} has no {what}; use a model with the head 'gpldla-auto'.")


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor in posteriors, other dataclasses, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        parts = [map_tensors(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {name: map_tensors(part, function) for name, part in value.items()}
    if isinstance(value, Posterior) or (is_dataclass(value) and not isinstance(value, type)):
        mapped = copy.copy(value)
        vars(mapped).update({name: map_tensors(part, function) for name, part in vars(value).items()})
        return mapped
    return value


class KnownClasses(NamedTuple):
    """What `Posterior.class_fit` compares rows with, in the space of the posterior.

    means [..., C, d]; shrink [..., C]: by what a class's true mean is expected to be shorter, 0 for a class
    without examples; spread [...]: the mean squared length of the examples
    """

    means: Tensor
    shrink: Tensor
    spread: Tensor


class NoveltyScores(NamedTuple):
    """Class fits of examples that are left out, for the calibration of "none of these".

    known [k]:   of examples that are left out one by one
    unknown [u]: of examples whose class is left out
    known_weight [k], unknown_weight [u]: how often each counts
    unit: a difference in fit that tells as much in any task, for those where either kind is missing
    classes: what new rows are compared with
    """

    known: Tensor
    unknown: Tensor
    known_weight: Tensor
    unknown_weight: Tensor
    unit: float
    classes: KnownClasses


class LeftOutPredictions(NamedTuple):
    """What is predicted for rows like the examples that can be left out.

    log_prob [m, C], labels [m]; weights [m]: how often each counts; copies are one example with their weight
    """

    log_prob: Tensor
    labels: Tensor
    weights: Tensor


class Head(nn.Module, ABC):
    """A few-shot method: from a support set to a posterior over classifiers.

    Meta-training learns the parameters of this module together with those of the network.

    consumes:   what `support` and `query` contain. "features": [..., n, d]; "maps": feature maps
                [..., n, channels, height, width]; "backbone": images, together with the network that
                the head adapts (see `adapt`).
    base_stage: the last layer with which the network is trained on the base classes before episodes start
                (src/gpldla/training/last_layers.py), or None. After that stage the network is frozen, and
                episodes train the head's own parameters, if it has any.
    base_margin: what the loss of that stage takes off the score of the true class, or adds to its angle
    left_out_options: options of the parent class that this head does not have
    needs_base_images: of each base class, that the head wants in its buffers `base_images` [m, c, size, size]
                (uint8) and `base_labels` [m]; 0: none
    needs_base_mean: whether the head has a buffer `base_mean` [d] to be filled with the mean feature of
                the base classes once the network is trained on them.
    """

    consumes: ClassVar[Literal["features", "maps", "backbone"]] = "features"
    base_stage: BaseClassifier | None = None
    base_margin: float = 0.0
    needs_base_images: int = 0
    needs_base_mean: bool = False
    left_out_options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> Posterior:
        """Adapt to support examples [..., n, d] with labels [..., n] in 0..n_way-1.

        Leading axes are a batch of episodes. Only heads that consume the "backbone" use `backbone`;
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
        """Return the loss that meta-training minimises, a scalar.

        The default is Eq. 10 as a mean: −log p(y | x, S) over the query [..., q, d], [..., q]. A method with
        a training objective of its own, such as a marginal likelihood, overrides this.
        """
        log_prob = self.adapt(support, labels, n_way, backbone=backbone).log_prob(query)
        return -log_prob.gather(-1, query_labels.unsqueeze(-1)).mean()

    def adapt_weighted(
        self,
        support: Tensor,
        labels: Tensor,
        n_way: int,
        weights: Tensor | None,
        *,
        unlabelled: Tensor | None = None,
        backbone: nn.Module | None = None,
    ) -> Posterior:
        """Adapt to weighted examples.

        weights [..., n]: how often each counts, None: once each; unlabelled [..., m, ...]: more rows of the
        task, whose classes are not known, or None
        """
        if weights is not None:
            raise UserError(f"{type(self).__name__} takes no weights of examples; leave them out.")
        if unlabelled is not None:
            raise UserError(
                f"{type(self).__name__} does not learn from unlabelled items; leave them out, or use a model"
                " with the head 'gpldla-auto'."
            )
        return self.adapt(support, labels, n_way, backbone=backbone)

    def leave_one_out(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None, posterior: Posterior,
        *, backbone: nn.Module | None = None,
    ) -> Tensor:  # fmt: skip
        """Return log p(class | x_i, S without i) for each support example [n, ...]: [n, n_way].

        NaN for the only example of a class. The default adapts once per example; a head with a closed form
        overrides it. posterior: of the whole support set, as `adapt_weighted` returned it
        """
        log_prob = torch.full((len(support), n_way), math.nan, device=support.device)
        indices = torch.arange(len(support), device=support.device)
        counts = torch.bincount(labels, minlength=n_way)
        for i in torch.nonzero(counts[labels] > 1).flatten():
            others = indices != i
            kept_weights = None if weights is None else weights[others]
            posterior_without_i = self.adapt_weighted(
                support[others], labels[others], n_way, kept_weights, backbone=backbone
            )
            log_prob[i] = posterior_without_i.log_prob(support[i : i + 1])[0].to(log_prob)
        return log_prob

    def left_out_with_all_shots(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None, posterior: Posterior
    ) -> LeftOutPredictions | None:
        """Return what is predicted for new rows like the examples; None if the head cannot say.

        As `leave_one_out`, but corrected for the shot that the class of a left-out example is short of.
        """
        return None

    def novelty_scores(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None
    ) -> NoveltyScores:
        """Return what calibrates "none of these"; heads with `has_novelty` posteriors override it."""
        raise UserError(f"{type(self).__name__} has no \"none of these\"; use the head 'gpldla-auto'.")

    def exportable(self, posterior: Posterior) -> "Head":
        """Return the head to export to ONNX; choices that a graph cannot make are those of `posterior`."""
        return self

    def restore(self, state: Mapping[str, Tensor]) -> Posterior | None:
        """Return the posterior with this `state`; None if it has to be adapted again."""
        return None

    def capturable(self) -> bool:
        """Return whether `loss` can be recorded as a CUDA graph, for a batch of episodes too.

        This requires that it never reads values of tensors on the CPU, and that the loss of a batch is the
        mean of its episodes' losses.
        """
        return False

    def scalars(self) -> dict[str, float]:
        """Return the learned scalars to log during training, by name."""
        return {}


_HEADS: Registry[type[Head]] = Registry("head", group="gpldla.heads")
register_head = _HEADS.register


def list_heads() -> list[str]:
    """Return the names that `create_head` knows."""
    return sorted(_HEADS)


def head_class(name: str) -> type[Head]:
    """Return the class of a head by name."""
    return _HEADS.find(name)


def head_options(name: str) -> dict[str, Any]:
    """Return the options of a head with their defaults, including those passed to its parent class."""
    head, options = head_class(name), dict[str, Any]()
    for ancestor in head.__mro__:
        if "__init__" in vars(ancestor):
            parameters = inspect.signature(vars(ancestor)["__init__"]).parameters.values()
            named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
            options = {p.name: p.default for p in named} | options
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break  # this class passes no options on
    hidden = ("self", "feature_dim", *head.left_out_options)
    return {name: default for name, default in options.items() if name not in hidden}


def create_head(name: str, feature_dim: int | tuple[int, int, int] | None = None, **options: Any) -> Head:
    """Make a head by name.

    feature_dim is the number of features; only heads with parameters of that size need it. A head that
    consumes maps takes their shape (channels, height, width), or the number of plain features.
    """
    known = head_options(name)
    for option in options:
        if option not in known:
            raise UserError(f"Head {name!r} has no option {option!r}{did_you_mean(option, known)}")
        if isinstance(known[option], bool) and not isinstance(options[option], bool):
            raise UserError(f"{option} of head {name!r} must be True or False, not {options[option]!r}.")
    return _HEADS[name](feature_dim, **options)


def require_dim(name: str, feature_dim: Size | None) -> Size:
    """Return feature_dim, or raise a `UserError` where a head needs it and it is missing."""
    if feature_dim is None:
        raise UserError(f"Head {name!r} has one parameter per feature; give feature_dim.")
    return feature_dim


def unit_length(x: Tensor) -> Tensor:
    """Scale features [..., d] to length 1; a zero feature stays zero."""
    if torch.compiler.is_compiling():
        x = rescale_rows(x)  # a compiled graph cannot check whether this is necessary
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if can_read_values(norm):
        if norms_in_safe_range(norm.square()):
            return torch.div(x, norm)
        x = rescale_rows(x)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.div(x, norm.where(norm > 0, 1))


def rescale_rows(x: Tensor) -> Tensor:
    """Divide each row of features [..., d] by its largest absolute entry, before a scaling to unit length."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    return x / largest.where(largest > 0, 1)


def norms_in_safe_range(norm2: Tensor) -> bool:
    """Return whether all these ‖x‖², and 1/‖x‖², have full precision in float32."""
    if not norm2.numel():
        return True
    lowest, highest = norm2.detach().aminmax()
    return SAFE_NORM2[0] < lowest.item() and highest.item() < SAFE_NORM2[1]


def class_one_hot(labels: Tensor, n_way: int, dtype: torch.dtype) -> Tensor:
    """Return labels as one-hot rows, [..., n] → [..., n, n_way]."""
    classes = torch.arange(n_way, device=labels.device)
    return (labels.unsqueeze(-1) == classes).to(dtype)


def can_read_values(tensor: Tensor) -> bool:
    """Return whether code may branch on values: not on a GPU, where reading blocks, nor in a graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_episode(support: Tensor, labels: Tensor, n_way: int) -> None:
    """Raise a `UserError` if a support set is invalid; values of labels are checked only on a CPU."""
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
