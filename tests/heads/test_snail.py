"""SNAIL against whole sequences, one query at a time, through torch's own convolution."""

import math

import pytest
import torch
import torch.nn.functional as F

from gpldla.heads import create_head
from gpldla.heads.snail import Attention
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError


class TestSNAIL(HeadContract):
    name = "snail"
    options = {"ways": 5, "dimension": 16, "max_shots": 2}
    test_permuting_classes_permutes_the_probabilities = None
    test_permuting_shots_changes_nothing = None

    def test_learns_separable_classes(self):
        """The network has to learn to read sequences, from episodes with other classes."""
        torch.manual_seed(0)
        generator, labels = torch.Generator().manual_seed(0), torch.arange(2).expand(16, -1)
        head = create_head("snail", feature_dim=8, ways=2, dimension=8, max_shots=1)
        optimizer = torch.optim.Adam(head.parameters(), lr=2e-3)

        def episodes():
            centres = 2 * torch.randn(16, 2, 8, generator=generator)
            return (centres + 0.1 * torch.randn(16, 2, 8, generator=generator) for _ in range(2))

        for _ in range(100):
            support, query = episodes()
            optimizer.zero_grad()
            head.loss(support, labels, query, labels, 2).backward()
            optimizer.step()
        support, query = episodes()
        with torch.no_grad():
            answers = head.eval().adapt(support, labels, 2).log_prob(query).argmax(-1)
        assert (answers == labels).float().mean() > 0.9

    def test_order_and_names_matter(self, head):
        support, labels, query, _ = random_episode([1, 2, 3, 4], 4, 3, self.feature_dim)
        before = head.adapt(support, labels, 4).log_prob(query)
        flipped = head.adapt(support.flip(0), labels.flip(0), 4).log_prob(query)
        renamed = head.adapt(support, 3 - labels, 4).log_prob(query).flip(-1)
        assert (flipped - before).abs().max() > 1e-4
        assert (renamed - before).abs().max() > 1e-4


def small_head(**options):
    torch.manual_seed(0)
    settings = {"ways": 4, "dimension": 5, "max_shots": 3, **options}
    return create_head("snail", feature_dim=6, **settings).double()


def log_prob_of_whole_sequences(head, support, labels, query, ways):
    """Return log p of each query at the end of a sequence of its own."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    rows = []
    for x in query:
        phi = head.project(torch.cat([support[order], x[None]]))
        one_hot = F.pad(F.one_hot(labels[order], head.ways).double(), (0, 0, 0, 1))  # zeros for the query
        items = torch.cat([phi, one_hot], -1)
        for block in head.blocks:
            if isinstance(block, Attention):
                q, k, v = block.query(items), block.key(items), block.value(items)
                attention = []
                for t in range(len(items)):
                    likeness = torch.stack([q[t] @ k[s] / math.sqrt(len(k[s])) for s in range(t + 1)])
                    attention.append(sum(p * v[s] for s, p in enumerate(likeness.softmax(0))))
                added = torch.stack(attention)
            else:
                kernel = torch.stack([block.before.weight, block.now.weight], -1)
                padded = F.pad(items.T[None], (block.dilation, 0))
                gates = F.conv1d(padded, kernel, block.now.bias, dilation=block.dilation)[0].T
                first, second = gates.chunk(2, -1)
                added = torch.tanh(first) * torch.sigmoid(second)
            items = torch.cat([items, added], -1)
        rows.append(head.classify(items[-1])[:ways].log_softmax(-1))
    return torch.stack(rows)


@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (4, [3, 1, 2, 3]), (3, 8)])
def test_is_a_sequence_with_each_query_at_its_end(ways, shots):
    head = small_head()
    support, labels, query, _ = random_episode(shots, ways, 2, 6, nonnegative=False)
    ours = head.adapt(support, labels, ways).log_prob(query)
    torch.testing.assert_close(ours, log_prob_of_whole_sequences(head, support, labels, query, ways))


def test_dilations_span_the_longest_sequence():
    head = small_head(ways=4, max_shots=3)  # 12 examples and the query
    dilations = [block.dilation for block in head.blocks if not isinstance(block, Attention)]
    assert dilations == 2 * [2, 4, 8, 16]
    sizes = [
        (block.key.out_features, block.value.out_features)
        for block in head.blocks
        if isinstance(block, Attention)
    ]
    assert sizes == [(64, 32), (256, 128), (512, 256)]


def test_training_takes_examples_in_any_order_and_fewer_shots(monkeypatch):
    head, seen = small_head().train(), []
    read = head._read
    monkeypatch.setattr(head, "_read", lambda s, y, *rest: seen.append((s, y)) or read(s, y, *rest))
    support, labels, query, query_labels = random_episode(3, 4, 2, 6)
    for seed in range(20):
        torch.manual_seed(seed)
        head.loss(support, labels, query, query_labels, 4)
    assert {len(y) for _, y in seen} == {4, 8, 12}
    for rows, y in seen:
        assert torch.bincount(y).tolist() == 4 * [len(y) // 4]
        for row, label in zip(rows, y):  # each with its own label
            assert labels[(support == row).all(-1)].tolist() == [label]
    assert len({tuple(y.tolist()) for _, y in seen}) > 10
    head.eval().loss(support, labels, query, query_labels, 4)
    assert torch.equal(seen[-1][1], labels)


def test_fewer_shots_of_a_batch_are_those_of_each_episode():
    head = small_head()
    support, labels, _, _ = random_episode(3, 4, 2, 6, batch=(2,))
    torch.manual_seed(1)
    rows, kept = head._with_fewer_shots(support, labels, 4)
    assert kept.shape[-1] < 12
    for i in range(2):
        for row, label in zip(rows[i], kept[i]):
            assert labels[i][(support[i] == row).all(-1)].tolist() == [label]


def test_more_classes_than_labels_are_refused():
    support, labels, _, _ = random_episode(1, 5, 1, 6)
    with pytest.raises(UserError, match=r"labels for 4 classes, not 5; train one with head\.ways = 5"):
        small_head().adapt(support, labels, 5)


def test_wrong_options_are_named():
    with pytest.raises(UserError, match="max_shots must be a whole number of at least 1"):
        small_head(max_shots=0)
