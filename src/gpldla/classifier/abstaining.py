"""A classifier that answers only where it expects to be right often enough."""

from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.validation import check_is_fitted

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE, is_unsure
from gpldla.utils.errors import UserError


class AbstainingClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # untyped
    """Return a class where the expected error is at most `max_error`, and `abstain_label` elsewhere.

    The expected error counts both a wrong class and, where the classifier has `none_of_these`, a row of no
    known class: it is 1 - p(class) * (1 - p(none of these)), as in `gpldla predict`. This is right only
    as far as these probabilities are calibrated. Each row is judged independently of the others.

    Parameters
    ----------
    clf : classifier with `predict_proba`
        Fitted or not; `fit` fits a clone of it.
    max_error : float, default=0.25
        The largest expected error of an answer, from 0 to 1.
    prevalence : float, default=0.1
        The assumed share of rows of no known class; 0 if there are none.
    abstain_label : object, default=None
        What `predict` returns instead of a class.

    Attributes
    ----------
    classifier_ : classifier
        The fitted clone.
    classes_ : ndarray of shape (n_classes,)

    Examples
    --------
    >>> from gpldla import AbstainingClassifier, GPLDLAClassifier
    >>> X = [[3.0, 0.1], [2.9, 0.0], [0.2, 3.1], [0.0, 2.8]]
    >>> clf = AbstainingClassifier(GPLDLAClassifier(), max_error=0.1).fit(X, ["cat", "cat", "dog", "dog"])
    >>> clf.predict([[2.0, 0.1], [2.0, 2.1]]).tolist()
    ['cat', None]
    """

    def __init__(
        self,
        clf: Any,
        max_error: float = MAX_ERROR,
        abstain_label: Any = None,
        *,
        prevalence: float = PREVALENCE,
    ) -> None:
        self.clf = clf
        self.max_error = max_error
        self.prevalence = prevalence
        self.abstain_label = abstain_label

    def fit(self, X: Any, y: Any, **fit_params: Any) -> "AbstainingClassifier":
        """Fit a clone of the classifier to rows X of shape (n_samples, n_features) with labels y."""
        self._check_settings()
        self.classifier_ = clone(self.clf).fit(X, y, **fit_params)
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The classes of the fitted classifier."""
        classes: np.ndarray = self._fitted().classes_
        return classes

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class, or `abstain_label`, of each row, shape (n_samples,)."""
        self._check_settings()
        proba = self.predict_proba(X)
        answers: np.ndarray = self.classes_[proba.argmax(axis=1)].astype(object)
        for row in np.flatnonzero(self._is_unsure(X, proba)):
            answers[row] = self.abstain_label  # of any type, a list too
        return answers

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows with a right answer; a row without an answer counts as wrong."""
        right = [answer == truth for answer, truth in zip(self.predict(X), np.asarray(y))]
        return float(np.average(right, weights=sample_weight))

    def answered(self, X: Any) -> np.ndarray:
        """Return whether each row gets an answer, boolean of shape (n_samples,)."""
        self._check_settings()
        return ~self._is_unsure(X, self.predict_proba(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classifier, shape (n_samples, n_classes)."""
        proba: np.ndarray = self._fitted().predict_proba(X)
        return proba

    def _is_unsure(self, X: Any, proba: np.ndarray) -> np.ndarray:
        classifier, none = self._fitted(), None
        tells = hasattr(classifier, "none_of_these") and getattr(classifier, "has_novelty", True)
        if self.prevalence and tells:
            none = classifier.none_of_these(X, prevalence=self.prevalence)
        return is_unsure(proba, none, self.max_error)

    def _fitted(self) -> Any:
        classifier = getattr(self, "classifier_", self.clf)
        check_is_fitted(classifier)
        return classifier

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classifier_") or hasattr(self.clf, "classes_")

    def _check_settings(self) -> None:
        if not (isinstance(self.max_error, Real) and 0 <= self.max_error <= 1):
            raise UserError(f"max_error must lie between 0 and 1, not {self.max_error!r}.")
        if not (isinstance(self.prevalence, Real) and 0 <= self.prevalence < 1):
            raise UserError(f"prevalence must be at least 0 and less than 1, not {self.prevalence!r}.")
        if not hasattr(self.clf, "predict_proba"):
            raise UserError(f"{type(self.clf).__name__} has no predict_proba; give a classifier that has it.")
