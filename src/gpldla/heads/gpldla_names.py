"""GPLDLA whose prior has the names of the classes as its mean; see `gp/names.py` and docs/names.md."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from gpldla.heads.base import LeftOutPredictions, NoveltyScores, Posterior, check_episode
from gpldla.heads.gp.content import balanced_part
from gpldla.heads.gp.leave_one_out import LooStats
from gpldla.heads.gp.linear_gp import LabelledFeatures, LinearGPPosterior, logit_variance
from gpldla.heads.gp.names import BETAS, NAME_WIDTH, SCALES, Names, among_seen
from gpldla.heads.gp.peak import PRIOR_WIDTH, parabola_peak
from gpldla.heads.gp.predictive import quadrature
from gpldla.heads.gp.task_posterior import TaskPosterior
from gpldla.heads.gp.task_space import TaskSpace, all_single, weighted_one_hot
from gpldla.heads.gpldla import ClassStatistics
from gpldla.heads.gpldla_auto import MAX_LEFT_OUT, GPLDLAAuto
from gpldla.utils.errors import UserError, require_positive

NAMES = ("directions", "named", "center")  # what a posterior's state keeps of its names
OWN = ("scale", "log_pi", "seen")  # and of itself
UNSEEN = 'With names "none of these" needs an example of every class; add some, or leave the names out.'


@dataclass(kw_only=True)
class NamesPosterior(TaskPosterior):
    """A posterior in the space of a task, to whose logits the names add a·t_j·(u − c).

    scale: a, a scalar; log_pi [C]: log priors; seen [C]: which classes have examples
    """

    names: Names
    scale: Tensor
    log_pi: Tensor
    seen: Tensor

    @property
    def has_novelty(self) -> bool:  # type: ignore[override]
        """Whether every class has an example that a row could fit; what names say of that is not known."""
        return bool(self.seen.all())

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S), [q, d] → [q, C]."""
        return quadrature(*self.logits(query))

    def logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the logits, each [q, C]."""
        mean, var = self.diagonal.logits(self.space(query))
        mean = among_seen(mean, self.log_pi, self.seen)
        return mean + self.scale.to(mean) * self.names.scores(query), var

    def nearest_mean_cosine(self, query: Tensor) -> Tensor:
        """Return the cosine to the nearest class mean [q]; refuse where a class has no example."""
        if not self.has_novelty:
            raise UserError(UNSEEN)
        return super().nearest_mean_cosine(query)

    def state(self) -> dict[str, Tensor]:
        """Return the state of the task's posterior, and the names."""
        names = {f"names.{name}": getattr(self.names, name) for name in NAMES}
        own = {f"names.{name}": getattr(self, name) for name in OWN}
        return super().state() | names | own


class Scales(NamedTuple):
    """What examples say about the scale a of the names and about β; overlap: how much both say the same."""

    names: float
    beta: Tensor
    overlap: float = 0.0


class GPLDLANames(GPLDLAAuto):
    """GPLDLA with w_j ~ N(a·t_j, β²I): what the names say, plus what examples add.

    A class needs a name or an example. Without any example it is zero-shot classification. It is no method to
    be trained, as the names are those of one task, so it is not registered.

    prior_mean [C, d]: the embedding t_j of each class's name, of any length; zeros for a class without a name
    name_scale: a without examples, such as the scale of logits that a text-image model was trained with;
                "auto" follows from how alike the names are. Examples correct it.
    """

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        prior_mean: Sequence[Sequence[float]] | Tensor | None = None,
        name_scale: float | str = "auto",
        **options: Any,
    ) -> None:
        super().__init__(feature_dim, **options)
        if prior_mean is None:
            raise UserError("Names as a prior need prior_mean, one embedding of a name per class.")
        mean = torch.as_tensor(prior_mean)
        mean = mean if mean.dtype == torch.float64 else mean.float()
        if mean.ndim != 2 or not bool(mean.isfinite().all()):
            raise UserError(f"prior_mean must be finite numbers [classes, features], not {list(mean.shape)}.")
        if isinstance(name_scale, str) and name_scale != "auto":
            raise UserError(f"name_scale must be a positive number or 'auto', not {name_scale!r}.")
        if not isinstance(name_scale, str):
            require_positive(name_scale=name_scale)
        self.name_scale = name_scale
        self.register_buffer("prior_mean", mean, persistent=False)

    prior_mean: Tensor

    def root_power(self, support: Tensor, present: Tensor | None = None) -> Tensor | None:
        """Return None: names are in the space of the features as they are."""
        return None

    def adapt(
        self,
        support: Tensor,
        labels: Tensor,
        n_way: int,
        *,
        backbone: nn.Module | None = None,
        weights: Tensor | None = None,
        unlabelled: Tensor | None = None,
    ) -> NamesPosterior:
        """Choose a and β, and compute the posterior; support [n, d] with n from 0 on."""
        self._check(support, labels, n_way, unlabelled)
        support, labels, weights, _ = self._merged(support, labels, weights)
        member = weighted_one_hot(labels, n_way, weights, support.dtype)
        names = self._names(support, member)
        space, labelled, statistics = self._space(support, member, weights)
        scales = self._scales(names, support, member, labelled, statistics)
        return self._posterior(names, scales, space, support, labelled, statistics)

    def _check(self, support: Tensor, labels: Tensor, n_way: int, unlabelled: Tensor | None) -> None:
        if support.ndim != 2:
            raise UserError("Names as a prior are for one task at a time.")
        if unlabelled is not None:
            raise UserError("Names as a prior and unlabelled rows do not go together; leave out one of them.")
        if len(labels):
            check_episode(support, labels, n_way)
        if support.shape[-1] != self.prior_mean.shape[-1]:
            raise UserError(
                f"The names have {self.prior_mean.shape[-1]} features and the items {support.shape[-1]};"
                " embed both with the same model."
            )
        if len(self.prior_mean) != n_way:
            raise UserError(f"prior_mean has {len(self.prior_mean)} rows for {n_way} classes; give one each.")

    def _names(self, support: Tensor, member: Tensor) -> Names:
        return Names.of(self.prior_mean.to(support.device), support, member)

    def _space(
        self, support: Tensor, member: Tensor, weights: Tensor | None
    ) -> tuple[TaskSpace, LabelledFeatures, ClassStatistics]:
        """Return the space of the examples, the examples there, and their statistics.

        Without two classes that have examples nothing tells classes apart, and the statistics are zero.
        """
        d, counts = support.shape[-1], member.sum(0)
        if int((counts > 0).sum()) < 2:
            zeros = support.new_zeros(len(counts), d)
            space = TaskSpace(True, support.new_zeros(d))
            labelled = self.labelled(space(support), member, weights)
            statistics = ClassStatistics(zeros, zeros.sum(-1), zeros.new_zeros(1))
        else:
            space = self.fit_space(support, member)
            labelled = self.labelled(space(support), member, weights)
            statistics = self.class_statistics(labelled)
        possible = (counts > 0) | (self.prior_mean != 0).any(-1).to(counts.device)
        # How often classes occur is known from examples only if all classes have some.
        seen = counts if torch.equal(possible, counts > 0) else possible.to(counts)
        absent = None if bool(possible.all()) else ~possible
        return space, labelled._replace(log_pi=self._log_priors(seen), absent=absent), statistics

    def _scales(
        self,
        names: Names,
        support: Tensor,
        member: Tensor,
        labelled: LabelledFeatures,
        statistics: ClassStatistics,
    ) -> Scales:
        """Return a and β, by leave-one-out where a class has a second example."""
        first = names.first_scale() if isinstance(self.name_scale, str) else float(self.name_scale)
        beta = self.log_beta.exp().to(support).view(1)
        if self.auto_beta:  # that of one example per class, which is as certain as a name
            beta = torch.full_like(beta, names.first_scale() / support.shape[-1] ** 0.5)
        if not len(support):
            return Scales(first, beta)
        if len(support) > MAX_LEFT_OUT:
            support, member = balanced_part(support, member, MAX_LEFT_OUT, by_content=True)
            _, labelled, statistics = self._space(support, member, member.sum(-1))
        scores = names.left_out_scores(support, member)
        start = names.scale_of(scores, member, first)
        if not bool(statistics.mean_norm2 > 0):
            return Scales(self._from_names_alone(scores, labelled, start), beta)
        left_out = self._left_out(support, member, labelled)
        single = all_single(member)
        cosine = labelled.phi.gram() @ (member > 0).to(support) if bool(single) else left_out.cosine
        overlap = names.overlap(scores, cosine, member)
        if self.auto_beta:
            beta = self._default_beta(support, member, left_out, single).view(1) / (1 + overlap)
        if bool(single):
            alone = self._from_names_alone(scores, labelled, start)
            return Scales(alone / (1 + overlap), beta, overlap)
        return self._most_probable(
            start / (1 + overlap), beta, overlap, scores, left_out, labelled, statistics
        )

    def _left_out(self, support: Tensor, member: Tensor, labelled: LabelledFeatures) -> LooStats:
        """Return the leave-one-out statistics; classes that have a name only are possible, too."""
        left_out = self.left_out(support, member, labelled._replace(absent=member.sum(0) == 0))
        unseen = (member.sum(0) == 0) & labelled.log_pi.isfinite()
        if not bool(unseen.any()):
            return left_out
        log_pi = labelled.log_pi.expand_as(left_out.log_pi)
        return replace(left_out, log_pi=log_pi, slope=left_out.slope.masked_fill(unseen, 0.0))

    def _from_names_alone(self, scores: Tensor, labelled: LabelledFeatures, start: float) -> float:
        """Return the most probable a where examples tell only how far the names can be trusted."""
        steps = torch.tensor(SCALES, dtype=scores.dtype)
        own, log_pi = labelled.member, labelled.fill_absent(labelled.log_pi, -math.inf)
        flat = torch.zeros_like(log_pi) if self.priors is None else log_pi
        log_prob = (start * steps[:, None, None].to(scores) * scores + flat).log_softmax(-1)
        score = (log_prob.clamp_min(-1e30) * own).sum((-2, -1)).cpu()
        score = score - 0.5 * (steps.log() / NAME_WIDTH) ** 2
        return start * math.exp(parabola_peak(score, steps.log()).item())

    def _most_probable(
        self,
        start: float,
        beta: Tensor,
        overlap: float,
        scores: Tensor,
        left_out: LooStats,
        labelled: LabelledFeatures,
        statistics: ClassStatistics,
    ) -> Scales:
        """Return a and β of the largest leave-one-out likelihood, under log-normal priors around both."""
        a_steps = torch.tensor(SCALES, dtype=scores.dtype)
        b_steps = torch.tensor(BETAS if self.auto_beta else (1.0,), dtype=scores.dtype)
        own = labelled.member.gt(0) * left_out.counted.unsqueeze(-1)
        table = torch.empty(len(a_steps), len(b_steps), dtype=scores.dtype)
        for column, step in enumerate(b_steps.tolist()):
            this_beta, mean = beta * step, left_out.mean((beta * step).view(()))
            mean = among_seen(mean, labelled.log_pi, labelled.counts > 0)
            for row, factor in enumerate(a_steps.tolist()):
                offset = start * factor * scores
                diagonal = self._diagonal(labelled._replace(offset=offset), statistics, this_beta)
                var = logit_variance(labelled.phi, diagonal.weight_var, diagonal.bias_var, mean.shape)
                log_prob = quadrature(mean + offset, var)
                table[row, column] = (log_prob.nan_to_num(neginf=0) * own).sum()
        table -= 0.5 * (a_steps.log() / NAME_WIDTH).square()[:, None]
        table -= 0.5 * (b_steps.log() / PRIOR_WIDTH).square()
        best_row, best_column = divmod(int(table.argmax()), len(b_steps))
        names = start * math.exp(parabola_peak(table[:, best_column], a_steps.log()).item())
        if self.auto_beta:
            beta = beta * parabola_peak(table[best_row], b_steps.log()).exp().to(beta)
        return Scales(names, beta, overlap)

    def _diagonal(
        self, labelled: LabelledFeatures, statistics: ClassStatistics, beta: Tensor
    ) -> LinearGPPosterior:
        """Return the posterior of what examples add to the names."""
        beta_b = self.log_beta_b.exp().to(beta)
        mode = self.mode_at(statistics, labelled, beta)
        mean = labelled.phi.dot(mode.w, labelled.fill_absent(mode.b, -math.inf))
        change = among_seen(mean, labelled.log_pi, labelled.counts > 0) - mean
        assert labelled.offset is not None
        offset = labelled.offset + change.nan_to_num()  # of an impossible class it makes no difference
        return self.laplace_at(mode, labelled._replace(offset=offset), beta, beta_b)

    def _posterior(
        self,
        names: Names,
        scales: Scales,
        space: TaskSpace,
        support: Tensor,
        labelled: LabelledFeatures,
        statistics: ClassStatistics,
    ) -> NamesPosterior:
        scale = support.new_tensor(scales.names, dtype=torch.float64)
        labelled = labelled._replace(offset=scales.names * names.scores(support))
        diagonal = self._diagonal(labelled, statistics, scales.beta)
        return NamesPosterior(
            space=space,
            diagonal=diagonal,
            means=statistics.means,
            beta=scales.beta.squeeze(0),
            names=names,
            scale=scale,
            log_pi=labelled.log_pi,
            seen=labelled.counts > 0,
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
        """Return log p(class | x_i, S without i), [n, d] → [n, C], in closed form, with a and β as chosen.

        An example that is alone in its class is predicted by the names and the other classes' examples.
        """
        assert isinstance(posterior, NamesPosterior)
        support, labels, weights, index = self._merged(support, labels, weights)
        member = weighted_one_hot(labels, n_way, weights, support.dtype)
        names = self._names(support, member)
        labelled, statistics = self._space(support, member, weights)[1:]
        offset = posterior.scale.to(support) * names.left_out_scores(support, member)
        log_pi = labelled.fill_absent(labelled.log_pi, -math.inf)
        mean, counted = log_pi.expand_as(offset), torch.zeros_like(offset[:, 0])
        if bool(statistics.mean_norm2 > 0):
            left_out = self._left_out(support, member, labelled)
            mean, counted = left_out.mean(posterior.beta.to(support)), left_out.counted
            mean = among_seen(mean, labelled.log_pi, labelled.counts > 0)
        diagonal = posterior.diagonal
        var = logit_variance(labelled.phi, diagonal.weight_var, diagonal.bias_var, mean.shape)
        log_prob = quadrature(mean + offset, var).masked_fill((counted == 0).unsqueeze(-1), math.nan)
        return log_prob if index is None else log_prob[index]

    def left_out_with_all_shots(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None, posterior: Posterior
    ) -> LeftOutPredictions | None:
        """Return None: the correction for the missing shot does not know the names."""
        return None

    def novelty_scores(
        self, support: Tensor, labels: Tensor, n_way: int, weights: Tensor | None
    ) -> NoveltyScores:
        """Return how examples fit that are left out; refuse where a class has none that a row could fit."""
        if len(labels.unique()) < n_way:
            raise UserError(UNSEEN)
        return super().novelty_scores(support, labels, n_way, weights)

    def exportable(self, posterior: Posterior) -> NoReturn:
        """Refuse: in a graph that adapts there are no names."""
        raise UserError(
            "Names as a prior cannot be adapted in a graph; export the fitted classifier instead."
        )

    def restore(self, state: Mapping[str, Tensor]) -> Posterior | None:
        """Return the posterior with these moments, names and scales."""
        inner = super().restore(state)
        if not isinstance(inner, TaskPosterior):
            return inner
        names = Names(*(state[f"names.{name}"] for name in NAMES))
        return NamesPosterior(
            space=inner.space,
            diagonal=inner.diagonal,
            means=inner.means,
            beta=inner.beta,
            names=names,
            scale=state["names.scale"],
            log_pi=state["names.log_pi"],
            seen=state["names.seen"],
        )
