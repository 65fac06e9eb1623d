"""Learn the prior from base classes on fixed features, in seconds, as no network is trained."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gpldla.classifier.calibration import fit_temperature, negative_log_likelihood
from gpldla.classifier.novelty import Novelty, calibrate
from gpldla.heads.base import class_one_hot, unit_length
from gpldla.heads.gp.strangers import default_beta
from gpldla.heads.gp.task_posterior import TaskPosterior
from gpldla.heads.gp.task_space import class_means
from gpldla.heads.gpldla_auto import GPLDLAAuto
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter

SHRINKAGES = (0.3, 0.6, 0.8, 0.9, 0.95, 1.0)  # of the base classes' covariance; 1: it is not used
SEARCH_STEPS = 40
QUERIES = 15  # per class
VALUES = 1 << 24  # of features in all episodes together: bounds the memory


def learn_prior(
    features: Tensor,
    labels: Tensor,
    *,
    shots: int,
    ways: int,
    episodes: int,
    seed: int,
    make_head: Callable[..., GPLDLAAuto],
    normalize: bool,
    reporter: Reporter,
) -> dict[str, Any]:
    """Learn centre, metric, β, β_b, temperature and novelty from base classes [n, d], [n].

    The metric whitens by the shrunk covariance within the base classes. The shrinkage and everything else is
    chosen on one half of the classes, with the covariance of the other half. Returns parameters of
    `GPLDLAClassifier`.
    """
    n_classes = int(labels.max()) + 1
    counts = torch.bincount(labels, minlength=n_classes)
    _check_base(counts, shots, ways, episodes)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(n_classes, generator=generator)
    # Half of the classes for the covariance, unless too few remain for a task and unknown classes.
    first, second = shuffled.tensor_split(2) if n_classes // 2 > ways else (shuffled[:0], shuffled)

    member = class_one_hot(labels, n_classes, features.dtype)
    center = class_means(features, member).mean(0)
    z = features - center
    z = unit_length(z) if normalize else z
    drawn = _draw_episodes(labels, second, counts, shots, ways, episodes, z.shape[1], generator)

    shrinkages = SHRINKAGES if len(first) else (1.0,)
    start = default_beta(z.shape[1])
    betas = [start * 2.0**power for power in (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5)]
    with (
        torch.no_grad(),
        reporter.bar("learning the prior", len(shrinkages) * len(betas) + SEARCH_STEPS) as bar,
    ):
        whitening = _Whitening(z[torch.isin(labels, first)], labels[torch.isin(labels, first)])
        best = (np.inf, 1.0, start)
        for shrinkage in shrinkages:
            tasks = _Tasks(z, whitening.map(shrinkage), drawn, ways, make_head)
            for beta in betas:
                best = min(best, (tasks.loss(beta, 1.0), shrinkage, beta))
                bar(1)
        _, shrinkage, beta = best
        tasks = _Tasks(z, whitening.map(shrinkage), drawn, ways, make_head)

        def loss(logs: np.ndarray) -> float:
            bar(1)
            # The penalty keeps β near its default if the loss hardly depends on it, as with few features.
            penalised: float = tasks.loss(*np.exp(logs)) + 1e-3 * (logs[0] - np.log(start)) ** 2
            return penalised

        simplex = np.log(beta) + np.array([[0, 0], [0.3, 0], [0, 0.5]]) - [0, np.log(beta)]
        found = minimize(
            loss,
            simplex[0],
            method="Nelder-Mead",
            options={"maxfev": SEARCH_STEPS, "initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-5},
        )
        beta, beta_b = (float(value) for value in np.exp(np.clip(found.x, -7, 7)))
        log_prob, truth = tasks.predictions(beta, beta_b)
        novelty = tasks.novelty(beta, beta_b)
        metric = _Whitening(z, labels).map(shrinkage)
    return {
        "beta": beta,
        "beta_b": beta_b,
        "temperature": fit_temperature(log_prob, truth),
        "center": center.numpy(),
        "metric": None if metric is None else metric.numpy(),
        "novelty": (float(novelty.slope), float(novelty.offset)),
    }


class _Whitening:
    """The covariance within classes [n, d], and maps that whiten by it."""

    def __init__(self, z: Tensor, labels: Tensor) -> None:
        classes, indices = labels.unique(return_inverse=True)
        residuals = z - class_means(z, class_one_hot(indices, len(classes), z.dtype))[indices]
        covariance = residuals.mT @ residuals / max(1, len(z) - len(classes))
        self._values, self._vectors = torch.linalg.eigh(covariance)

    def map(self, shrinkage: float) -> Tensor | None:
        """Return Σ^{-1/2} [d, d] of the covariance, shrunk towards a multiple of I; None at shrinkage 1."""
        mean = self._values.mean()
        if shrinkage == 1 or mean <= 0:
            return None
        relative = shrinkage + (1 - shrinkage) * self._values.clamp_min(0) / mean
        whitening: Tensor | None = (self._vectors * relative.rsqrt()) @ self._vectors.mT
        return whitening


class _Episodes(NamedTuple):
    """Indices of rows, each [E, ...], sorted by class; `unknown` are of classes outside the episode."""

    support: Tensor
    query: Tensor
    unknown: Tensor


class _Tasks:
    """Episodes transformed by one metric, and their predictions under any prior."""

    def __init__(
        self,
        z: Tensor,
        metric: Tensor | None,
        episodes: _Episodes,
        ways: int,
        make_head: Callable[..., GPLDLAAuto],
    ) -> None:
        E, n = episodes.support.shape
        q = episodes.query.shape[1]
        labels = torch.arange(ways).repeat_interleave(n // ways).expand(E, -1)
        self._truth = torch.arange(ways).repeat_interleave(q // ways).expand(E, -1).flatten()
        # β and β_b change neither the features nor the task's space.
        self._head = make_head(
            beta=1.0, beta_b=1.0, center=False, whiten=True, metric=metric, priors=None, predictive="auto"
        )
        support, member = z[episodes.support], class_one_hot(labels, ways, z.dtype)
        self._space = self._head.fit_space(support, member)
        self._labelled = self._head.labelled(self._space(support), member)
        self._query = self._space(z[episodes.query])
        self._known, self._unknown = z[episodes.query], z[episodes.unknown]

    def predictions(self, beta: float, beta_b: float) -> tuple[Tensor, Tensor]:
        """Return log p of all queries [m, ways] and the true classes [m]."""
        log_prob = self._posterior(beta, beta_b).inner.log_prob(self._query)
        return log_prob.flatten(0, 1), self._truth

    def loss(self, beta: float, beta_b: float) -> float:
        """Return the mean of −log p(y | x, S) over all queries (Eq. 10)."""
        if not (1e-3 < beta < 1e3 and 1e-3 < beta_b < 1e3):
            return float("inf")
        return negative_log_likelihood(*self.predictions(beta, beta_b))

    def novelty(self, beta: float, beta_b: float) -> Novelty:
        """Calibrate "none of these" on queries and on examples of classes outside their episode."""
        posterior = self._posterior(beta, beta_b)
        known, unknown = (
            posterior.nearest_mean_cosine(rows).flatten() for rows in (self._known, self._unknown)
        )
        return calibrate(known, unknown)

    def _posterior(self, beta: float, beta_b: float) -> TaskPosterior:
        scale, scale_b = (torch.tensor(value, dtype=self._query.dtype) for value in (beta, beta_b))
        return self._head.posterior_in_space(self._space, self._labelled, scale, scale_b)


def _check_base(counts: Tensor, shots: int, ways: int, episodes: int) -> None:
    """Refuse settings that are not counts, and base classes [C] with too few examples for a task."""
    for name, value, least in (("shots", shots, 1), ("ways", ways, 2), ("episodes", episodes, 1)):
        if not hasattr(value, "__index__") or value < least:
            raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    usable = int((counts > shots).sum())
    if usable < ways:
        raise UserError(
            f"Only {usable} base classes have more than {shots} examples, but a task needs {ways};"
            " lower ways or shots, or give more base classes."
        )


def _draw_episodes(
    labels: Tensor,
    classes: Tensor,
    counts: Tensor,
    shots: int,
    ways: int,
    episodes: int,
    d: int,
    generator: torch.Generator,
) -> _Episodes:
    """Draw episodes from some of the classes, or from all of them if these are too few for a task."""
    usable = classes[counts[classes] > shots]
    if len(usable) < ways:
        usable = torch.nonzero(counts > shots).squeeze(-1)
    queries = min(QUERIES, max(1, 300 // ways), int((counts[usable] - shots).min()))
    n_outside = min(len(usable) - ways, ways)
    rows = ways * (shots + queries) + n_outside * queries
    episodes = max(1, min(episodes, VALUES // (rows * d)))
    of_class = {int(c): torch.nonzero(labels == c).squeeze(-1) for c in usable}
    support, query, unknown = [], [], []
    for _ in range(episodes):
        order = usable[torch.randperm(len(usable), generator=generator)]
        drawn = [
            of_class[int(c)][torch.randperm(len(of_class[int(c)]), generator=generator)[: shots + queries]]
            for c in order[: ways + n_outside]
        ]
        support.append(torch.cat([rows[:shots] for rows in drawn[:ways]]))
        query.append(torch.cat([rows[shots:] for rows in drawn[:ways]]))
        unknown.append(torch.cat([rows[shots:] for rows in drawn[ways:]] or [labels.new_empty(0)]))
    return _Episodes(torch.stack(support), torch.stack(query), torch.stack(unknown))
