"""MAML: vectorised inner steps against a plain loop with torch.autograd.grad."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from gpldla import FewShotModel
from gpldla.heads import create_head, maml
from gpldla.heads.common import adapted_network
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestMAML(HeadContract):
    name = "maml"


class TestFirstOrderMAML(HeadContract):
    name = "maml"
    options = {"first_order": True}


def head_with_a_start(feature_dim, **options):
    """Return a head whose last layer, if it has one of its own, is far from zero."""
    torch.manual_seed(0)
    head = create_head("maml", feature_dim=feature_dim, **options).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.5)
    return head


def plain_descent(head, support, labels, ways, *, network=None, detached=False):
    """Return a function from query examples to scores, after inner steps in a plain loop.

    network: used as it is given
    detached: leave out the derivative of the steps
    """
    own = {} if network is None else dict(network.named_parameters())
    names = list(own)
    if head.last_layer is None:
        last = [
            torch.zeros(n, dtype=support.dtype, requires_grad=True) for n in ((ways, head.feature_dim), ways)
        ]
    else:
        last = [head.last_layer.weight, head.last_layer.bias]
    weights = [*own.values(), *last]

    def scores(weights, x):
        *of_network, rows, biases = weights
        if network is not None:
            x = functional_call(network, dict(zip(names, of_network)), (x,))
        return F.linear(x, rows, biases)

    for _ in range(head.steps):
        loss = F.cross_entropy(scores(weights, support), labels)
        slopes = torch.autograd.grad(loss, weights, create_graph=not detached)
        weights = [w - head.step_size * s for w, s in zip(weights, slopes)]
    return lambda x: scores(weights, x)


class TestOnFeatures:
    @pytest.mark.parametrize("options", [{}, {"steps": 12, "step_size": 0.3}, {"ways": 4}])
    def test_answers_are_those_of_a_plain_loop(self, options):
        head = head_with_a_start(6, **options)
        support, labels, query, _ = random_episode([1, 4, 2, 3], 4, 3, 6)
        expected = plain_descent(head, support, labels, 4)(query).log_softmax(-1)
        torch.testing.assert_close(head.adapt(support, labels, 4).log_prob(query), expected)

    def test_gradient_through_the_steps(self):
        head = head_with_a_start(4, steps=3, step_size=0.7, ways=3)
        support, labels, query, query_labels = random_episode([1, 2, 3], 3, 2, 4)
        inputs = (
            head.last_layer.weight,
            head.last_layer.bias,
            support.requires_grad_(),
            query.requires_grad_(),
        )
        # gradcheck moves its inputs in place, the head's own parameters as well.
        assert torch.autograd.gradcheck(lambda *_: head.loss(support, labels, query, query_labels, 3), inputs)

    def test_first_order_leaves_out_the_derivative_of_the_steps(self):
        support, labels, query, query_labels = random_episode([1, 2, 3], 3, 2, 4)

        def gradients(loss_of, **options):
            head = head_with_a_start(4, steps=3, step_size=0.7, ways=3, **options)
            x = support.clone().requires_grad_()
            return torch.autograd.grad(
                loss_of(head, x), [head.last_layer.weight, head.last_layer.bias, x], materialize_grads=True
            )

        ours = gradients(lambda head, x: head.loss(x, labels, query, query_labels, 3), first_order=True)
        detached = gradients(
            lambda head, x: F.cross_entropy(
                plain_descent(head, x, labels, 3, detached=True)(query), query_labels
            )
        )
        second = gradients(lambda head, x: head.loss(x, labels, query, query_labels, 3))
        for mine, plain, other in zip(ours, detached, second):
            torch.testing.assert_close(mine, plain)
            assert (mine - other).abs().max() > 1e-3

    def test_first_order_changes_the_gradient_alone(self):
        support, labels, query, _ = random_episode(2, 3, 2, 4)
        first, second = (
            head_with_a_start(4, first_order=order).adapt(support, labels, 3).log_prob(query)
            for order in (True, False)
        )
        assert torch.equal(first, second)

    def test_class_without_examples_gives_finite_second_derivatives(self):
        head = head_with_a_start(4, ways=3)
        support, labels, query, query_labels = random_episode(2, 3, 2, 4)
        head.loss(support.requires_grad_(), 2 * (labels // 2), query[:4], 0 * query_labels[:4], 3).backward()
        for tensor in (support, head.last_layer.weight, head.last_layer.bias):
            assert tensor.grad.isfinite().all()
            assert tensor.grad.abs().max() > 0


class Tanh(nn.Module):
    """A small network without BatchNorm."""

    feature_dim = 6

    def __init__(self, inputs=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 10), nn.Tanh(), nn.Linear(10, 6), nn.Tanh()
        )

    def forward(self, images):
        return self.layers(images)


def network_and_head(name, **options):
    """Return a network in float64 whose BatchNorms have seen something, and a head for it."""
    torch.manual_seed(0)
    if name == "tanh":
        network = Tanh(28 * 28).double()
    else:
        network = FewShotModel(name, "maml").backbone.double()
        network.train()(3 + 2 * torch.randn(20, 1, 28, 28, dtype=torch.float64))
    return network, head_with_a_start(network.feature_dim, **options)


def with_batch_statistics(network):
    """Return a copy whose BatchNorms have no memory, so that they use what they are given."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean = layer.running_var = None
    return network


def images_episode(shots, ways, queries, batch=(), dtype=torch.float64):
    support, labels, query, query_labels = random_episode(
        shots, ways, queries, 28 * 28, batch=batch, nonnegative=False, dtype=dtype
    )
    return support.unflatten(-1, (1, 28, 28)), labels, query.unflatten(-1, (1, 28, 28)), query_labels


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", ["conv4s", "conv4snp", "tanh"])
def test_network_and_last_layer_are_adapted_together_as_in_a_plain_loop(name, training):
    network, head = network_and_head(name, step_size=0.05, steps=3)
    network.train(training)
    support, labels, query, _ = images_episode([1, 3, 2], 3, 2)
    log_prob = head.adapt(support, labels, 3, backbone=network).log_prob(query)
    plain = with_batch_statistics(network)
    expected = plain_descent(head, support, labels, 3, network=plain)(query).log_softmax(-1)
    torch.testing.assert_close(log_prob, expected, atol=1e-8, rtol=0)
    last_layer_alone = head.adapt(plain(support), labels, 3).log_prob(plain(query))
    assert (log_prob - last_layer_alone).abs().max() > 1e-3


@pytest.mark.parametrize("first_order", [False, True], ids=["second order", "first order"])
@pytest.mark.parametrize("name", ["conv4s", "tanh"])
def test_gradient_of_the_query_loss_is_that_of_a_plain_loop(name, first_order):
    network, head = network_and_head(name, step_size=0.05, steps=3, ways=3, first_order=first_order)
    support, labels, query, query_labels = images_episode([1, 3, 2], 3, 2)
    loss = head.loss(support, labels, query, query_labels, 3, backbone=network)
    plain = with_batch_statistics(network)
    scores = plain_descent(head, support, labels, 3, network=plain, detached=first_order)(query)
    ours = torch.autograd.grad(loss, [head.last_layer.weight, *network.parameters()])
    theirs = torch.autograd.grad(
        F.cross_entropy(scores, query_labels), [head.last_layer.weight, *plain.parameters()]
    )
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, atol=1e-8, rtol=1e-6)


def test_answers_need_no_gradients_to_be_recorded():
    network, head = network_and_head("conv4s")
    support, labels, query, _ = images_episode(2, 3, 2)
    recorded = head.adapt(support, labels, 3, backbone=network).log_prob(query)
    with torch.no_grad():
        unrecorded = head.adapt(support, labels, 3, backbone=network).log_prob(query)
    assert recorded.requires_grad
    assert not unrecorded.requires_grad
    torch.testing.assert_close(unrecorded, recorded.detach())


def everything_about(network):
    """Return a copy of parameters, statistics and flags."""
    tensors = {name: value.clone() for name, value in network.state_dict().items()}
    flags = [(m.training, getattr(m, "track_running_stats", None)) for m in network.modules()]
    return tensors, flags


def assert_unchanged(network, before):
    tensors, flags = everything_about(network)
    assert flags == before[1]
    for name, value in tensors.items():
        assert torch.equal(value, before[0][name]), name


class TestTheNetworkStaysAsItWas:
    @pytest.fixture
    def network(self):
        return network_and_head("conv4s")[0]

    @pytest.fixture
    def head(self, network):
        return head_with_a_start(network.feature_dim)

    def test_in_training(self, network, head):
        before = everything_about(network.train())
        support, labels, query, query_labels = images_episode(2, 3, 2)
        head.loss(support, labels, query, query_labels, 3, backbone=network).backward()
        assert_unchanged(network, before)

    def test_in_evaluation(self, network, head):
        before = everything_about(network.eval())
        support, labels, query, _ = images_episode(2, 3, 2)
        with torch.no_grad():
            posterior = head.adapt(support, labels, 3, backbone=network)
            assert_unchanged(network, before)
            posterior.log_prob(query)
        assert_unchanged(network, before)

    def test_with_layers_in_different_states(self, network, head):
        network.train().blocks[1].eval()
        network.blocks[2][1].track_running_stats = False
        before = everything_about(network)
        support, labels, query, _ = images_episode(2, 3, 2)
        head.adapt(support, labels, 3, backbone=network).log_prob(query)
        assert_unchanged(network, before)

    @pytest.mark.parametrize("training", [True, False])
    def test_after_an_error(self, network, head, training):
        before = everything_about(network.train(training))
        support, labels, query, _ = images_episode(2, 3, 2)
        posterior = head.adapt(support, labels, 3, backbone=network)
        with pytest.raises(RuntimeError, match="channels"):
            head.adapt(support.expand(-1, 3, -1, -1), labels, 3, backbone=network)
        assert_unchanged(network, before)
        with pytest.raises(RuntimeError, match="channels"):
            posterior.log_prob(query.expand(-1, 3, -1, -1))
        assert_unchanged(network, before)


@pytest.mark.parametrize("options", [{}, {"first_order": True}, {"ways": 5}])
def test_training_reaches_the_network_and_rows_of_classes(options):
    torch.manual_seed(0)
    model = FewShotModel("conv4s", "maml", head_options=options).train()
    images = torch.randn(5 + 10, 1, 28, 28)
    statistics = model.backbone.blocks[0][1].running_mean.clone()
    loss, _ = model(images, torch.arange(5), torch.arange(5).repeat(2), 5)
    loss.backward()
    assert torch.equal(model.backbone.blocks[0][1].running_mean, statistics)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        before_a_norm = name.endswith(".0.bias")  # BatchNorm takes such a bias away again
        assert before_a_norm or parameter.grad.abs().max() > 1e-6, name


@pytest.mark.parametrize("vectorised", [False, True], ids=["one at a time", "vectorised"])
@pytest.mark.parametrize("name", ["conv4s", "tanh"])
def test_batch_equals_loop_with_a_network(name, vectorised, monkeypatch):
    network, head = network_and_head(name, steps=2, ways=3)
    support, labels, query, query_labels = images_episode([1, 2, 2], 3, 2, batch=(2, 2))
    if vectorised:  # what other devices than the CPU do
        for module in (maml, adapted_network):
            monkeypatch.setattr(module, "over_tasks", lambda function, *_: torch.vmap(function))
    together = head.adapt(support, labels, 3, backbone=network).log_prob(query)
    assert together.shape == (2, 2, 6, 3)
    monkeypatch.undo()
    losses = []
    for i in range(2):
        for j in range(2):
            alone = head.adapt(support[i, j], labels[i, j], 3, backbone=network).log_prob(query[i, j])
            torch.testing.assert_close(together[i, j], alone, atol=1e-8, rtol=0)
            losses.append(F.nll_loss(alone, query_labels[i, j]))
    loss = F.nll_loss(together.flatten(0, 2), query_labels.flatten())
    parameters = [head.last_layer.weight, *network.parameters()]
    batch_normalise, of_loop = (torch.autograd.grad(value, parameters) for value in (loss, sum(losses) / 4))
    for mine, yours in zip(batch_normalise, of_loop):
        torch.testing.assert_close(mine, yours, atol=1e-8, rtol=1e-6)


class TestFixedWays:
    def test_each_class_has_a_row_of_its_own(self):
        torch.manual_seed(0)
        head = create_head("maml", feature_dim=16, ways=5)
        assert head.last_layer.weight.shape == (5, 16)
        assert head.last_layer.bias.shape == (5,)
        assert head.last_layer.weight.unique().numel() == 5 * 16
        assert 0.2 < head.last_layer.weight.abs().max() <= 1 / 4

    def test_tasks_of_that_many_classes_work(self):
        model = FewShotModel("conv4s", "maml", head_options={"ways": 5})
        support, labels, query, _ = images_episode(1, 5, 2, dtype=torch.float32)
        assert model.posterior(support, labels, 5).log_prob(query).shape == (10, 5)

    def test_other_tasks_are_refused(self):
        head = create_head("maml", feature_dim=6, ways=5)
        support, labels, _, _ = random_episode(1, 4, 1, 6, dtype=torch.float32)
        with pytest.raises(UserError, match=r"last layer for 5 classes; train one with head\.ways = 4"):
            head.adapt(support, labels, 4)


@pytest.mark.parametrize("options", [{}, {"first_order": True}, {"ways": 3}])
def test_meta_training_lowers_the_query_loss_of_new_tasks(options):
    torch.manual_seed(0)
    network = Tanh()
    head = create_head("maml", feature_dim=6, step_size=0.3, **options)

    def loss_of(seed, tasks=4):
        support, labels, query, query_labels = random_episode(
            3, 3, 5, 8, batch=(tasks,), dtype=torch.float32, seed=seed, nonnegative=False
        )
        return head.loss(support, labels, query, query_labels, 3, backbone=network)

    def loss_of_new_tasks():
        with torch.no_grad():
            return loss_of(10_000, tasks=30).item()

    before = loss_of_new_tasks()
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=0.02)
    for step in range(25):
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()
    assert loss_of_new_tasks() < before - 0.05


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"steps": 1.5}, "steps must be a whole number of at least 1, not 1.5"),
        ({"step_size": 0}, "step_size must be a positive number, not 0"),
        ({"step_size": -0.1}, "step_size must be a positive number, not -0.1"),
        ({"step_size": float("nan")}, "step_size must be a positive number, not nan"),
        ({"ways": 1}, "ways must be 0 or a whole number of at least 2, not 1"),
        ({"ways": -3}, "ways must be 0 or a whole number of at least 2, not -3"),
    ],
)
def test_wrong_options_are_named(options, sentence):
    with pytest.raises(UserError, match=sentence):
        create_head("maml", feature_dim=6, **options)


def test_missing_dimension_is_named():
    with pytest.raises(UserError, match="'maml' has one parameter per feature; give feature_dim"):
        create_head("maml")
