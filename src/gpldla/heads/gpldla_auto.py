"""GPLDLA for features that nobody meta-trained: the task sets the feature space and the prior's scale."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from gpldla.heads.base import (
    LeftOutPredictions,
    NoveltyScores,
    Posterior,
    check_episode,
    register_head,
    unit_length,
)
from gpldla.heads.gp.content import balanced_part, balanced_subset, content_keys, merge_copies
from gpldla.heads.gp.coupled import CoupledPosterior
from gpldla.heads.gp.leave_one_out import LooStats, leave_one_out, loo_log_prob
from gpldla.heads.gp.linear_gp import LabelledFeatures, LinearGPPosterior, Predictive, absent_classes
from gpldla.heads.gp.missing_shot import with_all_shots
from gpldla.heads.gp.novelty import novelty_scores
from gpldla.heads.gp.peak import PRIOR_WIDTH, ChosenBeta, most_probable_beta
from gpldla.heads.gp.refinement import refine_mode
from gpldla.heads.gp.root import root_power, rooted
from gpldla.heads.gp.rows import Rows
from gpldla.heads.gp.strangers import (
    LOGIT_SCALE,
    beta_of_left_out,
    beta_of_single_examples,
    default_beta,
)
from gpldla.heads.gp.task_posterior import SPACE, TaskPosterior
from gpldla.heads.gp.task_space import (
    TaskSpace,
    all_single,
    as_square_matrix,
    for_each_task,
    mean_of_class_means,
    pooled_if_single,
    weighted_one_hot,
    within_class_directions,
    zero_rounding_rows,
)
from gpldla.heads.gp.uncertain_scale import UncertainScale
from gpldla.heads.gp.unequal_shots import known_equal, mean_shrinkage
from gpldla.heads.gp.unlabelled import UNLABELLED_FACTOR, label_softly
from gpldla.heads.gpldla import GPLDLA, ClassStatistics
from gpldla.utils.errors import UserError

Covariance = Literal["diag", "full"]

GRID_VALUES = 1 << 23  # of weights, at all β together
N_SCORED_EXAMPLES = 128  # on about so many examples, evenly chosen, the likelihood of β is computed
MAX_LEFT_OUT = 1024  # support examples that β is chosen with: the work is cubic in them


@register_head("gpldla-auto")
class GPLDLAAuto(GPLDLA):
    """GPLDLA on the features of any network, without meta-training.

    beta:       a number, or "auto": the β with the largest leave-one-out predictive likelihood of the
                support set, under a log-normal prior around β₀, which decides for single shots and which is
                measured by how alike examples of different classes are, see `gp/strangers.py`
    center:     subtract the mean of the class means of the unit features. Only with it features that are
                nowhere negative are raised to a power below 1 first, see `gp/root.py` (not with a metric,
                which was learned without it), β₀ is measured, class means of unequal shots are shrunk as
                their noise asks for, and copies of an example count as one example with their weight
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
        metric = metric if metric is None or isinstance(metric, Tensor) else as_square_matrix(metric)
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
        unlabelled: Tensor | None = None,
    ) -> TaskPosterior:
        """Fit the feature space, choose β, and compute the posterior there.

        weights [..., n]: how often each example counts, such as 2 for one that stands for two
        unlabelled [..., m, d]: features without labels that improve space and class means, see
            `gp/unlabelled.py`; None: none
        """
        check_episode(support, labels, n_way)
        support, labels, weights, _ = self._merged(support, labels, weights)
        member = weighted_one_hot(labels, n_way, weights, support.dtype)
        power = self.root_power(support, member.sum(-1) > 0)
        rows = rooted(support, power)
        with torch.no_grad():  # of repeated eigenvalues there are no derivatives
            space = self.fit_space(rows, member)
        labelled = self.labelled(space(rows), member, weights)
        statistics = self.class_statistics(labelled)
        with torch.no_grad():
            beta, spread = self.choose_beta(rows, member, space, labelled, statistics)
        if unlabelled is not None:
            more, single = rooted(unlabelled, power), all_single(member)
            space, labelled, statistics = self._with_unlabelled(space, rows, member, more, beta)
            if self.auto_beta:
                beta = beta * torch.where(single, UNLABELLED_FACTOR, 1.0).unsqueeze(-1)
        beta_b = self.log_beta_b.exp().to(support.dtype)
        posterior = self.posterior_in_space(replace(space, power=power), labelled, beta, beta_b, statistics)
        if self.auto_beta and not torch.compiler.is_compiling():
            posterior.from_single_examples = bool(all_single(member).all())
            posterior.from_unlabelled = unlabelled is not None
            if self.center and unlabelled is None:
                log_pi = self._log_priors(member.sum(-2))
                posterior.uncertain_scale = UncertainScale.unless_known(spread, log_pi)
        return posterior

    @torch.no_grad()
    def _with_unlabelled(
        self, space: TaskSpace, rows: Tensor, member: Tensor, unlabelled: Tensor, beta: Tensor
    ) -> tuple[TaskSpace, LabelledFeatures, ClassStatistics]:
        sigma = LOGIT_SCALE / (beta * rows.shape[-1] ** 0.5)
        soft = label_softly(space, rows, member, unlabelled, sigma, whiten=self.whiten)
        labelled = self.labelled(soft.space(soft.rows), soft.member, soft.member.sum(-1))
        labelled = labelled._replace(log_pi=self._log_priors(member.sum(-2)))
        norms2 = soft.means.square().sum(-1)  # 1, or 0 for a class without examples
        return soft.space, labelled, ClassStatistics(soft.means, norms2, norms2.amax(-1, keepdim=True))

    def adapt_weighted(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None,
        *, unlabelled: Tensor | None = None, **_: object,
    ) -> TaskPosterior:  # fmt: skip
        """Adapt to examples that count `weights` times [..., n]; None is once each."""
        return self.adapt(support, labels, n_way, weights=weights, unlabelled=unlabelled)

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
        if not known_equal(support):
            s = mean_shrinkage(support, norms2)
            means, norms2 = means * s.unsqueeze(-1), norms2 * s.square()
        return ClassStatistics(means, norms2, norms2.sum(-1, keepdim=True) / support.n_present())

    def root_power(self, support: Tensor, present: Tensor | None = None) -> Tensor | None:
        """Return the power that features [..., n, d] are raised to first, [...]; None where it is 1.

        present [..., n]: which examples count, None is all
        """
        if not (self.normalize and self.center) or self.metric is not None:
            return None
        return root_power(support, present)

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
    ) -> ChosenBeta:
        """Return β: a number, or with "auto" one per task [..., 1]."""
        if not self.auto_beta:
            return ChosenBeta(self.log_beta.exp().to(support.dtype), None)
        single = all_single(member)
        if self.center and single.all():
            beta = self._single_beta(support, member)
            return ChosenBeta(beta.unsqueeze(-1), torch.full_like(beta, PRIOR_WIDTH))
        n = support.shape[-2]
        if n >= 2 * N_SCORED_EXAMPLES and not bool((member.sum(-1) > 0).all()):  # merged copies
            value, spread = for_each_task(self._beta_of, support, member).unbind(-1)
            return ChosenBeta(value.unsqueeze(-1), spread)
        if n >= 2 * N_SCORED_EXAMPLES:  # then an even choice within the classes is enough
            support, member = balanced_part(support, member, MAX_LEFT_OUT, by_content=self.center)
            if n > MAX_LEFT_OUT:
                space = self.fit_space(support, member)
            labelled = self.labelled(space(support), member, member.sum(-1))
            statistics = self.class_statistics(labelled)
        left_out = self.left_out(support, member, labelled)
        default = self._default_beta(support, member, left_out, single)  # β₀, [...]
        # All of the grid at once where memory allows: most tasks are small.
        at_once = GRID_VALUES // max(1, labelled.member.numel() // member.shape[-2] * support.shape[-1])
        return most_probable_beta(
            default, lambda beta: self._loo_score(labelled, statistics, left_out, beta), at_once=at_once
        )

    def _beta_of(self, support: Tensor, member: Tensor) -> Tensor:
        space = self.fit_space(support, member)
        labelled = self.labelled(space(support), member, member.sum(-1))
        beta, spread = self.choose_beta(support, member, space, labelled, self.class_statistics(labelled))
        assert spread is not None  # β is not given
        return torch.cat([beta, spread.reshape(1)])

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

    def left_out(self, support: Tensor, member: Tensor, labelled: LabelledFeatures | None = None) -> LooStats:
        """Return the leave-one-out statistics of the support examples [..., n, d], see `leave_one_out`.

        labelled: the same in the task's space, without which class means of unequal shots are not shrunk
        """
        shrinkage = None
        if self.center and labelled is not None and not known_equal(labelled):
            norms2 = super().class_statistics(labelled).norms2
            shrinkage = mean_shrinkage(labelled, norms2, shot_short=True)
        return leave_one_out(
            self._through_metric(self._before_centre(support)),
            member,
            None if self.priors is None else self._log_priors(member.sum(-2)),
            normalize=self.normalize,
            recentre=self.center,
            whiten=self.whiten,
            whole=self.center,
            shrinkage=shrinkage,
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
        support, labels, weights, index = self._merged(support, labels, weights)
        left_out, phi, diagonal, beta, scale = self._left_out_of(support, labels, n_way, weights, posterior)
        log_prob = loo_log_prob(phi.phi, diagonal, left_out, beta, scale)
        log_prob = log_prob.masked_fill((left_out.counted == 0).unsqueeze(-1), math.nan)
        return log_prob if index is None else log_prob[index]

    def left_out_with_all_shots(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None, posterior: Posterior
    ) -> LeftOutPredictions | None:
        """Return log p(class | a new row like x_i) for all that can be left out, see `missing_shot.py`."""
        support, labels, weights, _ = self._merged(support, labels, weights)
        left_out, phi, diagonal, beta, scale = self._left_out_of(support, labels, n_way, weights, posterior)
        norms2 = self.class_statistics(phi).norms2
        full = with_all_shots(left_out, phi, norms2, centred=self.center)
        log_prob, counted = loo_log_prob(phi.phi, diagonal, full, beta, scale), left_out.counted > 0
        return LeftOutPredictions(log_prob[counted], labels[counted], left_out.counted[counted])

    def _left_out_of(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None, posterior: Posterior
    ) -> tuple[LooStats, LabelledFeatures, LinearGPPosterior, Tensor, UncertainScale | None]:
        """Return the statistics of left-out examples without copies, these in space, β and its scale."""
        assert isinstance(posterior, TaskPosterior)
        member = weighted_one_hot(labels, n_way, weights, support.dtype)
        beta, diagonal = posterior.beta.to(support), posterior.diagonal
        phi = self.labelled(posterior.space(support), member, weights)
        if self.map_steps:
            mode = self.mode_at(self.class_statistics(phi), phi, beta)
            diagonal = self.laplace_at(mode, phi, beta, self.log_beta_b.exp().to(beta))
        left_out = self.left_out(rooted(support, posterior.space.power), member, phi)
        return left_out, phi, diagonal, beta, posterior.uncertain_scale

    def novelty_scores(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None
    ) -> NoveltyScores:
        """Return how well examples fit that are left out alone, and those whose class is left out.

        support [n, d], labels [n], weights [n]; of many examples a balanced subset is left out.
        """
        support, labels, weights, _ = self._merged(support, labels, weights)
        support = rooted(support, self.root_power(support, None if weights is None else weights > 0))
        kept = balanced_subset(labels, MAX_LEFT_OUT, content_keys(support) if self.center else None)
        return novelty_scores(
            support,
            weighted_one_hot(labels, n_way, weights, support.dtype),
            kept if len(kept) < len(labels) else None,
            fit_space=self.fit_space,
            before_space=lambda rows: self._through_metric(self._before_centre(rows)),
            centred=self.center,
            whiten=self.whiten,
        )

    def exportable(self, posterior: Posterior) -> "GPLDLAAuto":
        """Return a head with the β of this task: a graph cannot search for one."""
        assert isinstance(posterior, TaskPosterior)
        head = copy.deepcopy(self)
        head.auto_beta = False
        head.log_beta.fill_(math.log(posterior.beta.item()))
        return head

    def restore(self, state: Mapping[str, Tensor]) -> Posterior | None:
        """Return the posterior with these moments, in this space."""
        diagonal = super().restore(state)
        if not isinstance(diagonal, LinearGPPosterior) or "posterior.beta" not in state:
            return diagonal
        center, directions, shrink, power = (state.get(f"space.{name}") for name in SPACE)
        space = TaskSpace(self.normalize_first, center, self.metric, directions, shrink, power)
        means, scale = state.get("posterior.means", diagonal.weight_mean), UncertainScale.from_state(state)
        return TaskPosterior(space, diagonal, means, state["posterior.beta"], uncertain_scale=scale)

    def _loo_score(
        self, labelled: LabelledFeatures, statistics: ClassStatistics, left_out: LooStats, beta: Tensor
    ) -> Tensor:
        every = max(1, labelled.member.shape[-2] // N_SCORED_EXAMPLES)
        mode = self.mode_at(statistics, labelled, beta)
        diagonal = self.laplace_at(mode, labelled, beta, self.log_beta_b.exp().to(beta.dtype))
        some = labelled.phi.every_nth(every)
        log_prob = loo_log_prob(some, diagonal, left_out.every_nth(every), beta)
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
