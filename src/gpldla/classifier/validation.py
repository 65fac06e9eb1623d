"""scikit-learn's validation of arrays, without its cost where there is nothing to convert or to refuse."""

import math
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


def validate_rows(estimator: BaseEstimator, X: Any, *, reset: bool) -> np.ndarray:
    """Return rows of numbers [n, d] as `validate_data` does; `reset` also remembers their width."""
    if _is_plain(estimator, X) and (reset or X.shape[1] == estimator.n_features_in_):
        if reset:
            estimator.n_features_in_ = X.shape[1]
        rows: np.ndarray = X
    else:
        rows = validate_data(estimator, X, dtype=[np.float64, np.float32], reset=reset)
    return rows


def validate_examples(
    estimator: BaseEstimator, X: Any, y: Any, *, reset: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows [n, d] and their labels [n] as `validate_data` does."""
    plain_labels = type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "biuU"
    if plain_labels and _is_plain(estimator, X) and len(y) == len(X):
        return validate_rows(estimator, X, reset=reset), y
    X, y = validate_data(estimator, X, y, dtype=[np.float64, np.float32], reset=reset)
    return X, y


def _is_plain(estimator: BaseEstimator, X: Any) -> bool:
    """Return whether X is a matrix of finite floats, for an estimator that knows no names of columns.

    `validate_data` would return it as it is, after a quarter of a millisecond. Where the sum overflows the
    answer is False, and scikit-learn looks at every entry.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return (
            type(X) is np.ndarray
            and X.dtype in FLOATS
            and X.ndim == 2
            and X.size > 0
            and not hasattr(estimator, "feature_names_in_")
            and math.isfinite(X.sum())
        )
