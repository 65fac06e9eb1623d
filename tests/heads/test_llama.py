"""LLAMA: its curvature against explicit Kronecker products of moments from plain loops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpldla import FewShotModel
from gpldla.heads import create_head
from gpldla.heads.common.kfac import FLOOR
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError

DAMPING = 1e-3


class TestLLAMA(HeadContract):
    name = "llama"


def log_det_by_kronecker(inputs, slopes):
    """Return log det(A ⊗ G) of one layer from inputs and slopes per query and position, in NumPy.

    inputs [q, t, a], slopes [q, t, g]
    """
    A = sum(np.outer(x, x) for of_query in inputs for x in of_query) / len(inputs)
    G = sum(np.outer(s, s) for of_query in slopes for s in of_query) / (len(slopes) * len(slopes[0]))
    damped = [m + (DAMPING * np.trace(m) / len(m) + FLOOR) * np.eye(len(m)) for m in (A, G)]
    sign, log_det = np.linalg.slogdet(np.kron(*damped))
    assert sign == 1
    return log_det


def with_ones(rows):
    return np.concatenate([rows, np.ones((*rows.shape[:-1], 1))], -1)


def loss_and_draws(head, episode, ways, **options):
    """Return the loss, and the labels that it drew for the Fisher matrix."""
    torch.manual_seed(3)
    loss = head.loss(*episode, ways, **options)
    log_prob = head.adapt(*episode[:2], ways, **options).log_prob(episode[2]).detach()
    torch.manual_seed(3)
    return loss.item(), log_prob, torch.multinomial(log_prob.exp(), 1).flatten()


def test_of_a_last_layer_on_features():
    episode = random_episode(2, 3, 4, 5, nonnegative=False)
    head = create_head("llama", feature_dim=5, curvature=0.1).double()
    loss, log_prob, drawn = loss_and_draws(head, episode, 3)
    slopes = F.one_hot(drawn, 3).double() - log_prob.exp()  # of log p(drawn) in the scores
    log_det = log_det_by_kronecker(with_ones(episode[2].numpy())[:, None], slopes.numpy()[:, None])
    assert loss == pytest.approx(F.nll_loss(log_prob, episode[3]).item() + 0.05 * log_det)


class SmallNetwork(nn.Module):
    feature_dim = 8

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3, padding=1, stride=2)

    def forward(self, images):
        return torch.tanh(self.convolution(images)).flatten(1)


def test_of_a_convolution_and_the_last_layer():
    torch.manual_seed(0)
    network, head = SmallNetwork().double(), create_head("llama", feature_dim=8, curvature=0.1).double()
    flat = random_episode(2, 3, 3, 16, nonnegative=False)
    episode = [t.unflatten(-1, (1, 4, 4)) if t.is_floating_point() else t for t in flat]
    loss, log_prob, drawn = loss_and_draws(head, episode, 3, backbone=network)

    adapted = head.adapt(*episode[:2], 3, backbone=network).weights
    weight, bias = (adapted[f"network.convolution.{name}"][0].detach() for name in ("weight", "bias"))
    rows, biases = adapted["rows"][0].detach(), adapted["biases"][0].detach()
    inputs, slopes, features = [], [], []
    for image, y in zip(episode[2], drawn):  # one query at a time, patches cut out by hand
        padded = F.pad(image, (1, 1, 1, 1))
        patches = [padded[:, i : i + 3, j : j + 3].flatten() for i in (0, 2) for j in (0, 2)]
        outputs = torch.stack([weight.flatten(1) @ patch + bias for patch in patches]).requires_grad_()
        phi = torch.tanh(outputs).T.flatten()  # channels first
        (rows @ phi + biases).log_softmax(-1)[y].backward()
        inputs.append(torch.stack(patches).numpy())
        slopes.append(outputs.grad.numpy())
        features.append(phi.detach().numpy())
    last = F.one_hot(drawn, 3).double() - log_prob.exp()
    log_det = log_det_by_kronecker(with_ones(np.stack(inputs)), np.stack(slopes))
    log_det += log_det_by_kronecker(with_ones(np.stack(features))[:, None], last.numpy()[:, None])
    assert loss == pytest.approx(F.nll_loss(log_prob, episode[3]).item() + 0.05 * log_det)


def test_gradient_through_the_steps_and_the_curvature():
    support, labels, query, query_labels = random_episode(2, 3, 2, 4)
    head = create_head("llama", feature_dim=4, ways=3, steps=2, step_size=0.5, curvature=0.1).double()

    def loss(x, z, *_):
        torch.manual_seed(0)
        return head.loss(x, labels, z, query_labels, 3)

    inputs = (support.requires_grad_(), query.requires_grad_(), *head.parameters())
    assert torch.autograd.gradcheck(loss, inputs)


def test_scales_of_batch_norm_are_not_adapted_but_meta_trained():
    torch.manual_seed(0)
    model = FewShotModel("conv4s", "llama").train()
    images, labels = torch.randn(15, 1, 28, 28), torch.arange(5)
    adapted = model.head.adapt(images[:5], labels, 5, backbone=model.backbone).weights
    assert {name for name in adapted if name.startswith("network.")} == {
        f"network.blocks.{i}.0.{name}" for i in range(4) for name in ("weight", "bias")
    }
    loss, _ = model(images, labels, labels.repeat(2), 5)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert ".0.bias" in name or parameter.grad.abs().max() > 1e-6, name


def test_predictions_are_those_of_maml():
    support, labels, query, _ = random_episode(2, 3, 2, 4)
    ours, maml = (create_head(n, feature_dim=4).adapt(support, labels, 3) for n in ("llama", "maml"))
    assert torch.equal(ours.log_prob(query), maml.log_prob(query))


@pytest.mark.parametrize("option", ["curvature", "damping"])
def test_options_are_positive(option):
    with pytest.raises(UserError, match=f"{option} must be a positive number"):
        create_head("llama", feature_dim=4, **{option: 0.0})
