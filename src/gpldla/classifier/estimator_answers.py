"""The predictions of a fitted GPLDLAClassifier."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gpldla.classifier.expected_accuracy import ExpectedAccuracy
from gpldla.classifier.suggestion import suggest
from gpldla.classifier.task import AdaptedTask
from gpldla.classifier.uncertainty import Uncertainty
from gpldla.classifier.validation import validate_rows


class EstimatorAnswers(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # untyped
    """The methods of `GPLDLAClassifier` that need a fitted estimator."""

    classes_: np.ndarray
    coef_: np.ndarray
    _task: AdaptedTask

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log p(class | x).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        return self._in_chunks(X, lambda rows: self._task.log_prob(rows))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return p(class | x), shape (n_samples, n_classes), in the order of `classes_`."""
        proba: np.ndarray = np.exp(self.predict_log_proba(X))
        return proba

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, shape (n_samples,)."""
        log_proba = self.predict_log_proba(X)
        predicted: np.ndarray = self.classes_[log_proba.argmax(axis=1)]
        return predicted

    def decision_function(self, X: Any) -> np.ndarray:
        """Return log p(class | x), shape (n_samples, n_classes); for two classes their difference."""
        log_proba = self.predict_log_proba(X)
        return log_proba[:, 1] - log_proba[:, 0] if len(self.classes_) == 2 else log_proba

    def represent(self, X: Any) -> np.ndarray:
        """Return rows as the classifier uses them, φ: centred, whitened, at unit length.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        phi : ndarray of shape (n_samples, n_features)
        """
        return self._in_chunks(
            X, lambda rows: self._task.in_chunks(rows, self._task.posterior.representation)
        )

    def uncertainty(self, X: Any) -> Uncertainty:
        """Return the uncertainty about the class of each row, in bits, split by cause.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        uncertainty : named tuple of three ndarrays of shape (n_samples,)
            `total` is the entropy of the probabilities (before any temperature). `aleatoric` is what would
            remain if the classifier were known exactly, and `epistemic` the rest, which more examples
            could remove.
        """
        return Uncertainty(*self._in_chunks(X, lambda rows: self._task.uncertainty(rows)).T)

    @property
    def has_novelty(self) -> bool:
        """Whether `none_of_these` works: with names as a prior, once every class has an example."""
        return bool(self._task.posterior.has_novelty)

    def none_of_these(self, X: Any, *, prevalence: float = 0.5) -> np.ndarray:
        """Return the probability that each row belongs to no known class.

        It is calibrated on the base classes of `meta_fit`, else by leaving out training rows and classes. If
        every class has a single row nothing shows how alike rows of a class are, and the probability rests
        on an average over many kinds of features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        prevalence : float, default=0.5
            The assumed share of such rows.

        Returns
        -------
        probability : ndarray of shape (n_samples,)
        """
        return self._in_chunks(X, lambda rows: self._task.none_of_these(rows, prevalence))

    def suggest(self, X: Any, n: int = 10) -> np.ndarray:
        """Return which unlabelled rows to label next: those whose labels would teach most about the others.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The pool of unlabelled rows.
        n : int, default=10
            How many.

        Returns
        -------
        indices : ndarray of shape (min(n, n_samples),)
            Rows of X, the most informative first; they differ from each other. See
            `gpldla.classifier.suggestion` for the rule.
        """
        rows = torch.from_numpy(self._in_chunks(X, lambda rows: rows))
        return suggest(self._task, rows, n).indices

    def leave_one_out(self) -> np.ndarray:
        """Return the probabilities of each training row under the classifier without it.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            NaN for the only example of a class. The variances are
            those of all examples, see `gpldla.heads.gp.leave_one_out`; with `map_steps` the means are still
            those of the LDA estimate.
        """
        check_is_fitted(self, "classes_")
        return self._task.leave_one_out().numpy()

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the accuracy to expect for new rows, and an interval that holds it with 90 % probability.

        Leave-one-out predictions alone are too pessimistic, because the class of the left-out example is a
        shot short; here they are corrected for it. New rows are taken to be of the classes with two or more
        examples, in the proportions of the examples.

        Returns
        -------
        expected : named tuple (accuracy, low, high, examples) or None
            None where every class has a single example, from which nothing can be said.
        """
        check_is_fitted(self, "classes_")
        return self._task.expected_accuracy()

    def _in_chunks(self, X: Any, function: Callable[[Tensor], Tensor]) -> np.ndarray:
        """Apply a function to the rows of X in the precision of the training rows, in chunks."""
        check_is_fitted(self, "classes_")
        X = validate_rows(self, X, reset=False)
        step = self._task.rows_per_chunk(X.shape[1])
        parts = []
        for start in range(0, len(X), step):
            part = X[start : start + step].astype(self.coef_.dtype, copy=False)
            parts.append(function(torch.from_numpy(np.require(part, requirements=["C", "W"]))).numpy())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
