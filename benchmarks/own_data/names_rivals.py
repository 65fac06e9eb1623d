"""Rivals that know the names of classes: zero-shot, Tip-Adapter, Gaussian discriminant analysis, LP++.

All take unit features X [n, d] with labels y and unit embeddings T [C, d] of the names, and return logits.
They were made for CLIP, whose scale of logits is 100; the scale here is that of the text encoder's training.
Where a method chooses a constant on a validation set, which a few examples do not leave, it is chosen by
cross-validation, or is the method's default with one example per class.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.model_selection import StratifiedKFold

SCALE = 20.0  # of the cosines in the training of all-MiniLM-L6-v2
GDA_ALPHAS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
TIP_ALPHAS, TIP_BETAS = (0.3, 1.0, 3.0, 10.0), (1.0, 3.0, 5.5, 10.0)

Logits = Callable[..., np.ndarray]


def unit(rows: np.ndarray) -> np.ndarray:
    """Scale rows to length 1, in float64."""
    rows = rows.astype(np.float64)
    scaled: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


def zero_shot(X: np.ndarray, y: np.ndarray, T: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Return the logits [q, C] of the names alone."""
    logits: np.ndarray = SCALE * Q @ T.T
    return logits


def tip_adapter(
    X: np.ndarray, y: np.ndarray, T: np.ndarray, Q: np.ndarray, alpha: float = 1.0, beta: float = 5.5
) -> np.ndarray:
    """Return the logits of Tip-Adapter without training (ECCV 2022): names, and a cache of the examples."""
    affinity = np.exp(-beta * (1 - Q @ X.T))
    logits: np.ndarray = zero_shot(X, y, T, Q) + alpha * affinity @ np.eye(len(T))[y]
    return logits


def discriminant_analysis(
    X: np.ndarray, y: np.ndarray, T: np.ndarray, Q: np.ndarray, alpha: float = 0.01
) -> np.ndarray:
    """Return the logits of Gaussian discriminant analysis with names (ICLR 2024).

    Its precision is the ridge estimate d ((n − 1) Σ + tr(Σ) I)⁻¹ of Kubokawa and Srivastava. Of one example
    per class Σ is that of all examples. The weight α has no default; 0.01 makes both parts of a logit alike.
    """
    C, d = T.shape
    means = np.stack([X[y == c].mean(0) for c in range(C)])
    centred = X - (means[y] if len(X) > C else X.mean(0))
    covariance = centred.T @ centred / (len(X) - 1)
    precision = d * np.linalg.inv((len(X) - 1) * covariance + np.trace(covariance) * np.eye(d))
    weights = means @ precision
    bias = -0.5 * (weights * means).sum(1)
    logits: np.ndarray = zero_shot(X, y, T, Q) + alpha * (Q @ weights.T + bias)
    return logits


def lp_plus_plus(X: np.ndarray, y: np.ndarray, T: np.ndarray, Q: np.ndarray, steps: int = 300) -> np.ndarray:
    """Return the logits of LP++ (CVPR 2024): f·(w_k + α_k t_k), trained by cross-entropy.

    From its own start, the class means and the mean similarity of all examples with a name; its majorise-
    minimise steps are replaced by L-BFGS, as the loss is convex.
    """
    features, labels, names = (torch.from_numpy(array) for array in (X, y, T))
    counts = torch.bincount(labels, minlength=len(T)).double()
    one_hot = torch.eye(len(T), dtype=torch.float64)[labels]
    w = (one_hot.T @ features / counts[:, None]).requires_grad_()
    alpha = (250 / len(T) * (features @ names.T).mean(0)).requires_grad_()
    optimiser = torch.optim.LBFGS([w, alpha], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        logits = features @ w.T + alpha * (features @ names.T)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call, unused-ignore]
    queries = torch.from_numpy(Q)
    with torch.no_grad():
        return (queries @ w.T + alpha * (queries @ names.T)).numpy()


def chosen(method: Logits, grid: Sequence[dict[str, float]], shots: int) -> Logits:
    """Return a method whose constants minimise the cross-validated NLL; its defaults with one shot."""
    if shots < 2:
        return method

    def fitted(X: np.ndarray, y: np.ndarray, T: np.ndarray, Q: np.ndarray) -> np.ndarray:
        folds = list(StratifiedKFold(min(shots, 5), shuffle=True, random_state=0).split(X, y))

        def loss(options: dict[str, float]) -> float:
            parts = [
                log_softmax(method(X[fit], y[fit], T, X[rest], **options), axis=1)[
                    np.arange(len(rest)), y[rest]
                ]
                for fit, rest in folds
            ]
            return -float(np.concatenate(parts).mean())

        return method(X, y, T, Q, **min(grid, key=loss))

    return fitted


def rivals(shots: int) -> dict[str, Logits]:
    """Return the methods by title; without examples there is only one."""
    if not shots:
        return {"zero-shot": zero_shot}
    tip: list[dict[str, Any]] = [{"alpha": a, "beta": b} for a, b in product(TIP_ALPHAS, TIP_BETAS)]
    return {
        "zero-shot": zero_shot,
        "Tip-Adapter": chosen(tip_adapter, tip, shots),
        "GDA": chosen(discriminant_analysis, [{"alpha": a} for a in GDA_ALPHAS], shots),
        "LP++": lp_plus_plus,
    }
