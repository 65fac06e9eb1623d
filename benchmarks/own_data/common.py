"""Settings and statistics that all parts share."""

from typing import Any

import numpy as np
import scipy.stats

SEED = 0
QUERIES = 15  # per class
FLOOR = 1e-12  # smaller probabilities are raised to it, as some classifiers return 0
OURS, META = "GPLDLA", "GPLDLA, meta-fitted"
LOGISTIC = "logistic regression"

Numbers = dict[str, Any]


def scaled(tasks: int, scale: float) -> int:
    return max(2, round(tasks * scale))  # an interval needs two


def percent(values: np.ndarray) -> float | None:
    return round(100 * float(values.mean()), 2) if len(values) else None


def with_interval(key: str, values: np.ndarray, digits: int) -> Numbers:
    """Return the mean over tasks and half of its 95 % interval (Student's, as there may be few)."""
    spread = values.std(ddof=1) / len(values) ** 0.5
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1) * spread)
    return {key: round(float(values.mean()), digits), f"{key}_interval": round(half, digits)}
