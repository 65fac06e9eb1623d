import pytest
import torch

from gpldla.heads import create_head

from .head_contract import HeadContract, random_episode


class TestProtoNet(HeadContract):
    name = "protonet"


class TestProtoNetUnit(HeadContract):
    name = "protonet"
    options = {"normalize": True}


@pytest.mark.parametrize("normalize", [False, True])
def test_is_the_softmax_of_negative_squared_distances(normalize):
    support, labels, query, _ = random_episode([2, 3, 1], 3, 4, 6)
    log_prob = create_head("protonet", normalize=normalize).adapt(support, labels, 3).log_prob(query)
    if normalize:
        support, query = (x / x.norm(dim=-1, keepdim=True) for x in (support, query))
    for i, x in enumerate(query):
        means = torch.stack([support[labels == j].mean(0) for j in range(3)])
        expected = torch.log_softmax(-((x - means) ** 2).sum(-1), -1)
        torch.testing.assert_close(log_prob[i], expected)
