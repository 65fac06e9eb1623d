"""When an answer is replaced by "unsure": the one rule and its default settings."""

import math
from typing import TYPE_CHECKING

from gpldla.utils.errors import UserError

if TYPE_CHECKING:  # `gpldla --help` imports this module and should not wait for NumPy
    import numpy as np

MAX_ERROR = 0.25  # the largest expected error of an answer
PREVALENCE = 0.1  # the assumed share of items of no known class among those to be predicted


def is_unsure(proba: "np.ndarray", none_of_these: "np.ndarray | None", max_error: float) -> "np.ndarray":
    """Return for each item whether the expected error of its answer exceeds `max_error`, boolean [n].

    The expected error counts both a wrong class and an item of no known class: it is
    1 − max_c p(c) · (1 − p(none of these)). Probabilities that are not finite are an error: such a classifier
    is broken, which must not pass for caution.

    proba: [n, C]; none_of_these: [n], or None if the head does not support it
    """
    correct = proba.max(axis=1).astype(float)
    if none_of_these is not None:
        correct = correct * (1 - none_of_these.astype(float))
    broken = int((~(abs(correct) < math.inf)).sum())
    if broken:
        raise UserError(
            f"The probabilities of {broken} of {len(correct)} items are not finite; fit the classifier again,"
            " with features that are neither too large nor damaged."
        )
    unsure: np.ndarray = 1 - correct > max_error
    return unsure
