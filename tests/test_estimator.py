import doctest
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import gpldla.estimator
from gpldla import GPLDLAClassifier

from .heads import reference


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(40, n_features=6, centers=4, cluster_std=3.0, random_state=0)
    return X, np.array(["ant", "bee", "cow", "dog"])[y]


def test_scikit_learn_accepts_it():
    results = check_estimator(GPLDLAClassifier(), on_fail=None)
    failed = [result["check_name"] for result in results if result["status"] not in ("passed", "skipped")]
    assert failed == []
    assert len(results) > 40


def test_the_docstring_tells_the_truth():
    assert doctest.testmod(gpldla.estimator).failed == 0


@pytest.mark.parametrize("settings", [{}, {"beta": 0.3, "beta_b": 2.0}, {"normalize": False, "beta": 0.1}])
def test_attributes_are_the_papers_quantities(blobs, settings):
    X, y = blobs
    clf = GPLDLAClassifier(**settings).fit(X, y)
    codes = np.searchsorted(clf.classes_, y)
    beta, beta_b = settings.get("beta", 1.0), settings.get("beta_b", 1.0)
    w, b, V, v, sigma2 = reference.adapt(X, codes, 4, beta, beta_b, settings.get("normalize", True))
    for got, expected in (
        (clf.coef_, w),
        (clf.intercept_, b),
        (clf.coef_var_, V),
        (clf.intercept_var_, v),
        (clf.sigma2_, sigma2),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)
    assert clf.beta_ == beta
    assert clf.n_features_in_ == 6


def test_default_probabilities_are_close_to_the_exact_predictive(blobs):
    X, y = blobs
    exact = GPLDLAClassifier(predictive="mc", n_samples=50_000, random_state=0).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(GPLDLAClassifier().fit(X, y).predict_proba(X), exact, atol=0.02)


def test_monte_carlo_has_one_fixed_set_of_draws(blobs):
    X, y = blobs
    clf = GPLDLAClassifier(predictive="mc", random_state=3).fit(X, y)
    whole = clf.predict_proba(X)
    np.testing.assert_allclose(whole, np.concatenate([clf.predict_proba(X[:7]), clf.predict_proba(X[7:])]))
    np.testing.assert_array_equal(whole, clone(clf).fit(X, y).predict_proba(X))
    assert not np.allclose(whole, clone(clf).set_params(random_state=4).fit(X, y).predict_proba(X))


def test_precision_follows_the_input(blobs):
    X, y = blobs
    assert GPLDLAClassifier().fit(X, y).coef_.dtype == np.float64
    single = GPLDLAClassifier().fit(X.astype(np.float32), y)
    assert single.coef_.dtype == np.float32
    assert single.predict_proba(X).shape == (40, 4)  # float64 rows for a float32 classifier


def test_labels_of_any_type(blobs):
    X, y = blobs
    for labels in (y, np.searchsorted(np.unique(y), y) + 10, y.astype(object), list(y)):
        clf = GPLDLAClassifier().fit(X, labels)
        assert set(clf.predict(X)) <= set(np.asarray(labels))


def test_two_classes(blobs):
    X, y = blobs
    two = np.isin(y, ["ant", "bee"])
    clf = GPLDLAClassifier().fit(X[two], y[two])
    assert clf.coef_.shape == (2, 6)
    log_proba = clf.predict_log_proba(X)
    np.testing.assert_allclose(clf.decision_function(X), log_proba[:, 1] - log_proba[:, 0])


def test_center_and_priors(blobs):
    X, y = blobs
    by_hand = GPLDLAClassifier().fit(X - X.mean(0), y).predict_proba(X - X.mean(0))
    np.testing.assert_allclose(GPLDLAClassifier(center="support").fit(X, y).predict_proba(X), by_hand)
    np.testing.assert_allclose(GPLDLAClassifier(center=X.mean(0)).fit(X, y).predict_proba(X), by_hand)
    favoured = GPLDLAClassifier(priors=[100, 1, 1, 1]).fit(X, y).predict_proba(X)
    assert (favoured[:, 0] > GPLDLAClassifier(priors="uniform").fit(X, y).predict_proba(X)[:, 0]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1.0}, "beta must be a positive number"),
        ({"beta": "big"}, "beta must be a positive number"),
        ({"center": "middle"}, "no center 'middle'"),
        ({"center": [1.0, 2.0]}, "center must be 6 finite numbers"),
        ({"priors": [1, 2]}, "priors must be 4 positive numbers"),
        ({"covariance": "fully"}, "no covariance 'fully'"),
        ({"predictive": "mcmc"}, "no predictive 'mcmc'"),
    ],
)
def test_wrong_settings_are_named(blobs, settings, message):
    with pytest.raises(ValueError, match=message):
        GPLDLAClassifier(**settings).fit(*blobs)


def test_one_class_is_refused(blobs):
    with pytest.raises(ValueError, match="one class only"):
        GPLDLAClassifier().fit(blobs[0], np.full(40, "ant"))


def test_pickles(blobs):
    X, y = blobs
    clf = GPLDLAClassifier().fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(X), clf.predict_proba(X))


def test_real_digits():
    """Thirty a class of real handwritten digits on pixels: far above chance, with sane probabilities."""
    X, y = load_digits(return_X_y=True)
    assert cross_val_score(GPLDLAClassifier(center="support"), X[:600], y[:600]).mean() > 0.8
