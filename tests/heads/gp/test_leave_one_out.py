"""The closed form against what it stands for: everything fitted again without each example, one by one."""

import math

import numpy as np
import pytest
import torch

from gpldla.heads import create_head
from gpldla.heads.base import class_one_hot
from gpldla.heads.gp.leave_one_out import leave_one_out
from gpldla.testing import random_episode

OPTIONS = [
    {"normalize": normalize, "recentre": recentre, "whiten": whiten}
    for normalize in (True, False)
    for recentre in (True, False)
    for whiten in (True, False)
]
every_option = pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda o: "-".join(k for k in o if o[k]) or "none"
)


def task(shots, d, *, weighted=False, seed=0):
    """Return unit features [n, d], labels [n] and weights [n] as arrays."""
    support, labels, _, _ = random_episode(shots, len(shots), 1, d, seed=seed)
    features = torch.nn.functional.normalize(support, dim=-1).numpy()
    rng = np.random.default_rng(seed)
    return features, labels.numpy(), rng.uniform(0.3, 2.5, len(labels)) if weighted else np.ones(len(labels))


def closed_form(features, labels, weights, log_priors=None, **options):
    features, weights = torch.from_numpy(features), torch.from_numpy(weights).unsqueeze(-1)
    member = class_one_hot(torch.from_numpy(labels), labels.max() + 1, features.dtype) * weights
    return leave_one_out(features, member, log_priors, **options)


def scatter(features, labels, weights):
    """Return the class means, the centre, S and its degrees of freedom."""
    d = features.shape[1]
    means, S, freedom = {}, np.zeros((d, d)), 0.0
    for j in np.unique(labels):
        members = [i for i in range(len(labels)) if labels[i] == j and weights[i] > 0]
        if not members:
            continue
        count = sum(weights[i] for i in members)
        means[j] = sum(weights[i] * features[i] for i in members) / count
        for i in members:
            S += weights[i] * np.outer(features[i] - means[j], features[i] - means[j])
        freedom += max(0.0, count - 1)
    return means, sum(means.values()) / len(means), S, freedom


def scale_of(features, labels, weights):
    """Return κ = degrees of freedom / trace S."""
    _, _, S, freedom = scatter(features, labels, weights)
    return freedom / np.trace(S) if np.trace(S) > 0 else 0.0


def refitted(i, features, labels, weights, kappa, *, normalize, recentre, whiten):
    """Fit without (one count of) example i: return μ_j·φ_i and ‖μ_j‖² by class, and ‖φ_i‖, in that space.

    kappa: as it is to be held, or None for that of the examples that are left
    """
    weights = weights.copy()
    weights[i] -= min(1.0, weights[i])
    _, center, S, freedom = scatter(features, labels, weights)
    if kappa is None:
        kappa = freedom / np.trace(S) if np.trace(S) > 0 else 0.0
    z = features - center if recentre else features
    if whiten:
        values, vectors = np.linalg.eigh(np.eye(len(S)) + kappa * S)
        z = z @ (vectors / np.sqrt(values) @ vectors.T)
    phi = z / np.linalg.norm(z, axis=1, keepdims=True) if normalize else z
    means, _, _, _ = scatter(phi, labels, weights)
    dots, norm2 = (
        {j: mean @ phi[i] for j, mean in means.items()},
        {j: mean @ mean for j, mean in means.items()},
    )
    return dots, norm2, math.sqrt(phi[i] @ phi[i])


def brute_force(features, labels, weights, *, hold_kappa=True, **options):
    """Return slope and cosine [n, C], NaN in the rows of examples that are the only one of their class."""
    n, d = features.shape
    C = labels.max() + 1
    kappa = scale_of(features, labels, weights) if hold_kappa else None
    counts = [sum(weights[labels == j]) for j in range(C)]
    can_leave = [i for i in range(n) if counts[labels[i]] - min(1, weights[i]) > 1e-9]
    refits = {i: refitted(i, features, labels, weights, kappa, **options) for i in can_leave}
    slope, cosine = np.full((n, C), np.nan), np.full((n, C), np.nan)
    for i, (dots, norm2, length) in refits.items():
        cosine[i] = [dots[j] / math.sqrt(norm2[j]) / length for j in range(C)]
        # Another class that could lose a shot too counts with the length that its mean has then, on average.
        length2 = dict(norm2)
        for j in range(C):
            losers = [k for k in can_leave if labels[k] == j]
            if j != labels[i] and losers:
                total = sum(weights[k] * refits[k][1][j] for k in losers)
                length2[j] = total / sum(weights[k] for k in losers)
        rms = math.sqrt(sum(length2.values()) / C)
        slope[i] = [(dots[j] - length2[j] / 2) * math.sqrt(d) / rms for j in range(C)]
    return slope, cosine


def counted_rows(left_out):
    return left_out.counted.numpy() > 0


@every_option
@pytest.mark.parametrize(
    ("shots", "d"), [([3, 3, 3], 12), ([5, 2, 1, 4], 12), ([6, 8, 1, 2], 5), ([2, 2], 3)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_what_fitting_again_without_each_example_gives(options, shots, d, weighted):
    features, labels, weights = task(shots, d, weighted=weighted)
    left_out = closed_form(features, labels, weights, **options)
    slope, cosine = brute_force(features, labels, weights, **options)
    rows = counted_rows(left_out)
    np.testing.assert_array_equal(rows, ~np.isnan(slope[:, 0]))
    np.testing.assert_allclose(left_out.slope.numpy()[rows], slope[rows], atol=1e-9)
    np.testing.assert_allclose(left_out.cosine.numpy()[rows], cosine[rows], atol=1e-9)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shots", [2, 5])
@pytest.mark.parametrize(("d", "bound"), [(16, 0.02), (128, 0.005)])
def test_holding_the_scale_of_the_scatter_hardly_changes_the_logits(normalize, shots, d, bound):
    """κ fitted again, a ratio of two sums over one example fewer: the logits move by 2 % of their range."""
    options = {"normalize": normalize, "recentre": True, "whiten": True}
    for seed in range(3):
        features, labels, weights = task([shots] * 5, d, seed=seed)
        slope = closed_form(features, labels, weights, **options).slope.numpy()
        exact, _ = brute_force(features, labels, weights, hold_kappa=False, **options)
        error = slope - exact
        error -= error.mean(1, keepdims=True)  # the softmax does not see what all classes share
        assert 0 < np.abs(error).max() < bound * np.ptp(exact, axis=1).mean()


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_where_no_other_class_can_lose_a_shot_the_logits_are_those_of_a_refitted_head(
    center, normalize, monkeypatch
):
    """The head itself, fitted without the example, is the same but for the constant that all logits share.

    Of signed features, which no root is taken of, and with class means as long as they are.
    """
    monkeypatch.setattr("gpldla.heads.gpldla_auto.mean_shrinkage", lambda _, norms2: torch.ones_like(norms2))
    support, labels, _, _ = random_episode([4, 1, 1], 3, 1, 9, nonnegative=False)
    head = create_head("gpldla-auto", beta=0.8, center=center, whiten=False, normalize=normalize)
    left_out = head.left_out(support, class_one_hot(labels, 3, torch.float64))
    mean = left_out.mean(torch.tensor(0.8, dtype=torch.float64))
    for i in range(4):
        rest = torch.arange(6) != i
        posterior = head.adapt(support[rest], labels[rest], 3)
        expected, _ = posterior.diagonal.logits(posterior.space(support[i : i + 1]))
        torch.testing.assert_close(mean[i].log_softmax(-1), expected[0].log_softmax(-1), atol=1e-10, rtol=0)


def test_other_classes_count_with_the_length_that_their_mean_has_a_shot_short():
    """Two classes of two unit examples: a shot short every mean has length 1, so none is at a handicap."""
    features, labels, weights = task([2, 2], 6)
    left_out = closed_form(features, labels, weights, normalize=True, recentre=False, whiten=False)
    for i in range(4):
        own, other = labels[i], 1 - labels[i]
        partner = next(k for k in range(4) if k != i and labels[k] == own)
        others_mean = features[labels == other].mean(0)
        dots = {own: features[partner] @ features[i], other: others_mean @ features[i]}
        for j in (0, 1):
            assert left_out.slope[i, j].item() == pytest.approx((dots[j] - 0.5) * math.sqrt(6))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_prior_counts_what_is_left(weighted):
    features, labels, weights = task([3, 1, 4], 6, weighted=weighted)
    left_out = closed_form(features, labels, weights, normalize=True, recentre=True, whiten=True)
    for i in range(8):
        counts = np.array([sum(weights[labels == j]) for j in range(3)])
        counts[labels[i]] -= min(1, weights[i])
        if labels[i] == 1 and weights[i] <= 1:
            counts[1] = 0
            assert left_out.log_pi[i, 1] == -math.inf
        np.testing.assert_allclose(left_out.log_pi[i].exp().numpy(), counts / counts.sum(), atol=1e-12)


def test_a_given_prior_stays_but_for_a_class_that_is_gone():
    features, labels, weights = task([3, 1, 4], 6)
    log_priors = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    left_out = closed_form(features, labels, weights, log_priors, normalize=True, recentre=True, whiten=True)
    several = left_out.log_pi[labels != 1].exp()
    torch.testing.assert_close(several, log_priors.exp().expand(7, 3))
    alone = torch.tensor([5 / 7, 0, 2 / 7], dtype=torch.float64)
    torch.testing.assert_close(left_out.log_pi[3].exp(), alone)


def test_the_mean_is_a_line_in_beta():
    features, labels, weights = task([3, 2, 4], 6)
    left_out = closed_form(features, labels, weights, normalize=True, recentre=True, whiten=True)
    for beta in (0.1, 2.0):
        mean = left_out.mean(torch.tensor(beta))
        torch.testing.assert_close(mean, beta * left_out.slope + left_out.log_pi)


def test_every_second_example_counts_twice():
    features, labels, weights = task([3, 1, 4], 6, weighted=True)
    left_out = closed_form(features, labels, weights, normalize=True, recentre=True, whiten=True)
    half = left_out.every_nth(2)
    for name in ("slope", "log_pi", "cosine"):
        assert torch.equal(getattr(half, name), getattr(left_out, name)[[0, 2, 4, 6]])
    assert torch.equal(half.counted, 2 * left_out.counted[[0, 2, 4, 6]])


def test_the_only_example_of_a_class_is_not_counted_and_others_count_by_weight():
    features, labels, _ = task([3, 1, 1, 1], 6)
    weights = np.array([1.0, 0.5, 2.0, 1.0, 2.0, 0.0])
    left_out = closed_form(features, labels, weights, normalize=True, recentre=True, whiten=True)
    # of class 2 one count is left, of class 3 there is nothing
    assert left_out.counted.tolist() == [1.0, 0.5, 2.0, 0.0, 2.0, 0.0]
    assert (left_out.log_pi[:, 3] == -math.inf).all()
    assert left_out.slope.isfinite().all()


@every_option
def test_integer_weights_are_repetitions(options):
    features, labels, _ = task([3, 1, 2], 7)
    times = np.array([2, 1, 3, 2, 1, 1])
    repeated = np.repeat(np.arange(6), times)
    once = closed_form(features, labels, times.astype(float), **options)
    copies = closed_form(features[repeated], labels[repeated], np.ones(len(repeated)), **options)
    for name in ("slope", "log_pi", "cosine"):
        torch.testing.assert_close(getattr(once, name)[repeated], getattr(copies, name), atol=1e-9, rtol=0)
    torch.testing.assert_close(once.counted, torch.from_numpy(times).double())
    assert (copies.counted == 1).all()


@every_option
def test_weight_zero_is_absence(options):
    features, labels, _ = task([3, 2, 2], 7)
    weights = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    with_zeros = closed_form(features, labels, weights, **options)
    kept = weights > 0
    without = closed_form(features[kept], labels[kept], weights[kept], **options)
    for name in ("slope", "log_pi", "counted", "cosine"):
        torch.testing.assert_close(getattr(with_zeros, name)[kept], getattr(without, name))


@every_option
def test_a_batch_is_each_task_for_itself(options):
    parts = [task([3, 1, 2], 7, weighted=True, seed=seed) for seed in range(4)]
    features, labels, weights = (torch.from_numpy(np.stack(many)) for many in zip(*parts))
    member = class_one_hot(labels, 3, torch.float64) * weights.unsqueeze(-1)
    together = leave_one_out(
        features.view(2, 2, 6, 7), member.view(2, 2, 6, 3), torch.zeros(2, 2, 3).double(), **options
    )
    for i, part in enumerate(parts):
        alone = closed_form(*part, torch.zeros(3).double(), **options)
        for name in ("slope", "log_pi", "counted", "cosine"):
            torch.testing.assert_close(getattr(together, name)[i // 2, i % 2], getattr(alone, name))


def test_an_absent_class_changes_nothing_for_the_others():
    features, labels, weights = task([3, 2, 2], 7)
    options = {"normalize": True, "recentre": True, "whiten": True}
    present = closed_form(features, labels, weights, **options)
    gap = closed_form(features, labels + (labels > 0), weights, **options)
    for name in ("slope", "log_pi", "cosine"):
        torch.testing.assert_close(getattr(gap, name)[:, [0, 2, 3]], getattr(present, name))
    assert (gap.log_pi[:, 1] == -math.inf).all()


def test_an_example_far_from_all_others_is_left_out_as_exactly():
    """Sherman and Morrison take most of the scatter away with it: 1 − t·rᵀA⁻¹r is close to 0."""
    features, labels, weights = task([3, 3, 3], 8)
    features[0] = 60 * np.eye(8)[0]
    for options in ({"normalize": True}, {"normalize": False}):
        options = {"recentre": True, "whiten": True, **options}
        slope, _ = brute_force(features, labels, weights, **options)
        got = closed_form(features, labels, weights, **options).slope.numpy()
        np.testing.assert_allclose(got, slope, rtol=1e-7, atol=1e-7)


@every_option
def test_float32_stays_close_to_float64(options):
    features, labels, weights = task([5, 2, 1, 4], 40)
    exact = closed_form(features, labels, weights, **options)
    single = closed_form(features.astype(np.float32), labels, weights.astype(np.float32), **options)
    assert single.slope.dtype == torch.float32
    rows = counted_rows(exact)
    assert (single.slope[rows].double() - exact.slope[rows]).abs().max() < 1e-4


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_features_that_are_all_the_same_leave_finite_numbers(value):
    labels = np.array([0, 0, 1, 1, 1, 2])
    for options in OPTIONS:
        left_out = closed_form(np.full((6, 4), value), labels, np.ones(6), **options)
        assert left_out.slope.isfinite().all()
        assert left_out.cosine.isfinite().all()
