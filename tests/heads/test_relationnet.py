"""RelationNet: pairs one at a time through the layers of the paper, in plain functions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpldla import FewShotModel
from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestRelationNet(HeadContract):
    name = "relationnet"

    def test_learns_separable_classes(self, head):
        """A relation network has to learn to compare, from episodes with other classes."""
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(5).repeat_interleave(5)
        optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
        head.train()
        for _ in range(150):
            places = torch.randperm(self.feature_dim, generator=generator)[:5]
            centres = 5 * torch.eye(self.feature_dim, dtype=torch.float64)[places] + 0.1
            noise = 0.1 * torch.rand(2, 25, self.feature_dim, generator=generator, dtype=torch.float64)
            optimizer.zero_grad()
            head.loss(centres[labels] + noise[0], labels, centres[labels] + noise[1], labels, 5).backward()
            optimizer.step()
        super().test_learns_separable_classes(head.eval())


def trained_looking(head):
    """Give every BatchNorm other statistics, scales and shifts than those it starts with."""
    generator = torch.Generator().manual_seed(1)
    for layer in head.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
                tensor.data = 0.5 + torch.rand(tensor.shape, generator=generator).to(tensor)
    return head


def map_head(shape):
    torch.manual_seed(0)
    return trained_looking(create_head("relationnet", feature_dim=shape)).double().eval()


def random_maps(shape, shots, ways, queries, batch=()):
    c, h, w = shape
    support, labels, query, query_labels = random_episode(shots, ways, queries, c * h * w, batch=batch)
    return support.unflatten(-1, shape), labels, query.unflatten(-1, shape), query_labels


def score_by_hand(head, class_map, query_map, *, padding):
    """Return the relation score of one pair of maps [c, h, w]."""
    x = torch.cat([class_map, query_map]).unsqueeze(0)
    convolutions = [m for m in head.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in head.modules() if isinstance(m, nn.BatchNorm2d)]
    for convolution, norm in zip(convolutions, norms, strict=True):
        x = F.conv2d(x, convolution.weight, convolution.bias, padding=padding)
        x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        x = F.max_pool2d(F.relu(x), 2)
    first, second = (m for m in head.modules() if isinstance(m, nn.Linear))
    hidden = F.relu(first.weight @ x.flatten() + first.bias)
    return torch.sigmoid(second.weight @ hidden + second.bias).squeeze()


def scores_by_hand(head, support, labels, query, ways, *, padding=1):
    sums = [sum(x for x, y in zip(support, labels) if y == j) for j in range(ways)]
    return torch.stack(
        [torch.stack([score_by_hand(head, s, x, padding=padding) for s in sums]) for x in query]
    )


@pytest.mark.parametrize("shape", [(64, 5, 5), (6, 4, 7)])
def test_scores_are_those_of_pairs_taken_one_at_a_time(shape):
    head = map_head(shape)
    support, labels, query, _ = random_maps(shape, [1, 3, 2], 3, 2)
    scores = head.adapt(support, labels, 3).log_relation(query).exp()
    torch.testing.assert_close(scores, scores_by_hand(head, support, labels, query, 3))


def test_probabilities_are_the_shares_of_the_scores():
    head = map_head((64, 5, 5))
    support, labels, query, _ = random_maps((64, 5, 5), [1, 3, 2], 3, 2)
    scores = scores_by_hand(head, support, labels, query, 3)
    shares = head.adapt(support, labels, 3).log_prob(query).exp()
    torch.testing.assert_close(shares, scores / scores.sum(-1, keepdim=True))


def test_loss_is_the_squared_error_to_one_and_zero():
    head = map_head((64, 5, 5))
    support, labels, query, query_labels = random_maps((64, 5, 5), [1, 3, 2], 3, 2)
    scores = scores_by_hand(head, support, labels, query, 3)
    errors = [
        (scores[i, j] - (1.0 if query_labels[i] == j else 0.0)) ** 2 for i in range(6) for j in range(3)
    ]
    loss = head.loss(support, labels, query, query_labels, 3)
    torch.testing.assert_close(loss, sum(errors) / 18)


def test_the_last_maps_of_characters_are_of_one_place():
    """H = 64 for Omniglot (arXiv 1711.06025, section 4)."""
    first, second = (m for m in map_head((64, 5, 5)).modules() if isinstance(m, nn.Linear))
    assert (first.in_features, first.out_features, second.out_features) == (64, 8, 1)


def test_the_last_maps_of_photographs_are_of_3_by_3_places():
    """H = 576 for miniImageNet (arXiv 1711.06025, section 4)."""
    head = map_head((64, 19, 19))
    assert next(m for m in head.modules() if isinstance(m, nn.Linear)).in_features == 64 * 3 * 3
    support, labels, query, _ = random_maps((64, 19, 19), 1, 2, 1)
    scores = head.adapt(support, labels, 2).log_relation(query).exp()
    torch.testing.assert_close(scores, scores_by_hand(head, support, labels, query, 2, padding=0))


@pytest.mark.parametrize(
    "shape", [(64, 19, 19), (64, 5, 5), (512, 7, 7), (64, 1, 1), (8, 10, 2), (1, 28, 28)]
)
def test_maps_of_any_size_can_be_compared(shape):
    head = map_head(shape)
    support, labels, query, _ = random_maps(shape, 2, 3, 1)
    log_prob = head.adapt(support, labels, 3).log_prob(query)
    assert log_prob.shape == (3, 3)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(3).double())
    scores = [head.adapt(support, labels, 3).log_relation(x) for x in (query, query.flip(0), 2 * query)]
    torch.testing.assert_close(scores[1], scores[0].flip(0))
    assert not torch.allclose(scores[2], scores[0], atol=1e-6)  # what the maps hold does matter


def test_plain_features_are_maps_of_one_place():
    torch.manual_seed(0)
    on_features = trained_looking(create_head("relationnet", feature_dim=12)).double().eval()
    on_maps = map_head((12, 1, 1))
    support, labels, query, _ = random_episode(2, 3, 2, 12)
    of_features = on_features.adapt(support, labels, 3).log_prob(query)
    maps = support.reshape(-1, 12, 1, 1), query.reshape(-1, 12, 1, 1)
    of_maps = on_maps.adapt(maps[0], labels, 3).log_prob(maps[1])
    torch.testing.assert_close(of_features, of_maps)


def test_batch_of_maps_equals_loop():
    shape = (6, 5, 5)
    head = map_head(shape)
    support, labels, query, _ = random_maps(shape, [1, 2, 3], 3, 2, batch=(2, 2))
    together = head.adapt(support, labels, 3).log_prob(query)
    assert together.shape == (2, 2, 6, 3)
    for i in range(2):
        for j in range(2):
            alone = head.adapt(support[i, j], labels[i, j], 3).log_prob(query[i, j])
            torch.testing.assert_close(together[i, j], alone)


def test_training_reaches_network_and_head():
    torch.manual_seed(0)
    model = FewShotModel("conv4snp", "relationnet").train()
    images = torch.randn(5 + 10, 1, 28, 28)
    loss, maps = model(images, torch.arange(5), torch.arange(5).repeat(2), 5)
    assert maps.shape == (15, 64, 5, 5)
    loss.backward()
    before_a_norm = {
        f"{name}.bias" for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)
    }  # BatchNorm takes such a bias away again
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert name in before_a_norm or parameter.grad.abs().max() > 0, name


def test_missing_shape_is_named():
    with pytest.raises(UserError, match="'relationnet' has one parameter per feature; give feature_"):
        create_head("relationnet")
