"""The honesty matrix: what is chosen for a domain never comes from it, and its checks can fail."""

import numpy as np
import pytest
from benchmarks.honesty import constants as constants_module
from benchmarks.honesty.constants import Choice, Constants
from benchmarks.honesty.measure import CENTROID, HELD_OUT, LOGISTIC, OLD, OURS, UNIT, measure
from benchmarks.honesty.musts import musts
from benchmarks.honesty.tables import cells_of, tables
from benchmarks.honesty.tasks import draw
from sklearn.datasets import make_blobs

from gpldla import GPLDLAClassifier
from gpldla.heads.gp import root, strangers


def domain(seed, spread=2.0):
    X, y = make_blobs(180, n_features=12, centers=6, cluster_std=spread, random_state=seed)
    return np.abs(X).astype(np.float32), y


def test_constants_apply_and_go():
    X, y = domain(0)
    first = np.array([np.flatnonzero(y == c)[0] for c in range(5)])
    before = GPLDLAClassifier().fit(X[first], y[first]).beta_
    with Constants(scale=2 * strangers.LOGIT_SCALE).applied():
        assert GPLDLAClassifier().fit(X[first], y[first]).beta_ == pytest.approx(2 * before)
    with Constants(stabilised=0.0).applied():
        assert root.STABILISED == 0
        assert GPLDLAClassifier().fit(X[first], y[first]).beta_ != pytest.approx(before)
    assert GPLDLAClassifier().fit(X[first], y[first]).beta_ == before


def test_a_choice_is_made_without_the_domain_that_it_is_for(monkeypatch):
    monkeypatch.setattr(constants_module, "ONE_SHOT", [Constants(scale=0.2), Constants()])
    monkeypatch.setattr(constants_module, "GROWTHS", (1 / 3,))
    monkeypatch.setattr(constants_module, "ONE_SHOT_TASKS", {(1,) * 5: 2})
    monkeypatch.setattr(constants_module, "MORE_SHOTS_TASKS", {(2,) * 5: 1})
    asked = []
    score = Choice._score
    monkeypatch.setattr(
        Choice, "_score", lambda self, name, *rest: asked.append(name) or score(self, name, *rest)
    )
    choice = Choice({name: domain(seed) for seed, name in enumerate("abc")})
    assert choice.without("b") in (Constants(scale=0.2), Constants())
    assert set(asked) == {"a", "c"}


def test_every_kind_of_row_is_measured_and_becomes_a_table():
    X, y = domain(0)
    rows = []
    for shots in ((1,) * 5, (2,) * 5):
        measured = measure(X, list(draw(y, shots, 4)), min(shots), 5, Constants(scale=1.5))
        facts = {"domain": "blobs", "kind": "equal", "ways": 5, "shots": shots[0]}
        rows += [{**facts, **row} for row in measured]
    one_shot = {row["method"]: row for row in rows[:6]}
    assert set(one_shot) == {OURS, HELD_OUT, OLD, LOGISTIC, UNIT, CENTROID}
    assert one_shot[OURS]["nll"] == one_shot[HELD_OUT]["ours_nll"] != one_shot[HELD_OUT]["nll"]
    assert "expected_accuracy" not in one_shot[OURS]
    (several,) = (row["expected_accuracy"] for row in rows[6:] if row["method"] == OURS)
    assert several["left_out"] <= several["expected"] <= 100
    results = {"command": "c", "commit": "abc", "device": "cpu", "constants": {}, "rows": rows}
    found = tables(results)
    assert "blobs" in found["one shot"][2]
    assert found["expected"][2].startswith("| 5-way 2-shot |")


def test_what_must_hold_can_fail():
    def rows(nll, ece):
        numbers = {
            "held_out_nll": nll,
            "ours_nll": nll,
            "ece": ece,
            "milliseconds": 1.0,
            "gain": 0.0,
            "gain_se": 0.1,
        }
        names = (OURS, HELD_OUT, OLD, LOGISTIC, UNIT, CENTROID)
        return [
            {"domain": "d", "kind": "equal", "ways": 5, "shots": 1, "method": m, "nll": 1.0, **numbers}
            for m in names
        ]

    def said(nll, ece):
        lines = musts(cells_of(rows(nll, ece)))[2:]
        return ["**no**" in line for line in lines if not line.startswith("| goal")]

    assert not any(said(0.9, 4.0))
    assert said(0.96, 4.0)[:3] == [True] * 3  # (a)
    assert said(1.2, 4.0)[3]  # (b)
    assert said(0.9, 16.0)[4:6] == [True, True]  # (c)
