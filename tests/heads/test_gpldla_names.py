"""Names as a prior, against an independent computation in float64 NumPy, and by what must hold."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from gpldla.heads.base import check_episode
from gpldla.heads.gp.names import Names, among_seen
from gpldla.heads.gpldla_auto import GPLDLAAuto
from gpldla.heads.gpldla_names import GPLDLANames, NamesPosterior
from gpldla.utils.errors import UserError

D = 12


def task(shots, seed=0, noise=0.7):
    """Names [C, d], support and labels with so many examples per class, and 10 queries of each."""
    rng = np.random.default_rng(seed)
    names = rng.normal(size=(len(shots), D))
    common = 2 * rng.normal(size=D)  # what all items share, such as the gap between pictures and texts

    def items(classes):
        return common + names[classes] + noise * rng.normal(size=(len(classes), D))

    labels = np.repeat(np.arange(len(shots)), shots)
    truth = np.repeat(np.arange(len(shots)), 10)
    return names, items(labels), labels, items(truth), truth


def adapt(names, support, labels, ways=None, **options):
    head = GPLDLANames(prior_mean=torch.from_numpy(names), **options).eval()
    with torch.no_grad():
        return head, head.adapt(torch.from_numpy(support), torch.from_numpy(labels), ways or len(names))


def log_prob(posterior, query):
    with torch.no_grad():
        return posterior.log_prob(torch.from_numpy(query)).numpy()


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def reference_space(support, labels):
    """Centre, whitening and φ, as docs/methods/gpldla-auto.md has them, by plain linear algebra."""
    u, C = unit(support), labels.max() + 1
    means = np.stack([u[labels == c].mean(0) for c in range(C)])
    centre, residual = means.mean(0), u - means[labels]
    scatter = residual.T @ residual
    A = np.eye(D) + (len(u) - C) / np.trace(scatter) * scatter
    values, vectors = np.linalg.eigh(A)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    return means, lambda rows: unit((unit(rows) - centre) @ root)


def reference_logits(names, support, labels, query, a, beta):
    """Mean and variance of the logits for given a and β, all classes with the same number of examples."""
    C = len(names)
    means, space = reference_space(support, labels)
    directions = unit(names) - unit(names).mean(0)

    def offset(rows):
        return a * (unit(rows) - means.sum(0) / C) @ directions.T

    phi = space(support)
    mu = np.stack([phi[labels == c].mean(0) for c in range(C)])
    sigma2 = math.sqrt((mu**2).sum(1).mean()) / (beta * math.sqrt(D))
    w = mu / sigma2
    b = -0.5 * (mu**2).sum(1) / sigma2 - math.log(C)
    b = b - b.mean()
    p = np.exp(phi @ w.T + b + offset(support))
    p /= p.sum(1, keepdims=True)
    curvature = p - p**2
    V = 1 / (1 / beta**2 + curvature.T @ phi**2)
    v = 1 / (1 + curvature.sum(0))
    return space(query) @ w.T + b + offset(query), space(query) ** 2 @ V.T + v


@pytest.mark.parametrize("shots", [2, 5])
@pytest.mark.parametrize("ways", [2, 4])
def test_logits_are_those_of_the_formulas(shots, ways):
    names, support, labels, query, _ = task([shots] * ways)
    _, posterior = adapt(names, support, labels)
    a, beta = posterior.scale.item(), posterior.beta.item()
    assert a > 0 < beta
    mean, var = (moment.numpy() for moment in posterior.logits(torch.from_numpy(query)))
    expected_mean, expected_var = reference_logits(names, support, labels, query, a, beta)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(var, expected_var, rtol=1e-9)


def test_probabilities_are_the_integral_over_the_logits():
    names, support, labels, query, _ = task([3, 3])
    _, posterior = adapt(names, support, labels)
    mean, var = reference_logits(
        names, support, labels, query[:5], posterior.scale.item(), posterior.beta.item()
    )
    for row, (m, s) in enumerate(zip(mean[:, 0] - mean[:, 1], np.sqrt(var.sum(1)))):
        expected, _ = integrate.quad(
            lambda z, m=m, s=s: stats.norm.pdf(z) / (1 + math.exp(-m - s * z)), -9, 9
        )
        assert abs(math.exp(log_prob(posterior, query[row : row + 1])[0, 0]) - expected) < 0.002


@pytest.mark.parametrize("shots", [[3, 3, 3], [2, 4, 3], [1, 3, 2]])
def test_left_out_scores_of_names_are_those_of_a_refit(shots):
    names, support, labels, _, _ = task(shots)
    rows, member = torch.from_numpy(support), torch.eye(3, dtype=torch.float64)[torch.from_numpy(labels)]
    closed = Names.of(torch.from_numpy(names), rows, member).left_out_scores(rows, member)
    for i in range(len(support)):
        kept = np.arange(len(support)) != i
        without = Names.of(torch.from_numpy(names), rows[kept], member[kept])
        torch.testing.assert_close(closed[i], without.scores(rows[i : i + 1])[0])


def test_leave_one_out_is_close_to_a_refit():
    """Not equal: κ and the variances are those of all examples, and other classes count a shot short."""
    names, support, labels, _, _ = task([6, 6, 6], noise=1.2)
    head, posterior = adapt(names, support, labels)
    rows, y = torch.from_numpy(support), torch.from_numpy(labels)
    with torch.no_grad():
        closed = head.leave_one_out(rows, y, 3, None, posterior).exp()
        for i in range(len(support)):
            kept = torch.arange(len(support)) != i
            refit = GPLDLANames(prior_mean=torch.from_numpy(names), beta=posterior.beta.item()).eval()
            again = refit.adapt(rows[kept], y[kept], 3)
            again.scale = posterior.scale
            assert (again.log_prob(rows[i : i + 1])[0].exp() - closed[i]).abs().max() < 0.15
    own = closed[torch.arange(len(y)), y]
    assert own.mean() > 0.5


class TestLimits:
    def test_without_examples_it_is_zero_shot_classification(self):
        names, support, labels, query, _ = task([0, 0, 0, 0])
        _, posterior = adapt(names, support, labels, name_scale=30.0)
        assert posterior.scale.item() == 30
        scores = unit(query) @ unit(names).T
        answers = log_prob(posterior, query)
        assert (answers.argmax(1) == scores.argmax(1)).all()
        mean = posterior.logits(torch.from_numpy(query))[0].numpy()
        np.testing.assert_allclose(np.ptp(mean - 30 * scores, axis=1), 0, atol=1e-9)  # a common shift
        np.testing.assert_allclose(np.exp(answers).sum(1), 1)

    def test_with_many_examples_the_names_fade(self):
        names, support, labels, query, _ = task([100, 100, 100])
        _, posterior = adapt(names, support, labels)
        with torch.no_grad():
            plain = GPLDLAAuto().eval().adapt(torch.from_numpy(support), torch.from_numpy(labels), 3)
            spread = plain.logits(torch.from_numpy(query))[0].std(1).mean()
        of_names = (posterior.scale * posterior.names.scores(torch.from_numpy(query))).std(1).mean()
        assert of_names < spread
        assert (log_prob(posterior, query).argmax(1) == log_prob(plain, query).argmax(1)).mean() > 0.95

    def test_wrong_names_do_little_harm_once_there_are_examples(self):
        names, support, labels, query, truth = task([5, 5, 5, 5])
        _, right = adapt(names, support, labels)
        _, wrong = adapt(np.roll(names, 1, 0), support, labels)
        assert wrong.scale.item() < 0.2 * right.scale.item()
        with torch.no_grad():
            plain = GPLDLAAuto().eval().adapt(torch.from_numpy(support), torch.from_numpy(labels), 4)
        losses = [-log_prob(p, query)[np.arange(len(truth)), truth].mean() for p in (wrong, plain)]
        assert losses[0] < losses[1] + 0.05

    def test_names_help_with_one_example(self):
        gains = []
        for seed in range(10):
            names, support, labels, query, truth = task([1] * 5, seed, noise=1.5)
            _, posterior = adapt(names, support, labels)
            with torch.no_grad():
                plain = GPLDLAAuto().eval().adapt(torch.from_numpy(support), torch.from_numpy(labels), 5)
            own = (np.arange(len(truth)), truth)
            gains.append((log_prob(posterior, query)[own] - log_prob(plain, query)[own]).mean())
        assert np.mean(gains) > 0.1

    def test_the_length_of_an_embedding_means_nothing(self):
        names, support, labels, query, _ = task([2, 2, 2])
        (_, posterior), (_, longer) = (adapt(factor * names, support, labels) for factor in (1, 7))
        np.testing.assert_allclose(log_prob(longer, query), log_prob(posterior, query), atol=1e-9)
        np.testing.assert_allclose(posterior.names.directions.sum(0).numpy(), 0, atol=1e-12)


class TestSomeClasses:
    def test_examples_only_tell_the_classes_that_have_some_from_each_other(self):
        names, support, labels, query, _ = task([4, 0, 4, 0])
        _, posterior = adapt(names, support, labels)
        mean = posterior.logits(torch.from_numpy(query))[0]
        rest = mean - posterior.scale * posterior.names.scores(torch.from_numpy(query))
        seen = rest[:, [0, 2]].logsumexp(1)
        torch.testing.assert_close(seen, torch.full_like(seen, math.log(0.5)))
        torch.testing.assert_close(
            rest[:, [1, 3]].exp(), torch.full((len(query), 2), 0.25, dtype=torch.float64)
        )

    def test_one_example_in_all(self):
        names, support, labels, query, truth = task([0, 1, 0])
        _, posterior = adapt(names, support, labels)
        _, zero_shot = adapt(names, support[:0], labels[:0])
        answers, before = log_prob(posterior, query), log_prob(zero_shot, query)
        assert np.isfinite(answers).all()
        assert (answers.argmax(1) == truth).mean() >= (before.argmax(1) == truth).mean()

    def test_a_class_without_a_name(self):
        names, support, labels, query, truth = task([3, 3, 3])
        names[1] = 0
        _, posterior = adapt(names, support, labels)
        assert not posterior.names.directions[1].any()
        assert (log_prob(posterior, query).argmax(1) == truth).mean() > 0.8

    def test_a_class_with_neither_is_impossible(self):
        names, support, labels, query, _ = task([3, 3, 0])
        names[2] = 0
        _, posterior = adapt(names, support, labels)
        answers = np.exp(log_prob(posterior, query))
        assert (answers[:, 2] == 0).all()
        np.testing.assert_allclose(answers.sum(1), 1)

    def test_logits_where_all_classes_are_seen_stay(self):
        mean, log_pi = torch.randn(5, 3), torch.zeros(3).log_softmax(0)
        assert among_seen(mean, log_pi, torch.tensor([True, True, True])) is mean
        nothing = among_seen(mean, log_pi, torch.tensor([False, False, False]))
        torch.testing.assert_close(nothing, log_pi.expand(5, 3))


def test_the_state_restores_the_posterior():
    names, support, labels, query, _ = task([2, 0, 3])
    head, posterior = adapt(names, support, labels)
    restored = head.restore(posterior.state())
    assert isinstance(restored, NamesPosterior)
    np.testing.assert_array_equal(log_prob(restored, query), log_prob(posterior, query))


def test_weights_are_copies():
    names, support, labels, query, _ = task([2, 3, 2])
    head, _ = adapt(names, support, labels)
    weights = torch.tensor([1.0, 2, 1, 3, 1, 1, 1], dtype=torch.float64)
    repeats = weights.long()
    rows, y = torch.from_numpy(support), torch.from_numpy(labels)
    with torch.no_grad():
        weighted = head.adapt(rows, y, 3, weights=weights)
        copied = head.adapt(rows.repeat_interleave(repeats, 0), y.repeat_interleave(repeats), 3)
    np.testing.assert_allclose(log_prob(weighted, query), log_prob(copied, query), atol=1e-8)


def test_many_examples_are_fast_enough_to_choose_from():
    names, support, labels, query, truth = task([400, 400, 400])
    _, posterior = adapt(names, support, labels)
    assert (log_prob(posterior, query).argmax(1) == truth).mean() > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_mean": None}, "need prior_mean"),
        ({"prior_mean": torch.zeros(3)}, r"finite numbers \[classes, features\]"),
        ({"prior_mean": torch.full((3, D), math.nan)}, "finite numbers"),
        ({"prior_mean": torch.ones(3, D), "name_scale": 0}, "name_scale must be a positive number"),
        (
            {"prior_mean": torch.ones(3, D), "name_scale": "big"},
            "name_scale must be a positive number or 'auto'",
        ),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(UserError, match=message):
        GPLDLANames(**options)


def test_wrong_tasks():
    names, support, labels, _, _ = task([2, 2, 2])
    head = GPLDLANames(prior_mean=torch.from_numpy(names)).eval()
    rows, y = torch.from_numpy(support), torch.from_numpy(labels)
    check_episode(rows, y, 3)
    for arguments, message in {
        (rows[:, :4], y, 3): "names have 12 features and the items 4",
        (rows, y, 4): "3 rows for 4 classes",
        (rows[None], y[None], 3): "one task at a time",
    }.items():
        with pytest.raises(UserError, match=message):
            head.adapt(*arguments)
    with pytest.raises(UserError, match="do not go together"):
        head.adapt(rows, y, 3, unlabelled=rows)
