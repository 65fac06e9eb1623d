"""Home beside away: what is said follows from the predictions."""

from types import SimpleNamespace

import pytest
import torch

from gpldla.classifier.model import FewShotModel
from gpldla.evaluation import Predictions
from gpldla.reports.home_and_away import judge, plots, sentences


def predictions(confidence, right, temperature=2.0, n=200):
    """Tasks of two classes, all answered with one confidence, of which a share is right."""
    labels = torch.zeros(n, dtype=torch.int64)
    first = torch.where(torch.arange(n) < right * n, confidence, 1 - confidence)
    tempered = torch.stack([first, 1 - first], -1) ** (1 / temperature)
    tempered = tempered / tempered.sum(-1, keepdim=True)
    return SimpleNamespace(
        predictions=Predictions(torch.stack([first, 1 - first], -1).log()[None], labels),
        answers=SimpleNamespace(predictions=Predictions(tempered.log()[None], labels)),
    )


@pytest.fixture
def model():
    return FewShotModel("pixels", "protonet", temperature=2.0)


def test_each_stage_is_judged_in_each_place(model):
    away = predictions(0.92, 0.6, temperature=4.0)
    stages = judge([("at home", predictions(0.92, 0.92)), ("away", away)], model)
    assert [[one.place for one in places] for places in stages] == [["at home", "away"]] * 3
    home, away = stages[0]
    assert (home.accuracy, away.accuracy) == pytest.approx((92, 60))
    assert (home.ece, away.ece) == pytest.approx((0, 32), abs=1e-3)
    assert (home.gap, away.gap) == pytest.approx((0, 32), abs=1e-3)
    # 0.92 and 0.08 at temperature 2: their square roots
    assert [one.accuracy + one.gap for one in stages[1]] == pytest.approx([77.23, 77.23], abs=0.01)
    # and with another temperature for the task away, their fourth roots
    assert [one.accuracy + one.gap for one in stages[2]] == pytest.approx([77.23, 64.81], abs=0.01)
    assert len(plots(stages)) == 3


@pytest.mark.parametrize(
    ("confidence", "right", "words"),
    [
        (0.92, 0.6, ["calibration is better", "too sure: 77 % confident on average, and right 60 %"]),
        (0.92, 0.92, ["calibration is worse", "not sure enough: 77 % confident"]),
        (0.92, 0.77, ["calibration is better", "about as sure as it should be"]),
    ],
)
def test_the_sentence_follows_from_the_numbers(model, confidence, right, words):
    (sentence,) = sentences(judge([("away", predictions(confidence, right))], model))
    assert sentence.startswith("Away: with the answer of a classifier, ")
    for part in words:
        assert part in sentence
