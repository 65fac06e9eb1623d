"""GPLDLA for features that nobody meta-trained: the task sets the feature space and the prior's scale."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpldla.heads.base import (
    NoveltyScores,
    Posterior,
    can_read_values,
    check_episode,
    class_one_hot,
    register_head,
    unit_length,
)
from gpldla.heads.gp.content import balanced_subset, content_keys, merge_copies
from gpldla.heads.gp.coupled import CoupledPosterior
from gpldla.heads.gp.leave_one_out import LooStats, leave_one_out
from gpldla.heads.gp.linear_gp import LabelledFeatures, LinearGPPosterior, Predictive, absent_classes
from gpldla.heads.gp.peak import parabola_peak
from gpldla.heads.gp.predictive import quadrature
from gpldla.heads.gp.refinement import refine_mode
from gpldla.heads.gp.root import root_power, rooted
from gpldla.heads.gp.rows import Rows
from gpldla.heads.gp.strangers import beta_of_left_out, beta_of_single_examples
from gpldla.heads.gp.task_posterior import SPACE, TaskPosterior, nearest_cosine
from gpldla.heads.gp.task_space import (
    TaskSpace,
    mean_of_class_means,
    pooled_if_single,
    within_class_directions,
    zero_rounding_rows,
)
from gpldla.heads.gp.unequal_shots import mean_shrinkage
from gpldla.heads.gpldla import GPLDLA, ClassStatistics
from gpldla.utils.errors import UserError

Covariance = Literal["diag", "full"]

# Without a centre β₀ is DEFAULT_SCALE / d^¼, in the middle between logits of the same scale and logits of
# the same noise in any dimension; with one it is measured, see `gp/strangers.py`. PRIOR_WIDTH is how far (in
# log β) a task may be from it. Chosen on validation classes of photographs, on texts and on digits.
DEFAULT_SCALE, PRIOR_WIDTH = 3.0, 0.4
GRID = range(-3, 5)  # powers of 2, around β₀, at which the likelihood is computed
GRID_VALUES = 1 << 23  # of weights, at all β together
N_SCORED_EXAMPLES = 128  # on about so many examples, evenly chosen, the likelihood of β is computed
MAX_FOLDS = 10  # groups of classes that are left out in turn
MIN_CLASSES = 3  # with fewer, no class is left to compare a left-out class with
MAX_LEFT_OUT = 1024  # support examples that β is chosen with: the work is cubic in them


@register_head("gpldla-auto")
class GPLDLAAuto(GPLDLA):
    """GPLDLA on the features of any network, without meta-training.

    beta:       a number, or "auto": the β with the largest leave-one-out predictive likelihood of the
                support set, under a log-normal prior around β₀, which decides for single shots and which is
                measured by how alike examples of different classes are, see `gp/strangers.py`
    center:     subtract the mean of the class means of the unit features. Only with it features that are
                nowhere negative are raised to the power ¾ first (not with a metric, which was learned
                without it), β₀ is measured, class means of unequal shots are shrunk as their noise asks for,
                and copies of an example count as one example with their weight
    whiten:     whiten by the covariance that the classes share, see `TaskSpace`
    covariance: "diag" is the paper's posterior, "full" the exact Laplace covariance
    map_steps:  Newton steps from the LDA estimate towards the true mode, which needs a larger β than the one
                that is best for the LDA estimate and that "auto" chooses
    metric [d, d]: a linear map of features learned elsewhere, applied after centring
    The rest as in `LinearGP`.
    """

    base_stage = "linear"
    learns_prior = False  # the task decides, or the options do

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        beta: float | Literal["auto"] = "auto",
        beta_b: float = 1.0,
        normalize: bool = True,
        center: bool = True,
        whiten: bool = True,
        covariance: Covariance = "diag",
        map_steps: int = 0,
        predictive: Predictive = "auto",
        n_samples: int = 10,
        priors: Literal["uniform"] | Sequence[float] | None = None,
        metric: Tensor | None = None,
    ) -> None:
        self.auto_beta = isinstance(beta, str) and beta == "auto"
        if isinstance(beta, str) and not self.auto_beta:
            raise UserError(f"beta must be a positive number or 'auto', not {beta!r}.")
        super().__init__(
            feature_dim,
            beta=1.0 if isinstance(beta, str) else beta,
            beta_b=beta_b,
            normalize=normalize,
            predictive=predictive,
            n_samples=n_samples,
            priors=priors,
        )
        if covariance not in ("diag", "full"):
            raise UserError(f"There is no covariance {covariance!r}; use 'diag' or 'full'.")
        if not hasattr(map_steps, "__index__") or map_steps < 0:
            raise UserError(f"map_steps must be a whole number of at least 0, not {map_steps!r}.")
        if covariance != "diag" and predictive not in ("auto", "quadrature"):
            raise UserError(
                f"predictive {predictive!r} needs covariance 'diag'; use 'auto' with {covariance!r}."
            )
        metric = metric if metric is None or isinstance(metric, Tensor) else _as_tensor(metric)
        self.center, self.whiten = center, whiten
        self.covariance, self.map_steps = covariance, map_steps
        self.register_buffer("metric", metric, persistent=False)

    metric: Tensor | None

    def adapt(
        self,
        support: Tensor,
        labels: Tensor,
        n_way: int,
        *,
        backbone: nn.Module | None = None,
        weights: Tensor | None = None,
    ) -> TaskPosterior:
        """Fit the feature space, choose β, and compute the posterior there.

        weights [..., n]: how often each example counts, such as 2 for one that stands for two
        """
        check_episode(support, labels, n_way)
        support, labels, weights, _ = self._merged(support, labels, weights)
        member = _weighted_one_hot(labels, n_way, weights, support.dtype)
        power = self.root_power(support)
        rows = rooted(support, power)
        with torch.no_grad():  # of repeated eigenvalues there are no derivatives
            space = self.fit_space(rows, member)
        labelled = self.labelled(space(rows), member, weights)
        statistics = self.class_statistics(labelled)
        with torch.no_grad():
            beta = self.choose_beta(rows, member, space, labelled, statistics)
        beta_b = self.log_beta_b.exp().to(support.dtype)
        posterior = self.posterior_in_space(replace(space, power=power), labelled, beta, beta_b, statistics)
        if self.auto_beta and not torch.compiler.is_compiling():
            posterior.from_single_examples = bool(_all_single(member).all())
        return posterior

    def adapt_weighted(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None, **_: object
    ) -> TaskPosterior:
        """Adapt to examples that count `weights` times [..., n]; None is once each."""
        return self.adapt(support, labels, n_way, weights=weights)

    def capturable(self) -> bool:
        """Return False: the values of a task decide what is computed."""
        return False

    def posterior_in_space(
        self,
        space: TaskSpace,
        labelled: LabelledFeatures,
        beta: Tensor,
        beta_b: Tensor,
        statistics: ClassStatistics | None = None,
    ) -> TaskPosterior:
        """Return the posterior for features that are in the task's space already, and a given prior."""
        lda = self.mode_at(statistics or self.class_statistics(labelled), labelled, beta)
        mode = refine_mode(labelled, lda, beta, beta_b, self.map_steps) if self.map_steps else lda
        diagonal = self.laplace_at(mode, labelled, beta, beta_b)
        coupled = None
        if self.covariance == "full":
            coupled = CoupledPosterior.from_diagonal(diagonal, labelled, beta, beta_b)
        return TaskPosterior(space, diagonal, lda.w, beta.squeeze(-1) if beta.ndim else beta, coupled)

    def fit_space(self, support: Tensor, member: Tensor) -> TaskSpace:
        """Find the centre and the shared covariance of features [..., n, d], rooted already."""
        space = TaskSpace(normalize_first=self.normalize_first)
        z = self._before_centre(support)
        if self.center:
            space.center = mean_of_class_means(z, member)
        space.metric = None if self.metric is None else self.metric.to(z.dtype)
        if self.whiten:
            spread = pooled_if_single(member) if self.center else member
            space.directions, space.shrink = within_class_directions(self._through_metric(z), spread)
        return space

    def class_statistics(self, support: LabelledFeatures) -> ClassStatistics:
        """Return the class means, shrunk where shots are unequal, and their norms."""
        statistics = super().class_statistics(support)
        if not self.center:
            return statistics
        means = zero_rounding_rows(statistics.means, support.phi.norm2().mean(-1)[..., None, None])
        norms2 = means.square().sum(-1)
        equal = support.weights is None and can_read_values(support.counts)
        if not (equal and bool((support.counts == support.counts[..., :1]).all())):
            s = mean_shrinkage(support, norms2)
            means, norms2 = means * s.unsqueeze(-1), norms2 * s.square()
        return ClassStatistics(means, norms2, norms2.sum(-1, keepdim=True) / support.n_present())

    def root_power(self, support: Tensor) -> Tensor | None:
        """Return the power that features [..., n, d] are raised to first, [...]; None where it is 1."""
        if not (self.normalize and self.center) or self.metric is not None:
            return None
        return root_power(support)

    def _merged(
        self, support: Tensor, labels: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        if not self.center or torch.compiler.is_compiling() or labels.shape[-1] < 2:
            return support, labels, weights, None
        return merge_copies(support, labels, weights)

    def choose_beta(
        self,
        support: Tensor,
        member: Tensor,
        space: TaskSpace,
        labelled: LabelledFeatures,
        statistics: ClassStatistics,
    ) -> Tensor:
        """Return β: a number, or with "auto" one per task [..., 1]."""
        if not self.auto_beta:
            return self.log_beta.exp().to(support.dtype)
        single = _all_single(member)
        if self.center and bool(single.all()):
            return self._single_beta(support, member).unsqueeze(-1)
        n = support.shape[-2]
        if n >= 2 * N_SCORED_EXAMPLES:  # then an even choice within the classes is enough
            keys = content_keys(support) if self.center else None
            kept = balanced_subset(member.argmax(-1), MAX_LEFT_OUT, keys)
            support, member = (
                rows.gather(-2, kept.unsqueeze(-1).expand(*kept.shape, rows.shape[-1]))
                for rows in (support, member)
            )
            if n > MAX_LEFT_OUT:
                space = self.fit_space(support, member)
            labelled = self.labelled(space(support), member, member.sum(-1))
            statistics = self.class_statistics(labelled)
        left_out = self.left_out(support, member)
        default = self._default_beta(support, member, left_out, single)  # β₀, [...]
        steps = torch.tensor([2.0**k for k in GRID], dtype=support.dtype, device=support.device)
        # All of the grid at once, [grid, ..., 1], where memory allows: most tasks are small.
        grid = (default.unsqueeze(-1) * steps).movedim(-1, 0).unsqueeze(-1)
        at_once = GRID_VALUES // max(1, labelled.member.numel() // member.shape[-2] * support.shape[-1])
        parts = grid.split(max(1, at_once))
        score = torch.cat([self._loo_score(labelled, statistics, left_out, part) for part in parts])
        # The log likelihood of all left-out examples plus the log prior of β, [..., grid]
        score = score.movedim(0, -1) - 0.5 * (steps.log() / PRIOR_WIDTH) ** 2
        return parabola_peak(score, (default.unsqueeze(-1) * steps).log()).exp().unsqueeze(-1)

    def _default_beta(self, support: Tensor, member: Tensor, left_out: LooStats, single: Tensor) -> Tensor:
        """Return β₀ [...], the centre of the prior of β."""
        d = support.shape[-1]
        if not self.center:
            return support.new_full(support.shape[:-2], default_beta(d))
        beta = beta_of_left_out(left_out, member, d)
        return torch.where(single, self._single_beta(support, member), beta) if bool(single.any()) else beta

    def _single_beta(self, support: Tensor, member: Tensor) -> Tensor:
        """Return β₀ [...] of tasks with one example per class."""
        z = self._through_metric(self._before_centre(support))
        return beta_of_single_examples(z, member, whiten=self.whiten)

    def left_out(self, support: Tensor, member: Tensor) -> LooStats:
        """Return the leave-one-out statistics of the support examples [..., n, d], see `leave_one_out`."""
        return leave_one_out(
            self._through_metric(self._before_centre(support)),
            member,
            None if self.priors is None else self._log_priors(member.sum(-2)),
            normalize=self.normalize,
            recentre=self.center,
            whiten=self.whiten,
            whole=self.center,
        )

    def leave_one_out(
        self,
        support: Tensor,
        labels: Tensor,
        n_way: int,
        weights: Tensor | None,
        posterior: Posterior,
        **_: object,
    ) -> Tensor:
        """Return log p(class | x_i, S without i), [n, d] → [n, C], in closed form, see `LooStats`.

        It is that of the LDA estimate with β as chosen from all examples; `map_steps` is left out.
        """
        assert isinstance(posterior, TaskPosterior)
        support, labels, weights, index = self._merged(support, labels, weights)
        member = _weighted_one_hot(labels, n_way, weights, support.dtype)
        left_out = self.left_out(rooted(support, posterior.space.power), member)
        beta, diagonal = posterior.beta.to(support), posterior.diagonal
        phi = self.labelled(posterior.space(support), member, weights)
        if self.map_steps:
            mode = self.mode_at(self.class_statistics(phi), phi, beta)
            diagonal = self.laplace_at(mode, phi, beta, self.log_beta_b.exp().to(beta))
        log_prob = _loo_log_prob(phi.phi, diagonal, left_out, beta)
        log_prob = log_prob.masked_fill((left_out.counted == 0).unsqueeze(-1), math.nan)
        return log_prob if index is None else log_prob[index]

    def novelty_scores(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None
    ) -> NoveltyScores:
        """Return the cosines of examples left out alone, and of examples whose class is left out.

        support [n, d], labels [n], weights [n]; of many examples a balanced subset is used. Each is empty
        where it cannot be had: the first where all classes have single examples, the second where there are
        fewer than `MIN_CLASSES` classes.
        """
        support, labels, weights, _ = self._merged(support, labels, weights)
        support = rooted(support, self.root_power(support))
        kept = balanced_subset(labels, MAX_LEFT_OUT, content_keys(support) if self.center else None)
        if len(kept) < len(labels):
            support, labels = support[kept], labels[kept]
            weights = None if weights is None else weights[kept]
        member = _weighted_one_hot(labels, n_way, weights, support.dtype)
        left_out = self.left_out(support, member)
        counted, present = left_out.counted > 0, member.sum(-2) > 0
        known = left_out.cosine.masked_fill(~present, -torch.inf).amax(-1)
        classes = labels.unique()
        unknown, order = [support.new_empty(0)], [labels.new_empty(0)]
        folds = classes.tensor_split(min(MAX_FOLDS, len(classes))) if len(classes) >= MIN_CLASSES else ()
        for fold in folds:
            out = torch.isin(labels, fold)
            space = self.fit_space(support[~out], member[~out])
            rest = self.labelled(space(support[~out]), member[~out])
            means = self.class_statistics(rest).means
            unknown.append(nearest_cosine(space(support[out]), means, rest.counts == 0))
            order.append(torch.nonzero(out).flatten())
        weight = member.sum(-1)
        return NoveltyScores(known[counted], torch.cat(unknown), weight[counted], weight[torch.cat(order)])

    def exportable(self, posterior: Posterior) -> "GPLDLAAuto":
        """Return a head with the β of this task, which does not whiten: ONNX has no eigendecomposition."""
        assert isinstance(posterior, TaskPosterior)
        head = copy.deepcopy(self)
        head.auto_beta, head.whiten = False, False
        head.log_beta.fill_(math.log(posterior.beta.item()))
        return head

    def restore(self, state: Mapping[str, Tensor]) -> Posterior | None:
        """Return the posterior with these moments, in this space."""
        diagonal = super().restore(state)
        if not isinstance(diagonal, LinearGPPosterior) or "posterior.beta" not in state:
            return diagonal
        center, directions, shrink, power = (state.get(f"space.{name}") for name in SPACE)
        space = TaskSpace(self.normalize_first, center, self.metric, directions, shrink, power)
        means = state.get("posterior.means", diagonal.weight_mean)
        return TaskPosterior(space, diagonal, means, state["posterior.beta"])

    def _loo_score(
        self, labelled: LabelledFeatures, statistics: ClassStatistics, left_out: LooStats, beta: Tensor
    ) -> Tensor:
        every = max(1, labelled.member.shape[-2] // N_SCORED_EXAMPLES)
        mode = self.mode_at(statistics, labelled, beta)
        diagonal = self.laplace_at(mode, labelled, beta, self.log_beta_b.exp().to(beta.dtype))
        some = labelled.phi.every_nth(every)
        log_prob = _loo_log_prob(some, diagonal, left_out.every_nth(every), beta)
        own = (log_prob.nan_to_num(neginf=0) * (labelled.member[..., ::every, :] > 0)).sum(-1)
        return (own * left_out.every_nth(every).counted).sum(-1)

    @property
    def normalize_first(self) -> bool:
        """Whether rows are brought to unit length before they are centred or whitened."""
        return self.normalize and (self.center or self.whiten or self.metric is not None)

    def _before_centre(self, features: Tensor) -> Tensor:
        return unit_length(features) if self.normalize_first else features

    def _through_metric(self, z: Tensor) -> Tensor:
        return z if self.metric is None else z @ self.metric.to(z.dtype)

    def labelled(self, z: Tensor, member: Tensor, weights: Tensor | None = None) -> LabelledFeatures:
        """Collect a support set that is in the task's space already: [..., n, d], [..., n, C], [..., n]."""
        counts = member.sum(-2)
        phi = Rows.of(z, normalize=self.normalize)
        times = None if weights is None else weights.unsqueeze(-1)
        return LabelledFeatures(phi, member, counts, self._log_priors(counts), absent_classes(counts), times)


def _weighted_one_hot(labels: Tensor, n_way: int, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the membership matrix [..., n, n_way], with how often an example counts in place of 1."""
    member = class_one_hot(labels, n_way, dtype)
    return member if weights is None else member * weights.unsqueeze(-1)


def _all_single(member: Tensor) -> Tensor:
    """Return whether no class has a second example, [..., n, C] → [...]."""
    return ((member > 0).sum(-2) <= 1).all(-1)


def _loo_log_prob(phi: Rows, diagonal: LinearGPPosterior, left_out: LooStats, beta: Tensor) -> Tensor:
    """Return log p(class | x_i, S without i), [..., n, C].

    The variances are those of the whole support set: one example of many hardly changes V* and v*.
    """
    var = phi.squared_dot(diagonal.weight_var, diagonal.bias_var)
    return quadrature(left_out.mean(beta.squeeze(-1) if beta.ndim else beta), var)


def _as_tensor(metric: Any) -> Tensor:
    """Return a matrix as a saved model has it, in lists."""
    try:
        matrix = torch.tensor(metric, dtype=torch.get_default_dtype())
        if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
            return matrix
    except (TypeError, ValueError):
        pass
    raise UserError(f"metric must be a square matrix [d, d], not {type(metric).__name__}.")


def default_beta(feature_dim: int) -> float:
    """Return β₀ for features that are not centred: it does well on single shots of most of them."""
    return float(DEFAULT_SCALE / feature_dim**0.25)
