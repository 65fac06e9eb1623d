"""Against plain Monte Carlo: classifiers drawn from the posterior one by one, in numpy."""

import numpy as np
import pytest
import torch

from gpldla.classifier.uncertainty import uncertainty_of
from gpldla.heads.gp.task_space import TaskSpace
from gpldla.heads.gpldla_auto import GPLDLAAuto

DRAWS = 20_000


def softmax(f):
    p = np.exp(f - f.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def bits(p):
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(-1)


def make_task(ways, shots, d, apart=1.0, queries=2, seed=0):
    rng = np.random.default_rng(seed)
    means = apart * rng.normal(size=(ways, d))
    X, Q = (np.repeat(means, k, 0) + rng.normal(size=(k * ways, d)) for k in (shots, queries))
    return torch.from_numpy(X), torch.arange(ways).repeat_interleave(shots), torch.from_numpy(Q)


def make_posterior(ways, shots, d, apart=1.0, **options):
    X, y, Q = make_task(ways, shots, d, apart)
    posterior = GPLDLAAuto(**options).eval().adapt(X, y, ways)
    posterior.uncertain_scale = None  # which tests/heads/gp/test_uncertain_scale.py adds
    return posterior, X, Q


def unit_rows(posterior, rows):
    z = posterior.space(rows).numpy()
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def of_draws(logits):
    """Return total, aleatoric and epistemic of logits [draws, q, C]."""
    p = softmax(logits)
    total, aleatoric = bits(p.mean(0)), bits(p).mean(0)
    return np.stack([total, aleatoric, total - aleatoric], 1)


@pytest.mark.parametrize("ways", [2, 3, 5, 20])
@pytest.mark.parametrize("apart", [0.3, 1.0, 3.0])
def test_of_the_diagonal_posterior_it_is_that_of_weights_drawn_from_it(ways, apart):
    posterior, _, Q = make_posterior(ways, 3, 12, apart)
    rng, diagonal = np.random.default_rng(0), posterior.diagonal
    phi = unit_rows(posterior, Q)
    draws = DRAWS if ways < 20 else 4000
    W = diagonal.weight_mean.numpy() + diagonal.weight_var.sqrt().numpy() * rng.standard_normal(
        (draws, ways, 12)
    )
    b = diagonal.bias_mean.numpy() + diagonal.bias_var.sqrt().numpy() * rng.standard_normal((draws, ways))
    expected = of_draws(np.einsum("qd,mcd->mqc", phi, W) + b[:, None])
    np.testing.assert_allclose(
        uncertainty_of(posterior, Q).numpy(), expected, atol=0.05 if ways < 20 else 0.1
    )


def exact_covariance(phi, p, beta, beta_b):
    """Invert the Hessian of −log posterior over all weights and biases, [C(d+1), C(d+1)], class by class."""
    n, d = phi.shape
    C = p.shape[1]
    x = np.hstack([phi, np.ones((n, 1))])
    H = np.kron(np.eye(C), np.diag(np.r_[np.full(d, beta**-2), beta_b**-2]))
    for i in range(n):
        H += np.kron(np.diag(p[i]) - np.outer(p[i], p[i]), np.outer(x[i], x[i]))
    return np.linalg.inv(H)


@pytest.mark.parametrize("ways", [2, 3, 5])
@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_of_the_full_posterior_it_is_that_of_weights_drawn_from_it(ways, beta):
    posterior, X, Q = make_posterior(ways, 4, 5, 0.5, beta=beta, covariance="full")
    diagonal, rng = posterior.diagonal, np.random.default_rng(0)
    support, query = unit_rows(posterior, X), unit_rows(posterior, Q)
    w, b = diagonal.weight_mean.numpy(), diagonal.bias_mean.numpy()
    covariance = exact_covariance(support, softmax(support @ w.T + b), beta, 1.0)
    mode = np.hstack([w, b[:, None]]).ravel()
    theta = rng.multivariate_normal(mode, covariance, DRAWS, method="cholesky").reshape(DRAWS, ways, 6)
    expected = of_draws(np.einsum("qd,mcd->mqc", np.hstack([query, np.ones((len(query), 1))]), theta))
    np.testing.assert_allclose(uncertainty_of(posterior, Q).numpy(), expected, atol=0.08)


def test_a_posterior_without_doubt_has_no_epistemic_part():
    posterior, _, Q = make_posterior(4, 5, 8, 0.5)
    posterior.diagonal.weight_var.zero_()
    posterior.diagonal.bias_var.zero_()
    total, aleatoric, epistemic = uncertainty_of(posterior, Q).T
    f = (
        unit_rows(posterior, Q) @ posterior.diagonal.weight_mean.numpy().T
        + posterior.diagonal.bias_mean.numpy()
    )
    assert (epistemic >= 0).all()
    np.testing.assert_allclose(epistemic, 0, atol=0.01)
    np.testing.assert_allclose(total, bits(softmax(f)), atol=0.01)
    np.testing.assert_allclose(aleatoric, bits(softmax(f)), atol=0.01)


def test_equal_logits_that_are_known_are_a_fair_die():
    posterior, _, Q = make_posterior(8, 2, 6)
    for tensor in (
        posterior.diagonal.weight_mean,
        posterior.diagonal.weight_var,
        posterior.diagonal.bias_var,
    ):
        tensor.zero_()
    posterior.diagonal.bias_mean.fill_(1.7)
    total, aleatoric, epistemic = uncertainty_of(posterior, Q).T
    np.testing.assert_allclose(total, 3, atol=1e-3)
    np.testing.assert_allclose(aleatoric, 3, atol=1e-3)
    np.testing.assert_allclose(epistemic, 0, atol=1e-3)


def test_logits_of_which_nothing_is_known_are_a_fair_die_that_examples_could_load():
    posterior, _, Q = make_posterior(4, 2, 6)
    posterior.diagonal.weight_mean.zero_()
    posterior.diagonal.bias_mean.zero_()
    posterior.diagonal.weight_var.fill_(1e6)
    total, aleatoric, epistemic = uncertainty_of(posterior, Q).T
    np.testing.assert_allclose(total, 2, atol=0.02)
    np.testing.assert_allclose(aleatoric, 0, atol=0.02)
    np.testing.assert_allclose(epistemic, 2, atol=0.02)


@pytest.mark.parametrize("covariance", ["diag", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_never_negative_and_never_above_that_of_a_fair_die(covariance, dtype):
    X, y, Q = make_task(7, 1, 9, 0.01, queries=20)
    head = GPLDLAAuto(covariance=covariance).eval()
    total, aleatoric, epistemic = uncertainty_of(head.adapt(X.to(dtype), y, 7), Q.to(dtype)).T
    for part in (total, aleatoric, epistemic):
        assert (part >= 0).all()
        assert (part <= np.log2(7) + 1e-5).all()
    torch.testing.assert_close(total, aleatoric + epistemic)


@pytest.mark.parametrize("predictive", ["mc", "mc-logits", "probit"])
def test_rough_probabilities_leave_no_part_negative(predictive):
    """Two draws may be surer than classifiers are on average."""
    torch.manual_seed(0)
    X, y, Q = make_task(5, 1, 9, queries=20)
    posterior = GPLDLAAuto(predictive=predictive, n_samples=2).eval().adapt(X, y, 5)
    total, aleatoric, epistemic = uncertainty_of(posterior, Q).T
    assert (aleatoric >= 0).all()
    assert (epistemic >= 0).all()
    torch.testing.assert_close(total, aleatoric + epistemic)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_a_class_without_examples_changes_nothing(covariance):
    X, y, Q = make_task(3, 4, 6)
    head = GPLDLAAuto(covariance=covariance, beta=1.0).eval()
    torch.testing.assert_close(
        uncertainty_of(head.adapt(X, y, 5), Q), uncertainty_of(head.adapt(X, y, 3), Q), atol=0.02, rtol=0
    )


def test_the_number_of_queries_changes_no_answer():
    posterior, _, Q = make_posterior(5, 2, 6)
    whole = uncertainty_of(posterior, Q)
    one_by_one = torch.cat([uncertainty_of(posterior, row.unsqueeze(0)) for row in Q])
    torch.testing.assert_close(whole, one_by_one)


def test_thousands_of_queries_are_answered_in_parts_that_are_not_mixed_up():
    posterior, _, Q = make_posterior(20, 1, 4)
    many = Q.repeat(100, 1)
    answers = uncertainty_of(posterior, many)
    assert answers.shape == (len(many), 3)
    torch.testing.assert_close(answers, uncertainty_of(posterior, Q).repeat(100, 1))


def test_rows_are_mapped_into_the_space_of_the_task():
    posterior, _, Q = make_posterior(3, 4, 6)
    inside = posterior.space(Q)
    expected = uncertainty_of(posterior, Q)
    posterior.space = TaskSpace(normalize_first=False)
    torch.testing.assert_close(uncertainty_of(posterior, inside), expected)
