"""The space of a task against explicit d×d matrices in numpy."""

import numpy as np
import pytest
import torch

from gpldla.heads import create_head
from gpldla.heads.base import class_one_hot
from gpldla.heads.gp.task_space import (
    TaskSpace,
    class_means,
    mean_of_class_means,
    positive,
    scatter_scale,
    within_class_directions,
)
from gpldla.testing import random_episode

# shots of each class, d: fewer examples than dimensions, as many, more
SIZES = [([3, 1, 2], 10), ([4, 1, 5], 10), ([7, 9, 1, 12], 6)]


def explicit(z, labels, weights=None):
    """Return the centre [d] and A [d, d] of features [n, d], from sums over examples."""
    weights = np.ones(len(z)) if weights is None else weights
    d = z.shape[1]
    scatter, freedom, means = np.zeros((d, d)), 0.0, []
    for j in np.unique(labels):
        members = [i for i in range(len(z)) if labels[i] == j and weights[i] > 0]
        count = sum(weights[i] for i in members)
        if not members:
            continue
        mean = sum(weights[i] * z[i] for i in members) / count
        for i in members:
            scatter += weights[i] * np.outer(z[i] - mean, z[i] - mean)
        freedom += max(0.0, count - 1)
        means.append(mean)
    kappa = freedom / np.trace(scatter) if np.trace(scatter) > 0 else 0.0
    return np.mean(means, 0), np.eye(d) + kappa * scatter


def inverse_root(A):
    values, vectors = np.linalg.eigh(A)
    return vectors / np.sqrt(values) @ vectors.T


def fitted(z, member, normalize_first=False):
    directions, shrink = within_class_directions(z, member)
    return TaskSpace(normalize_first, mean_of_class_means(z, member), None, directions, shrink)


def episode(shots, d, seed=0, batch=()):
    support, labels, query, _ = random_episode(shots, len(shots), 3, d, seed=seed, batch=batch)
    return support, labels, class_one_hot(labels, len(shots), torch.float64), query


@pytest.mark.parametrize(("shots", "d"), SIZES)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_explicit_matrix(shots, d, weighted):
    support, labels, member, query = episode(shots, d)
    weights = None
    if weighted:
        weights = np.random.default_rng(0).uniform(0.1, 3, len(labels))
        weights[1] = 0
        member = member * torch.from_numpy(weights).unsqueeze(-1)
    center, A = explicit(support.numpy(), labels.numpy(), weights)
    space = fitted(support, member)
    np.testing.assert_allclose(space(query).numpy(), (query.numpy() - center) @ inverse_root(A), atol=1e-10)


@pytest.mark.parametrize(("shots", "d"), SIZES)
def test_a_batch_of_tasks_is_each_task_for_itself(shots, d):
    support, _, member, query = episode(shots, d, batch=(2, 2))
    support[0, 1] = support[0, 1, :1]  # no scatter at all
    support[1, 0, : shots[0]] = support[1, 0, :1]  # and in one class none
    together = fitted(support, member)(query)
    n = sum(shots)
    assert within_class_directions(support, member)[0].shape == (2, 2, min(n, d), d)  # no d×d where n ≤ d
    for at in np.ndindex(2, 2):
        alone = fitted(support[at], member[at])(query[at])
        torch.testing.assert_close(together[at], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("shots", "d"), SIZES)
def test_directions_are_orthonormal_and_are_shrunk_not_flipped(shots, d):
    support, _, member, _ = episode(shots, d)
    directions, shrink = within_class_directions(support, member)
    assert len(directions) == min(d, sum(shots) - len(shots))
    torch.testing.assert_close(directions @ directions.T, torch.eye(len(directions)).double())
    assert (shrink > -1).all()
    assert (shrink < 0).all()


def test_the_scatter_has_its_degrees_of_freedom_as_trace():
    shots, d = [4, 1, 5], 10
    support, _, member, _ = episode(shots, d)
    _, shrink = within_class_directions(support, member)
    assert ((1 + shrink) ** -2 - 1).sum().item() == pytest.approx(3 + 0 + 4)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_one_example_a_class_leaves_features_as_they_are_but_for_the_centre(batch):
    support, _, member, query = episode([1, 1, 1], 8, batch=batch)
    directions, shrink = within_class_directions(support, member)
    space = TaskSpace(False, None, None, directions, shrink)
    assert torch.equal(space(query), query)
    centred = fitted(support, member)(query)
    torch.testing.assert_close(centred, query - support.mean(-2, keepdim=True))


def test_examples_on_their_class_means_leave_features_as_they_are():
    support, labels, member, query = episode([3, 3], 8)
    support = support[labels * 3]
    directions, shrink = within_class_directions(support, member)
    torch.testing.assert_close(TaskSpace(False, None, None, directions, shrink)(query), query)


def test_integer_weights_are_repetitions_and_weight_zero_is_absence():
    support, _, member, query = episode([3, 1, 4], 12)
    times = torch.tensor([2, 1, 3, 2, 0, 1, 1, 4])
    repeated = torch.arange(8).repeat_interleave(times)
    weighted = fitted(support, member * times.unsqueeze(-1))(query)
    copies = fitted(support[repeated], member[repeated])(query)
    torch.testing.assert_close(weighted, copies, atol=1e-10, rtol=0)
    assert (weighted - fitted(support, member)(query)).abs().max() > 1e-3


def test_the_scale_of_all_features_is_the_scale_of_the_result():
    support, _, member, query = episode([3, 1, 4], 5)
    for factor in (1e-3, 1e4):
        larger = fitted(factor * support, member)(factor * query)
        torch.testing.assert_close(larger, factor * fitted(support, member)(query), rtol=1e-8, atol=0)


def test_with_unit_rows_first_the_length_of_a_row_does_not_matter():
    support, _, member, query = episode([3, 1, 4], 5)
    unit = torch.nn.functional.normalize(support, dim=-1)
    space = fitted(unit, member, normalize_first=True)
    factors = torch.logspace(-3, 3, len(query), dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(space(factors * query), space(query))


def test_moving_all_features_moves_the_centre_only():
    support, _, member, query = episode([3, 2, 4], 6)
    offset = torch.linspace(-2, 3, 6, dtype=torch.float64)
    torch.testing.assert_close(
        fitted(support + offset, member)(query + offset), fitted(support, member)(query)
    )


@pytest.mark.parametrize("shots", [[3, 1, 4], [6, 7, 5]])  # n ≤ d and n > d
def test_a_metric_comes_after_the_centre_and_before_the_whitening(shots):
    support, labels, member, query = episode(shots, 9)
    metric = torch.randn(9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    head = create_head("gpldla-auto", metric=metric, normalize=False)
    got = head.fit_space(support, member)(query).numpy()
    center, _ = explicit(support.numpy(), labels.numpy())
    _, A = explicit(support.numpy() @ metric.numpy(), labels.numpy())
    expected = (query.numpy() - center) @ metric.numpy() @ inverse_root(A)
    np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_head_does_what_its_options_say(center, whiten, normalize):
    support, labels, member, query = episode([3, 1, 4], 9)
    head = create_head("gpldla-auto", center=center, whiten=whiten, normalize=normalize)
    z, q = support.numpy(), query.numpy()
    if normalize and (center or whiten):
        z, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (z, q))
    mean, A = explicit(z, labels.numpy())
    expected = (q - mean * center) @ (inverse_root(A) if whiten else np.eye(9))
    np.testing.assert_allclose(head.fit_space(support, member)(query).numpy(), expected, atol=1e-12)


def test_every_class_weighs_the_same_in_the_centre_and_an_absent_one_nothing():
    support, labels, member, _ = episode([5, 1, 2], 4)
    with_absent = torch.cat([member[:, :1], torch.zeros(8, 1), member[:, 1:]], -1).double()
    means = torch.stack([support[labels == j].mean(0) for j in range(3)])
    torch.testing.assert_close(class_means(support, with_absent)[[0, 2, 3]], means)
    assert (class_means(support, with_absent)[1] == 0).all()
    for which in (member, with_absent):
        torch.testing.assert_close(mean_of_class_means(support, which), means.mean(0))


def test_weights_below_one_still_make_means():
    support, _, member, _ = episode([2, 1], 4)
    weights = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
    means = class_means(support, member * weights.unsqueeze(-1))
    torch.testing.assert_close(means[0], (support[0] + 3 * support[1]) / 4)
    torch.testing.assert_close(means[1], support[2])


def test_the_scale_of_the_scatter_is_zero_where_there_is_none():
    member = class_one_hot(torch.tensor([[0, 0, 1], [0, 1, 2]]), 3, torch.float64)
    assert scatter_scale(torch.tensor([0.0, 5.0]), member).tolist() == [0, 0]
    assert scatter_scale(torch.tensor([4.0, 5.0]), member).tolist() == [0.25, 0]


def test_positive_replaces_what_cannot_be_divided_by():
    assert positive(torch.tensor([-1.0, 0.0, 0.5])).tolist() == [1, 1, 0.5]


@pytest.mark.parametrize(("shots", "d"), [*SIZES, ([5, 5, 5], 300)])
def test_float32_stays_close_to_float64(shots, d):
    support, _, member, query = episode(shots, d)
    exact = fitted(support, member)(query)
    single = fitted(support.float(), member.float())(query.float())
    assert (single.double() - exact).norm() < 1e-5 * exact.norm()
