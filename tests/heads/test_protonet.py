import torch

from gpldla.heads import create_head

from .head_contract import HeadContract, random_episode


class TestProtoNet(HeadContract):
    name = "protonet"

    def test_is_the_softmax_of_negative_squared_distances(self):
        support, labels, query, _ = random_episode([2, 3, 1], 3, 4, 6)
        log_prob = create_head("protonet").adapt(support, labels, 3).log_prob(query)
        for i, x in enumerate(query):
            means = torch.stack([support[labels == j].mean(0) for j in range(3)])
            expected = torch.log_softmax(-((x - means) ** 2).sum(-1), -1)
            torch.testing.assert_close(log_prob[i], expected)
