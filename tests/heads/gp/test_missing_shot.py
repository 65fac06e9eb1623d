"""What leave-one-out says about new rows: against simulated rows, and against what is known of it."""

import numpy as np
import pytest
import torch

from gpldla import GPLDLAClassifier
from gpldla.heads.gp.missing_shot import expected_cosines, shots_with_and_without


def simulated(shots, signal, *, dimensions, tasks, rng):
    """Return mean inner products with, and squared lengths of, centred class means and a row of class 0."""
    C, found = len(shots), []
    for _ in range(tasks):
        wholes = rng.normal(0, np.sqrt(signal / dimensions), (C, dimensions))
        noise = [rng.normal(0, 1 / np.sqrt(dimensions), (N, dimensions)).mean(0) for N in shots]
        means = wholes + np.stack(noise)
        row = wholes[0] + rng.normal(0, 1 / np.sqrt(dimensions), dimensions) - means.mean(0)
        means = means - means.mean(0)
        found.append([means @ row, (means**2).sum(1), np.full(C, row @ row)])
    dots, means2, row2 = np.mean(found, axis=0)
    return dots / np.sqrt(means2 * row2)


@pytest.mark.parametrize("shots", [(1, 2, 2, 2, 2), (4, 4), (1, 5, 1)])
@pytest.mark.parametrize("signal", [0.2, 2.0])
def test_the_cosines_are_those_of_simulated_rows(shots, signal):
    rng = np.random.default_rng(0)
    own = torch.zeros(1, len(shots)).double()
    own[0, 0] = 1
    counts, present = torch.tensor([shots]).double(), torch.ones(len(shots)).double()
    ours = expected_cosines(torch.tensor(signal), counts, own, present, centred=True)[0].numpy()
    drawn = simulated(shots, signal, dimensions=300, tasks=1500, rng=rng)
    np.testing.assert_allclose(ours, drawn, atol=0.01)


def test_shots_are_counted_with_and_without_each_example():
    member = torch.tensor([[1.0, 0], [1, 0], [2, 0], [0, 3]], dtype=torch.float64)
    full, short = shots_with_and_without(member)
    torch.testing.assert_close(full[0], torch.tensor([16 / 6, 1]).double())
    assert full[3].tolist() == full[0].tolist()
    torch.testing.assert_close(short[0], torch.tensor([9 / 5, 1]).double())
    torch.testing.assert_close(short[2], torch.tensor([2.0, 1]).double())
    torch.testing.assert_close(short[3], torch.tensor([16 / 6, 0]).double())


def gaussian_task(shots, d, spread, rng, queries=100):
    wholes = rng.normal(size=(len(shots), d)) * spread
    X = np.concatenate([w + rng.normal(size=(N, d)) for w, N in zip(wholes, shots)])
    Q = np.concatenate([w + rng.normal(size=(queries, d)) for w in wholes])
    return X, np.repeat(np.arange(len(shots)), shots), Q, np.repeat(np.arange(len(shots)), queries)


@pytest.mark.parametrize(("center", "bias"), [("auto", 0.03), (False, 0.05)])
def test_what_is_reported_is_what_new_rows_get_and_leave_one_out_is_not(center, bias):
    """Two examples of each of five classes: the reported accuracies are right on average over tasks."""
    rng = np.random.default_rng(0)
    reported, plain, true, inside = [], [], [], []
    for _ in range(120):
        X, y, Q, truth = gaussian_task((2,) * 5, 60, 0.55, rng)
        clf = GPLDLAClassifier(center=center).fit(X, y)
        expected = clf.expected_accuracy()
        reported.append(expected.accuracy)
        plain.append((clf.leave_one_out().argmax(1) == y).mean())
        true.append(clf.score(Q, truth))
        inside.append(expected.low <= true[-1] <= expected.high)
        assert 0 <= expected.low <= expected.accuracy <= expected.high <= 1
        assert expected.examples == 10
    assert np.mean(plain) < np.mean(true) - 0.08
    assert np.mean(reported) == pytest.approx(np.mean(true), abs=bias)
    assert 0.85 <= np.mean(inside) <= 0.98


def test_with_many_shots_the_missing_one_makes_no_difference():
    X, y, _, _ = gaussian_task((60, 60), 6, 0.7, np.random.default_rng(1))
    clf = GPLDLAClassifier().fit(X, y)
    plain = (clf.leave_one_out().argmax(1) == y).mean()
    assert clf.expected_accuracy().accuracy == pytest.approx(plain, abs=0.01)


def test_weights_and_copies_are_the_same_and_no_second_examples():
    X, y, _, _ = gaussian_task((3, 4, 2), 10, 0.7, np.random.default_rng(2))
    once = GPLDLAClassifier().fit(X, y).expected_accuracy()
    for clf in (
        GPLDLAClassifier().fit(np.repeat(X, 2, axis=0), np.repeat(y, 2)),
        GPLDLAClassifier().fit(X, y, sample_weight=np.full(9, 2.0)),
    ):
        assert clf.expected_accuracy() == pytest.approx(once)


def test_single_examples_say_nothing_and_are_left_aside():
    X, y, _, _ = gaussian_task((1, 1, 1), 10, 1.0, np.random.default_rng(3))
    assert GPLDLAClassifier().fit(X, y).expected_accuracy() is None
    X, y, _, _ = gaussian_task((1, 3, 2), 10, 1.0, np.random.default_rng(3))
    assert GPLDLAClassifier().fit(X, y).expected_accuracy().examples == 5
