"""From features to a whole answer: probabilities, "none of these", and whether the answer is unsure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.novelty import Novelty
from gpldla.export.modules import PosteriorModule, as_constant
from gpldla.heads import Posterior
from gpldla.utils.errors import UserError

PROBABILITIES, NONE_OF_THESE, UNSURE = "probabilities", "none_of_these", "unsure"


@dataclass(frozen=True)
class Decision:
    """When an answer is unsure, as `gpldla.classifier.abstention` says it.

    max_error: the largest expected error of an answer
    prevalence: the assumed share of items of no known class
    novelty: the calibration of "none of these", of the posterior `known`, which follows from the examples
    alone; both None where the head cannot tell
    """

    max_error: float = MAX_ERROR
    prevalence: float = PREVALENCE
    novelty: Novelty | None = None
    known: Posterior | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_error <= 1:
            raise UserError(f"max_error must lie between 0 and 1, not {self.max_error!r}.")
        if not 0 < self.prevalence < 1:
            raise UserError(f"prevalence must lie between 0 and 1, not {self.prevalence!r}.")

    @classmethod
    def of(cls, classifier: FewShotClassifier, max_error: float, prevalence: float) -> "Decision":
        """Return that of a fitted classifier, which calibrates "none of these" if nobody has."""
        if not classifier.has_novelty:
            return cls(max_error, prevalence)
        novelty, known = classifier.task.none_of_these_parts()
        return cls(max_error, prevalence, novelty.to("cpu"), known)

    @property
    def facts(self) -> dict[str, Any]:
        """What a file says of it."""
        return {"max_error": self.max_error, "prevalence": self.prevalence}


class DecisionModule(nn.Module):
    """Features [n, d] → probabilities [n, C], of heads that can tell "none of these" [n], and unsure [n]."""

    def __init__(self, answers: PosteriorModule, decision: Decision) -> None:
        super().__init__()
        self.subject, self.answers, self.decision = answers.subject, answers, decision
        self.known = None if decision.known is None else as_constant(decision.known)

    @property
    def outputs(self) -> Sequence[str]:
        """The names of what `forward` returns."""
        return (PROBABILITIES, UNSURE) if self.known is None else (PROBABILITIES, NONE_OF_THESE, UNSURE)

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return the answers for features."""
        probabilities: Tensor = self.answers(features)
        correct, none = probabilities.amax(-1), []
        if self.known is not None and self.decision.novelty is not None:
            novelty = self.decision.novelty
            none = [novelty.probability(novelty.score(self.known, features), self.decision.prevalence)]
            correct = correct * (1 - none[0])
        unsure = torch.logical_not(1 - correct <= self.decision.max_error)  # so is NaN
        return probabilities, *none, unsure
