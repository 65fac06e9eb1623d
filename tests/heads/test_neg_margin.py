"""Negative margin: the fit to the support against torch.optim.SGD on plain weights."""

import pytest
import torch
import torch.nn.functional as F

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestNegCosine(HeadContract):
    name = "neg-margin"


class TestNegSoftmax(HeadContract):
    name = "neg-margin"
    options = {"classifier": "softmax"}


def by_sgd(scores, weights, support, labels, steps):
    """Return a layer's weights after steps of torch.optim.SGD on the whole support."""
    weights = weights.clone().requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=0.01, momentum=0.9, dampening=0.9, weight_decay=0.001)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(scores(weights, support), labels).backward()
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize("scale", [5.0, 2.0])
@pytest.mark.parametrize("classifier", ["cosine", "softmax"])
def test_the_new_layer_is_fitted_without_margin_by_sgd(classifier, scale):
    support, labels, query, _ = random_episode([1, 3, 2], 3, 4, 6, nonnegative=False)
    head = create_head("neg-margin", classifier=classifier, scale=scale, epochs=20, margin=-0.7)
    ours = head.adapt(support, labels, 3).log_prob(query)
    if classifier == "softmax":
        start = torch.zeros(3, 6).double()
        inputs, queries = support, query

        def scores(w, x):
            return scale * x @ w.mT
    else:  # three more axes hold directions of the length of a fresh layer that no example has a part in
        start = F.pad((1 / 3) ** 0.5 * torch.eye(3).double(), (6, 0))
        inputs, queries = (F.pad(x, (0, 3)) for x in (support, query))

        def scores(w, x):
            return scale * F.normalize(x, dim=-1) @ F.normalize(w, dim=-1).mT

    weights = by_sgd(scores, start, inputs, labels, steps=20 * 2)
    torch.testing.assert_close(ours, scores(weights, queries).log_softmax(-1), atol=1e-9, rtol=0)


def test_the_margin_belongs_to_the_base_stage():
    head = create_head("neg-margin", classifier="softmax", margin=-0.3)
    assert (head.base_stage, head.base_margin) == ("neg-softmax", -0.3)
    assert create_head("neg-margin").base_stage == "neg-cosine"
    assert not list(head.parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classifier": "linear"}, "classifier must be 'cosine' or 'softmax'"),
        ({"margin": float("nan")}, "margin must be a number"),
        ({"scale": 0.0}, "scale must be a positive number"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(UserError, match=words):
        create_head("neg-margin", **options)
