"""MatchingNet against plain loops, with and without full-context embeddings."""

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestMatchingNet(HeadContract):
    name = "matchingnet"


class TestMatchingNetFullContext(HeadContract):
    name = "matchingnet"
    options = {"full_context": True}
    test_permuting_shots_changes_nothing = None

    def test_order_of_the_support_matters(self, head):
        support, labels, query, _ = random_episode([1, 2, 3, 4], 4, 3, self.feature_dim)
        before = head.adapt(support, labels, 4).log_prob(query)
        after = head.adapt(support.flip(0), labels.flip(0), 4).log_prob(query)
        assert (after - before).abs().max() > 1e-3

    def test_gradient_reaches_every_weight(self, head):
        support, labels, query, query_labels = random_episode(2, 4, 3, self.feature_dim)
        head.loss(support, labels, query, query_labels, 4).backward()
        names = {name.split(".")[1] for name, _ in head.named_parameters()}
        assert names == {"over_support", "reader"}
        for name, parameter in head.named_parameters():
            assert parameter.grad.abs().max() > 0, name


def attention_by_class(support, labels, query, ways, scale):
    """log Σ_i a(x, x_i) y_i with a the softmax of scaled cosines, one pair at a time."""
    log_prob = np.empty((len(query), ways))
    for i, x in enumerate(query):
        weights = []
        for s in support:
            cosine = (x * s).sum() / (math.sqrt((x**2).sum()) * math.sqrt((s**2).sum()))
            weights.append(math.exp(scale * cosine))
        for j in range(ways):
            of_class = sum(w for w, label in zip(weights, labels) if label == j)
            log_prob[i, j] = math.log(of_class / sum(weights))
    return log_prob


@pytest.mark.parametrize("options", [{}, {"scale": 1.0}])
@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (3, 4), (5, [1, 2, 3, 4, 5])])
def test_is_the_attention_summed_by_class(options, ways, shots):
    support, labels, query, _ = random_episode(shots, ways, 3, 7, seed=ways, nonnegative=False)
    log_prob = create_head("matchingnet", **options).adapt(support, labels, ways).log_prob(query)
    expected = attention_by_class(support.numpy(), labels, query.numpy(), ways, options.get("scale", 10.0))
    np.testing.assert_allclose(log_prob.numpy(), expected, rtol=1e-10)


def lstm_step(x, h, cell, weights):
    """One step of an LSTM whose weights W_ih, W_hh, b_ih, b_hh hold the gates i, f, g, o in this order."""
    W_ih, W_hh, b_ih, b_hh = weights
    i, f, g, o = np.split(W_ih @ x + b_ih + W_hh @ h + b_hh, 4)
    i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
    cell = f * cell + i * np.tanh(g)
    return o * np.tanh(cell), cell


def weights_of(module, suffix=""):
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(module, name + suffix).detach().numpy() for name in names]


def full_context(head, support, query):
    """g(x_i, S) of every support example and f(x, S) of every query, the appendix of the paper in loops."""
    n, d = support.shape
    g = support.copy()
    for suffix, order in (("_l0", range(n)), ("_l0_reverse", reversed(range(n)))):
        h, cell = np.zeros(d), np.zeros(d)
        for i in order:
            h, cell = lstm_step(support[i], h, cell, weights_of(head.context.over_support, suffix))
            g[i] += h
    f = np.empty_like(query)
    for k, x in enumerate(query):
        h, cell = x, np.zeros(d)
        for _ in range(head.context.read_steps):
            attention = softmax([h @ g_i for g_i in g])
            read = sum(a * g_i for a, g_i in zip(attention, g))
            new, cell = lstm_step(np.concatenate([x, read]), h, cell, weights_of(head.context.reader))
            h = new + x
        f[k] = h
    return g, f


@pytest.mark.parametrize("read_steps", [1, 5])
@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (4, [1, 2, 3, 4])])
def test_full_context_is_two_lstms_over_the_support_and_one_that_reads_it(read_steps, ways, shots):
    torch.manual_seed(0)
    head = create_head("matchingnet", 6, full_context=True, read_steps=read_steps).double()
    support, labels, query, _ = random_episode(shots, ways, 3, 6, nonnegative=False)
    with torch.no_grad():
        log_prob = head.adapt(support, labels, ways).log_prob(query)
    g, f = full_context(head, support.numpy(), query.numpy())
    np.testing.assert_allclose(log_prob.numpy(), attention_by_class(g, labels, f, ways, 10.0), rtol=1e-9)


@pytest.mark.parametrize("full_context", [False, True])
def test_features_need_not_be_contiguous(full_context):
    torch.manual_seed(0)
    head = create_head("matchingnet", 6, full_context=full_context).double()
    support, labels, query, _ = random_episode(2, 3, 2, 6, batch=(2, 3))
    expected = head.adapt(support, labels, 3).log_prob(query)
    strided, strided_query = (x.mT.contiguous().mT for x in (support, query))
    torch.testing.assert_close(head.adapt(strided, labels, 3).log_prob(strided_query), expected)


def test_attention_that_vanishes_stays_finite():
    support, labels, query, query_labels = random_episode(2, 3, 4, 6, dtype=torch.float32, nonnegative=False)
    query.requires_grad_()
    loss = create_head("matchingnet", scale=1e4).loss(support, labels, query, query_labels, 3)
    loss.backward()
    assert loss.isfinite()
    assert query.grad.isfinite().all()


def test_wrong_options_are_named():
    for scale in (0, -1.0, math.inf, "10"):
        with pytest.raises(UserError, match="scale must be a positive number, not"):
            create_head("matchingnet", scale=scale)
    for steps in (0, 2.5, "5"):
        with pytest.raises(UserError, match="read_steps must be a whole number of at least 1, not"):
            create_head("matchingnet", read_steps=steps)


def test_only_full_context_needs_the_number_of_features():
    assert not list(create_head("matchingnet").parameters())
    with pytest.raises(UserError, match="'matchingnet' has one parameter per feature; give feature"):
        create_head("matchingnet", full_context=True)
