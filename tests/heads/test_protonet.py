import math

import pytest
import torch

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestProtoNet(HeadContract):
    name = "protonet"


class TestProtoNetUnit(HeadContract):
    name = "protonet"
    options = {"normalize": True}


class TestProtoNetScaled(HeadContract):
    name = "protonet"
    options = {"scale": 0.25}


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("normalize", [False, True])
def test_is_the_softmax_of_negative_squared_distances(normalize, scale):
    support, labels, query, _ = random_episode([2, 3, 1], 3, 4, 6)
    head = create_head("protonet", normalize=normalize, scale=scale)
    log_prob = head.adapt(support, labels, 3).log_prob(query)
    if normalize:
        support, query = (x / x.norm(dim=-1, keepdim=True) for x in (support, query))
    for i, x in enumerate(query):
        means = torch.stack([support[labels == j].mean(0) for j in range(3)])
        expected = torch.log_softmax(-scale * ((x - means) ** 2).sum(-1), -1)
        torch.testing.assert_close(log_prob[i], expected)


@pytest.mark.parametrize("scale", [0, -1.0, math.nan, math.inf, "half", True])
def test_a_scale_must_be_positive(scale):
    with pytest.raises(UserError, match="scale must be a positive number"):
        create_head("protonet", scale=scale)
