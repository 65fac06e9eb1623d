"""SimpleShot: the nearest class mean after each of the three transforms."""

import math

import pytest
import torch

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestSimpleShot(HeadContract):
    name = "simpleshot"


class TestSimpleShotUnit(HeadContract):
    name = "simpleshot"
    options = {"transform": "l2n"}


class TestSimpleShotRaw(HeadContract):
    name = "simpleshot"
    options = {"transform": "un"}


def transformed(x, transform, base_mean):
    """One feature as a list, transformed with plain arithmetic."""
    x = [float(value) for value in x]
    if transform == "cl2n":
        x = [value - float(mean) for value, mean in zip(x, base_mean)]
    if transform in ("l2n", "cl2n"):
        norm = math.sqrt(sum(value**2 for value in x))
        x = [value / norm for value in x]
    return x


@pytest.mark.parametrize("transform", ["un", "l2n", "cl2n"])
@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (5, [1, 2, 3, 4, 5])])
def test_is_the_softmax_of_negative_squared_distances_to_the_class_means(transform, ways, shots):
    support, labels, query, _ = random_episode(shots, ways, 3, 6)
    head = create_head("simpleshot", 6, transform=transform).double()
    head.base_mean.copy_(torch.linspace(0.2, 1.5, 6))
    log_prob = head.adapt(support, labels, ways).log_prob(query)
    features = [transformed(x, transform, head.base_mean) for x in support]
    for i, x in enumerate(query):
        scores = []
        for j in range(ways):
            members = [f for f, label in zip(features, labels) if label == j]
            centre = [sum(column) / len(members) for column in zip(*members)]
            distances = zip(transformed(x, transform, head.base_mean), centre)
            scores.append(-sum((a - b) ** 2 for a, b in distances))
        total = math.log(sum(math.exp(score) for score in scores))
        assert log_prob[i].tolist() == pytest.approx([score - total for score in scores], abs=1e-10)


def test_waits_for_a_base_classifier_and_its_mean_and_learns_nothing_else():
    head = create_head("simpleshot", 6)
    assert head.base_stage == "linear"
    assert head.needs_base_mean
    assert list(head.parameters()) == []
    assert list(head.state_dict()) == ["base_mean"]
    assert torch.equal(head.base_mean, torch.zeros(6))


def test_centring_is_the_default():
    support, labels, query, _ = random_episode(2, 3, 2, 6)
    default, centred = create_head("simpleshot", 6), create_head("simpleshot", 6, transform="cl2n")
    for head in (default, centred):
        head.double().base_mean.fill_(0.8)
    answer = default.adapt(support, labels, 3).log_prob(query)
    assert torch.equal(answer, centred.adapt(support, labels, 3).log_prob(query))
    plain = create_head("simpleshot", 6, transform="l2n").double().adapt(support, labels, 3).log_prob(query)
    assert (answer - plain).abs().max() > 0.1


def test_wrong_options_are_named():
    with pytest.raises(UserError, match="transform must be 'un', 'l2n' or 'cl2n', not 'zscore'"):
        create_head("simpleshot", 6, transform="zscore")
    with pytest.raises(UserError, match="'simpleshot' has one parameter per feature; give feature"):
        create_head("simpleshot")
