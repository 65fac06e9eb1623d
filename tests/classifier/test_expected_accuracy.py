"""The accuracy to expect, from predictions that are given."""

import pytest
import scipy.stats
import torch

from gpldla.classifier.expected_accuracy import expected_accuracy, jeffreys_interval
from gpldla.heads.base import LeftOutPredictions
from gpldla.reports.terminal import expected_line


def predictions(right, weights):
    """Of two classes, the first of which is the truth."""
    log_prob = torch.tensor([[0.8, 0.2] if one else [0.4, 0.6] for one in right]).log()
    return LeftOutPredictions(log_prob, torch.zeros(len(right), dtype=torch.long), torch.tensor(weights))


def test_examples_count_by_their_weight():
    found = expected_accuracy(predictions([True, True, False], [1.0, 2.0, 1.0]))
    assert found.accuracy == pytest.approx(0.75)
    assert found.examples == 3
    number = 4**2 / 6 / 2
    posterior = scipy.stats.beta(0.75 * number + 0.5, 0.25 * number + 0.5)
    assert (found.low, found.high) == pytest.approx((posterior.ppf(0.05), posterior.ppf(0.95)))


def test_what_was_always_or_never_right_has_an_open_end():
    assert jeffreys_interval(1.0, 8)[1] == 1
    assert jeffreys_interval(0.0, 8)[0] == 0
    assert jeffreys_interval(1.0, 8)[0] == pytest.approx(1 - jeffreys_interval(0.0, 8)[1])


def test_nothing_is_said_of_nothing():
    assert expected_accuracy(None) is None
    assert expected_accuracy(predictions([], [])) is None


def test_it_is_said_in_one_sentence():
    found = expected_accuracy(predictions([True] * 7 + [False], [1.0] * 8))
    assert expected_line(found, "texts") == (
        "On new texts like these expect 88 % right, with all examples in use (90 % interval: 47 to 99 %)."
    )
