"""GPLDLAClassifier: the method behind scikit-learn's interface, on features one already has."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from gpldla.errors import UserError
from gpldla.heads.gpldla import GPLDLA
from gpldla.heads.linear_gp import Predictive

ROWS_AT_ONCE = 4096  # bounds the memory of a prediction


class GPLDLAClassifier(ClassifierMixin, BaseEstimator):
    """Few-shot classification with probabilities, in closed form.

    A Gaussian-process prior over linear classifiers, its MAP replaced by linear discriminant analysis whose
    scale the prior sets, and a Laplace posterior around it. How sure the probabilities are follows from
    `beta`: choose it with examples you can spare, or learn it by meta-training.

    Parameters
    ----------
    beta : float, default=1.0
        Standard deviation of the prior of each weight. Larger means more confident.
    beta_b : float, default=1.0
        Standard deviation of the prior of each bias.
    normalize : bool, default=True
        Scale each row of X to unit length.
    center : False, "support" or array-like of shape (n_features,), default=False
        What is subtracted from X first: nothing, the mean of the training rows, or a given vector.
    priors : None, "uniform" or array-like of shape (n_classes,), default=None
        Class priors; None takes the frequencies of y.
    covariance : "diag", default="diag"
        Form of the posterior covariance of the weights of a class; "diag" is the paper's.
    predictive : {"auto", "mc", "mc-logits", "quadrature", "qmc", "probit"}, default="auto"
        How probabilities are computed from the posterior. "auto" is deterministic and within 0.002 of the
        exact integral; "mc" is the paper's Monte Carlo estimate, with one fixed set of draws for all rows.
    n_samples : int, default=10
        Number of draws of "mc".
    random_state : int, RandomState or None, default=None
        Seed of the draws.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (n_classes, n_features)
        w*, one row a class, for two classes too.
    intercept_ : ndarray of shape (n_classes,)
        b*.
    coef_var_ : ndarray of shape (n_classes, n_features)
        The diagonals V*.
    intercept_var_ : ndarray of shape (n_classes,)
        v*.
    sigma2_ : float
        The prior-norm-adjusted σ²*.
    beta_ : float
        The β that was used.
    n_features_in_ : int

    Notes
    -----
    float64 input is computed in float64. The paper's setting is
    ``GPLDLAClassifier(beta=1.0, center=False, covariance="diag", predictive="mc")``.

    Examples
    --------
    >>> import numpy as np
    >>> from gpldla import GPLDLAClassifier
    >>> X = np.array([[3.0, 0.1], [2.9, 0.0], [0.2, 3.1], [0.0, 2.8]])
    >>> clf = GPLDLAClassifier().fit(X, ["cat", "cat", "dog", "dog"])
    >>> clf.predict([[2.0, 0.3]])
    array(['cat'], dtype='<U3')
    >>> clf.predict_proba([[2.0, 0.3]]).round(2)
    array([[0.69, 0.31]])
    """

    def __init__(
        self,
        beta: float = 1.0,
        beta_b: float = 1.0,
        *,
        normalize: bool = True,
        center: Literal[False, "support"] | Sequence[float] | np.ndarray = False,
        priors: Literal["uniform"] | Sequence[float] | np.ndarray | None = None,
        covariance: Literal["diag"] = "diag",
        predictive: Predictive = "auto",
        n_samples: int = 10,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.beta = beta
        self.beta_b = beta_b
        self.normalize = normalize
        self.center = center
        self.priors = priors
        self.covariance = covariance
        self.predictive = predictive
        self.n_samples = n_samples
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "GPLDLAClassifier":
        """Adapt to rows X of shape (n, n_features) with labels y of shape (n,), of any type."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(
                f"y holds one class only, {self.classes_[0]!r}; give examples of at least two classes."
            )
        if self.covariance != "diag":
            raise UserError(f"There is no covariance {self.covariance!r}; use 'diag'.")
        head = GPLDLA(
            beta=self.beta,
            beta_b=self.beta_b,
            normalize=self.normalize,
            predictive=self.predictive,
            n_samples=self.n_samples,
            priors=list(self.priors) if isinstance(self.priors, np.ndarray) else self.priors,
        ).eval()
        self.center_ = self._center(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.inference_mode():
            posterior = head.adapt(self._tensor(X), torch.from_numpy(codes), len(self.classes_))
            posterior.generator = torch.Generator().manual_seed(seed)
        self._posterior = posterior
        self.beta_ = float(self.beta)
        self.coef_ = posterior.weight_mean.numpy()
        self.intercept_ = posterior.bias_mean.numpy()
        self.coef_var_ = posterior.weight_var.numpy()
        self.intercept_var_ = posterior.bias_var.numpy()
        assert posterior.sigma2 is not None
        self.sigma2_ = posterior.sigma2.item()
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log p(class | x), shape (n, n_classes), in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        precision = self._posterior.weight_mean.dtype  # that of the training rows
        with torch.inference_mode():
            parts = [
                self._posterior.log_prob(self._tensor(X[start : start + ROWS_AT_ONCE]).to(precision)).numpy()
                for start in range(0, len(X), ROWS_AT_ONCE)
            ]
        return np.concatenate(parts)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return p(class | x), shape (n, n_classes), in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, shape (n,)."""
        log_proba = self.predict_log_proba(X)
        return self.classes_[log_proba.argmax(axis=1)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Return log p(class | x), shape (n, n_classes); for two classes their difference, shape (n,)."""
        log_proba = self.predict_log_proba(X)
        return log_proba[:, 1] - log_proba[:, 0] if len(self.classes_) == 2 else log_proba

    def _center(self, X: np.ndarray) -> np.ndarray | None:
        if isinstance(self.center, str):
            if self.center != "support":
                raise UserError(f"There is no center {self.center!r}; use False, 'support' or a vector.")
            return X.mean(axis=0)
        if self.center is False or self.center is None:
            return None
        vector = np.asarray(self.center, dtype=X.dtype)
        if vector.shape != (X.shape[1],) or not np.isfinite(vector).all():
            raise UserError(f"center must be {X.shape[1]} finite numbers, one a feature.")
        return vector

    def _tensor(self, X: np.ndarray) -> torch.Tensor:
        """Centre rows and hand them to torch, which wants memory it could write to."""
        centred = X if self.center_ is None else X - self.center_
        return torch.from_numpy(np.require(centred, requirements=["C", "W"]))
