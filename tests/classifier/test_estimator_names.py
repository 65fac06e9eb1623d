"""GPLDLAClassifier with the names of classes as its prior."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from gpldla import AbstainingClassifier, GPLDLAClassifier
from gpldla.utils.errors import UserError

CLASSES = ["wren", "robin", "tit", "crow"]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    names = rng.normal(size=(4, 20))
    y = np.repeat(CLASSES, 25)
    X = np.repeat(names, 25, axis=0) + 1.2 * rng.normal(size=(100, 20))
    return names, X, y


def test_from_names_alone(data):
    names, X, y = data
    clf = GPLDLAClassifier.from_prior(names, CLASSES)
    assert clf.classes_.tolist() == sorted(CLASSES)
    assert clf.score(X, y) > 0.8
    np.testing.assert_allclose(clf.predict_proba(X).sum(1), 1)
    with pytest.raises(UserError, match="needs an example of every class"):
        clf.none_of_these(X)


def test_suggestions_begin_where_the_names_leave_most_open(data):
    names, X, y = data
    clf = GPLDLAClassifier.from_prior(names, CLASSES)
    first = clf.suggest(X, 10)
    assert len(set(first.tolist())) == 10
    assert clf.predict_proba(X[first]).max(1).mean() < clf.predict_proba(X).max(1).mean()
    clf.partial_fit(X[first], y[first])
    assert not np.intersect1d(clf.suggest(X, 5), first).size


def test_abstaining_begins_without_none_of_these(data):
    names, X, y = data
    clf = GPLDLAClassifier.from_prior(names, CLASSES)
    assert not clf.has_novelty
    sure = AbstainingClassifier(clf, max_error=0.2)
    assert sure.answered(X).tolist() == (clf.predict_proba(X).max(1) >= 0.8).tolist()
    clf.partial_fit(X, y)
    assert clf.has_novelty
    correct = clf.predict_proba(X).max(1) * (1 - clf.none_of_these(X, prevalence=0.1))
    assert sure.answered(X).tolist() == (correct >= 0.8).tolist()


def test_none_of_these_is_that_of_the_examples_alone(data):
    names, X, y = data
    X = X - 0.5  # of both signs, so that no root is taken
    train = np.arange(100) % 25 < 4
    plain = GPLDLAClassifier().fit(X[train], y[train])
    named = GPLDLAClassifier(prior_mean=dict(zip(CLASSES, names))).fit(X[train], y[train])
    strange = np.random.default_rng(5).normal(size=(20, 20)) * 3
    for rows in (X[~train], strange):
        np.testing.assert_allclose(named.none_of_these(rows), plain.none_of_these(rows), atol=1e-5)
    assert named.none_of_these(strange).mean() > named.none_of_these(X[~train]).mean() + 0.1


def test_partial_fit_takes_it_from_there(data):
    names, X, y = data
    order = np.random.default_rng(1).permutation(100)
    train, test = order[:20], order[20:]
    clf = GPLDLAClassifier.from_prior(names, CLASSES)
    for i in train:
        clf.partial_fit(X[i : i + 1], y[i : i + 1])
    together = GPLDLAClassifier(prior_mean=dict(zip(CLASSES, names))).fit(X[train], y[train])
    np.testing.assert_allclose(clf.predict_proba(X[test]), together.predict_proba(X[test]), atol=1e-9)
    plain = GPLDLAClassifier().fit(X[train], y[train])
    assert together.score(X[test], y[test]) >= plain.score(X[test], y[test])


def test_a_new_class_needs_no_name(data):
    names, X, y = data
    clf = GPLDLAClassifier.from_prior(names, CLASSES).partial_fit(X[::5], y[::5])
    clf.partial_fit(np.full((3, 20), 9.0) + np.eye(3, 20), ["jay"] * 3)
    assert clf.classes_.tolist() == sorted([*CLASSES, "jay"])
    assert clf.predict(np.full((1, 20), 9.0)) == ["jay"]
    assert clf.score(X, y) > 0.8


def test_an_array_is_in_the_order_of_the_sorted_classes(data):
    names, X, y = data
    rows = names[np.argsort(CLASSES)]
    by_label = GPLDLAClassifier(prior_mean=dict(zip(CLASSES, names))).fit(X[::9], y[::9])
    by_place = GPLDLAClassifier(prior_mean=rows).fit(X[::9], y[::9])
    np.testing.assert_allclose(by_place.predict_proba(X), by_label.predict_proba(X))


def test_a_scale_that_is_known(data):
    names, X, _ = data
    sure, unsure = (GPLDLAClassifier.from_prior(names, CLASSES, prior_scale=s) for s in (100.0, 1.0))
    assert sure.predict_proba(X).max(1).mean() > 0.9 > 0.5 > unsure.predict_proba(X).max(1).mean()


def test_it_is_an_estimator(data):
    names, X, y = data
    clf = GPLDLAClassifier(prior_mean=dict(zip(CLASSES, names)))
    assert cross_val_score(clf, X, y, cv=3).mean() > 0.8
    again = clone(clf.fit(X[::5], y[::5])).fit(X[::5], y[::5])
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(X), clf.predict_proba(X))
    left_out = clf.leave_one_out()
    assert left_out.shape == (20, 4)
    np.testing.assert_allclose(left_out.sum(1), 1)
    assert clf.expected_accuracy() is None


def test_float32_stays(data):
    names, X, y = (part.astype(np.float32) if part.dtype == float else part for part in data)
    clf = GPLDLAClassifier.from_prior(names, CLASSES).partial_fit(X[::5], y[::5])
    reference = GPLDLAClassifier.from_prior(data[0], CLASSES).partial_fit(data[1][::5], y[::5])
    np.testing.assert_allclose(clf.predict_proba(X), reference.predict_proba(data[1]), atol=2e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda T, X, y: GPLDLAClassifier.from_prior(T, CLASSES[:3]),
            r"one row per class, \[3, n_features\]",
        ),
        (lambda T, X, y: GPLDLAClassifier.from_prior(T, ["a", "a", "b", "c"]), "different labels"),
        (lambda T, X, y: GPLDLAClassifier.from_prior(T * np.nan, CLASSES), "finite numbers"),
        (lambda T, X, y: GPLDLAClassifier(prior_mean=T[:2]).fit(X, y), "one row for each of the 4 classes"),
        (
            lambda T, X, y: GPLDLAClassifier(prior_mean={"wren": T[0], "robin": T[1][:3]}).fit(X, y),
            "one vector",
        ),
        (lambda T, X, y: GPLDLAClassifier(prior_mean={}).fit(X, y), "one vector"),
        (lambda T, X, y: GPLDLAClassifier(prior_mean=T, center=False).fit(X, y), "default of center only"),
        (
            lambda T, X, y: GPLDLAClassifier(prior_mean=T, predictive="mc").fit(X, y),
            "default of predictive only",
        ),
        (
            lambda T, X, y: GPLDLAClassifier(prior_mean=T[:, :5]).fit(X, y),
            "names have 5 features and the items 20",
        ),
        (lambda T, X, y: GPLDLAClassifier(prior_mean=T, prior_scale=-1).fit(X, y), "name_scale must be"),
        (lambda T, X, y: GPLDLAClassifier(prior_mean=T).fit(X, y, X_unlabelled=X), "do not go together"),
    ],
)
def test_wrong_input(data, make, message):
    with pytest.raises(UserError, match=message):
        make(*data)
