"""gpldla.testing for other packages; our own heads inherit the contract in tests/heads."""

import subprocess
import sys
import textwrap

import pytest
import torch

from gpldla.testing import random_episode

WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None  # as if it were not installed
try:
    import gpldla.testing
except ImportError as error:
    print(error)
"""


def test_a_missing_pytest_is_one_sentence():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYTEST], capture_output=True, text=True, check=True)
    assert done.stdout == "gpldla.testing needs pytest, which is not installed; pip install pytest.\n"


def test_episodes_follow_from_their_seed():
    first, again, other = (random_episode(2, 3, 1, 8, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(first, again))
    assert not torch.equal(first[0], other[0])
    assert first[0].shape == (6, 8)
    assert random_episode([1, 2], 2, 3, 8, batch=(4,))[2].shape == (4, 6, 8)


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_the_contract_judges_a_head_of_another_package(tmp_path, right):
    """In a process of its own, as another package would run it: nothing but pytest and gpldla."""
    code = f"""
    import torch
    from gpldla.heads.base import Head, Posterior, check_episode, class_one_hot, register_head
    from gpldla.testing import HeadContract


    class Means(Posterior):
        def __init__(self, means, empty):
            self.means, self.empty = means, empty

        def log_prob(self, query):
            distances = (query.unsqueeze(-2) - self.means.unsqueeze(-3)).square().sum(-1)
            return (-distances).masked_fill(self.empty.unsqueeze(-2), -torch.inf).log_softmax(-1)


    @register_head("means")
    class MeansHead(Head):
        def __init__(self, feature_dim=None, *, normalize=False):
            super().__init__()

        def adapt(self, support, labels, n_way, *, backbone=None):
            check_episode(support, labels, n_way)
            members = class_one_hot(labels, n_way, support.dtype)
            counts = members.sum(-2).unsqueeze(-1)
            means = members.transpose(-1, -2) @ support / counts.clamp(min=1)
            return Means({"means" if right else "means.flip(-2)"}, counts.squeeze(-1) == 0)


    class TestMeans(HeadContract):
        name = "means"
    """
    (tmp_path / "test_means.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_means.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if right:
        assert done.returncode == 0, done.stdout
    else:
        assert done.returncode == 1, done.stdout
        assert "FAILED test_means.py::TestMeans::test_learns_separable_classes" in done.stdout
        assert "assert tensor(False)" in done.stdout  # assertions are rewritten
