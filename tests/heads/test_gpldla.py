"""GPLDLA against the plain-loop reference, and its behaviour at the edges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpldla.heads import create_head
from gpldla.heads.gp import linear_gp
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError
from tests.heads import reference


class TestGPLDLA(HeadContract):
    name = "gpldla"


class TestGPLDLARawFeatures(HeadContract):
    name = "gpldla"
    options = {"normalize": False, "priors": "uniform"}


class TestGPLDLAOfAnotherDimension(HeadContract):
    name = "gpldla"
    options = {"dimension": 1600}


class TestGPLDLAOfARoot(HeadContract):
    name = "gpldla"
    options = {"power": 0.5}


def adapted(support, labels, n_way, beta, beta_b, normalize=True, **options):
    head = create_head("gpldla", beta=beta, beta_b=beta_b, normalize=normalize, **options).eval()
    with torch.no_grad():
        return head.adapt(support, labels, n_way)


def largest_relative_error(got, expected, scale=0.0):
    """Largest error over the largest entry, or over `scale` where that is more."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return ((got.double() - expected).abs().max() / expected.abs().max().clamp_min(scale)).item()


# ways, shots (a number, or the range from which unequal ones are drawn), d
SIZES = [
    (2, 1, 2),
    (2, 20, 3),
    (5, 1, 64),
    (5, 5, 1600),
    (5, (1, 20), 64),
    (20, (1, 6), 33),
    (50, 1, 100),
    (50, (1, 4), 17),
    (3, (1, 9), 2000),
    (7, 10, 2),
]


@pytest.mark.parametrize("dimension", [1, 6, 1600, 2.5])
def test_the_prior_may_have_another_dimension_than_the_features(dimension):
    support, labels, _, _ = random_episode([1, 3, 2], 3, 1, 6)
    posterior = adapted(support, labels, 3, 0.7, 1.3, dimension=dimension)
    expected = reference.adapt(support.numpy(), labels.numpy(), 3, 0.7, 1.3, dimension=dimension)
    found = (posterior.weight_mean, posterior.bias_mean, posterior.weight_var, posterior.bias_var)
    for got, by_loops in zip((*found, posterior.sigma2), expected, strict=True):
        assert largest_relative_error(got, by_loops) < 1e-9


def test_features_that_are_written_down_twice_leave_the_mean_logits_at_a_given_dimension():
    """The kernel is the same, so the mode should be; with d in the place of D it is not."""
    support, labels, query, _ = random_episode(2, 3, 4, 6)
    for dimension, same in ((40, True), (None, False)):
        once, twice = (
            adapted(torch.cat([support] * times, -1), labels, 3, 2.0, 1.0, dimension=dimension).logits(
                torch.cat([query] * times, -1)
            )[0]
            for times in (1, 2)
        )
        assert torch.allclose(once, twice) == same


@pytest.mark.parametrize("dimension", [0, -1, math.inf, math.nan, "many", True])
def test_a_dimension_is_a_positive_number(dimension):
    with pytest.raises(UserError, match="dimension must be a positive number"):
        create_head("gpldla", dimension=dimension)


@pytest.mark.parametrize("power", [0.5, 0.7, 2])
def test_features_are_raised_to_a_power(power):
    """The posterior, and what it says of queries, are those of features that somebody else has raised."""
    support, labels, query, _ = random_episode([1, 3, 2], 3, 4, 30)
    support, query = (t.sign() * (t.abs() + 0.2) for t in (support, query))  # tiny entries are not raised
    roots = [t.sign() * t.abs() ** power for t in (support, query)]
    posterior = adapted(support, labels, 3, 0.7, 1.3, power=power)
    moments = reference.adapt(roots[0].numpy(), labels.numpy(), 3, 0.7, 1.3)[:4]
    for got, expected in zip(posterior.logits(query), reference.logits(roots[1].numpy(), *moments)):
        assert largest_relative_error(got, expected) < 1e-4
    identity_transform = adapted(support, labels, 3, 0.7, 1.3)
    assert not torch.allclose(posterior.log_prob(query), identity_transform.log_prob(query))


def test_a_root_has_gradients_at_zero_and_ignores_the_size_of_features():
    support, labels, query, _ = random_episode(2, 3, 4, 30, nonnegative=True)
    support[:, ::2] = 0
    head = create_head("gpldla", power=0.5).eval()
    small, large = (head.adapt(size * support, labels, 3).log_prob(size * query) for size in (1e-12, 1e12))
    torch.testing.assert_close(small, large)
    support.requires_grad_()
    head.adapt(support, labels, 3).log_prob(query).sum().backward()
    assert support.grad.isfinite().all()
    assert support.grad.abs().max() < 1e3


@pytest.mark.parametrize("power", [0, -1, math.inf, math.nan, "half"])
def test_a_power_is_a_positive_number(power):
    with pytest.raises(UserError, match="power must be a positive number"):
        create_head("gpldla", power=power)


def test_training_may_have_a_power_of_its_own():
    support, labels, query, _ = random_episode(2, 3, 4, 30)

    def answers(training, **options):
        head = create_head("gpldla", predictive="quadrature", **options).train(training)
        return head.adapt(support, labels, 3).log_prob(query)

    both = {"power": 0.5, "training_power": 2.0}
    assert torch.equal(answers(False, **both), answers(False, power=0.5))
    assert torch.equal(answers(True, **both), answers(False, power=2.0))
    assert torch.equal(answers(True, power=0.5), answers(False, power=0.5))
    assert not torch.allclose(answers(True, **both), answers(False, **both))


@pytest.mark.parametrize("power", [0, -1, math.nan, "half"])
def test_a_power_of_training_is_a_positive_number(power):
    with pytest.raises(UserError, match="training_power must be a positive number"):
        create_head("gpldla", training_power=power)


@pytest.mark.parametrize("name", ["power", "training_power"])
def test_a_power_needs_unit_length(name):
    with pytest.raises(UserError, match="power and training_power other than 1 need normalize = True"):
        create_head("gpldla", **{name: 0.5}, normalize=False)


@pytest.mark.parametrize(("ways", "shots", "d"), SIZES)
@pytest.mark.parametrize(("beta", "beta_b"), [(1.0, 1.0), (0.3, 2.0), (8.0, 0.5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_posterior_matches_the_reference(ways, shots, d, beta, beta_b, dtype):
    rng = np.random.default_rng(d)
    if isinstance(shots, tuple):
        shots = rng.integers(shots[0], shots[1] + 1, ways).tolist()
    support, labels, query, _ = random_episode(shots, ways, 1, d, dtype=dtype, nonnegative=d > 10)
    query = query[:3]
    posterior = adapted(support, labels, ways, beta, beta_b)
    w, b, V, v, sigma2 = reference.adapt(support.double().numpy(), labels.numpy(), ways, beta, beta_b)
    mean, var = reference.logits(query.double().numpy(), w, b, V, v)
    got_mean, got_var = posterior.logits(query)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    for got, expected in [
        (posterior.weight_mean, w),
        (posterior.bias_mean, b),
        (posterior.weight_var, V),
        (posterior.bias_var, v),
        (posterior.sigma2, sigma2),
        (got_mean, mean),
        (got_var, var),
    ]:
        # b* is the difference of terms of size ‖μ‖²/2σ²; for one shot of unit features it is 0.
        assert (
            largest_relative_error(got, expected, scale=0.5 / sigma2 if got is posterior.bias_mean else 0)
            < tolerance
        )


@settings(max_examples=40, deadline=None)
@given(
    shots=st.lists(st.integers(1, 6), min_size=2, max_size=8),
    d=st.integers(2, 40),
    log_beta=st.floats(-2, 2),
    log_beta_b=st.floats(-2, 2),
    normalize=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_posterior_matches_the_reference_on_random_episodes(shots, d, log_beta, log_beta_b, normalize, seed):
    ways, beta, beta_b = len(shots), math.exp(log_beta), math.exp(log_beta_b)
    support, labels, _, _ = random_episode(shots, ways, 1, d, seed=seed, nonnegative=False)
    posterior = adapted(support, labels, ways, beta, beta_b, normalize)
    expected = reference.adapt(support.numpy(), labels.numpy(), ways, beta, beta_b, normalize)
    got = (
        posterior.weight_mean,
        posterior.bias_mean,
        posterior.weight_var,
        posterior.bias_var,
        posterior.sigma2,
    )
    for one, other in zip(got, expected):
        assert (
            largest_relative_error(one, other, scale=1 / expected[4] if one is posterior.bias_mean else 0)
            < 1e-9
        )


def test_weight_space_monte_carlo_is_equation_21():
    support, labels, query, _ = random_episode([1, 3, 2], 3, 4, 10)
    posterior = adapted(support, labels, 3, 1.0, 1.0, predictive="mc", n_samples=7)
    posterior.generator = torch.Generator().manual_seed(5)
    got = posterior.log_prob(query).exp()

    same_noise = torch.Generator().manual_seed(5)
    noise_w = torch.randn(7, 3, 10, dtype=torch.float64, generator=same_noise)
    noise_b = torch.randn(7, 3, dtype=torch.float64, generator=same_noise)
    w, b, V, v, _ = reference.adapt(support.numpy(), labels.numpy(), 3, 1.0, 1.0)
    expected = reference.predictive(query.numpy(), w, b, V, v, noise_w.numpy(), noise_b.numpy())
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_weight_space_draws_are_the_same_for_every_query():
    support, labels, query, _ = random_episode(2, 3, 5, 10)
    posterior = adapted(support, labels, 3, 1.0, 1.0, predictive="mc")
    whole = posterior.log_prob(query)
    parts = torch.cat([posterior.log_prob(query[:4]), posterior.log_prob(query[4:])])
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)


def test_weight_and_logit_sampling_have_one_distribution():
    support, labels, query, _ = random_episode([1, 4, 2, 2], 4, 3, 30)
    torch.manual_seed(0)
    in_weights = (
        adapted(support, labels, 4, 2.0, 1.0, predictive="mc", n_samples=60_000).log_prob(query).exp()
    )
    in_logits = (
        adapted(support, labels, 4, 2.0, 1.0, predictive="mc-logits", n_samples=60_000).log_prob(query).exp()
    )
    torch.testing.assert_close(in_weights, in_logits, atol=0.01, rtol=0)


def test_a_thousand_episodes_equal_a_loop():
    support, labels, query, _ = random_episode(2, 5, 3, 32, batch=(1000,))
    together = adapted(support, labels, 5, 1.0, 1.0)
    log_prob = together.log_prob(query)
    for i in range(1000):
        alone = adapted(support[i], labels[i], 5, 1.0, 1.0)
        torch.testing.assert_close(together.weight_var[i], alone.weight_var, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(log_prob[i], alone.log_prob(query[i]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shots", [1, [2, 1, 3]])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_right(shots, training):
    support, labels, query, query_labels = random_episode(shots, 3, 2, 6, nonnegative=False)
    head = create_head("gpldla", beta=1.3, beta_b=0.7).double().train(training)

    def loss(support, query, log_beta, log_beta_b):
        torch.manual_seed(0)  # the same noise for every evaluation
        parameters = {"log_beta": log_beta, "log_beta_b": log_beta_b}
        with torch.random.fork_rng():
            module = _Loss(head, labels, query_labels)
            named = {f"head.{name}": value for name, value in parameters.items()}
            return torch.func.functional_call(module, named, (support, query))

    inputs = [t.detach().clone().requires_grad_() for t in (support, query, head.log_beta, head.log_beta_b)]
    # The limits of the quadrature are constants for the gradient; its value hardly moves with them.
    assert torch.autograd.gradcheck(loss, inputs, atol=1e-6 if training else 2e-4)


class _Loss(torch.nn.Module):
    def __init__(self, head, labels, query_labels):
        super().__init__()
        self.head, self.labels, self.query_labels = head, labels, query_labels

    def forward(self, support, query):
        return self.head.loss(support, self.labels, query, self.query_labels, 3)


def test_identical_features_give_the_class_frequencies():
    support = torch.ones(6, 8, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    posterior = adapted(support, labels, 3, 1.0, 1.0)
    plug_in = posterior.logits(support[:1])[0].softmax(-1)
    torch.testing.assert_close(plug_in, torch.tensor([[1 / 2, 1 / 3, 1 / 6]]).double())


def test_zero_features_give_uniform_probabilities():
    labels = torch.arange(4)
    posterior = adapted(torch.zeros(4, 8), labels, 4, 1.0, 1.0)
    torch.testing.assert_close(
        posterior.log_prob(torch.zeros(1, 8)).exp(), torch.full((1, 4), 0.25), atol=1e-3, rtol=0
    )


def test_unit_features_make_the_cosine_rule_in_one_shot():
    """For one shot the surrogate is nearest cosine with scale 1/σ²* = β√d / rms‖μ‖ = β√d."""
    support, labels, query, _ = random_episode(1, 5, 3, 50)
    mean, _ = adapted(support, labels, 5, 1.5, 1.0).logits(query)
    cosine = torch.nn.functional.normalize(query, dim=-1) @ torch.nn.functional.normalize(support, dim=-1).mT
    expected = 1.5 * math.sqrt(50) * cosine
    torch.testing.assert_close(
        mean - mean.mean(-1, keepdim=True), expected - expected.mean(-1, keepdim=True), rtol=1e-6, atol=1e-6
    )


def test_a_thousand_classes():
    support, labels, query, _ = random_episode(1, 1000, 1, 64, dtype=torch.float32)
    log_prob = adapted(support, labels, 1000, 1.0, 1.0).log_prob(query[:20])
    assert log_prob.isfinite().all()
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(20), atol=5e-3, rtol=0)


def test_priors_shift_the_odds():
    support, labels, query, _ = random_episode([8, 2], 2, 3, 12)
    uniform = adapted(support, labels, 2, 1.0, 1.0, priors="uniform").logits(query)[0].diff()
    counted = adapted(support, labels, 2, 1.0, 1.0).logits(query)[0].diff()
    given = adapted(support, labels, 2, 1.0, 1.0, priors=[4.0, 1.0]).logits(query)[0].diff()
    torch.testing.assert_close(counted - uniform, torch.full_like(counted, math.log(2 / 8)))
    torch.testing.assert_close(given, counted)


def test_training_samples_and_evaluation_does_not():
    support, labels, query, _ = random_episode(2, 3, 3, 12)
    head = create_head("gpldla").double()
    assert not torch.equal(
        head.adapt(support, labels, 3).log_prob(query), head.adapt(support, labels, 3).log_prob(query)
    )
    head.eval()
    assert torch.equal(
        head.adapt(support, labels, 3).log_prob(query), head.adapt(support, labels, 3).log_prob(query)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "beta must be a positive"),
        ({"beta_b": float("nan")}, "beta_b must be a positive"),
        ({"predictive": "quadratur"}, "did you mean 'quadrature'"),
        ({"n_samples": 0}, "at least 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        create_head("gpldla", **options)


def test_unknown_head_is_named():
    with pytest.raises(UserError, match="did you mean 'gpldla'"):
        create_head("gplda")


def test_bad_priors_are_named():
    support, labels, _, _ = random_episode(2, 3, 1, 8)
    with pytest.raises(UserError, match="3 positive numbers"):
        create_head("gpldla", priors=[0.5, 0.5]).double().adapt(support, labels, 3)


@pytest.mark.parametrize("at_once", [1, 100, 200])
def test_many_episodes_are_answered_in_chunks_that_do_not_show(monkeypatch, at_once):
    support, labels, query, _ = random_episode(2, 3, 4, 8, batch=(2, 5))
    posterior = create_head("gpldla").eval().adapt(support, labels, 3)
    expected = [t.detach() for t in posterior.logits(query)]
    monkeypatch.setattr(linear_gp, "VALUES_PER_CHUNK", at_once)
    with torch.no_grad():
        for ours, whole in zip(posterior.logits(query), expected):
            torch.testing.assert_close(ours, whole)


class TestVariancesThatAreEqual:
    """On a CPU the second product is left out where V*_j has the same entries but for rounding."""

    def posterior(self, spread, dtype=torch.float32):
        generator = torch.Generator().manual_seed(0)
        weights = 3 * torch.randn(5, 64, generator=generator, dtype=dtype)
        middle = torch.tensor([0.2, 1.0, 1.0, 2.0, 4.0], dtype=dtype)
        V = middle[:, None] + spread * (2 * torch.rand(5, 64, generator=generator, dtype=dtype) - 1)
        moments = (weights, torch.zeros(5, dtype=dtype), V, torch.ones(5, dtype=dtype))
        query = torch.randn(200, 64, generator=generator, dtype=dtype)
        return create_head("gpldla").eval().make_posterior(*moments, None), query

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    def test_probabilities_stay_within_the_bound(self, share):
        within = linear_gp.EQUAL_VARIANCES * torch.finfo(torch.float32).eps
        posterior, query = self.posterior(share * within)
        with torch.inference_mode():
            _, var = posterior.logits(query)
            p = posterior.log_prob(query).exp()
        assert var.stride(-2) == 0  # the same for all queries: no product
        exact = posterior.map_tensors(torch.Tensor.double).log_prob(query.double()).exp()
        assert (p - exact).abs().max() < 4 / 27 * within + 2e-6  # and rounding

    def test_other_variances_are_multiplied(self):
        posterior, query = self.posterior(1e-3)
        with torch.inference_mode():
            _, var = posterior.logits(query)
        exact = posterior.rows(query.double()).squared_dot(
            posterior.weight_var.double(), torch.ones(5).double()
        )
        torch.testing.assert_close(var, exact.float())

    def test_a_query_of_zeros_has_the_variance_of_the_bias(self):
        posterior, query = self.posterior(0.0)
        query[3] = 0
        with torch.inference_mode():
            _, var = posterior.logits(query)
        assert var[3].tolist() == [1.0] * 5
        assert var[4, 4].item() == pytest.approx(5.0)

    def test_gradients_reach_the_variances(self):
        posterior, query = self.posterior(0.0)
        posterior.weight_var.requires_grad_()
        posterior.log_prob(query).square().sum().backward()
        assert posterior.weight_var.grad.abs().sum() > 0
