"""A model at home, on new classes of the kind it was trained on, and away from it: how far to trust it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from torch import Tensor

from gpldla.classifier.calibration import (
    Reliability,
    accuracy_percent,
    apply_temperature,
    negative_log_likelihood,
    reliability,
)
from gpldla.classifier.model import FewShotModel
from gpldla.evaluation import Evaluation, Predictions
from gpldla.reports.plots import reliability_plot

NOTABLE = 3.0  # points between confidence and accuracy that are worth a word


@dataclass(frozen=True)
class Stage:
    """One way to make probabilities of what the head predicts.

    answer: from what was evaluated to the log probabilities that are judged, [E, q, ways]
    """

    name: str
    answer: Callable[[Evaluation, FewShotModel], Tensor]


STAGES = (
    Stage("as predicted", lambda given, _: given.predictions.log_prob),
    Stage(
        "the model's temperature",
        lambda given, model: apply_temperature(given.predictions.log_prob, model.temperature),
    ),
    Stage("the answer of a classifier", lambda given, _: given.answers.predictions.log_prob),
)


@dataclass(frozen=True)
class Judged:
    """How a stage does on the queries of one place: percent, except for the NLL.

    gap: mean confidence minus accuracy, above 0 where the model is too sure of itself
    """

    place: str
    stage: str
    accuracy: float
    nll: float
    bins: Reliability
    gap: float

    @property
    def ece(self) -> float:
        """The expected calibration error."""
        return self.bins.error

    @property
    def verdict(self) -> str:
        """Whether the model is too sure, not sure enough, or neither."""
        if abs(self.gap) <= NOTABLE:
            return "about as sure as it should be"
        return "too sure" if self.gap > 0 else "not sure enough"


def judge(places: Sequence[tuple[str, Evaluation]], model: FewShotModel) -> list[list[Judged]]:
    """Return for each stage how it does in each place."""
    return [[_judged(place, stage, evaluation, model) for place, evaluation in places] for stage in STAGES]


def _judged(place: str, stage: Stage, evaluation: Evaluation, model: FewShotModel) -> Judged:
    answered = Predictions(stage.answer(evaluation, model), evaluation.predictions.labels)
    log_prob, labels = answered.flat
    accuracy = float(accuracy_percent(log_prob, labels))
    confidence = 100 * log_prob.exp().amax(-1).double().mean().item()
    nll = negative_log_likelihood(log_prob, labels)
    return Judged(place, stage.name, accuracy, nll, reliability(log_prob, labels), confidence - accuracy)


def plots(stages: Sequence[Sequence[Judged]]) -> list[Markup]:
    """Return for each stage its reliability diagrams, one per place, side by side."""
    return [reliability_plot([(one.place, one.stage, one.bins) for one in places]) for places in stages]


def sentences(stages: Sequence[Sequence[Judged]]) -> list[str]:
    """Say for each place what the last stage makes of the first, and how sure the model then is."""
    return [_sentence(first, last) for first, last in zip(stages[0], stages[-1])]


def _sentence(first: Judged, last: Judged) -> str:
    better = (last.ece < first.ece) + (last.nll < first.nll)
    change = ("worse", "in one respect better and in one worse", "better")[better]
    place = first.place[:1].upper() + first.place[1:]
    return (
        f"{place}: with {last.stage}, calibration is {change}: its error goes from {first.ece:.1f} to"
        f" {last.ece:.1f} points, the NLL from {first.nll:.3f} to {last.nll:.3f}. There the model is"
        f" {last.verdict}: {last.accuracy + last.gap:.0f} % confident on average, and right"
        f" {last.accuracy:.0f} % of the time."
    )
