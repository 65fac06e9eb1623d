"""ML-LSTM against torch.nn.LSTMCell and a plain loop over weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpldla import FewShotModel
from gpldla.heads import create_head
from gpldla.heads.ml_lstm import preprocessed
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestMetaLearnerLSTM(HeadContract):
    name = "ml-lstm"
    feature_dim = 12


def eager_head(feature_dim, **options):
    """Return a head whose gates depend strongly on what they read."""
    torch.manual_seed(0)
    head = create_head("ml-lstm", feature_dim=feature_dim, **options).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.5)
    return head


def preprocessed_by_hand(x):
    return (math.log(abs(x)) / 10, math.copysign(1, x)) if abs(x) > math.exp(-10) else (-1, math.exp(10) * x)


@pytest.mark.parametrize("x", [3.0, -0.02, 1e-4, -1e-5, 0.0])
def test_numbers_are_given_by_magnitude_and_sign(x):
    assert preprocessed(torch.tensor(x).double()).tolist() == pytest.approx(preprocessed_by_hand(x))


def plain_updates(head, loss_of, weights):
    """Return the weights after all updates: one LSTMCell, one weight at a time."""
    optimiser, hidden = head.optimiser, head.optimiser.of_hidden.in_features
    cell = nn.LSTMCell(4, hidden).double()
    order = torch.cat([torch.arange(hidden) + part * hidden for part in (0, 1, 3, 2)])  # torch's: i, f, g, o
    cell.weight_ih.data = optimiser.of_inputs.weight.detach()[order]
    cell.weight_hh.data = optimiser.of_hidden.weight.detach()[order]
    cell.bias_ih.data, cell.bias_hh.data = (
        optimiser.of_inputs.bias.detach()[order],
        torch.zeros(4 * hidden).double(),
    )
    theta = weights.detach().clone()
    states = [(torch.zeros(1, hidden).double(), torch.zeros(1, hidden).double(), 0.0, 0.0) for _ in theta]
    for _ in range(head.steps):
        theta.requires_grad_()
        loss = loss_of(theta)
        (gradient,) = torch.autograd.grad(loss, theta)
        theta, new, after = theta.detach(), [], []
        for weight, slope, (h, c, f, i) in zip(theta.tolist(), gradient.tolist(), states):
            inputs = torch.tensor(
                [[*preprocessed_by_hand(slope), *preprocessed_by_hand(loss.item())]]
            ).double()
            h, c = (t.detach() for t in cell(inputs, (h, c)))
            f = optimiser.forget(torch.cat([h[0], torch.tensor([weight, f]).double()])).item()
            i = optimiser.step(torch.cat([h[0], torch.tensor([weight, i]).double()])).item()
            new.append(weight / (1 + math.exp(-f)) - slope / (1 + math.exp(-i)))
            after.append((h, c, f, i))
        theta, states = torch.tensor(new).double(), after
    return theta


def test_updates_are_those_of_a_plain_loop():
    head = eager_head(4, steps=3, hidden=5)
    support, labels, query, _ = random_episode([1, 2, 3], 3, 2, 4, nonnegative=False)

    def scores(theta, x):
        return F.linear(x, theta[:12].view(3, 4), theta[12:])

    theta = plain_updates(
        head, lambda theta: F.cross_entropy(scores(theta, support), labels), torch.zeros(15).double()
    )
    posterior = head.adapt(support, labels, 3)
    torch.testing.assert_close(posterior.log_prob(query), scores(theta, query).log_softmax(-1))


def test_starts_as_gradient_descent_of_a_small_rate():
    torch.manual_seed(0)
    head = create_head("ml-lstm", feature_dim=4, steps=1).double()
    support, labels, _, _ = random_episode(2, 3, 2, 4, nonnegative=False)
    rows = head.adapt(support, labels, 3).weights["rows"][0]
    slope = torch.autograd.functional.jacobian(
        lambda w: F.cross_entropy(support @ w.mT, labels), torch.zeros(3, 4).double()
    )
    rate = -(rows / slope)
    assert rate.min() > 0.006
    assert rate.max() < 0.02


def test_gradients_are_inputs_without_a_derivative():
    support, labels, query, query_labels = random_episode(2, 3, 2, 4)
    support.requires_grad_()
    head = eager_head(4, steps=3)
    loss = head.loss(support, labels, query.requires_grad_(), query_labels, 3)
    of_support, of_query = torch.autograd.grad(loss, (support, query), materialize_grads=True)
    assert of_support.abs().max() == 0
    assert of_query.abs().max() > 0
    support, query = support.detach(), query.detach()
    head = eager_head(4, steps=1)  # after which no gradient depends on what was learned
    learned = tuple(head.optimiser.forget.parameters())
    assert torch.autograd.gradcheck(lambda *_: head.loss(support, labels, query, query_labels, 3), learned)


def test_the_start_and_the_optimiser_are_learned_together():
    torch.manual_seed(0)
    model = FewShotModel("conv4s-32", "ml-lstm", head_options={"steps": 2}).train()
    loss, _ = model(torch.randn(15, 1, 28, 28), torch.arange(5), torch.arange(5).repeat(2), 5)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert model.backbone.blocks[0][0].weight.grad.abs().max() > 0


def test_wrong_options_are_named():
    with pytest.raises(UserError, match="steps must be a whole number of at least 1"):
        create_head("ml-lstm", feature_dim=4, steps=0)
