"""What to label next: the rule against a slow reference, and what it promises."""

import numpy as np
import pytest
import torch

from gpldla import FewShotModel, GPLDLAClassifier
from gpldla.classifier import suggestion
from gpldla.classifier.suggestion import NOISE, choose
from gpldla.utils.errors import UserError
from tests.classifier.test_examples import LABELS, pictures


def slow_choice(phi, known, weights, open_, count):
    """The rule as it is written down: the whole covariance, conditioned again after each choice."""
    x = np.concatenate([known, phi])
    noise = [*(NOISE / weights)]
    seen, chosen = [*range(len(known))], []
    kernel = x @ x.T
    for _ in range(count):
        inverse = np.linalg.inv(kernel[np.ix_(seen, seen)] + np.diag(noise))
        K = kernel - kernel[:, seen] @ inverse @ kernel[seen]
        K = K[len(known) :, len(known) :]
        score = open_ * (K**2 @ open_) / (np.diag(K) + NOISE)
        score[chosen] = -np.inf
        chosen.append(int(score.argmax()))
        seen.append(len(known) + chosen[-1])
        noise.append(NOISE)
    return chosen


@pytest.mark.parametrize("labelled", [3, 12], ids=["fewer examples than features", "more"])
def test_equals_the_rule_as_it_is_written(labelled):
    rng = np.random.default_rng(0)
    phi, known = rng.normal(size=(30, 6)), rng.normal(size=(labelled, 6))
    weights, open_ = rng.uniform(0.5, 3, labelled), rng.uniform(size=30)
    chosen, gain = choose(*map(torch.from_numpy, (phi, known, weights, open_)), 8)
    assert chosen.tolist() == slow_choice(phi, known, weights, open_, 8)
    assert ((gain > 0) & (gain < 1)).all()


@pytest.fixture
def task():
    """Five groups of rows; of each one is labelled, and 12 are in the pool."""
    rng = np.random.default_rng(1)
    means = rng.normal(size=(5, 16)) * 2
    X = np.repeat(means, 13, axis=0) + rng.normal(size=(65, 16))
    y = np.repeat(np.arange(5), 13)
    first = np.arange(0, 65, 13)
    rest = np.setdiff1d(np.arange(65), first)
    return X, y, first, rest


def test_no_row_is_suggested_twice_and_all_are_in_the_end(task):
    X, y, first, rest = task
    clf = GPLDLAClassifier().fit(X[first], y[first])
    suggested = clf.suggest(X[rest], 1000)
    assert sorted(suggested.tolist()) == list(range(len(rest)))
    assert clf.suggest(X[rest], 7).tolist() == suggested[:7].tolist()


def test_a_class_that_has_no_examples_is_among_the_first(task):
    X, y, first, rest = task
    clf = GPLDLAClassifier().fit(X[first[:4]], y[first[:4]])
    assert 4 in y[rest[clf.suggest(X[rest], 3)]]


def test_copies_of_an_item_are_not_suggested_together(task):
    X, y, first, rest = task
    clf = GPLDLAClassifier().fit(X[first], y[first])
    pool = np.repeat(X[rest], 3, axis=0)
    suggested = clf.suggest(pool, 10) // 3
    assert len(set(suggested.tolist())) == 10


def test_a_large_pool_is_looked_at_evenly(task, monkeypatch):
    X, y, first, rest = task
    clf = GPLDLAClassifier().fit(X[first], y[first])
    whole = clf.suggest(X[rest], 5)
    monkeypatch.setattr(suggestion, "MAX_TARGETS", 30)
    fewer_targets = clf.suggest(X[rest], 5)
    monkeypatch.setattr(suggestion, "MAX_CANDIDATES", 30)
    some = clf.suggest(X[rest], 5)
    assert len(set(some.tolist())) == 5
    assert len({*whole.tolist()} | {*fewer_targets.tolist()}) < 10


def test_a_classifier_of_pictures_gives_the_same_as_one_of_its_features():
    model = FewShotModel("pixels", "gpldla-auto")
    classifier = model.adapt(pictures(9), LABELS)
    pool = pictures(20, seed=3)
    rows = model.embed(pool).numpy()
    own = GPLDLAClassifier().fit(model.embed(pictures(9)).numpy(), LABELS)
    assert classifier.suggest(pool, 6).tolist() == own.suggest(rows, 6).tolist()


def test_what_cannot_be_done_is_said():
    model = FewShotModel("pixels", "protonet")
    with pytest.raises(UserError, match="use a model with 'gpldla-auto'"):
        model.adapt(pictures(9), LABELS).suggest(pictures(3), 2)
    clf = GPLDLAClassifier().fit(np.eye(4), [0, 0, 1, 1])
    with pytest.raises(UserError, match="n must be a whole number of at least 1"):
        clf.suggest(np.eye(4), 0)


def test_a_trained_head_suggests_too():
    torch.manual_seed(0)
    classifier = FewShotModel("conv4s", "gpldla").adapt(pictures(9), LABELS)
    assert len(set(classifier.suggest(pictures(12, seed=3), 5).tolist())) == 5
