"""One adapted task: a head with its labelled examples, and everything that is computed from them.

The scikit-learn estimator and the classifier of pictures and texts are both interfaces to it: they turn their
input into rows and their labels into class indices.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpldla.backbones import Backbone
from gpldla.classifier.calibration import apply_temperature
from gpldla.classifier.examples import Examples
from gpldla.classifier.expected_accuracy import ExpectedAccuracy, expected_accuracy
from gpldla.classifier.novelty import Novelty, fit_novelty
from gpldla.classifier.own_prior import NEGLIGIBLE, OwnPrior, mixture, own_prior_head
from gpldla.classifier.uncertainty import uncertainty_of
from gpldla.heads import Head, Posterior
from gpldla.heads.gp.unlabelled import usable_rows
from gpldla.utils.errors import UserError
from gpldla.utils.modules import evaluating

VALUES_PER_CHUNK = 1 << 22  # of rows, or of probabilities at the points of an integral: bounds the memory


@dataclass
class AdaptedTask:
    """A head adapted to examples of `n_classes` classes; rows are what the head consumes, [n, ...].

    examples:    None if a file was saved without them; they can then not be changed or left out
    center:      what is subtracted from rows before the head gets them [d], or None
    backbone:    the network, for heads that adapt it
    temperature: divides the log probabilities
    novelty:     the calibration of "none of these"; None until it is computed
    unlabelled:  more rows of the task, without labels [m, ...], that the posterior has learned from, or None
    labelled_only: the posterior that follows from the examples alone, where there are unlabelled rows:
                 leaving examples out and "none of these" need one that has not seen them in other ways
    own_prior:   a second answer that is mixed with that of `posterior`, or None
    """

    head: Head
    posterior: Posterior
    n_classes: int
    examples: Examples | None
    center: Tensor | None = None
    backbone: Backbone | None = None
    temperature: float = 1.0
    novelty: Novelty | None = None
    unlabelled: Tensor | None = None
    labelled_only: Posterior | None = None
    own_prior: OwnPrior | None = None

    @classmethod
    def adapt(
        cls,
        head: Head,
        examples: Examples,
        n_classes: int,
        *,
        center: Tensor | None = None,
        backbone: Backbone | None = None,
        temperature: float = 1.0,
        novelty: Novelty | None = None,
        seed: int = 0,
        unlabelled: Tensor | None = None,
    ) -> "AdaptedTask":
        """Adapt a head to examples; `seed` is that of the draws of a Monte Carlo predictive.

        unlabelled: ignored where there are too few, see `usable_rows`
        """
        head, backbone = evaluating(head), None if backbone is None else evaluating(backbone)
        ways = max(2, n_classes)  # a second class without examples has probability 0
        rows = _centred(examples.rows, center)

        def posterior_with(more: Tensor | None) -> Posterior:
            try:
                posterior = head.adapt_weighted(
                    rows, examples.labels, ways, examples.weights, unlabelled=more, backbone=backbone
                )
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                raise _too_large(rows) from None
            if any(tensor.isnan().any() for tensor in posterior.state().values()):
                raise _too_large(rows)
            posterior.fix_draws(seed)
            return posterior

        labelled_only = None
        with torch.no_grad():
            posterior = posterior_with(None)
            if unlabelled is not None:
                unlabelled = usable_rows(unlabelled.to(rows), n_classes)
            if unlabelled is not None:
                labelled_only, posterior = posterior, posterior_with(_centred(unlabelled, center))
        return cls(
            head,
            posterior,
            n_classes,
            examples,
            center,
            backbone,
            temperature,
            novelty,
            unlabelled,
            labelled_only,
        )

    @property
    def _of_examples(self) -> Posterior:
        """The posterior that follows from the examples alone."""
        return self.posterior if self.labelled_only is None else self.labelled_only

    def log_prob(self, rows: Tensor) -> Tensor:
        """Return log p(class | row), [q, ...] → [q, n_classes], with the temperature and the own prior."""

        def predict(part: Tensor) -> Tensor:
            log_prob = apply_temperature(self.posterior.log_prob(part), self.temperature)
            mixed = log_prob if self.own_prior is None else self.own_prior.mixed(log_prob, part)
            return mixed[:, : self.n_classes]

        return self.in_chunks(rows, predict)

    def none_of_these(self, rows: Tensor, prevalence: float) -> Tensor:
        """Return the probability that each row is of no known class, [q, ...] → [q].

        prevalence: the assumed share of such rows
        """
        if not 0 < prevalence < 1:
            raise UserError(f"prevalence must lie between 0 and 1, not {prevalence!r}.")
        novelty, known = self.none_of_these_parts()
        score = self.in_chunks(rows, lambda part: novelty.score(known, part))
        return novelty.probability(score, prevalence)

    def none_of_these_parts(self) -> tuple[Novelty, Posterior]:
        """Return the calibration of "none of these" and the posterior that its scores are of."""
        return self.calibrate_novelty(), self._of_examples

    def calibrate_novelty(self) -> Novelty:
        """Return the calibration of "none of these", fitted to the examples by the first call."""
        if self.novelty is None:
            examples = self.require_examples()
            with torch.no_grad():
                rows = _centred(examples.rows, self.center)
                ways = max(2, self.n_classes)
                self.novelty = fit_novelty(self.head, rows, examples.labels, ways, examples.weights)
        return self.novelty

    def uncertainty(self, rows: Tensor) -> Tensor:
        """Return total, aleatoric and epistemic uncertainty in bits, [q, ...] → [q, 3]."""
        return self.in_chunks(rows, lambda part: uncertainty_of(self.posterior, part))

    def leave_one_out(self) -> Tensor:
        """Return the probabilities of each example under the classifier without it, [n, n_classes].

        NaN for the only example of a class. Unlabelled rows are left out, too.
        """
        with torch.no_grad():
            log_prob = self._left_out(self.head, self._of_examples)
            log_prob = apply_temperature(log_prob, self.temperature)
            if self.own_prior is not None:
                of_own = self._left_out(own_prior_head(), self.own_prior.posterior)
                log_prob = mixture(log_prob, of_own, self.own_prior.share)
            return log_prob.exp()[:, : self.n_classes]

    def _left_out(self, head: Head, posterior: Posterior) -> Tensor:
        examples = self.require_examples()
        return head.leave_one_out(
            _centred(examples.rows, self.center),
            examples.labels,
            max(2, self.n_classes),
            examples.weights,
            posterior,
            backbone=self.backbone,
        )

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the accuracy to expect for new rows; None where examples are too few, or the head cannot."""
        examples = self.require_examples()
        with torch.no_grad():
            predictions = self.head.left_out_with_all_shots(
                _centred(examples.rows, self.center),
                examples.labels,
                max(2, self.n_classes),
                examples.weights,
                self.posterior,
            )
        return expected_accuracy(predictions)

    def with_own_prior(self, share: float) -> "AdaptedTask":
        """Return the task with a second answer, which has this share in the probabilities."""
        if share < NEGLIGIBLE:
            return replace(self, own_prior=None)
        examples = self.require_examples()
        with torch.no_grad():
            posterior = own_prior_head().adapt_weighted(
                _centred(examples.rows, self.center),
                examples.labels,
                max(2, self.n_classes),
                examples.weights,
            )
        return replace(self, own_prior=OwnPrior(posterior, share))

    def require_examples(self) -> Examples:
        """Return the examples; raise a `UserError` if they were not saved."""
        if self.examples is None:
            raise UserError(
                "This classifier was saved without its support examples; save it with them, or fit it again."
            )
        return self.examples

    def to(self, device: str | torch.device) -> "AdaptedTask":
        """Return the task on another device; head and backbone are modules and move themselves."""
        return replace(
            self,
            posterior=self.posterior.to(device),
            examples=None if self.examples is None else self.examples.to(device),
            center=None if self.center is None else self.center.to(device),
            unlabelled=None if self.unlabelled is None else self.unlabelled.to(device),
            labelled_only=None if self.labelled_only is None else self.labelled_only.to(device),
            novelty=None if self.novelty is None else self.novelty.to(device),
            own_prior=None if self.own_prior is None else self.own_prior.to(device),
        )

    def rows_per_chunk(self, values_per_row: int) -> int:
        """Return how many rows are predicted at once, which bounds the memory."""
        return max(1, VALUES_PER_CHUNK // max(values_per_row, 16 * self.n_classes))

    def in_chunks(self, rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function to rows [q, ...], centred, in chunks; an answer that is NaN is an error."""
        step = self.rows_per_chunk(math.prod(rows.shape[1:]))
        with torch.inference_mode():
            if len(rows) <= step:
                answers = function(_centred(rows, self.center))
            else:
                parts = torch.split(rows, step)
                answers = torch.cat([function(_centred(part, self.center)) for part in parts])
        if answers.isnan().any():
            raise UserError(
                f"{int(answers.isnan().flatten(1).any(1).sum()) if answers.ndim > 1 else 'Some'} of"
                f" {len(rows)} answers are NaN: features are too large to compute with, or the classifier is"
                " damaged; scale the features, or fit it again."
            )
        return answers


def _too_large(rows: Tensor) -> UserError:
    return UserError(
        f"The features reach {rows.abs().max().item():.1g} and cannot be computed with in"
        f" {str(rows.dtype).removeprefix('torch.')}; scale them, or give float64."
    )


def _centred(rows: Tensor, center: Tensor | None) -> Tensor:
    return rows if center is None else rows - center
