"""Meta-Mixture against a plain sum over MAMLs."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from gpldla import FewShotModel
from gpldla.backbones import create_backbone
from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestMetaMixture(HeadContract):
    name = "meta-mixture"


def head_with_weights(d, log_weights, **options):
    head = create_head("meta-mixture", feature_dim=d, components=len(log_weights), **options).double()
    head.log_weights.data = torch.tensor(log_weights).double()
    return head


def mean_log(log_prob, labels):
    return np.mean([row[y].item() for row, y in zip(log_prob, labels)])


@pytest.fixture
def mamls():
    """Three MAMLs on thirds of 12 features, adapted one by one, and the head with the same."""
    head = head_with_weights(12, [0.3, -1.0, 0.1], steps=3, step_size=0.3, temperature=0.5)
    support, labels, query, query_labels = random_episode([1, 2, 3], 3, 2, 12, nonnegative=False)
    maml = create_head("maml", feature_dim=4, steps=3, step_size=0.3).double()
    parts = [slice(0, 4), slice(4, 8), slice(8, 12)]
    adapted = [maml.adapt(support[:, part], labels, 3) for part in parts]
    on_support = [a.log_prob(support[:, part]) for a, part in zip(adapted, parts)]
    on_query = [a.log_prob(query[:, part]) for a, part in zip(adapted, parts)]
    return head, (support, labels, query, query_labels), on_support, on_query


def test_a_prediction_weights_components_by_their_fit_to_the_support(mamls):
    head, (support, labels, query, _), on_support, on_query = mamls
    prior = np.log(softmax([0.3, -1.0, 0.1]))
    weights = softmax([mean_log(log_p, labels) / 0.5 + p for log_p, p in zip(on_support, prior)])
    expected = sum(w * log_p.exp() for w, log_p in zip(weights, on_query))
    posterior = head.adapt(support, labels, 3)
    torch.testing.assert_close(posterior.log_prob(query).exp(), expected)
    np.testing.assert_allclose(posterior.log_responsibilities.exp().detach(), weights)


def test_the_loss_weights_components_by_their_fit_to_the_query(mamls):
    head, episode, _, on_query = mamls
    prior = np.log(softmax([0.3, -1.0, 0.1]))
    fits = [mean_log(log_p, episode[3]) for log_p in on_query]
    weights = softmax([fit / 0.5 + p for fit, p in zip(fits, prior)])
    expected = sum(w * (-fit - p) for w, fit, p in zip(weights, fits, prior))
    loss = head.loss(*episode, 3)
    assert loss.item() == pytest.approx(expected)
    loss.backward()  # of −Σ γ log π with constant γ: π − γ
    np.testing.assert_allclose(head.log_weights.grad, softmax([0.3, -1.0, 0.1]) - weights, atol=1e-12)


def test_components_are_the_parts_of_the_network():
    torch.manual_seed(0)
    model = FewShotModel("conv4s-mixture", "meta-mixture").train()
    images = torch.rand(15, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(5)
    posterior = model.posterior(images[:5], labels, 5)
    maml = create_head("maml", feature_dim=64)
    for component, network in zip(posterior.components, model.backbone.networks, strict=True):
        alone = maml.adapt(images[:5], labels, 5, backbone=network)
        torch.testing.assert_close(component.log_prob(images[5:]), alone.log_prob(images[5:]))
    loss, _ = model(images, labels, labels.repeat(2), 5)
    loss.backward()
    for network in model.backbone.networks:
        assert network.blocks[0][0].weight.grad.abs().max() > 0


def test_a_mixture_of_networks_concatenates_what_they_see():
    network = create_backbone("conv4s-mixture").eval()
    images = torch.rand(2, 1, 28, 28)
    assert network.feature_dim == 192
    torch.testing.assert_close(network(images), torch.cat([n(images) for n in network.networks], 1))
    assert network.maps(images).shape == (2, *network.map_shape) == (2, 192, 1, 1)
    first, second, _ = network.networks
    assert not torch.equal(first.blocks[0][0].weight, second.blocks[0][0].weight)


def test_a_network_without_parts_is_refused():
    images, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 0, 1, 1])
    head = create_head("meta-mixture", feature_dim=63)
    with pytest.raises(UserError, match="3 components needs a network with as many parts"):
        head.adapt(images, labels, 2, backbone=create_backbone("conv4s"))
    with pytest.raises(UserError, match="64 features cannot be shared by 3 components"):
        FewShotModel("conv4s", "meta-mixture")
