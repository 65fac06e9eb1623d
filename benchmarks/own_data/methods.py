"""The classifiers that are compared."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from scipy.spatial.distance import cdist, pdist
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.neighbors import NearestCentroid

from benchmarks.own_data.common import LOGISTIC, SEED, scaled
from benchmarks.own_data.data import Data
from gpldla import GPLDLAClassifier

MAX_BASE_WAYS = 40  # per task in `meta_fit`: of the 50 classes in half of the base, some must stay unknown


@dataclass(frozen=True)
class Method:
    """A classifier and where it is measured.

    make:      (support [n, d], shots) → a classifier with `predict_proba`
    min_shots: the fewest shots that it can be fitted to
    shares:    of the tasks that it is measured on, with few classes and with many; 0 leaves it out
    why_less:  the reason for a share below 1
    """

    title: str
    make: Callable[[np.ndarray, int], Any]
    min_shots: int = 1
    shares: tuple[float, float] = (1.0, 1.0)
    why_less: str = ""


class CentroidSoftmax(NearestCentroid):  # type: ignore[misc]  # untyped
    """Probabilities that agree with `predict`: softmax of minus the distances to the class means."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the probabilities, [n, C]."""
        result: np.ndarray = scipy.special.softmax(-cdist(X, self.centroids_), axis=1)
        return result


def rivals() -> list[Method]:
    """Return scikit-learn's classifiers, each with settings that suit it."""

    def centroid(_: np.ndarray, __: int) -> Any:
        return CentroidSoftmax()

    def centroid_default(_: np.ndarray, __: int) -> Any:
        return NearestCentroid()

    def logistic(_: np.ndarray, __: int) -> Any:
        return LogisticRegression(max_iter=1000)

    def logistic_chosen(support: np.ndarray, shots: int) -> Any:
        # Five values of C instead of ten if there are many examples. The default score, accuracy, has ties
        # with so few, and then the smallest C is chosen, which gives nearly uniform probabilities.
        return LogisticRegressionCV(
            Cs=10 if len(support) <= 50 else 5, cv=min(shots, 5), scoring="neg_log_loss", max_iter=1000
        )

    def lda(_: np.ndarray, __: int) -> Any:
        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")

    def process(_: np.ndarray, __: int) -> Any:
        return GaussianProcessClassifier(random_state=SEED)

    def process_fitted(support: np.ndarray, _: int) -> Any:
        kernel = ConstantKernel(1.0) * RBF(float(np.median(pdist(support))))  # the start of the search
        return GaussianProcessClassifier(kernel, random_state=SEED)

    # On validation classes, 50-way 10-shot: half a minute per task, nearly two minutes with the search.
    one_against_rest = "one classifier per class, each with work that grows with the cube of the examples"
    return [
        Method("nearest centroid, softmax of −distance", centroid),
        Method("nearest centroid, its own probabilities", centroid_default, min_shots=2),
        Method(LOGISTIC, logistic),
        Method("logistic regression, C by cross-validation", logistic_chosen, 2, (0.3, 0.5), "slow"),
        Method("LDA, Ledoit-Wolf", lda, 2, (0.15, 1.0), "slow"),
        Method("Gaussian process, default kernel", process, 1, (0.3, 0.0), one_against_rest),
        Method("Gaussian process, RBF fitted", process_fitted, 1, (0.3, 0.0), one_against_rest),
    ]


def meta_fitted(data: Data, ways: int, shots: int, scale: float) -> GPLDLAClassifier | None:
    """Learn the prior on the base classes, on fewer tasks if scale < 1; None without base classes."""
    if data.base is None:
        return None
    classes = len(np.unique(data.base[1]))
    ways = min(ways, MAX_BASE_WAYS, classes // 2 - 1)
    prior = GPLDLAClassifier(random_state=SEED)
    episodes = scaled(200, min(1.0, scale))
    return prior.meta_fit(*data.base, shots=shots, ways=ways, episodes=episodes, progress=False)
