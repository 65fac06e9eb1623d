"""GPDKT against scikit-learn, GPyTorch, scipy and nn.BatchNorm1d."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from torch import nn

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError

TASKS = [(2, 1), (3, 4), (5, [1, 2, 3, 4, 5])]


class TestGPDKT(HeadContract):
    name = "gpdkt"


class TestGPDKTCosine(HeadContract):
    name = "gpdkt"
    options = {"kernel": "cosine"}


class TestGPDKTLinear(HeadContract):
    name = "gpdkt"
    options = {"kernel": "linear"}


def head_with(kernel, scale=1.0, mean=0.0, d=None, **options):
    head = create_head("gpdkt", d, kernel=kernel, **options).double()
    with torch.no_grad():
        head.log_scale.fill_(math.log(scale))
        head.mean.fill_(mean)
    return head


def with_odd_batch_norm(head):
    """Give the standardisation weights, biases and running statistics that training could have left."""
    torch.manual_seed(3)
    with torch.no_grad():
        head.batch_norm.weight.uniform_(0.5, 2)
        head.batch_norm.bias.normal_()
        head.batch_norm.running_mean.normal_()
        head.batch_norm.running_var.uniform_(0.2, 3)
    return head


def torch_batch_norm(head):
    """nn.BatchNorm1d in the state of the head's own standardisation."""
    ours = head.batch_norm
    reference = nn.BatchNorm1d(len(ours.weight)).double()
    reference.load_state_dict(ours.state_dict(), strict=False)  # ours has no counter of batches
    return reference


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def phi_of(kernel, x):
    return x.numpy() if kernel == "linear" else unit(x.numpy())


def negative_log_evidence(phi, labels, ways, scale, mean, noise=0.1):
    """−log N(±1 targets; mean, K + noise·I) of each class in turn, a target."""
    K = np.array([[scale * (a * b).sum() for b in phi] for a in phi])
    total = 0.0
    for j in range(ways):
        y = np.array([1.0 if label == j else -1.0 for label in labels])
        total -= multivariate_normal.logpdf(y, np.full(len(y), mean), K + noise * np.eye(len(y)))
    return total / (ways * len(phi))


@pytest.mark.parametrize(("ways", "shots"), TASKS)
@pytest.mark.parametrize("kernel", ["linear", "cosine"])
@pytest.mark.parametrize(("scale", "mean", "noise"), [(1.0, 0.0, 0.1), (3.5, -0.6, 0.1), (0.2, 0.3, 0.02)])
def test_posterior_means_are_those_of_scikit_learn(ways, shots, kernel, scale, mean, noise):
    support, labels, query, _ = random_episode(shots, ways, 4, 7, seed=ways)
    head = head_with(kernel, scale, mean, noise=noise)
    with torch.no_grad():
        posterior = head.adapt(support, labels, ways)
        means, log_prob = posterior.scores(query), posterior.log_prob(query)
    covariance = ConstantKernel(scale, "fixed") * DotProduct(0, "fixed")
    expected = np.empty((len(query), ways))
    for j in range(ways):
        y = np.where(labels.numpy() == j, 1.0, -1.0)
        process = GaussianProcessRegressor(covariance, alpha=noise, optimizer=None)
        process.fit(phi_of(kernel, support), y - mean)
        expected[:, j] = process.predict(phi_of(kernel, query)) + mean
    np.testing.assert_allclose(means.numpy(), expected, rtol=1e-8, atol=1e-10)
    softmax = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    np.testing.assert_allclose(log_prob.exp().numpy(), softmax, rtol=1e-8)


def gpytorch_process(gpytorch, phi, y, scale, mean):
    """One exact GP with fixed hyperparameters."""

    class Process(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(phi, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.LinearKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    process = Process(gpytorch.likelihoods.GaussianLikelihood()).double()
    for module, name, value in (
        (process.likelihood, "noise", 0.1),
        (process.mean_module, "constant", mean),
        (process.covar_module, "outputscale", scale),
        (process.covar_module.base_kernel, "variance", 1.0),
    ):
        setattr(
            module, name, torch.tensor(value, dtype=torch.float64)
        )  # a plain number goes to float32 first
    return process


@pytest.mark.parametrize(("ways", "shots"), TASKS)
@pytest.mark.parametrize("kernel", ["linear", "cosine"])
def test_posterior_means_and_loss_are_those_of_gpytorch(ways, shots, kernel):
    gpytorch = pytest.importorskip("gpytorch")
    support, labels, query, query_labels = random_episode(shots, ways, 3, 7, seed=ways)
    scale, mean = 2.3, -0.4
    head = head_with(kernel, scale, mean)
    together, all_labels = torch.cat([support, query]), torch.cat([labels, query_labels])
    phi, phi_query, phi_all = (torch.from_numpy(phi_of(kernel, x)) for x in (support, query, together))
    likelihoods = []
    with torch.no_grad():
        means = head.adapt(support, labels, ways).scores(query)
        loss = head.loss(support, labels, query, query_labels, ways)
        for j in range(ways):
            y = torch.where(labels == j, 1.0, -1.0).double()
            process = gpytorch_process(gpytorch, phi, y, scale, mean).eval()
            torch.testing.assert_close(means[:, j], process(phi_query).mean, rtol=1e-8, atol=1e-9)
            y = torch.where(all_labels == j, 1.0, -1.0).double()
            process = gpytorch_process(gpytorch, phi_all, y, scale, mean).train()
            evidence = gpytorch.mlls.ExactMarginalLogLikelihood(process.likelihood, process)
            likelihoods.append(evidence(process(phi_all), y))
    torch.testing.assert_close(loss, -torch.stack(likelihoods).mean(), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("ways", "shots"), TASKS)
@pytest.mark.parametrize("kernel", ["linear", "cosine"])
def test_loss_is_the_negative_log_evidence_of_support_and_query(ways, shots, kernel):
    support, labels, query, query_labels = random_episode(shots, ways, 3, 7, seed=ways)
    loss = head_with(kernel, 0.7, 0.25, noise=0.3).loss(support, labels, query, query_labels, ways)
    phi = phi_of(kernel, torch.cat([support, query]))
    expected = negative_log_evidence(phi, torch.cat([labels, query_labels]), ways, 0.7, 0.25, noise=0.3)
    assert loss.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kernel", ["linear", "cosine", "bncosine"])
def test_gradient_of_the_loss(kernel):
    support, labels, query, query_labels = random_episode([1, 2, 1], 3, 1, 4)
    head = head_with(kernel, 1.3, 0.2, d=4).eval()
    assert torch.autograd.gradcheck(
        lambda support, query, *_: head.loss(support, labels, query, query_labels, 3),
        (support.requires_grad_(), query.requires_grad_(), *head.parameters()),
        atol=1e-6,
    )


def test_loss_of_a_batch_is_the_mean_over_its_episodes():
    support, labels, query, query_labels = random_episode([1, 3, 2], 3, 2, 6, batch=(2, 2))
    head = head_with("bncosine", 1.5, 0.1, d=6)
    together = head.loss(support, labels, query, query_labels, 3)
    alone = [
        head.loss(support[i, j], labels[i, j], query[i, j], query_labels[i, j], 3)
        for i in range(2)
        for j in range(2)
    ]
    torch.testing.assert_close(together, torch.stack(alone).mean(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_loss_standardises_by_the_episode_as_batch_norm_in_training(training):
    support, labels, query, query_labels = random_episode([1, 3, 2], 3, 4, 6)
    head = with_odd_batch_norm(head_with("bncosine", 1.5, 0.1, d=6)).train(training)
    phi = unit(torch_batch_norm(head).train()(torch.cat([support, query])).detach().numpy())
    expected = negative_log_evidence(phi, torch.cat([labels, query_labels]), 3, 1.5, 0.1)
    loss = head.loss(support, labels, query, query_labels, 3)
    assert loss.item() == pytest.approx(expected, rel=1e-10)


def test_training_moves_the_running_statistics_as_batch_norm_does():
    head = with_odd_batch_norm(head_with("bncosine", d=6)).train()
    reference = torch_batch_norm(head).train()
    for seed in range(4):
        support, labels, query, query_labels = random_episode([1, 3, 2], 3, seed + 1, 6, seed=seed)
        head.loss(support, labels, query, query_labels, 3)
        reference(torch.cat([support, query]))
    torch.testing.assert_close(head.batch_norm.running_mean, reference.running_mean)
    torch.testing.assert_close(head.batch_norm.running_var, reference.running_var)


def test_a_batch_moves_the_running_statistics_by_the_mean_of_its_episodes():
    support, labels, query, query_labels = random_episode(2, 3, 3, 6, batch=(2, 2))
    head = with_odd_batch_norm(head_with("bncosine", d=6)).train()
    after = []
    for i in range(2):
        for j in range(2):
            reference = torch_batch_norm(head).train()
            reference(torch.cat([support[i, j], query[i, j]]))
            after.append((reference.running_mean, reference.running_var))
    head.loss(support, labels, query, query_labels, 3)
    for ours, theirs in zip((head.batch_norm.running_mean, head.batch_norm.running_var), zip(*after)):
        torch.testing.assert_close(ours, torch.stack(theirs).mean(0))


def test_evaluation_leaves_the_running_statistics():
    support, labels, query, query_labels = random_episode(2, 3, 3, 6)
    head = with_odd_batch_norm(head_with("bncosine", d=6)).eval()
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head.loss(support, labels, query, query_labels, 3)
    head.train().adapt(support, labels, 3).log_prob(query)
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_adapting_uses_the_running_statistics():
    """bncosine is then cosine on what nn.BatchNorm1d gives in evaluation."""
    support, labels, query, _ = random_episode([1, 3, 2], 3, 4, 6, batch=(2,))
    head = with_odd_batch_norm(head_with("bncosine", 1.5, 0.1, d=6)).eval()
    reference = torch_batch_norm(head).eval()
    standard, standard_query = (reference(x.flatten(0, -2)).view_as(x) for x in (support, query))
    expected = head_with("cosine", 1.5, 0.1).adapt(standard, labels, 3).scores(standard_query)
    torch.testing.assert_close(head.adapt(support, labels, 3).scores(query), expected)


def test_running_statistics_are_saved_with_the_head():
    support, labels, query, query_labels = random_episode(2, 3, 3, 6)
    head = head_with("bncosine", d=6).train()
    head.loss(support, labels, query, query_labels, 3)
    copy = head_with("bncosine", d=6)
    fresh = copy.adapt(support, labels, 3).log_prob(query)
    copy.load_state_dict(head.state_dict())
    trained = head.adapt(support, labels, 3).log_prob(query)
    assert not torch.allclose(trained, fresh)
    assert torch.equal(copy.adapt(support, labels, 3).log_prob(query), trained)


EPISODES, BATCH = 100_000, 1000


def test_float32_stays_positive_definite_over_100_000_episodes(monkeypatch):
    """Raw and unit features, more examples than dimensions, copies within and across classes."""
    factor, failed = torch.linalg.cholesky_ex, []

    def counted(matrix, **options):
        result = factor(matrix, **options)
        failed.append(int((result.info != 0).sum()))
        return result

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    generator = torch.Generator().manual_seed(0)
    heads = {kernel: create_head("gpdkt", kernel=kernel) for kernel in ("linear", "cosine")}
    for number in range(EPISODES // BATCH):
        shots, d = 1 + number % 5, (2, 16, 64)[number % 3]
        labels = torch.arange(5).repeat(shots).expand(BATCH, -1)
        support = torch.randn(BATCH, 5 * shots, d, generator=generator)
        support = support.abs() if number % 2 else support
        copied = torch.randint(5 * shots, (BATCH, 5 * shots), generator=generator)
        from_others = torch.rand(BATCH, 5 * shots, 1, generator=generator) < 0.3
        support = torch.where(from_others, support.gather(1, copied.unsqueeze(-1).expand(-1, -1, d)), support)
        support *= 10 ** (7 * torch.rand(BATCH, 1, 1, generator=generator) - 3)  # 1e-3 to 1e4
        head = heads["linear" if number % 4 < 2 else "cosine"]
        with torch.no_grad():
            head.log_scale.fill_(number % 10 - 3)
            log_prob = head.adapt(support, labels, 5).log_prob(support[:, :5])
        assert log_prob.isfinite().all(), number
    assert len(failed) * BATCH == EPISODES
    assert sum(failed) == 0


@pytest.mark.parametrize(
    ("kernel", "scale", "tolerance"),
    [
        ("linear", 0.05, 1e-3),
        ("linear", 1.0, 1e-3),  # entries of K near 100
        ("cosine", 1.0, 3e-4),
        ("cosine", 20.0, 5e-4),
        ("bncosine", 1.0, 3e-4),
        ("bncosine", 20.0, 5e-4),
    ],
)
def test_float32_stays_close_to_float64_with_duplicates(kernel, scale, tolerance):
    support, labels, query, query_labels = random_episode(5, 5, 3, 16, batch=(200,))
    support[:, 1::5] = support[:, ::5]
    head = head_with(kernel, scale, 0.1, d=16).eval()
    with torch.no_grad():
        exact = head.adapt(support, labels, 5).log_prob(query).exp()
        exact_loss = head.loss(support, labels, query, query_labels, 5)
        head.float()
        single = head.adapt(support.float(), labels, 5).log_prob(query.float()).exp()
        single_loss = head.loss(support.float(), labels, query.float(), query_labels, 5)
    assert (single - exact).abs().max() < tolerance
    assert single_loss.item() == pytest.approx(exact_loss.item(), rel=tolerance)


def test_large_raw_features_work_in_float32():
    """Norms of 1e4 with a linear kernel: entries of 1e8, where 0.1 of noise is far below the rounding."""
    support, labels, query, query_labels = random_episode(5, 5, 3, 64, batch=(100,), dtype=torch.float32)
    support, query = (1e4 * x / x.norm(dim=-1, keepdim=True) for x in (support, query))
    support[:, 1::5] = support[:, ::5]
    head = create_head("gpdkt", kernel="linear")
    support.requires_grad_()
    loss = head.loss(support, labels, query, query_labels, 5)
    loss.backward()
    assert loss.isfinite()
    assert support.grad.isfinite().all()
    with torch.no_grad():
        single = head.adapt(support, labels, 5).log_prob(query).exp()
        exact = head.double().adapt(support.double(), labels, 5).log_prob(query.double()).exp()
    assert (single - exact).abs().max() < 1e-3


def test_scalars_are_the_scale_and_the_mean():
    assert head_with("cosine", 2.5, -0.5).scalars() == pytest.approx({"scale": 2.5, "mean": -0.5})


def test_wrong_options_are_named():
    with pytest.raises(UserError, match="kernel must be 'linear', 'cosine' or 'bncosine', not 'rbf'"):
        create_head("gpdkt", kernel="rbf")
    for noise in (0, -0.1, math.inf, math.nan, "0.1"):
        with pytest.raises(UserError, match="noise must be a positive number, not"):
            create_head("gpdkt", kernel="linear", noise=noise)


def test_only_standardisation_needs_the_number_of_features():
    create_head("gpdkt", kernel="linear")
    create_head("gpdkt", kernel="cosine")
    with pytest.raises(UserError, match="'gpdkt' has one parameter per feature; give feature_dim"):
        create_head("gpdkt")


def test_what_was_saved_before_batches_were_counted_still_loads():
    head = create_head("gpdkt", 6)
    saved = {name: t for name, t in head.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert len(saved) == len(head.state_dict()) - 1
    create_head("gpdkt", 6).load_state_dict(saved)
