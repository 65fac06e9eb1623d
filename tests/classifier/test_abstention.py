import subprocess
import sys

import numpy as np
import pytest

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE, is_unsure
from gpldla.utils.errors import UserError

PROBA = np.array([[0.8, 0.2], [0.25, 0.75], [0.5, 0.5]], np.float32)


def test_the_defaults():
    assert (MAX_ERROR, PREVALENCE) == (0.25, 0.1)


@pytest.mark.parametrize(
    ("max_error", "unsure"), [(0, [True] * 3), (0.25, [False, False, True]), (1, [False] * 3)]
)
def test_without_novelty_the_error_is_that_of_the_likeliest_class(max_error, unsure):
    assert is_unsure(PROBA, None, max_error).tolist() == unsure


def test_an_item_of_no_known_class_counts_as_an_error():
    novelty = np.array([0.5, 0.0, 0.0], np.float32)
    assert is_unsure(PROBA, novelty, 0.25).tolist() == [True, False, True]
    assert is_unsure(PROBA, novelty, 0.61).tolist() == [False, False, False]


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_finite_is_an_error_and_no_doubt(broken):
    with pytest.raises(UserError, match="The probabilities of 1 of 2 items are not finite"):
        is_unsure(np.array([[broken, broken], [1.0, 0.0]]), None, 1)
    with pytest.raises(UserError, match="of 2 of 3 items are not finite"):
        is_unsure(PROBA, np.array([0.0, broken, broken]), 1)


def test_no_items():
    assert is_unsure(np.empty((0, 3)), np.empty(0), 0.25).tolist() == []


def test_the_defaults_are_known_without_loading_numpy_or_torch():
    code = (
        "import sys, gpldla.classifier.abstention\n"
        "assert not {'numpy', 'torch'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
