"""Gaussian-process classification with a linear kernel on deep features, and a diagonal Laplace posterior.

Kim and Hospedales, "Gaussian Process Meta Few-shot Classifier Learning via Linear Discriminant Laplace
Approximation", 2021. Numbers and names of equations, the latter in brackets, are those of the paper.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypedDict, get_args

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, Posterior, can_read_values, check_episode, class_one_hot
from gpldla.heads.gp import predictive
from gpldla.heads.gp.rows import Rows
from gpldla.heads.gp.uncertain_scale import UncertainScale
from gpldla.utils.errors import UserError, did_you_mean, require_count, require_flag, require_positive

Predictive = Literal["auto", "mc", "mc-logits", "quadrature", "qmc", "probit"]
"""How p(y | x, S) is computed from the posterior.

"mc" is the paper's Monte Carlo in weight space, one set of draws for all queries; "mc-logits" draws logits
for each query instead; "quadrature" is deterministic and within 0.002 of the exact integral; "qmc" and
"probit" are for comparison. "auto" is "mc-logits" in training and "quadrature" in evaluation.
"""


MOMENTS = ("weight_mean", "bias_mean", "weight_var", "bias_var")
VALUES_PER_CHUNK = 1 << 20  # of query features, on a CPU
# Units of rounding by which the variances of a class's weights may differ from their middle to be taken as
# equal; no probability changes by more than 0.15 times as many, see `logit_variance`.
EQUAL_VARIANCES = 100


class SharedOptions(TypedDict, total=False):
    """The options of `LinearGP`, for subclasses that pass them on."""

    beta: float
    beta_b: float
    normalize: bool
    power: float
    training_power: float | None
    predictive: Predictive
    n_samples: int
    priors: Literal["uniform"] | Sequence[float] | None


class LabelledFeatures(NamedTuple):
    """A support set: φ [..., n, d], membership [..., n, C], counts n_j and log priors log π_j [..., C].

    member: one-hot labels; an example with a weight has the weight in place of 1
    absent [..., C]: which classes have no examples; None if all are known to have some
    offset [..., n, C]: what is known of the logits of the examples beforehand; None: nothing
    """

    phi: Rows
    member: Tensor
    counts: Tensor
    log_pi: Tensor
    absent: Tensor | None
    weights: Tensor | None = None  # [..., n, 1]: how often each example counts; None: once each
    offset: Tensor | None = None

    def fill_absent(self, values: Tensor, value: float) -> Tensor:
        """Return values [..., C] with `value` for classes without examples."""
        return values if self.absent is None else values.masked_fill(self.absent, value)

    def n_present(self) -> Tensor | int:
        """Return how many classes have examples, an int or [..., 1]."""
        return self.counts.shape[-1] if self.absent is None else (~self.absent).sum(-1, keepdim=True)


class Mode(NamedTuple):
    """The maximum of the posterior, or an estimate of it: w* [..., C, d], b* [..., C].

    sigma2 [...]: the class-conditional variance σ²*; None if the estimate has none.
    """

    w: Tensor
    b: Tensor
    sigma2: Tensor | None = None


class LinearGP(Head):
    """Prior, Laplace posterior and predictive of GPLDLA and its ablations; the subclasses find the mode.

    Model (Eq. 6-7): f_j(x) = w_j·φ(x) + b_j with w_j ~ N(0, β²I), b_j ~ N(0, β_b²), softmax likelihood.
    Only log β and log β_b are learned here; the network learns φ.

    learns_prior: whether log β and log β_b are parameters of meta-training, or constants

    normalize:  scale features to unit length, the cosine kernel of the paper's experiments
    power:      exponent applied to features first, signs kept; 1 in the paper, see docs/methods/gpldla.md
    training_power: the exponent in training; None: as in evaluation
    n_samples:  Monte Carlo samples M (Eq. 21)
    priors:     class priors π: None (frequencies in the support, Eq. 14), "uniform", or one number per class
    """

    learns_prior: ClassVar[bool] = True
    log_beta: Tensor
    log_beta_b: Tensor

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        beta: float = 1.0,
        beta_b: float = 1.0,
        normalize: bool = True,
        power: float = 1.0,
        training_power: float | None = None,
        predictive: Predictive = "auto",
        n_samples: int = 10,
        priors: Literal["uniform"] | Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        training_power = power if training_power is None else training_power
        require_positive(beta=beta, beta_b=beta_b, power=power, training_power=training_power)
        require_flag(normalize=normalize)
        if not (power == training_power == 1 or normalize):
            raise UserError("power and training_power other than 1 need normalize = True.")
        if predictive not in get_args(Predictive):
            raise UserError(
                f"There is no predictive {predictive!r}{did_you_mean(str(predictive), get_args(Predictive))}"
            )
        require_count(n_samples=n_samples)
        if not (priors is None or _is_uniform(priors) or _are_positive(priors)):
            raise UserError(f"priors must be 'uniform' or one positive number per class, not {priors!r}.")
        # In float64, so that float64 features are combined with exactly the β that was given.
        for name, value in (("log_beta", beta), ("log_beta_b", beta_b)):
            log_value = torch.tensor(math.log(value), dtype=torch.float64)
            if self.learns_prior:
                self.register_parameter(name, nn.Parameter(log_value))
            else:
                self.register_buffer(name, log_value, persistent=False)
        self.normalize = normalize
        self.power, self.training_power = float(power), float(training_power)
        self.predictive: Predictive = predictive
        self.n_samples = n_samples
        self.priors = priors

    def capturable(self) -> bool:
        """Return whether `loss` neither reads values nor copies any from the CPU; some options need to."""
        capturable_predictive = self.predictive in ("auto", "mc", "mc-logits", "probit")
        return capturable_predictive and (self.priors is None or isinstance(self.priors, str))

    @abstractmethod
    def find_mode(self, support: LabelledFeatures, beta: Tensor, beta_b: Tensor) -> Mode:
        """Return the maximum of the posterior (Eq. 9) or an estimate; 0 for a class without examples."""

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> Posterior:
        """Compute the Laplace posterior of W and B around the mode.

        A class without examples gets probability 0 and does not change those of the others.
        """
        check_episode(support, labels, n_way)
        member = class_one_hot(labels, n_way, support.dtype)  # [..., n, C]
        counts = member.sum(-2)  # n_j, [..., C]
        phi = Rows.of(support, normalize=self.normalize, power=self._power_now())  # [..., n, d]
        beta, beta_b = self.log_beta.exp().to(support.dtype), self.log_beta_b.exp().to(support.dtype)
        labelled = LabelledFeatures(phi, member, counts, self._log_priors(counts), absent_classes(counts))
        return self.posterior(labelled, beta, beta_b)

    def posterior(self, support: LabelledFeatures, beta: Tensor, beta_b: Tensor) -> "LinearGPPosterior":
        """Return the Laplace posterior for a given prior; β and β_b are scalars, or [..., 1] for batches."""
        return self.laplace_at(self.find_mode(support, beta, beta_b), support, beta, beta_b)

    def laplace_at(
        self, mode: Mode, support: LabelledFeatures, beta: Tensor, beta_b: Tensor
    ) -> "LinearGPPosterior":
        """Return the Laplace posterior around a mode."""
        w, sigma2 = mode.w, mode.sigma2
        b = support.fill_absent(mode.b, -math.inf)
        logits = support.phi.dot(w, b) if support.offset is None else support.phi.dot(w, b) + support.offset
        p = logits.softmax(-1)  # p(y=j | F*(x)), [..., n, C]
        a = p - p.square()  # a*(x, y, j)
        if support.weights is not None:
            a = a * support.weights
        # Eq. 11 (laplace_2), [..., C, d], and Eq. 12 (laplace_3), [..., C]
        V = support.phi.squared_weighted_sum(a).add_(beta.unsqueeze(-1) ** -2).reciprocal_()
        v = (beta_b**-2 + a.sum(-2)).reciprocal()
        return self.make_posterior(w, b, V, v, sigma2)

    def make_posterior(
        self, w: Tensor, b: Tensor, V: Tensor, v: Tensor, sigma2: Tensor | None
    ) -> "LinearGPPosterior":
        """Return the posterior with these moments, [..., C, d] and [..., C], and this head's options."""
        return LinearGPPosterior(
            w, b, V, v, sigma2, self.normalize, self._predictive_now(), self.n_samples, self._power_now()
        )

    def restore(self, state: Mapping[str, Tensor]) -> Posterior | None:
        """Return the posterior with these moments."""
        if "posterior.weight_mean" not in state:
            return None
        w, b, V, v = (state[f"posterior.{name}"] for name in MOMENTS)
        return self.make_posterior(w, b, V, v, state.get("posterior.sigma2"))

    def scalars(self) -> dict[str, float]:
        """Return β and β_b."""
        return {"beta": self.log_beta.exp().item(), "beta_b": self.log_beta_b.exp().item()}

    def _power_now(self) -> float:
        return self.training_power if self.training else self.power

    def _predictive_now(self) -> Predictive:
        if self.predictive == "auto":
            return "mc-logits" if self.training else "quadrature"
        return self.predictive

    def _log_priors(self, counts: Tensor) -> Tensor:
        """Return log π_j [..., C]; −inf for a class without examples."""
        if self.priors is None:
            weights = counts
        elif _is_uniform(self.priors):
            weights = (counts > 0).to(counts.dtype)
        else:
            # In float64, as float32 has no number between 0 and 1e-45.
            given = torch.as_tensor(self.priors, dtype=torch.float64, device=counts.device)
            if given.shape != counts.shape[-1:]:
                raise UserError(f"priors must be {counts.shape[-1]} positive numbers, one per class.")
            return (given * (counts > 0)).log().log_softmax(-1).to(counts.dtype)
        return weights.log().log_softmax(-1)


def absent_classes(counts: Tensor) -> Tensor | None:
    """Return which classes have no examples [..., C]; None if it is known that all have some."""
    return None if can_read_values(counts) and counts.all().item() else counts == 0


def _is_uniform(priors: object) -> bool:
    return isinstance(priors, str) and priors == "uniform"


def _are_positive(priors: object) -> bool:
    try:
        values = torch.as_tensor(priors, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return False
    return bool(((values > 0) & values.isfinite()).all())


def logit_variance(phi: Rows, V: Tensor, v: Tensor, shape: torch.Size) -> Tensor:
    """Return V_j·φ² + v_j for variances V [..., C, d] and v [..., C]; shape: that of the logits, (..., q, C).

    An example that the mode fits well leaves almost all of the prior's variance in every direction. Where the
    entries of V_j are equal but for h, their largest distance from their middle m_j, V_j·φ² is within h of
    m_j‖φ‖², and ‖φ‖ = 1. A probability p_y = E[softmax_y(f)] then changes by at most
    h·Σ_j |∂p_y/∂v_j| ≤ h·4/27, as ∂p_y/∂v_j = E[∂²softmax_y/∂f_j²]/2. So where h is a matter of rounding, no
    product is needed.
    """
    if phi.unit and not torch.is_grad_enabled() and can_read_values(V) and V.numel():
        lowest, highest = V.amin(-1), V.amax(-1)  # [..., C]
        if (highest - lowest).amax().item() <= 2 * EQUAL_VARIANCES * torch.finfo(V.dtype).eps:
            return ((lowest + highest) / 2 + v).unsqueeze(-2).expand(shape)
    return phi.squared_dot(V, v)


@dataclass
class LinearGPPosterior(Posterior):
    """p(W, B | S) ≈ Π_j N(w_j; w*_j, V*_j) N(b_j; b*_j, v*_j), with diagonal V*_j.

    weight_mean, weight_var: [..., C, d]; bias_mean, bias_var: [..., C]; sigma2: [...] or None
    """

    has_logits: ClassVar[bool] = True
    has_representation: ClassVar[bool] = True
    weight_mean: Tensor
    bias_mean: Tensor
    weight_var: Tensor
    bias_var: Tensor
    sigma2: Tensor | None
    normalize: bool
    predictive: Predictive
    n_samples: int
    power: float = 1.0
    generator: torch.Generator | None = None
    _draws: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    _noise: Tensor | None = field(default=None, repr=False)  # of "mc-logits" once its draws are fixed [M, C]

    def logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of f_j(x) | S, each [..., q, C].

        f is linear in (W, B), so with a factorised posterior f_j(x) ~ N(w*_j·φ + b*_j, V*_j·φ² + v*_j),
        independent over j.
        """
        batch = query.shape[:-2]
        values = query.shape[-2] * query.shape[-1]
        step = VALUES_PER_CHUNK // max(1, values)  # episodes whose squared features fit in the CPU's cache
        operands = (query, self.weight_mean, self.bias_mean, self.weight_var, self.bias_var)
        if (
            torch.is_grad_enabled()
            or query.device.type != "cpu"
            or self.bias_mean.shape[:-1] != batch
            or batch.numel() <= max(1, step)
        ):
            return self._logits(*operands)
        chunks = zip(*(t.flatten(0, len(batch) - 1).split(max(1, step)) for t in operands))
        mean, var = (torch.cat(parts) for parts in zip(*(self._logits(*chunk) for chunk in chunks)))
        return mean.view(*batch, *mean.shape[1:]), var.view(*batch, *var.shape[1:])

    def rows(self, query: Tensor) -> Rows:
        """Return φ of query features [..., q, d]."""
        return Rows.of(query, normalize=self.normalize, power=self.power)

    def representation(self, query: Tensor) -> Tensor:
        """Return φ [..., q, d]."""
        rows = self.rows(query)
        return rows.x if rows.scale is None else rows.x * rows.scale

    def _logits(self, query: Tensor, w: Tensor, b: Tensor, V: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        phi = self.rows(query)
        mean = phi.dot(w, b)
        return mean, logit_variance(phi, V, v, mean.shape)

    def log_prob(self, query: Tensor, scale: UncertainScale | None = None) -> Tensor:
        """Return log p(y | x, S) [..., q, C] for query features [..., q, d], Eq. 21 (predictive).

        scale: what is known of the scale of the logits, where it is not known well
        """
        if self.predictive == "mc":
            weights, biases = self._weight_draws()
            phi = self.rows(query)
            drawn = phi.dot(weights, biases)
            if scale is None:
                return predictive.log_mean_softmax(drawn)
            mean = phi.dot(self.weight_mean, self.bias_mean)
            noise = (drawn - mean).masked_fill(mean.isneginf(), 0).unsqueeze(1)  # [M, 1, ..., q, C]
            return scale.averaged(lambda rescaled: predictive.log_mean_softmax(rescaled + noise), mean)
        mean, var = self.logits(query)
        if scale is None:
            return self._integral(mean, var)
        return scale.averaged(lambda rescaled: self._integral(rescaled, var.expand_as(rescaled)), mean)

    def _integral(self, mean: Tensor, var: Tensor) -> Tensor:
        """Return the log of the mean softmax of normal logits, [..., q, C]."""
        if self.predictive == "mc-logits":
            noise = (
                None if self._noise is None else self._noise.view(-1, *(1,) * (mean.ndim - 1), mean.shape[-1])
            )
            return predictive.monte_carlo(mean, var, self.n_samples, noise)
        if self.predictive == "qmc":
            return predictive.quasi_monte_carlo(mean, var)
        if self.predictive == "probit":
            return predictive.probit(mean, var)
        return predictive.quadrature(mean, var)

    def state(self) -> dict[str, Tensor]:
        """Return the moments, without draws: these follow from a seed."""
        moments = {name: getattr(self, name) for name in (*MOMENTS, "sigma2")}
        return {f"posterior.{name}": moment for name, moment in moments.items() if moment is not None}

    def fix_draws(self, seed: int = 0) -> None:
        """Seed the draws, and make them now: one set for all queries."""
        if self.generator is not None or self.predictive not in ("mc", "mc-logits"):
            return
        self.generator = torch.Generator(self.weight_mean.device).manual_seed(seed)
        if self.predictive == "mc":
            self._weight_draws()
        else:
            self._noise = self._normal(self.bias_mean[(0,) * (self.bias_mean.ndim - 1)])

    def _weight_draws(self) -> tuple[Tensor, Tensor]:
        """Draw W [M, ..., C, d] and B [M, ..., C] once; all later queries use the same draws (Eq. 21)."""
        if self._draws is None:
            self._draws = (
                self.weight_mean + self.weight_var.sqrt() * self._normal(self.weight_mean),
                self.bias_mean + self.bias_var.sqrt() * self._normal(self.bias_mean),
            )
        return self._draws

    def _normal(self, like: Tensor) -> Tensor:
        shape = (self.n_samples, *like.shape)
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=self.generator)
