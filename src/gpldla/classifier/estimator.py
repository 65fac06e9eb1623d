"""GPLDLAClassifier: the method behind scikit-learn's interface, on features that exist already."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
from rich.console import Console
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from gpldla.classifier.estimator_answers import EstimatorAnswers
from gpldla.classifier.estimator_names import WithNames, named_classes, names_head
from gpldla.classifier.examples import Examples
from gpldla.classifier.labels import check_labels, merge_classes
from gpldla.classifier.novelty import Novelty
from gpldla.classifier.prior_learning import learn_prior
from gpldla.classifier.task import AdaptedTask
from gpldla.classifier.validation import validate_examples, validate_rows
from gpldla.heads.gp.linear_gp import Predictive
from gpldla.heads.gp.task_posterior import TaskPosterior
from gpldla.heads.gpldla_auto import Covariance, GPLDLAAuto
from gpldla.utils.errors import UserError, require_flag, require_positive
from gpldla.utils.progress import SILENT, Reporter


class GPLDLAClassifier(WithNames, EstimatorAnswers):
    """Few-shot classification with calibrated probabilities, in closed form.

    A Gaussian-process prior over linear classifiers, its MAP replaced by linear discriminant analysis whose
    scale the prior sets, and a Laplace posterior around it. By default nothing needs to be chosen: the
    features (raised to a power from 1/2 to 1 if none is negative) are brought to unit length, centred and
    whitened within the classes, and the prior's scale is the one under which each example is best predicted
    by the others.

    Parameters
    ----------
    beta : float or "auto", default="auto"
        Standard deviation of the prior of each weight; larger means more confident. "auto" takes the value
        with the largest leave-one-out predictive likelihood, in closed form, under a log-normal prior that
        decides where each class has a single example. Its centre follows from how alike examples of different
        classes are; where `center` is not "auto" it is 3 / n_features ** 0.25.
    beta_b : float, default=1.0
        Standard deviation of the prior of each bias.
    normalize : bool, default=True
        Scale each row of X to unit length.
    center : {"auto", "support", False} or array-like of shape (n_features,), default="auto"
        What is subtracted from the rows: the mean of the class means of the unit rows, the mean of the
        training rows (before they are scaled), nothing, or a given vector (before they are scaled).
    whiten : bool or "auto", default="auto"
        Whiten by the covariance that the classes share, shrunk towards a multiple of the identity. "auto"
        does so where `center` is "auto".
    priors : None, "uniform" or array-like of shape (n_classes,), default=None
        Class priors; None takes the frequencies of y.
    covariance : {"diag", "full"}, default="diag"
        Posterior covariance of the weights: the paper's diagonal, or the exact Laplace covariance, which
        couples the classes.
    map_steps : int, default=0
        Newton steps from the LDA estimate towards the true mode of the posterior. The true mode needs a
        larger `beta` than "auto" chooses, which is the best one for the LDA estimate.
    predictive : {"auto", "mc", "mc-logits", "quadrature", "qmc", "probit"}, default="auto"
        How probabilities are computed from the posterior. "auto" is deterministic and within 0.002 of the
        exact integral (with covariance="full" within 0.02, from about 64 features on); "mc" is the paper's
        Monte Carlo estimate, with one fixed set of draws for all rows.
    n_samples : int, default=10
        Number of draws of "mc".
    temperature : float, default=1.0
        Divides the log probabilities; `meta_fit` learns it.
    metric : array-like of shape (n_features, n_features) or None, default=None
        A linear map of the centred rows; `meta_fit` learns it.
    novelty : array-like of shape (2,) or None, default=None
        Slope and offset of `none_of_these` in the cosine between a row and the nearest class mean, both as
        `represent` returns them; `meta_fit` learns them. None: a better score, how well a row fits the class
        that it fits best, is calibrated on the training rows.
    prior_mean : dict or array-like of shape (n_classes, n_features), default=None
        The embedding of the name of each class, by label or in the order of the sorted classes: the mean of
        the prior of the weights, up to a scale. See `from_prior`, which needs no examples.
    prior_scale : float or "auto", default="auto"
        The scale of the names' logits without examples; "auto" follows from how alike the names are.
    random_state : int, RandomState or None, default=None
        Seed of the draws, and of the episodes of `meta_fit`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (n_classes, n_features)
        w*, one row per class, also for two classes; it applies to rows as `represent` returns them.
    intercept_ : ndarray of shape (n_classes,)
        b*; minus infinity for a class without examples.
    coef_var_ : ndarray of shape (n_classes, n_features)
        The diagonals V*.
    intercept_var_ : ndarray of shape (n_classes,)
        v*.
    sigma2_ : float
        The prior-norm-adjusted σ²*.
    beta_ : float
        The most probable β, or the one that was given.
    beta_spread_ : float
        The standard deviation of log β that probabilities are averaged over; 0 if β was given.
    prior_source_ : {"measured", "single examples", "unlabelled rows", "given"}
        What `beta_` comes from: examples that are predicted by others of their class, single examples of each
        class (how alike they are), these together with unlabelled rows, or the parameter `beta`. With single
        examples it is a guess; a second example for some classes measures it, `meta_fit` on base classes
        replaces it, and unlabelled rows make the answers better.
    n_unlabelled_ : int
        How many unlabelled rows were used; 0 if there were too few, and at most 512.
    center_ : ndarray of shape (n_features,) or None
        What is subtracted from the rows first, where `center` is "support" or a vector.
    temperature_ : float
        The temperature that was used.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns of X, if it has any.

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
    >>> clf.partial_fit([[-2.0, -2.0], [-2.1, -2.3]], ["owl", "owl"]).classes_
    array(['cat', 'dog', 'owl'], dtype='<U3')
    """

    def __init__(
        self,
        beta: float | Literal["auto"] = "auto",
        beta_b: float = 1.0,
        *,
        normalize: bool = True,
        center: Literal["auto", "support", False] | Sequence[float] | np.ndarray = "auto",
        whiten: bool | Literal["auto"] = "auto",
        priors: Literal["uniform"] | Sequence[float] | np.ndarray | None = None,
        covariance: Covariance = "diag",
        map_steps: int = 0,
        predictive: Predictive = "auto",
        n_samples: int = 10,
        temperature: float = 1.0,
        metric: np.ndarray | None = None,
        novelty: Sequence[float] | np.ndarray | None = None,
        prior_mean: Any = None,
        prior_scale: float | Literal["auto"] = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.beta = beta
        self.beta_b = beta_b
        self.normalize = normalize
        self.center = center
        self.whiten = whiten
        self.priors = priors
        self.covariance = covariance
        self.map_steps = map_steps
        self.predictive = predictive
        self.n_samples = n_samples
        self.temperature = temperature
        self.metric = metric
        self.novelty = novelty
        self.prior_mean = prior_mean
        self.prior_scale = prior_scale
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_unlabelled: Any = None
    ) -> "GPLDLAClassifier":
        """Adapt to labelled rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels: strings, numbers or booleans.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts: 2 has the effect of repeating the row, 0 of leaving it out.
        X_unlabelled : array-like of shape (n_unlabelled, n_features), default=None
            More rows, most of them of the same classes, such as those that will be classified: they improve
            the centre, the whitening and the class means. Fewer than 10, or than 2 per class, are ignored.
            `partial_fit` uses them again.

        Returns
        -------
        self : GPLDLAClassifier
        """
        with self._rollback_on_error():
            X, y = validate_examples(self, X, y, reset=True)
            check_labels(y)
            examples, y = self._examples(X, y, sample_weight)
            classes = merge_classes([*named_classes(self.prior_mean), y])
            if len(classes) < 2:
                raise UserError(
                    f"y holds one class only, {classes.tolist()[0]!r}; give examples of at least two classes."
                )
            self._check_settings()
            unlabelled = self._unlabelled(X_unlabelled)
            return self._adapt(replace(examples, labels=_indices(y, classes)), classes, unlabelled)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "GPLDLAClassifier":
        """Add examples of known or new classes; the result is that of one fit on all of them.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        classes : array-like of shape (n_classes,), default=None
            Classes to declare; one without examples has probability 0 until it has some.
        sample_weight : array-like of shape (n_samples,), default=None

        Returns
        -------
        self : GPLDLAClassifier
        """
        with self._rollback_on_error():
            first = not hasattr(self, "classes_")
            X, y = validate_examples(self, X, y, reset=first)
            check_labels(y)
            self._check_settings()
            examples, y = self._examples(X, y, sample_weight)
            known = named_classes(self.prior_mean) if first else [self.classes_]
            declared = [] if classes is None else [np.asarray(classes)]
            merged = merge_classes([*known, *declared, y])
            examples = replace(examples, labels=_indices(y, merged))
            if not first:
                before = self._task.require_examples().recode(np.searchsorted(merged, self.classes_).tolist())
                examples = before.add(examples)
            return self._adapt(examples, merged, None if first else self._task.unlabelled)

    @contextmanager
    def _rollback_on_error(self) -> Iterator[None]:
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def meta_fit(
        self,
        X_base: Any,
        y_base: Any,
        *,
        shots: int = 5,
        ways: int = 5,
        episodes: int = 200,
        progress: bool = True,
    ) -> "GPLDLAClassifier":
        """Learn the prior from classes of the same kind for which there are plenty of examples.

        Sets the parameters `beta`, `beta_b`, `temperature`, `center`, `metric` and `novelty`, so that `fit`,
        clones and cross-validation use what was learned. The base classes are not stored; call `fit` next.

        Parameters
        ----------
        X_base : array-like of shape (n_base, n_features)
        y_base : array-like of shape (n_base,)
        shots, ways : int, default=5
            Examples per class and classes per task, as they will be in `fit`.
        episodes : int, default=200
            Number of tasks that are sampled.
        progress : bool, default=True
            Show a progress bar.

        Returns
        -------
        self : GPLDLAClassifier
        """
        X, y = validate_examples(self, X_base, y_base, reset=True)
        check_labels(y)
        self._check_settings()
        codes = np.unique(y, return_inverse=True)[1]
        learned = learn_prior(
            torch.from_numpy(np.array(X)),
            torch.from_numpy(codes),
            shots=shots,
            ways=ways,
            episodes=episodes,
            seed=self._seed(),
            make_head=self._head,
            normalize=self.normalize,
            reporter=Reporter(Console(stderr=True)) if progress else SILENT,
        )
        self.set_params(whiten=True, **learned)
        return self

    def _adapt(
        self, examples: Examples, classes: np.ndarray, unlabelled: Tensor | None
    ) -> "GPLDLAClassifier":
        self.classes_ = classes
        self.center_, self.temperature_ = self._given_center(examples), float(self.temperature)
        with torch.inference_mode():  # many small operations, each of which it makes a little cheaper
            self._task = AdaptedTask.adapt(
                self._head() if self.prior_mean is None else self._head_with_names(),
                examples,
                len(classes),
                center=None if self.center_ is None else torch.from_numpy(self.center_),
                temperature=self.temperature_,
                novelty=None
                if self.novelty is None
                else Novelty(float(self.novelty[0]), float(self.novelty[1])),
                seed=self._seed() if self.predictive in ("mc", "mc-logits") else 0,
                unlabelled=unlabelled,
            )
        posterior = cast(TaskPosterior, self._task.posterior)
        diagonal, C = posterior.diagonal, len(classes)
        assert diagonal.sigma2 is not None
        self.beta_ = posterior.beta.item()
        scale = posterior.uncertain_scale
        self.beta_spread_ = 0.0 if scale is None else scale.spread.item()
        single = "unlabelled rows" if posterior.from_unlabelled else "single examples"
        measured = single if posterior.from_single_examples else "measured"
        self.prior_source_ = measured if isinstance(self.beta, str) else "given"
        self.n_unlabelled_ = 0 if self._task.unlabelled is None else len(self._task.unlabelled)
        self.coef_ = diagonal.weight_mean[:C].numpy()
        self.intercept_ = diagonal.bias_mean[:C].numpy()
        self.coef_var_ = diagonal.weight_var[:C].numpy()
        self.intercept_var_ = diagonal.bias_var[:C].numpy()
        self.sigma2_ = diagonal.sigma2.item()
        return self

    def _head(self, **changed: Any) -> GPLDLAAuto:
        """Return the head with the options that the parameters ask for."""
        return GPLDLAAuto(**{**self._options(), **changed}).eval()

    def _head_with_names(self) -> GPLDLAAuto:
        return names_head(self.prior_mean, self.prior_scale, self.classes_, self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "beta": self.beta,
            "beta_b": self.beta_b,
            "normalize": self.normalize,
            "center": isinstance(self.center, str) and self.center == "auto",
            "whiten": self._resolved_whiten(),
            "covariance": self.covariance,
            "map_steps": self.map_steps,
            "predictive": self.predictive,
            "n_samples": self.n_samples,
            "priors": list(self.priors) if isinstance(self.priors, np.ndarray) else self.priors,
            "metric": None if self.metric is None else torch.from_numpy(np.asarray(self.metric)),
        }

    def _resolved_whiten(self) -> bool:
        if isinstance(self.whiten, str):
            return isinstance(self.center, str) and self.center == "auto"
        return bool(self.whiten)

    def _examples(self, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> tuple[Examples, np.ndarray]:
        """Return copies of rows that count, without labels yet, and the labels y of these rows."""
        if sample_weight is None:
            return Examples(torch.from_numpy(np.array(X)), torch.empty(0, dtype=torch.int64)), np.array(y)
        weights = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        counts = weights > 0
        if not counts.any():
            raise UserError("sample_weight holds no positive weight; give at least one.")
        rows, weights = torch.from_numpy(X[counts]), torch.from_numpy(weights[counts])
        return Examples(rows, torch.empty(0, dtype=torch.int64), weights), y[counts]

    def _unlabelled(self, X: Any) -> Tensor | None:
        """Return rows without labels; refuse settings that they cannot improve."""
        if X is None:
            return None
        automatic = all(isinstance(value, str) for value in (self.beta, self.center))
        if not automatic or self.center != "auto" or not self.normalize or self.map_steps:
            raise UserError(
                "X_unlabelled needs beta='auto', center='auto', normalize=True and map_steps=0; leave it out"
                " or use these."
            )
        if not len(X):
            return None
        rows = validate_rows(self, X, reset=False)
        return torch.from_numpy(np.array(rows))

    def _given_center(self, examples: Examples) -> np.ndarray | None:
        """Return what is subtracted from the rows first, [d]; the head computes the "auto" centre itself."""
        X = examples.rows.numpy()
        if isinstance(self.center, str):
            weights = None if examples.weights is None else examples.weights.numpy()
            return np.average(X, axis=0, weights=weights) if self.center == "support" else None
        if self.center is False or self.center is None:
            return None
        center = np.asarray(self.center, dtype=X.dtype)
        if center.shape != (X.shape[1],) or not np.isfinite(center).all():
            raise UserError(f"center must be {X.shape[1]} finite numbers, one per feature.")
        return center

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_settings(self) -> None:
        """Raise a `UserError` for invalid settings that the head does not check."""
        if isinstance(self.center, str) and self.center not in ("auto", "support"):
            raise UserError(f"There is no center {self.center!r}; use 'auto', 'support', False or a vector.")
        if isinstance(self.center, bool) and self.center:
            raise UserError("center cannot be True; use 'auto', 'support', False or a vector.")
        if not (isinstance(self.whiten, (bool, np.bool_)) or self.whiten == "auto"):
            raise UserError(f"whiten must be True, False or 'auto', not {self.whiten!r}.")
        require_positive(temperature=self.temperature)
        require_flag(normalize=self.normalize)
        d = self.n_features_in_
        if self.metric is not None and np.shape(self.metric) != (d, d):
            raise UserError(f"metric must have shape ({d}, {d}), not {np.shape(self.metric)}.")
        if self.novelty is not None and np.shape(self.novelty) != (2,):
            raise UserError(f"novelty must be two numbers, slope and offset, not {self.novelty!r}.")
        for name, numbers in (("metric", self.metric), ("novelty", self.novelty)):
            if numbers is not None and not np.isfinite(np.asarray(numbers, float)).all():
                raise UserError(f"{name} holds numbers that are infinite or NaN; give finite ones.")


def _indices(y: np.ndarray, classes: np.ndarray) -> Tensor:
    """Return the index of each label among sorted classes, int64 [n]."""
    return torch.from_numpy(np.searchsorted(classes, y))
