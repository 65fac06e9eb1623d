"""VERSA against a plain loop over classes and queries in NumPy."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


def trained(head, feature_dim, steps=150):
    """Train a head on classes with other centres, as it is meant to be."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat_interleave(5)
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    head.train()
    for _ in range(steps):
        places = torch.randperm(feature_dim, generator=generator)[:5]
        centres = 5 * torch.eye(feature_dim, dtype=torch.float64)[places] + 0.1
        noise = 0.1 * torch.rand(2, 25, feature_dim, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        head.loss(centres[labels] + noise[0], labels, centres[labels] + noise[1], labels, 5).backward()
        optimizer.step()
    return head.eval()


class TestVersa(HeadContract):
    name = "versa"
    options = {"dimension": 16}

    def test_learns_separable_classes(self, head):
        """The perceptrons have to learn from episodes what weights suit a class mean."""
        torch.manual_seed(0)
        super().test_learns_separable_classes(trained(head, self.feature_dim))


class TestVersaOnFeaturesAsTheyAre(TestVersa):
    options = {"dimension": 0}


def by_hand(network, x):
    """Run a perceptron in NumPy."""
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            x = layer.weight.detach().numpy() @ x + layer.bias.detach().numpy()
        else:
            x = np.where(x > 0, x, np.expm1(x))
    return x


def moments_by_hand(head, support, labels, query, ways):
    """Return mean and variance of each logit, [q, C] each, one class and query at a time."""

    def project(x):
        return head.project.weight.detach().numpy() @ x + head.project.bias.detach().numpy()

    mean, var = np.empty((len(query), ways)), np.empty((len(query), ways))
    for j in range(ways):
        of_class = np.mean([project(x) for x, y in zip(support, labels) if y == j], axis=0)
        m, s = by_hand(head.weight_mean, of_class), by_hand(head.weight_log_var, of_class)
        b, t = by_hand(head.bias_mean, of_class)[0], by_hand(head.bias_log_var, of_class)[0]
        for i, x in enumerate(query):
            phi = project(x)
            mean[i, j] = sum(m * phi) + b
            var[i, j] = sum(phi**2 * np.exp(s)) + np.exp(t)
    return mean, var


@pytest.fixture
def head():
    torch.manual_seed(0)
    return create_head("versa", feature_dim=7, dimension=5, samples=4).double().eval()


@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (3, [1, 2, 4])])
def test_logits_are_those_of_a_plain_loop(head, ways, shots):
    support, labels, query, _ = random_episode(shots, ways, 3, 7, nonnegative=False)
    mean, var = head.adapt(support, labels, ways).logits(query)
    expected = moments_by_hand(head, support.numpy(), labels.tolist(), query.numpy(), ways)
    np.testing.assert_allclose(mean.detach(), expected[0], rtol=1e-10)
    np.testing.assert_allclose(var.detach(), expected[1], rtol=1e-10)


def test_an_answer_is_the_mean_of_the_probabilities_of_many_draws(head):
    support, labels, query, _ = random_episode(2, 3, 3, 7, nonnegative=False)
    posterior = head.adapt(support, labels, 3)
    mean, var = (t.detach().numpy() for t in posterior.logits(query))
    draws = mean + np.sqrt(var) * np.random.default_rng(0).standard_normal((200_000, *mean.shape))
    expected = np.exp(log_softmax(draws, axis=-1)).mean(0)
    np.testing.assert_allclose(posterior.log_prob(query).exp().detach(), expected, atol=5e-3)


def test_the_loss_is_the_log_of_a_mean_not_the_mean_of_logs(head):
    support, labels, query, query_labels = random_episode(2, 3, 3, 7, nonnegative=False)
    mean, var = (t.detach().numpy() for t in head.adapt(support, labels, 3).logits(query))
    torch.manual_seed(1)
    loss = head.train().loss(support, labels, query, query_labels, 3)
    torch.manual_seed(1)
    noise = torch.randn(4, *mean.shape, dtype=torch.float64).numpy()
    log_p = log_softmax(mean + np.sqrt(var) * noise, axis=-1)[:, range(9), query_labels]
    assert loss.item() == pytest.approx(-(logsumexp(log_p, axis=0) - np.log(4)).mean())
    assert loss.item() < -log_p.mean() - 1e-4


def test_a_class_does_not_depend_on_the_others(head):
    support, labels, query, _ = random_episode(2, 4, 3, 7)
    four = head.adapt(support, labels, 4).logits(query)
    three = head.adapt(support[:6], labels[:6], 3).logits(query)
    for whole, part in zip(four, three):
        torch.testing.assert_close(whole[:, :3], part)


def test_wrong_dimensions_are_refused():
    with pytest.raises(UserError, match="dimension must be 0 or a whole number"):
        create_head("versa", feature_dim=7, dimension=-1)
