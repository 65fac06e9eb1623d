"""The coupled posterior against the inverse of the whole Hessian of Eq. 9, and its predictive integral."""

import math

import numpy as np
import pytest
import torch

from gpldla.heads import create_head
from gpldla.heads.gp import coupled
from gpldla.heads.gp.predictive import independent_variances, quadrature
from gpldla.testing import random_episode

BETA, BETA_B = 1.3, 0.7


def adapted(support, labels, n_way, *, weights=None, beta=BETA, **options):
    options = {"center": False, "whiten": False, "beta_b": BETA_B, "covariance": "full", **options}
    head = create_head("gpldla-auto", beta=beta, **options).eval()
    with torch.no_grad():
        return head.adapt(support, labels, n_way, weights=weights)


def hessian_covariance(posterior, support, query, weights=None, beta=BETA, beta_b=BETA_B):
    """Return the covariance of the logits [q, C, C] from the (C(d+1))² Hessian in weight space.

    The parameters are w_1, b_1, w_2, b_2, ...; support and query as the posterior sees them. Classes without
    examples are left out, with zeros in their place.
    """
    W, b = posterior.diagonal.weight_mean.numpy(), posterior.diagonal.bias_mean.numpy()
    phi, phi_q = (
        x / np.linalg.norm(x, axis=1, keepdims=True) if posterior.diagonal.normalize else x
        for x in (posterior.space(support).numpy(), posterior.space(query).numpy())
    )
    present = [j for j in range(len(b)) if np.isfinite(b[j])]
    d = phi.shape[1]
    size = d + 1
    H = np.zeros((len(present) * size, len(present) * size))
    for block in range(len(present)):
        start = block * size
        H[start : start + d, start : start + d] = np.eye(d) / beta**2
        H[start + d, start + d] = 1 / beta_b**2
    for i in range(len(phi)):
        one = np.append(phi[i], 1)
        f = np.array([W[j] @ phi[i] + b[j] for j in present])
        p = np.exp(f - f.max()) / np.exp(f - f.max()).sum()
        curvature = np.diag(p) - np.outer(p, p)
        H += (1 if weights is None else float(weights[i])) * np.kron(curvature, np.outer(one, one))
    inverse = np.linalg.inv(H)
    covariance = np.zeros((len(phi_q), len(b), len(b)))
    for q in range(len(phi_q)):
        one = np.append(phi_q[q], 1)
        J = np.kron(np.eye(len(present)), one)  # d logits / d parameters
        covariance[q][np.ix_(present, present)] = J @ inverse @ J.T
    return covariance


@pytest.mark.parametrize(
    ("shots", "d"), [([2, 2, 2], 4), ([1, 2, 3], 4), ([1, 1], 3), ([1, 1, 1], 20), ([4, 1, 5, 2], 3)]
)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("beta", [0.1, BETA, 6.0])
def test_the_covariance_is_that_of_the_hessian(shots, d, normalize, beta):
    support, labels, query, _ = random_episode(shots, len(shots), 2, d, nonnegative=False)
    posterior = adapted(support, labels, len(shots), normalize=normalize, beta=beta)
    mean, covariance = posterior.inner.logits(posterior.space(query))
    expected = hessian_covariance(posterior, support, query, beta=beta)
    np.testing.assert_allclose(covariance.numpy(), expected, atol=1e-8 * max(1, expected.max()))
    torch.testing.assert_close(mean, posterior.diagonal.logits(posterior.space(query))[0])


@pytest.mark.parametrize("map_steps", [0, 4])
def test_the_covariance_is_that_of_the_hessian_in_the_space_of_a_task(map_steps):
    support, labels, query, _ = random_episode([2, 3, 1], 3, 2, 4)
    posterior = adapted(support, labels, 3, center=True, whiten=True, map_steps=map_steps)
    _, covariance = posterior.inner.logits(posterior.space(query))
    np.testing.assert_allclose(covariance.numpy(), hessian_covariance(posterior, support, query), atol=1e-8)


def test_the_chosen_beta_is_that_of_the_prior():
    support, labels, query, _ = random_episode([2, 3, 1], 3, 2, 4)
    posterior = adapted(support, labels, 3, center=True, whiten=True, beta="auto")
    _, covariance = posterior.inner.logits(posterior.space(query))
    expected = hessian_covariance(posterior, support, query, beta=posterior.beta.item())
    np.testing.assert_allclose(covariance.numpy(), expected, atol=1e-8)


@pytest.mark.parametrize("weights", [[2.0, 0.5, 1.3, 0.1, 3.0, 1.0], [1.0, 0.0, 2.0, 1.0, 0.0, 1.0]])
def test_an_example_counts_in_the_hessian_as_often_as_its_weight_says(weights):
    support, labels, query, _ = random_episode(2, 3, 2, 4)
    weights = torch.tensor(weights, dtype=torch.float64)
    posterior = adapted(support, labels, 3, weights=weights)
    _, covariance = posterior.inner.logits(query)
    expected = hessian_covariance(posterior, support, query, weights)
    np.testing.assert_allclose(covariance.numpy(), expected, atol=1e-8)
    assert np.abs(hessian_covariance(posterior, support, query) - expected).max() > 1e-3


def test_an_absent_class_has_no_variance_and_the_others_are_as_if_it_were_not_there():
    support, labels, query, _ = random_episode([2, 3], 2, 2, 4)
    posterior = adapted(support, 2 * labels, 3)
    _, covariance = posterior.inner.logits(query)
    np.testing.assert_allclose(covariance.numpy(), hessian_covariance(posterior, support, query), atol=1e-8)
    assert (covariance[:, 1] == 0).all()
    two = adapted(support, labels, 2)
    torch.testing.assert_close(covariance[:, ::2, ::2], two.inner.logits(query)[1], atol=1e-9, rtol=0)
    log_prob = posterior.log_prob(query)
    assert (log_prob[:, 1] == -math.inf).all()
    torch.testing.assert_close(log_prob[:, ::2], two.log_prob(query), atol=1e-9, rtol=0)


@pytest.mark.parametrize("beta", [0.5, 5.0, 100.0])
def test_support_points_that_repeat_each_other_are_no_problem(beta):
    support, labels, query, _ = random_episode([1, 1, 1], 3, 2, 4)
    copies = torch.arange(3).repeat_interleave(torch.tensor([4, 1, 3]))
    posterior = adapted(support[copies], labels[copies], 3, beta=beta)
    _, covariance = posterior.inner.logits(query)
    expected = hessian_covariance(posterior, support[copies], query, beta=beta)
    np.testing.assert_allclose(covariance.numpy(), expected, atol=1e-8 * beta**2)
    weighted = adapted(support, labels, 3, beta=beta, weights=torch.tensor([4.0, 1.0, 3.0]).double())
    torch.testing.assert_close(weighted.log_prob(query), posterior.log_prob(query), atol=1e-7, rtol=0)


def test_a_batch_is_each_task_for_itself():
    support, labels, query, _ = random_episode([1, 2, 3], 3, 2, 4, batch=(2, 2))
    posterior = adapted(support, labels, 3, beta="auto", center=True, whiten=True)
    _, covariance = posterior.inner.logits(posterior.space(query))
    assert covariance.shape == (2, 2, 6, 3, 3)
    for at in np.ndindex(2, 2):
        alone = adapted(support[at], labels[at], 3, beta="auto", center=True, whiten=True)
        expected = hessian_covariance(alone, support[at], query[at], beta=alone.beta.item())
        np.testing.assert_allclose(covariance[at].numpy(), expected, atol=1e-8)
        torch.testing.assert_close(
            posterior.log_prob(query)[at], alone.log_prob(query[at]), atol=1e-9, rtol=0
        )


def test_far_from_the_support_the_variance_is_the_priors():
    """Features orthogonal to the support have seen nothing: β² is left of each weight, and the bias."""
    support, labels, _, _ = random_episode(2, 3, 1, 4)
    support = torch.cat([support, torch.zeros(6, 1)], -1).double()
    query = torch.eye(5, dtype=torch.float64)[4:]
    _, covariance = adapted(support, labels, 3).inner.logits(query)
    assert ((covariance[0].diagonal() - BETA**2) > 0).all()
    assert ((covariance[0].diagonal() - BETA**2) < BETA_B**2).all()
    _, near = adapted(support, labels, 3).inner.logits(support[:1])
    assert (near[0].diagonal() < covariance[0].diagonal()).all()


def error_of_probabilities(d, shots, seed, **options):
    """Return the largest difference to the expected softmax under the coupled Gaussian, by Monte Carlo."""
    support, labels, query, _ = random_episode(shots, 5, 2, d, seed=seed)
    posterior = adapted(support, labels, 5, center=True, whiten=True, **options)
    posterior.uncertain_scale = None  # which has tests of its own
    mean, covariance = posterior.inner.logits(posterior.space(query))
    root = torch.linalg.cholesky(covariance).float()
    noise = torch.randn(5, 40_000, generator=torch.Generator().manual_seed(seed))  # error about 0.002
    expected = (mean.float().unsqueeze(-1) + root @ noise).softmax(-2).mean(-1)
    return (posterior.log_prob(query).exp() - expected).abs().max().item()


@pytest.mark.parametrize("d", [64, 512])
@pytest.mark.parametrize("map_steps", [0, 5])
def test_probabilities_are_the_expected_softmax_of_the_coupled_logits(d, map_steps):
    errors = [
        error_of_probabilities(d, shots, seed, beta=beta, map_steps=map_steps)
        for seed, (shots, beta) in enumerate([(1, "auto"), (2, 0.5), (4, "auto"), (10, "auto"), (4, 4.0)])
    ]
    assert max(errors) < 0.01


def test_with_few_features_and_many_shots_they_are_close_to_it():
    """There the coupling differs most between pairs of classes; independent logits cannot follow."""
    errors = [error_of_probabilities(12, shots, shots, beta="auto") for shots in (1, 2, 3, 4, 10)]
    assert max(errors) < 0.03


@pytest.mark.parametrize("at_once", [1, 40, 100, 10**9])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_queries_are_answered_in_parts_that_do_not_show(monkeypatch, at_once, batch):
    support, labels, query, _ = random_episode(2, 3, 5, 6, batch=batch)
    posterior = adapted(support, labels, 3)
    whole = posterior.log_prob(query)
    calls = []
    one_part = coupled.CoupledPosterior._log_prob
    monkeypatch.setattr(
        coupled.CoupledPosterior,
        "_log_prob",
        lambda self, q, *scale: calls.append(q.shape[-2]) or one_part(self, q, *scale),
    )
    monkeypatch.setattr(coupled, "KERNEL_VALUES_PER_CHUNK", at_once)
    torch.testing.assert_close(posterior.log_prob(query), whole, atol=1e-10, rtol=0)
    assert sum(calls) == 15
    values = 3 * 6 * math.prod(batch)
    assert max(calls) == min(15, max(1, at_once // values))


def random_covariance(C, seed=0):
    factor = np.random.default_rng(seed).normal(size=(C, C))
    return torch.from_numpy(factor @ factor.T / C)


class TestIndependentVariances:
    """Independent logits that stand for coupled ones."""

    def apart(self, covariance):
        """Var(f_a − f_b) of each pair."""
        own = covariance.diagonal()
        return own.unsqueeze(-1) + own - 2 * covariance

    def test_two_classes_keep_the_variance_of_their_difference(self):
        for seed in range(5):
            covariance = random_covariance(2, seed)
            s = independent_variances(torch.zeros(2).double(), covariance)
            assert s.sum().item() == pytest.approx(self.apart(covariance)[0, 1].item())

    def test_three_classes_keep_the_variance_of_every_difference(self):
        for seed in range(10):
            covariance = 0.3 * random_covariance(3, seed) + torch.eye(3)
            s = independent_variances(torch.zeros(3).double(), covariance)
            assert (s > 0).all()
            torch.testing.assert_close(self.apart(torch.diag(s)), self.apart(covariance))

    def test_none_is_negative(self):
        one_between_two = torch.tensor([[1.0, 1.5, 2.0], [1.5, 2.5, 3.5], [2.0, 3.5, 5.0]]).double()
        assert self.apart(one_between_two)[0, 2] > 2 * self.apart(one_between_two)[:2, 1:].diagonal().max()
        s = independent_variances(torch.zeros(3).double(), one_between_two)
        assert s[1] == 0
        assert (s[[0, 2]] > 0).all()

    @pytest.mark.parametrize("C", [2, 3, 5, 40])
    def test_a_coupling_common_to_all_classes_is_exact(self, C):
        rng = np.random.default_rng(C)
        s, shift = torch.from_numpy(rng.uniform(0.5, 3, C)), torch.from_numpy(rng.normal(size=C))
        covariance = torch.diag(s) + 0.7 + shift + shift.unsqueeze(-1)  # Cov = s_a δ + common + g_a + g_b
        got = independent_variances(torch.zeros(C).double(), covariance)
        torch.testing.assert_close(self.apart(torch.diag(got)), self.apart(covariance))
        if C > 2:
            torch.testing.assert_close(got, s)

    def test_more_classes_are_the_least_squares_solution(self):
        covariance = torch.eye(6).double() + 0.3 * random_covariance(6)
        pairs = [(a, b) for a in range(6) for b in range(a)]
        design = np.zeros((len(pairs), 6))
        for row, (a, b) in enumerate(pairs):
            design[row, a] = design[row, b] = 1
        apart = self.apart(covariance).numpy()
        expected = np.linalg.lstsq(design, np.array([apart[pair] for pair in pairs]))[0]
        assert (expected > 0).all()
        got = independent_variances(torch.zeros(6).double(), covariance)
        np.testing.assert_allclose(got.numpy(), expected)

    def test_a_class_that_cannot_occur_has_none_and_the_others_do_not_see_it(self):
        covariance = random_covariance(5)
        mean = torch.tensor([0, -math.inf, 0, 0, 0], dtype=torch.float64)
        rest = [0, 2, 3, 4]
        got = independent_variances(mean, covariance)
        assert got[1] == 0
        expected = independent_variances(mean[rest], covariance[np.ix_(rest, rest)])
        torch.testing.assert_close(got[rest], expected)

    def test_one_possible_class_is_certain(self):
        mean = torch.tensor([-math.inf, 0.3, -math.inf], dtype=torch.float64)
        s = independent_variances(mean, random_covariance(3))
        assert quadrature(mean, s).exp().tolist() == [0, 1, 0]

    def test_independent_logits_stay_as_they_are(self):
        s = torch.tensor([[0.5, 1.0, 2.0, 0.0], [3.0, 0.1, 0.2, 0.3]], dtype=torch.float64)
        got = independent_variances(torch.zeros(2, 4).double(), torch.diag_embed(s))
        torch.testing.assert_close(got, s)
