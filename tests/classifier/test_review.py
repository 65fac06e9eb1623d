import numpy as np
import pytest

from gpldla.classifier.review import SUSPECT_THRESHOLD, Review

PROBA = np.array(
    [
        [0.80, 0.10, 0.10],  # right
        [0.10, 0.75, 0.15],  # a taken for b, surely
        [0.30, 0.60, 0.10],  # a taken for b, hardly
        [0.20, 0.50, 0.30],  # right
        [0.02, 0.03, 0.95],  # right
    ]
)


def review(proba=PROBA, truth=(0, 0, 0, 1, 2)):
    return Review(["a", "b", "c"], np.arange(len(proba)) + 10, np.array(truth, int), np.asarray(proba, float))


class TestReview:
    def test_by_hand(self):
        found = review()
        assert found.right.tolist() == [True, False, False, True, True]
        assert found.confusion().tolist() == [[1, 2, 0], [0, 1, 0], [0, 0, 1]]
        assert found.confused() == [("a", "b", 2)]
        assert found.suspects().tolist() == [1]
        assert found.by_confidence().tolist() == [3, 2, 1, 0, 4]

    def test_the_surest_suspects_come_first(self):
        shares = np.array([SUSPECT_THRESHOLD - 0.01, SUSPECT_THRESHOLD, 0.9, 0.8])
        found = review(np.stack([1 - shares, shares, 0 * shares], 1), [0] * 4)
        assert found.suspects().tolist() == [2, 3, 1]

    def test_bins_hold_each_answer_once_and_their_intervals_hold_the_share(self):
        rng = np.random.default_rng(0)
        proba = rng.dirichlet([1, 1, 1], 500)
        truth = np.array([rng.choice(3, p=p) for p in proba])
        found = review(proba, truth)
        bins = found.bins()
        assert sum(one.answers for one in bins) == 500
        assert all(one.low <= one.accuracy <= one.high for one in bins)
        # The answers are calibrated, so the interval of almost every bin holds its mean confidence.
        assert sum(one.low <= one.confidence <= one.high for one in bins) >= len(bins) - 1
        mean = sum(one.accuracy * one.answers for one in bins) / 500
        assert mean == pytest.approx(found.right.mean())

    def test_where_nothing_can_be_left_out_all_is_empty(self):
        found = review(np.empty((0, 3)), [])
        assert found.bins() == []
        assert found.confused() == []
        assert not len(found.suspects())
        assert found.confusion().sum() == 0
