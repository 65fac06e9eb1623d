import numpy as np
import pytest
import torch

from gpldla.data.episodes import EpisodeSampler, fold_indices
from gpldla.utils.counter_random import splitmix64
from gpldla.utils.errors import UserError
from tests.helpers import tiny_set, whole

SHAPE = {"ways": 3, "shots": 2, "queries": 3, "seed": 0, "split": "novel"}


@pytest.fixture(scope="module")
def part():
    return whole(tiny_set(counts=(6, 7, 8, 9, 30, 5)))


def class_of(part, numbers):
    return torch.from_numpy(np.repeat(np.arange(len(part.counts)), part.counts))[numbers]


def test_shapes_labels_and_classes(part):
    episodes = EpisodeSampler(part, **SHAPE).draw(0, 500)
    assert episodes.support.shape == (500, 6)
    assert episodes.query.shape == (500, 9)
    assert episodes.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert episodes.query_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for numbers, labels in ((episodes.support, episodes.labels), (episodes.query, episodes.query_labels)):
        assert torch.equal(class_of(part, numbers), episodes.classes[:, labels])


def test_no_image_twice_and_no_class_twice(part):
    episodes = EpisodeSampler(part, **SHAPE).draw(0, 2000)
    for numbers in torch.cat([episodes.support, episodes.query], 1):
        assert len(numbers.unique()) == 15
    for classes in episodes.classes:
        assert len(classes.unique()) == 3


def test_an_episode_depends_on_its_number_alone(part):
    sampler = EpisodeSampler(part, **SHAPE)
    together = sampler.draw(0, 3000)
    for first, count in ((0, 1), (17, 5), (2990, 10)):
        alone = sampler.draw(first, count)
        assert torch.equal(together.support[first : first + count], alone.support)
        assert torch.equal(together.query[first : first + count], alone.query)


def test_chunks_do_not_change_the_episodes(part, monkeypatch):
    whole_draw = EpisodeSampler(part, **SHAPE).draw(5, 100)
    monkeypatch.setattr("gpldla.data.episodes.KEYS_PER_CHUNK", 1)
    assert torch.equal(whole_draw.query, EpisodeSampler(part, **SHAPE).draw(5, 100).query)


def test_seeds_and_splits_differ(part):
    def draw(**changes):
        return EpisodeSampler(part, **{**SHAPE, **changes}).draw(0, 50).support

    assert not torch.equal(draw(), draw(seed=1))
    assert not torch.equal(draw(), draw(split="base"))
    assert torch.equal(draw(), draw())


def test_classes_and_images_are_uniform(part):
    """Chi-square like: counts lie within 5 standard deviations of what uniform sampling gives."""
    episodes = EpisodeSampler(part, **SHAPE).draw(0, 20_000)
    picked = torch.bincount(episodes.classes.flatten(), minlength=6).double()
    expected = 20_000 * 3 / 6
    assert ((picked - expected).abs() < 5 * expected**0.5).all()
    of_class_4 = episodes.support[class_of(part, episodes.support) == 4]
    images = torch.bincount(of_class_4 - int(part.counts[:4].sum()), minlength=30).double()
    expected = len(of_class_4) / 30
    assert ((images - expected).abs() < 5 * expected**0.5).all()
    # The order of the classes is random too.
    first = torch.bincount(episodes.classes[:, 0], minlength=6).double()
    assert ((first - 20_000 / 6).abs() < 5 * (20_000 / 6) ** 0.5).all()


def test_mix_is_splitmix64():
    mask = (1 << 64) - 1

    def reference(counter):
        z = counter * 0x9E3779B97F4A7C15 & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    counters = [0, 1, 2, 12345, -1, 2**62, -(2**63)]
    got = splitmix64(torch.tensor(counters)).tolist()
    assert [g & mask for g in got] == [reference(c & mask) for c in counters]


def test_small_class_is_named(part):
    with pytest.raises(UserError, match=r"Class 'class 5' has 5 images, fewer than 2 shots \+ 4 queries"):
        EpisodeSampler(part, **{**SHAPE, "queries": 4})


@pytest.mark.parametrize("change", [{"ways": 7}, {"ways": 1}, {"shots": 0}, {"queries": 0}])
def test_impossible_shapes_are_refused(part, change):
    with pytest.raises(UserError):
        EpisodeSampler(part, **{**SHAPE, **change})


class TestSeparateGroups:
    @pytest.fixture
    def part(self):
        # class 0: groups of 4, 4 and 2; class 1: 5 and 5; class 2: 2 and 8
        groups = [np.repeat([0, 1, 2], [4, 4, 2]), np.repeat([0, 3], [5, 5]), np.repeat([1, 2], [2, 8])]
        return whole(tiny_set(counts=(10, 10, 10), groups=groups))

    def test_support_comes_from_one_group_and_query_from_the_others(self, part):
        episodes = EpisodeSampler(part, **SHAPE, separate_groups=True).draw(0, 1000)
        groups = torch.from_numpy(part.groups)
        support = groups[episodes.support].view(1000, 3, 2)
        query = groups[episodes.query].view(1000, 3, 3)
        assert (support[..., :1] == support).all()
        assert (query != support[..., :1]).all()
        for numbers in torch.cat([episodes.support, episodes.query], 1):
            assert len(numbers.unique()) == 15

    def test_every_eligible_group_is_used(self, part):
        episodes = EpisodeSampler(part, **SHAPE, separate_groups=True).draw(0, 1000)
        groups = torch.from_numpy(part.groups)[episodes.support].view(1000, 3, 2)[..., 0]
        used = {c: set(groups[episodes.classes == c].tolist()) for c in range(3)}
        assert used == {0: {0, 1, 2}, 1: {0, 3}, 2: {1}}  # group 2 of class 2 would leave two queries

    def test_impossible_class_is_named(self, part):
        with pytest.raises(UserError, match=r"Class 'class 0' has no group of 5 images"):
            EpisodeSampler(part, **{**SHAPE, "shots": 5}, separate_groups=True)

    def test_set_without_groups_is_refused(self):
        with pytest.raises(UserError, match="no groups"):
            EpisodeSampler(whole(tiny_set()), **{**SHAPE, "queries": 1}, separate_groups=True)


class TestTurnsAsSupport:
    def test_one_turn_is_the_episode_as_drawn(self):
        assert torch.equal(fold_indices(3, 2, 3, 1), torch.arange(15)[None])

    @pytest.mark.parametrize(("shots", "queries", "turns"), [(1, 4, 5), (2, 3, 5), (1, 4, 2), (3, 1, 4)])
    def test_classes_stay_and_no_image_is_twice_in_a_turn(self, shots, queries, turns):
        ways = 3
        labels = torch.cat([torch.arange(ways).repeat_interleave(k) for k in (shots, queries)])
        places = fold_indices(ways, shots, queries, turns)
        assert torch.equal(places[0], torch.arange(ways * (shots + queries)))
        for turn in places:
            assert torch.equal(turn.sort().values, torch.arange(len(labels)))
            assert torch.equal(labels[turn], labels)

    @pytest.mark.parametrize(("shots", "queries"), [(1, 4), (2, 3), (3, 1)])
    def test_every_image_is_support_as_often_as_the_others(self, shots, queries):
        places = fold_indices(3, shots, queries, shots + queries)
        assert (torch.bincount(places[:, : 3 * shots].flatten()) == shots).all()

    def test_two_turns_of_one_half_each(self):
        first, second = fold_indices(1, 2, 2, 2).tolist()
        assert (first, second) == ([0, 1, 2, 3], [2, 3, 0, 1])
