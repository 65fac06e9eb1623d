"""How often the answers for new items will be right, judged from the labelled examples alone."""

from typing import NamedTuple

import scipy.special
import torch

from gpldla.heads.base import LeftOutPredictions

CONFIDENCE = 0.9
USES_OF_A_PAIR = 2  # the likeness of two examples of a class decides about both when they are left out


class ExpectedAccuracy(NamedTuple):
    """The accuracy to expect for new items, and the interval in which it lies with a probability of 90 %.

    New items are taken to be of the classes with two or more examples, in the proportions of the examples.
    accuracy, low, high: between 0 and 1; examples: how many distinct ones it was judged from
    """

    accuracy: float
    low: float
    high: float
    examples: int


def expected_accuracy(predictions: LeftOutPredictions | None) -> ExpectedAccuracy | None:
    """Return the accuracy to expect; None if there is nothing to judge it from.

    The interval is Jeffreys', of a Beta distribution, for half as many independent examples as there are,
    because every pair of examples of one class is used twice.
    """
    if predictions is None or not len(predictions.labels):
        return None
    weights = predictions.weights.double()
    right = (predictions.log_prob.argmax(-1) == predictions.labels).double()
    accuracy = float((weights * right).sum() / weights.sum())
    low, high = jeffreys_interval(accuracy, _effective_number(weights) / USES_OF_A_PAIR)
    return ExpectedAccuracy(accuracy, low, high, len(weights))


def jeffreys_interval(share: float, number: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of a probability of which `share` of `number` trials were successes."""
    successes, failures = share * number + 0.5, (1 - share) * number + 0.5
    tail = (1 - confidence) / 2
    low, high = (float(scipy.special.betaincinv(successes, failures, p)) for p in (tail, 1 - tail))
    return 0.0 if share == 0 else min(low, share), 1.0 if share == 1 else max(high, share)


def _effective_number(weights: torch.Tensor) -> float:
    """Return (Σw)²/Σw², which is the number of examples where all count once."""
    return float(weights.sum().square() / weights.square().sum())
