"""Laplace around the true MAP: Newton in function space against scipy in weight space."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestLaplace(HeadContract):
    name = "laplace"


class TestLaplaceRawFeatures(HeadContract):
    name = "laplace"
    options = {"normalize": False, "newton_steps": 3}


def log_posterior(W, B, phi, labels, beta, beta_b):
    """Eq. 9 up to a constant, in plain numpy: likelihood of the support times the prior of W and B."""
    f = phi @ W.T + B
    log_likelihood = sum(f[i, y] - np.log(np.sum(np.exp(f[i]))) for i, y in enumerate(labels))
    return log_likelihood - (W**2).sum() / (2 * beta**2) - (B**2).sum() / (2 * beta_b**2)


def scipy_map(phi, labels, ways, beta, beta_b):
    """Maximise Eq. 9 over all weights by quasi-Newton steps."""
    d = phi.shape[1]
    one_hot = np.eye(ways)[labels]

    def objective(theta):
        W, B = theta[: ways * d].reshape(ways, d), theta[ways * d :]
        f = phi @ W.T + B
        p = np.exp(f - f.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = np.concatenate(
            [((p - one_hot).T @ phi + W / beta**2).ravel(), (p - one_hot).sum(0) + B / beta_b**2]
        )
        return -log_posterior(W, B, phi, labels, beta, beta_b), gradient

    found = minimize(
        objective, np.zeros(ways * (d + 1)), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}
    )
    return found.x[: ways * d].reshape(ways, d), found.x[ways * d :]


@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (3, 4), (5, [1, 2, 3, 4, 5])])
@pytest.mark.parametrize(("beta", "beta_b"), [(1.0, 1.0), (4.0, 0.5), (0.3, 3.0)])
@pytest.mark.parametrize("normalize", [True, False])
def test_enough_steps_reach_the_maximum_that_scipy_finds(ways, shots, beta, beta_b, normalize):
    support, labels, _, _ = random_episode(shots, ways, 1, 7, seed=ways)
    head = create_head("laplace", beta=beta, beta_b=beta_b, normalize=normalize, newton_steps=30)
    with torch.no_grad():
        posterior = head.adapt(support, labels, ways)
    phi = support.numpy()
    if normalize:
        phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    W, B = scipy_map(phi, labels.numpy(), ways, beta, beta_b)
    np.testing.assert_allclose(posterior.weight_mean.numpy(), W, atol=2e-6)
    np.testing.assert_allclose(posterior.bias_mean.numpy(), B, atol=2e-6)
    ours = log_posterior(
        posterior.weight_mean.numpy(), posterior.bias_mean.numpy(), phi, labels, beta, beta_b
    )
    assert ours >= log_posterior(W, B, phi, labels, beta, beta_b) - 1e-9


def test_features_are_raised_to_a_power():
    """What it says of queries is what it says of features that somebody else has raised."""
    support, labels, query, _ = random_episode([1, 3, 2], 3, 4, 30)
    support, query = (t.sign() * (t.abs() + 0.2) for t in (support, query))  # tiny entries are not raised
    roots = [t.sign() * t.abs() ** 0.5 for t in (support, query)]
    raised = create_head("laplace", beta=2.0, power=0.5).eval().adapt(support, labels, 3).log_prob(query)
    plain = create_head("laplace", beta=2.0).eval()
    expected = plain.adapt(roots[0], labels, 3).log_prob(roots[1])
    torch.testing.assert_close(raised, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(raised, plain.adapt(support, labels, 3).log_prob(query), atol=1e-2)


def test_each_step_climbs():
    support, labels, _, _ = random_episode([1, 4, 2], 3, 1, 7)
    phi = (support / support.norm(dim=-1, keepdim=True)).numpy()
    heights = []
    for steps in range(1, 7):
        with torch.no_grad():
            posterior = create_head("laplace", beta=5.0, newton_steps=steps).adapt(support, labels, 3)
        W, B = posterior.weight_mean.numpy(), posterior.bias_mean.numpy()
        heights.append(log_posterior(W, B, phi, labels.numpy(), 5.0, 1.0))
    assert np.all(np.diff(heights) > -1e-12)
    assert heights[4] - heights[0] > 1e-3
    assert heights[-1] - heights[4] < 1e-3  # five steps are nearly there


def test_variances_are_the_diagonal_of_the_hessian():
    """Eq. 11-12 at the mode, against second differences of Eq. 9 taken one coordinate at a time."""
    support, labels, _, _ = random_episode(3, 3, 1, 4)
    beta, beta_b = 1.7, 0.8
    with torch.no_grad():
        posterior = create_head("laplace", beta=beta, beta_b=beta_b, normalize=False, newton_steps=30).adapt(
            support, labels, 3
        )
    W, B, phi = posterior.weight_mean.numpy(), posterior.bias_mean.numpy(), support.numpy()
    step = 1e-4

    def curvature(change):
        up, down = (
            log_posterior(W + s * change[0], B + s * change[1], phi, labels.numpy(), beta, beta_b)
            for s in (step, -step)
        )
        here = log_posterior(W, B, phi, labels.numpy(), beta, beta_b)
        return -(up - 2 * here + down) / step**2

    for j in range(3):
        for k in range(4):
            change = np.zeros_like(W)
            change[j, k] = 1
            assert 1 / curvature((change, 0 * B)) == pytest.approx(
                posterior.weight_var[j, k].item(), rel=1e-4
            )
        assert 1 / curvature((0 * W, np.eye(3)[j])) == pytest.approx(posterior.bias_var[j].item(), rel=1e-4)


def test_gradient_through_the_steps():
    support, labels, query, query_labels = random_episode(2, 3, 2, 5)
    head = create_head("laplace", predictive="quadrature").double()
    assert torch.autograd.gradcheck(
        lambda features: head.loss(features, labels, query, query_labels, 3),
        support.requires_grad_(),
        atol=1e-4,
    )


def test_float32_stays_close_to_float64_for_duplicates_and_a_wide_prior():
    support, labels, query, _ = random_episode(5, 5, 3, 30)
    support[1::5] = support[::5]
    for beta in (1.0, 10.0, 50.0):
        head = create_head("laplace", beta=beta).eval()
        with torch.no_grad():
            exact = head.adapt(support, labels, 5).log_prob(query).exp()
            single = head.adapt(support.float(), labels, 5).log_prob(query.float()).exp()
        assert (single - exact).abs().max() < 2e-3, beta


def test_wrong_number_of_steps_is_named():
    with pytest.raises(UserError, match="newton_steps must be a whole number of at least 1, not 0"):
        create_head("laplace", newton_steps=0)
