"""What is checked without scikit-learn gives what scikit-learn gives, and only where nothing is wrong."""

import numpy as np
import pytest

from gpldla import GPLDLAClassifier
from gpldla.classifier import validation

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
y = np.repeat(["wren", "robin", "owl"], 4)


@pytest.fixture
def counted(monkeypatch):
    """The calls of scikit-learn's validation."""
    calls = []
    original = validation.validate_data
    monkeypatch.setattr(
        validation, "validate_data", lambda *args, **kwargs: calls.append(args) or original(*args, **kwargs)
    )
    return calls


def test_plain_arrays_are_not_validated_again(counted):
    clf = GPLDLAClassifier().fit(X, y)
    proba = clf.predict_proba(X)
    assert not counted
    assert clf.n_features_in_ == 5
    np.testing.assert_allclose(
        GPLDLAClassifier().fit(X.tolist(), y.tolist()).predict_proba(X), proba, atol=1e-5
    )
    assert len(counted) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.full((3, 5), np.nan, np.float32), "contains NaN"),
        (np.full((3, 5), np.inf), "contains infinity"),
        (np.zeros((3, 4)), "expecting 5 features"),
        (np.zeros(5), "Expected 2D array"),
        (np.zeros((0, 5)), "minimum of 1 is required"),
    ],
)
def test_wrong_rows_are_refused_as_scikit_learn_does(rows, message):
    clf = GPLDLAClassifier().fit(X, y)
    with pytest.raises(ValueError, match=message):
        clf.predict_proba(rows)


def test_finite_rows_whose_sum_overflows_are_accepted():
    clf = GPLDLAClassifier().fit(X, y)
    rows = np.full((2, 5), 3e38, np.float32)
    assert np.isfinite(clf.predict_proba(rows)).all()


def test_labels_of_another_length_are_refused():
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        GPLDLAClassifier().fit(X, y[:-1])


def test_names_of_columns_are_still_compared():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=list("abcde"))
    clf = GPLDLAClassifier().fit(table, y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        clf.predict_proba(X)
    with pytest.raises(ValueError, match="feature names"):
        clf.predict_proba(table[list("edcba")])
