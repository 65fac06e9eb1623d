"""How alike strangers are, against plain loops in numpy."""

import math

import numpy as np
import pytest
import torch

from gpldla.heads import create_head
from gpldla.heads.base import class_one_hot, unit_length
from gpldla.heads.gp.content import balanced_subset, find_copies
from gpldla.heads.gp.leave_one_out import leave_one_out
from gpldla.heads.gp.strangers import (
    LOGIT_SCALE,
    PRIOR_FREEDOM,
    PRIOR_LIKENESS,
    beta_of_left_out,
    beta_of_single_examples,
    effective_shots,
    strangers_likeness,
)
from gpldla.heads.gp.task_space import pooled_if_single
from gpldla.testing import random_episode


def rows_of(n, d, seed=0):
    rows = np.random.default_rng(seed).random((n, d)) ** 3
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def likeness_by_loops(rows, whiten):
    """Leave out one class after the other, each a single example; κ is that of all examples."""
    n, d = rows.shape
    kappa = (n - 1) / ((rows - rows.mean(0)) ** 2).sum() if whiten else 0.0
    total = 0.0
    for i in range(n):
        others = np.delete(rows, i, 0)
        centre = others.mean(0)
        scatter = sum(np.outer(row - centre, row - centre) for row in others)
        inverse = np.linalg.inv(np.eye(d) + kappa * scatter)
        query = rows[i] - centre
        for other in others - centre:
            total += (query @ inverse @ other) ** 2 / ((query @ inverse @ query) * (other @ inverse @ other))
    return total / (n * (n - 1))


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize(("n", "d"), [(3, 40), (7, 40), (20, 12)])
def test_likeness_is_that_of_leaving_out_one_class_after_the_other(n, d, whiten):
    rows = rows_of(n, d)
    features = torch.tensor(rows)
    got = strangers_likeness(features, torch.ones(n).double(), whiten=whiten)
    assert got.item() == pytest.approx(likeness_by_loops(rows, whiten), rel=1e-8)
    # A batch, in which rows that do not count make no difference
    more = torch.cat([torch.randn(2, d).double(), features])
    batch = torch.stack([more, more.roll(-2, 0)])
    present = torch.stack([torch.tensor([0.0, 0, *[1] * n]), torch.tensor([*[1.0] * n, 0, 0])]).double()
    torch.testing.assert_close(strangers_likeness(batch, present, whiten=whiten), got.expand(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_examples_that_are_all_alike_have_no_direction(dtype):
    """Each of the four lies in the centre of the others without the first: only the first has cosines."""
    alike = torch.tensor([[0.6, 0.8], *[[0.8, 0.6]] * 4], dtype=dtype)
    noise = 1e-7 if dtype == torch.float32 else 1e-16
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        rows = alike + noise * torch.randn(5, 2, generator=generator, dtype=dtype)
        likeness2 = strangers_likeness(rows, torch.ones(5, dtype=dtype), whiten=True)
        assert likeness2.item() == pytest.approx(16 / 20, abs=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_classes_have_the_prior_alone(n):
    features = torch.tensor(rows_of(n, 30))
    beta = beta_of_single_examples(features, torch.eye(max(2, n))[:n].double(), whiten=True)
    assert beta.item() == pytest.approx(LOGIT_SCALE / math.sqrt(PRIOR_LIKENESS * math.sqrt(30)))


def test_the_prior_counts_as_four_degrees_of_freedom():
    rows = rows_of(8, 30)
    expected = (PRIOR_FREEDOM * PRIOR_LIKENESS / math.sqrt(30) + 20 * likeness_by_loops(rows, True)) / 24
    beta = beta_of_single_examples(torch.tensor(rows), torch.eye(8).double(), whiten=True)
    assert beta.item() == pytest.approx(1.35 / math.sqrt(30 * expected))


def test_copies_of_one_row_have_a_finite_scale():
    assert beta_of_single_examples(torch.ones(5, 8), torch.eye(5), whiten=True).isfinite()


def test_more_shots_take_the_cosines_of_left_out_examples_with_other_classes():
    support, labels, _, _ = random_episode([3, 1, 2, 3], 4, 1, 20, nonnegative=False)
    member = class_one_hot(labels, 4, torch.float64)
    left_out = leave_one_out(
        unit_length(support), member, None, normalize=True, recentre=True, whiten=True, whole=True
    )
    squares = [
        left_out.cosine[i, j].item() ** 2
        for i in range(9)
        for j in range(4)
        if labels[i] != 1 and j != labels[i]
    ]
    k, C = 3, 4
    freedom = max(0, k * (2 * C - k - 1) / 2 - C)
    sigma2 = (PRIOR_FREEDOM * PRIOR_LIKENESS / math.sqrt(20) + freedom * np.mean(squares)) / (4 + freedom)
    expected = 1.35 * (9 / 4) ** (1 / 3) / math.sqrt(sigma2 * 20)
    assert beta_of_left_out(left_out, member, 20).item() == pytest.approx(expected)


def test_effective_shots_count_copies_once():
    member = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 2, 0]])
    assert effective_shots(member).tolist() == [2, 1, 0]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 1.0, 1.0]])
def test_means_of_unequal_shots_are_shrunk_as_plain_loops_do(normalize, weights):
    support, labels, _, _ = random_episode([3, 1, 4], 3, 1, 12, nonnegative=False)
    given = None if weights is None else torch.tensor(weights).double()
    head = create_head("gpldla-auto", beta=1.0, normalize=normalize).eval()
    posterior = head.adapt(support, labels, 3, weights=given)
    z = posterior.space(support).numpy()
    phi = z / np.linalg.norm(z, axis=1, keepdims=True) if normalize else z
    w = np.ones(8) if weights is None else np.array(weights)
    means, shots, products, pairs = [], [], 0.0, 0.0
    for j in range(3):
        own = [i for i in range(8) if labels[i] == j]
        means.append(sum(w[i] * phi[i] for i in own) / sum(w[i] for i in own))
        shots.append(sum(w[i] for i in own) ** 2 / sum(w[i] ** 2 for i in own))
        for a in own:
            for b in own:
                if a != b:
                    products += w[a] * w[b] * (phi[a] @ phi[b])
                    pairs += w[a] * w[b]
    length2 = sum(w[i] * (phi[i] @ phi[i]) for i in range(8)) / w.sum()
    rho = np.clip(products / pairs / length2, 0.02, 1)
    s = np.array([N * rho / (1 + (N - 1) * rho) for N in shots])
    expected = (s / s.mean())[:, None] * np.array(means)
    got = (posterior.diagonal.weight_mean * posterior.diagonal.sigma2).detach().numpy()
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_means_of_equal_shots_are_what_they_were():
    support, labels, _, _ = random_episode(3, 4, 1, 12)
    posterior = create_head("gpldla-auto", beta=1.0).eval().adapt(support, labels, 4)
    z = unit_length(posterior.space(support))
    mu = posterior.diagonal.weight_mean * posterior.diagonal.sigma2
    torch.testing.assert_close(mu, torch.stack([z[labels == j].mean(0) for j in range(4)]))


def test_single_examples_are_pooled_whatever_they_weigh():
    single = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    assert pooled_if_single(single).tolist() == [[1, 0], [1, 0]]
    several = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert torch.equal(pooled_if_single(several), several)


class TestContent:
    def test_copies_are_found_within_a_class(self):
        features = torch.tensor([[1.0, 2], [3, 4], [1, 2], [1, 2], [3, 4], [5, 6], [1, 2]])
        labels = torch.tensor([0, 0, 0, 1, 0, 1, 0])
        assert find_copies(features, labels).tolist() == [0, 1, 0, 3, 1, 5, 0]
        assert find_copies(torch.randn(6, 3), torch.tensor([0, 0, 0, 1, 1, 1])) is None
        together = find_copies(torch.stack([features, torch.randn(7, 2)]), torch.stack([labels, labels]))
        assert together.tolist() == [[0, 1, 0, 3, 1, 5, 0], list(range(7))]

    def test_rows_of_one_direction_are_no_copies(self):
        assert find_copies(torch.tensor([[1.0, 2], [2, 4], [3, 6]]), torch.tensor([0, 0, 0])) is None

    def test_a_balanced_subset_has_blocks_of_every_class(self):
        labels = torch.arange(64) % 4
        kept = balanced_subset(labels, 32)
        assert labels[kept].bincount().tolist() == [8, 8, 8, 8]
