"""The predictive integrals against exact integration, Monte Carlo and what must not change the answer."""

import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, special

from gpldla import kernels
from gpldla.heads.gp import noisy_gumbel, predictive
from gpldla.heads.gp.predictive import (
    monte_carlo,
    probit,
    quadrature,
    quasi_monte_carlo,
)

INF = math.inf


def random_logits(queries, classes, *, seed=0, log_var=(-2.0, 2.0), spread=3.0, dtype=torch.float64):
    """Return mean and var [q, C]; the variances are log-uniform, from 10^log_var[0] to 10^log_var[1]."""
    generator = torch.Generator().manual_seed(seed)
    mean = spread * torch.randn(queries, classes, generator=generator, dtype=torch.float64)
    exponent = torch.rand(queries, classes, generator=generator, dtype=torch.float64)
    var = 10 ** (log_var[0] + (log_var[1] - log_var[0]) * exponent)
    return mean.to(dtype), var.to(dtype)


def sampled(mean, var, n_samples=100_000, seed=1):
    """Monte Carlo estimate of p [q, C], with samples [C, q, M] because that softmax is fast."""
    generator = torch.Generator().manual_seed(seed)
    mean, deviation = mean.float().T.unsqueeze(-1), var.float().sqrt().T.unsqueeze(-1)
    noise = torch.randn(*mean.shape[:2], n_samples, generator=generator)
    return (mean + deviation * noise).softmax(0).mean(-1, dtype=torch.float64).T


def integrated(mean, var, counts=None):
    """Return p [q, C] almost exactly: the Gumbel identity on fine grids, no mixture in Gumbel's place.

    counts: how many classes are like each, if not one
    """
    counts = torch.ones(mean.shape[1]) if counts is None else counts
    counts = counts.double()[:, None]
    e = torch.linspace(-8, 8, 301, dtype=torch.float64)
    normal = torch.exp(-0.5 * e.square())
    rows = []
    for m, s in zip(mean, var.sqrt()):
        t = torch.linspace((m - 8 * s).max() - 4, (m + 8 * s).max() + 25, 401, dtype=torch.float64)
        u = (t - m[:, None]).unsqueeze(-1) - s[:, None, None] * e  # [C, T, E]
        below = torch.exp(-torch.exp(-u))
        distribution = below @ normal / normal.sum()  # [C, T]
        density = (below * torch.exp(-u)).nan_to_num(0) @ normal / normal.sum()
        others = distribution.clamp_min(1e-300).log()
        mass = (density * ((counts * others).sum(0) - others).exp()).sum(-1)
        rows.append(mass / (mass @ counts))
    return torch.stack(rows)


def largest_difference(log_p, p):
    return (log_p.double().exp() - p).abs().max().item()


def survival(mean, var, t):
    """Return P(m + √v·Z + G > t) almost exactly, on a grid of Z or of G, whichever is the narrower."""
    if var < 9:
        e = np.linspace(-9, 9, 2001)
        weight = np.exp(-0.5 * e**2)
        return -np.expm1(-np.exp(-(t[:, None] - mean - math.sqrt(var) * e))) @ weight / weight.sum()
    g = np.linspace(-4, 40, 8001)
    weight = np.exp(-g - np.exp(-g))
    return special.ndtr((mean + g - t[:, None]) / math.sqrt(var)) @ weight / weight.sum()


class TestNoisyGumbel:
    @pytest.mark.parametrize("var", [0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 50.0, 1e3, 1e5])
    def test_survival_function_is_within_its_stated_error(self, var):
        spread = math.sqrt(var + noisy_gumbel.VARIANCE)
        t = torch.linspace(2 - 3 * spread, 2 + 12 * spread, 500, dtype=torch.float64)  # less the mean of G
        mean, variance = torch.tensor([[[2.0]], [[var]]], dtype=torch.float64)
        minus_h, slope = noisy_gumbel.shape(mean, variance).minus_h(t[:, None])
        assert (slope < 0).all()  # so F rises
        found, exact = (
            -torch.expm1(-minus_h.exp()).flatten().numpy(),
            survival(2.0, var, t.numpy() + noisy_gumbel.MEAN),
        )
        assert (np.abs(found - exact) < 0.0025 * (exact + 0.0003)).all()


class TestQuadratureIsExact:
    @pytest.mark.parametrize("classes", [2, 3, 5, 20, 50, 64, 65, 200, 1000, 5000])
    @pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 10.0])
    def test_without_variance_it_is_the_softmax(self, classes, spread):
        mean, _ = random_logits(50, classes, spread=spread)
        mean[:, 0] += torch.linspace(0, 10, 50)  # from one among many to all but certain
        assert largest_difference(quadrature(mean, torch.zeros_like(mean)), mean.softmax(-1)) < 2e-3

    @pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 1.0])
    def test_two_classes_against_adaptive_integration(self, share):
        """Only the difference of two logits matters, so p = E[sigmoid(m + s e)] with e ~ N(0, 1)."""
        means, deviations = np.linspace(-20, 20, 17), np.geomspace(0.01, 30, 8)

        def exact(m, s):
            def integrand(e):
                return special.expit(m + s * e) * math.exp(-0.5 * e * e) / math.sqrt(2 * math.pi)

            edge = min(max(-m / s, -9.0), 9.0)  # where the sigmoid rises, perhaps steeply
            return integrate.quad(integrand, -10, 10, points=[edge], limit=200)[0]

        expected = torch.tensor([[exact(m, s) for s in deviations] for m in means])
        m, s = torch.meshgrid(torch.tensor(means), torch.tensor(deviations), indexing="ij")
        mean = torch.stack([m, torch.zeros_like(m)], -1)
        var = torch.stack([share * s.square(), (1 - share) * s.square()], -1)
        p = quadrature(mean, var).exp()[..., 0]
        assert (p - expected).abs().max() < 2e-3

    @pytest.mark.parametrize("log_var", [(-2.0, -1.0), (0.0, 0.3), (1.5, 2.0), (-2.0, 2.0)])
    def test_five_classes_against_fine_integration(self, log_var):
        mean, var = random_logits(12, 5, log_var=log_var)
        assert largest_difference(quadrature(mean, var), integrated(mean, var)) < 2e-3

    @pytest.mark.parametrize("classes", [65, 300, 3000])
    @pytest.mark.parametrize("log_var", [(-2.0, -1.0), (0.0, 0.3)])
    def test_a_few_classes_ahead_of_many_against_fine_integration(self, classes, log_var):
        mean, var = random_logits(4, 5, log_var=log_var)
        mean[:, :3] += torch.linspace(2, 9, 4)[:, None]
        alike = classes - 3  # the last column and as many like it: one term of the fine integration
        mean, var = mean[:, :4], var[:, :4]
        expected = integrated(mean, var, counts=torch.tensor([1, 1, 1, alike]))
        many = [torch.cat([t[:, :3], t[:, 3:].expand(-1, alike)], -1) for t in (mean, var)]
        assert largest_difference(quadrature(*many)[:, :4], expected) < 2e-3

    def test_fine_integration_and_sampling_agree(self):
        """What the other tests lean on: the identity holds, whoever integrates it."""
        mean, var = random_logits(12, 5)
        assert (integrated(mean, var) - sampled(mean, var)).abs().max() < 6e-3

    def test_five_classes_against_sampling(self):
        mean, var = random_logits(40, 5, log_var=(0.0, 1.0), spread=2.0)
        assert largest_difference(quadrature(mean, var), sampled(mean, var)) < 0.01

    def test_very_unequal_variances_against_sampling(self):
        mean, var = random_logits(40, 5)
        var[:, 0], var[:, 4] = 0.01, 100
        assert largest_difference(quadrature(mean, var), sampled(mean, var)) < 0.01

    @pytest.mark.parametrize("below", [10.0, 25.0, 40.0, 80.0])
    def test_far_tails_are_about_right(self, below):
        mean = torch.tensor([[0.0, -below, -1.0]])
        log_p = quadrature(mean, torch.full_like(mean, 0.01))
        assert log_p[0, 1].item() == pytest.approx(mean.log_softmax(-1)[0, 1].item(), abs=0.2)
        assert abs(log_p[0, 1].item() + below) < 1

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("below", [1e2, 1e3, 1e4])
    def test_hopeless_classes_stay_finite(self, below, dtype):
        mean = torch.tensor([[0.0, -below, 1.0], [below, 0.0, below]], dtype=dtype, requires_grad=True)
        var = torch.tensor([[0.01, 1.0, 100.0], [0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
        log_p = quadrature(mean, var)
        log_p.sum().backward()
        assert log_p.isfinite().all()
        assert mean.grad is not None
        assert mean.grad.isfinite().all()
        assert var.grad is not None
        assert var.grad.isfinite().all()

    @pytest.mark.parametrize("n_points", [20, 64])
    def test_a_fixed_number_of_points_is_enough_where_variances_are_alike(self, n_points):
        mean, var = random_logits(12, 5, log_var=(0.5, 0.6))
        assert largest_difference(quadrature(mean, var, n_points), integrated(mean, var)) < 2e-3


class TestQuadratureIsConsistent:
    def test_sums_to_one(self):
        mean, var = random_logits(50, 7)
        torch.testing.assert_close(quadrature(mean, var).exp().sum(-1), torch.ones(50, dtype=torch.float64))

    @pytest.mark.parametrize("shift", [-300.0, 0.3, 1000.0])
    def test_a_shift_of_all_logits_changes_nothing(self, shift):
        mean, var = random_logits(50, 5)
        torch.testing.assert_close(quadrature(mean + shift, var), quadrature(mean, var), atol=1e-8, rtol=1e-8)

    def test_permuting_classes_permutes_the_answer(self):
        mean, var = random_logits(50, 5)
        order = torch.tensor([3, 0, 4, 1, 2])
        torch.testing.assert_close(quadrature(mean[:, order], var[:, order]), quadrature(mean, var)[:, order])

    def test_equal_classes_share_equally(self):
        p = quadrature(torch.zeros(1, 8), torch.full((1, 8), 3.0)).exp()
        torch.testing.assert_close(p, torch.full((1, 8), 1 / 8))

    @pytest.mark.parametrize("n_points", [None, 20])
    def test_an_impossible_class_leaves_the_others_as_without_it(self, n_points):
        mean, var = random_logits(30, 4)
        with_it = torch.cat([mean[:, :2], torch.full((30, 1), -INF), mean[:, 2:]], -1).requires_grad_()
        its_var = torch.cat([var[:, :2], torch.full((30, 1), 50.0), var[:, 2:]], -1).requires_grad_()
        log_p = quadrature(with_it, its_var, n_points)
        others = [0, 1, 3, 4]
        torch.testing.assert_close(log_p[:, others], quadrature(mean, var, n_points))
        assert (log_p[:, 2] == -INF).all()
        log_p[:, others].square().sum().backward()
        assert with_it.grad is not None
        assert with_it.grad.isfinite().all()
        assert its_var.grad is not None
        assert its_var.grad.isfinite().all()
        assert (with_it.grad[:, 2] == 0).all()

    def test_gradient_is_that_of_the_integral(self):
        mean, var = random_logits(4, 4, log_var=(-1.0, 1.0))
        torch.autograd.gradcheck(quadrature, (mean.requires_grad_(), var.requires_grad_()), atol=1e-3)

    def test_float32_agrees_with_float64(self):
        mean, var = random_logits(200, 5)
        in_float32 = quadrature(mean.float(), var.float())
        assert in_float32.dtype == torch.float32
        assert largest_difference(in_float32, quadrature(mean, var).exp()) < 1e-5

    def test_a_query_does_not_depend_on_its_neighbours(self):
        mean, var = random_logits(60, 5)  # some of these need more points than others
        alone = torch.stack([quadrature(m, v) for m, v in zip(mean, var)])
        torch.testing.assert_close(quadrature(mean, var), alone, atol=1e-12, rtol=1e-12)
        folded = quadrature(mean.view(3, 4, 5, 5), var.view(3, 4, 5, 5))
        torch.testing.assert_close(folded.view(60, 5), alone, atol=1e-12, rtol=1e-12)


def test_many_queries_are_answered_in_chunks_that_do_not_show(monkeypatch):
    mean, var = random_logits(60, 5)
    expected = quadrature(mean, var)
    monkeypatch.setattr(predictive, "LOGITS_PER_CHUNK", 35)
    with torch.no_grad():
        torch.testing.assert_close(quadrature(mean, var), expected, atol=1e-12, rtol=1e-12)
        folded = quadrature(mean.view(3, 20, 5), var.view(3, 20, 5))
    torch.testing.assert_close(folded.view(60, 5), expected, atol=1e-12, rtol=1e-12)


class TestTheOthers:
    def test_monte_carlo_follows_given_draws(self):
        mean, var = random_logits(10, 5)
        noise = [torch.randn(10, 1, 5, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1)]
        first, again, other = (monte_carlo(mean, var, 10, noise[i]) for i in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_monte_carlo_converges(self):
        mean, var = random_logits(12, 5)
        noise = torch.randn(50_000, 1, 5, generator=torch.Generator().manual_seed(0)).double()
        assert largest_difference(monte_carlo(mean, var, 50_000, noise), integrated(mean, var)) < 0.01

    def test_quasi_monte_carlo_is_deterministic_and_near(self):
        mean, var = random_logits(12, 5)
        log_p = quasi_monte_carlo(mean, var, 1024)
        assert torch.equal(log_p, quasi_monte_carlo(mean, var, 1024))
        assert largest_difference(log_p, integrated(mean, var)) < 0.01

    def test_probit_is_invariant_to_shifts(self):
        mean, var = random_logits(50, 5)
        torch.testing.assert_close(probit(mean + 100, var), probit(mean, var), atol=1e-9, rtol=1e-9)

    def test_probit_without_variance_is_the_softmax(self):
        mean, var = random_logits(50, 5)
        torch.testing.assert_close(probit(mean, 0 * var), mean.log_softmax(-1))

    def test_probit_ignores_an_impossible_class(self):
        mean, var = random_logits(10, 3)
        log_p = probit(torch.cat([mean, torch.full((10, 1), -INF)], -1), torch.cat([var, var[:, :1]], -1))
        torch.testing.assert_close(log_p[:, :3], probit(mean, var))
        assert (log_p[:, 3] == -INF).all()


METHODS = {
    "quadrature": quadrature,
    "quadrature, 20 points": lambda mean, var: quadrature(mean, var, 20),
    "quasi-Monte Carlo": lambda mean, var: quasi_monte_carlo(mean, var, 64),
    "Monte Carlo": lambda mean, var: monte_carlo(mean, var, 10),
    "probit": probit,
}


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_batch_gives_an_empty_answer(name):
    assert METHODS[name](torch.zeros(0, 5), torch.ones(0, 5)).shape == (0, 5)
    assert METHODS[name](torch.zeros(2, 0, 5), torch.ones(2, 0, 5)).shape == (2, 0, 5)


class TestTheKernel:
    """What can be said of it without a GPU; tests/test_cuda.py has the rest."""

    def test_takes_its_constants_from_the_plain_operations(self):
        """None of them is written a second time."""
        source = (Path(predictive.__file__).parents[2] / "kernels" / "quadrature.py").read_text("utf-8")
        rule = predictive._rule()
        for number in (rule["variance"], rule["half"], rule["reach"], rule["middle"]):
            assert str(number) not in source

    def test_plain_operations_take_its_place_when_triton_fails(self, monkeypatch):
        def broken(mean, var, table, rule):
            raise RuntimeError("no C compiler")

        module = types.ModuleType("gpldla.kernels.quadrature")
        module.integrate, module.Rule = broken, dict
        monkeypatch.setitem(sys.modules, "gpldla.kernels.quadrature", module)
        monkeypatch.setattr(kernels, "USE", kernels.KernelUse())
        monkeypatch.setattr(predictive, "_use_kernel", lambda *_: kernels.USE.allowed)
        mean, var = random_logits(10, 5)
        expected = quadrature(mean, var, n_points=100).exp()
        with pytest.warns(UserWarning, match=r"Triton failed \(no C compiler\)"):
            assert largest_difference(quadrature(mean, var), expected) < 1e-3
        assert largest_difference(quadrature(mean, var), expected) < 1e-3  # and does not warn again


@pytest.mark.parametrize("variance", [0.0, 1.0])
@pytest.mark.parametrize("name", METHODS)
def test_an_impossible_class_leaves_gradients_finite(name, variance):
    mean, var = random_logits(10, 4)
    mean[:, 2], var[:, 2] = -INF, variance
    mean.requires_grad_()
    var.requires_grad_()
    log_p = METHODS[name](mean, var)
    assert (log_p[:, 2] == -INF).all()
    log_p[:, [0, 1, 3]].sum().backward()
    for gradient in (mean.grad, var.grad):
        assert gradient.isfinite().all()
        assert gradient[:, 2].abs().max() < 1e-30
        assert gradient[:, [0, 1, 3]].abs().max() > 1e-3
