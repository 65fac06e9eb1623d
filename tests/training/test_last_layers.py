"""The last layers of the base stage against plain loops."""

import math

import pytest
import torch

from gpldla.training.last_layers import LAYERS

FEATURES, CLASSES = 6, 4


def layer_and_batch(kind, margin):
    torch.manual_seed(0)
    layer = LAYERS[kind](FEATURES, CLASSES, margin).double()
    return layer, torch.randn(7, FEATURES).double(), torch.tensor([0, 1, 2, 3, 0, 1, 2])


def score_by_hand(kind, layer, x, j):
    """Return the score of one class as plain arithmetic."""
    row, x = (layer.directions if kind == "cosine" else layer.weight)[j].tolist(), x.tolist()
    product = sum(a * b for a, b in zip(row, x))
    cosine = product / math.sqrt(sum(a**2 for a in row) * sum(b**2 for b in x))
    return {
        "linear": lambda: product + layer.bias[j].item(),
        "cosine": lambda: 2 * layer.norms[j].item() * cosine,
        "neg-softmax": lambda: 5 * product,
        "neg-cosine": lambda: 30 * cosine,
        "arcmax": lambda: 20 * cosine,
    }[kind]()


def with_margin(kind, layer, score, margin):
    """Return the score of the true class as the loss sees it."""
    if kind != "arcmax":
        return score - layer.scale * margin
    angle = math.acos(score / 20)
    return 20 * math.cos(angle + margin) if angle < math.pi / 2 else score


@pytest.mark.parametrize("margin", [0.0, -0.3, 0.1])
@pytest.mark.parametrize("kind", LAYERS)
def test_scores_and_loss(kind, margin):
    layer, features, labels = layer_and_batch(kind, margin)
    expected = [[score_by_hand(kind, layer, x, j) for j in range(CLASSES)] for x in features]
    scores = layer(features)
    torch.testing.assert_close(scores, torch.tensor(expected).double())
    loss = 0.0
    for row, y in zip(expected, labels.tolist()):
        row[y] = with_margin(kind, layer, row[y], margin)
        loss += math.log(sum(map(math.exp, row))) - row[y]
    assert layer.loss(scores, labels).item() == pytest.approx(loss / len(labels))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_negative_margin_makes_the_loss_smaller(kind):
    layer, features, labels = layer_and_batch(kind, -0.05)
    scores = layer(features)
    assert layer.loss(scores, labels) < torch.nn.functional.cross_entropy(scores, labels)
    layer.loss(scores, labels).backward()
    assert all(p.grad.abs().max() > 0 for p in layer.parameters())
