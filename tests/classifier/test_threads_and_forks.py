"""One classifier in many threads, and after a fork."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gpldla import FewShotModel, GPLDLAClassifier
from tests.helpers import tiny_set

THREADS, PREDICTIONS = 8, 1000


def pictures():
    return list(tiny_set().images[:, 0])


def answers_of_threads(answer, n_items):
    """Answer items in turn, 1,000 in each of 8 threads; return every distinct answer to each item."""

    def work(thread):
        return [answer((thread + i) % n_items) for i in range(PREDICTIONS)]

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(work, range(THREADS)))
    return [
        np.array(
            [row for t, rows in enumerate(answers) for i, row in enumerate(rows) if (t + i) % n_items == k]
        )
        for k in range(n_items)
    ]


@pytest.mark.parametrize("training", [False, True], ids=["as constructed", "in training mode"])
def test_eight_threads_answer_as_one(training):
    """With BatchNorm in training mode an answer would depend on the batch and change the model."""
    torch.manual_seed(0)
    model = FewShotModel("conv4snp", "gpldla-auto").train(training)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    images = pictures()
    classifier = model.adapt(images[:8], [0, 1] * 4)
    expected = [classifier.predict_proba([image])[0] for image in images[8:12]]
    for own, right in zip(
        answers_of_threads(lambda k: classifier.predict_proba([images[8 + k]])[0], 4), expected
    ):
        np.testing.assert_array_equal(own, np.broadcast_to(right, own.shape))
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_a_fresh_model_is_ready_to_answer():
    model = FewShotModel("conv4s", "gpldla")
    assert not any(module.training for module in model.modules())


def test_adapting_heads_share_nothing_between_threads():
    """MAML needs BatchNorm to behave otherwise while it adapts: that must not be seen by other threads."""
    torch.manual_seed(0)
    model = FewShotModel("conv4s", "maml", head_options={"steps": 1})
    images = pictures()
    expected = model.adapt(images[:4], [0, 1, 0, 1]).predict_proba(images[4:6])
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda _: model.adapt(images[:4], [0, 1, 0, 1]).predict_proba(images[4:6]), range(12)
        )
        for answer in answers:
            np.testing.assert_allclose(answer, expected, atol=1e-6)


def test_the_estimator_answers_in_threads():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 64)), np.arange(20) % 4
    clf = GPLDLAClassifier().fit(X, y)
    expected = clf.predict_proba(X[:4])
    for own, right in zip(answers_of_threads(lambda k: clf.predict_proba(X[k : k + 1])[0], 4), expected):
        np.testing.assert_allclose(own, np.broadcast_to(right, own.shape), atol=1e-12)


AFTER_A_FORK = """
import os, sys
import numpy as np
import torch
torch.set_num_threads(2)
from gpldla import GPLDLAClassifier
rng = np.random.default_rng(0)
X, y = rng.standard_normal((400, 1280)), np.arange(400) % 20
clf = GPLDLAClassifier().fit(X, y)
expected = clf.predict_proba(X)
child = os.fork()
if child == 0:
    answers = clf.predict_proba(X), clf.fit(X, y).predict_proba(X)
    os._exit(0 if all(np.allclose(own, expected) for own in answers) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(torch, "set_num_threads") or sys.platform == "win32", reason="no fork here")
def test_a_fork_answers_and_does_not_hang(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")  # which tests set to 1: then nothing could hang
    assert subprocess.run([sys.executable, "-c", AFTER_A_FORK], timeout=60).returncode == 0
