import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from gpldla.classifier.calibration import (
    accuracy_percent,
    apply_temperature,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from gpldla.utils.errors import UserError


def random_predictions(n=4000, ways=5, spread=2.0, seed=0):
    """Log probabilities [n, ways] and labels [n] that are drawn from the probabilities themselves."""
    generator = torch.Generator().manual_seed(seed)
    log_prob = (spread * torch.randn(n, ways, generator=generator, dtype=torch.float64)).log_softmax(-1)
    return log_prob, log_prob.exp().multinomial(1, generator=generator).squeeze(1)


def log_prob_of(confidences):
    """Two-way predictions that put each of `confidences` on class 0: [n, 2]."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([p, 1 - p], 1).log()


@pytest.mark.parametrize("scale", [1, 1e4])
def test_the_temperature_of_float32_is_that_of_the_same_numbers_in_float64(scale):
    """In float32 the likelihood is too rough a function of T for a search to find its minimum."""
    log_prob, labels = random_predictions(spread=2.0 * scale)
    rounded = log_prob.float()
    assert fit_temperature(rounded, labels) == fit_temperature(rounded.double(), labels)


class TestCalibrationError:
    @pytest.mark.parametrize("ways", [2, 5, 20])
    @pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
    def test_agrees_with_torchmetrics(self, ways, temperature):
        log_prob, labels = random_predictions(ways=ways)
        log_prob = apply_temperature(log_prob, temperature)
        theirs = multiclass_calibration_error(log_prob.exp(), labels, ways, n_bins=20, norm="l1")
        # They compute in float32, and give what rounds to a confidence of 1 a bin of its own.
        assert reliability(log_prob, labels).error == pytest.approx(100 * theirs.item(), abs=1e-3)

    def test_by_hand(self):
        # (0.60, 0.65]: 0.62 right, 0.64 wrong, a gap of |0.5 - 0.63|; (0.90, 0.95]: 0.92 right, a gap of 0.08
        log_prob, labels = log_prob_of([0.62, 0.64, 0.92]), torch.tensor([0, 1, 0])
        assert reliability(log_prob, labels).error == pytest.approx(100 * (2 * 0.13 + 0.08) / 3)

    def test_perfect_predictions_have_none(self):
        log_prob = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
        assert reliability(log_prob, torch.tensor([0, 1])).error == 0

    def test_sure_and_wrong_is_the_worst(self):
        log_prob = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
        assert reliability(log_prob, torch.tensor([1, 0])).error == 100

    def test_probabilities_that_mean_what_they_say_have_little(self):
        assert reliability(*random_predictions(100_000)).error < 0.6

    @pytest.mark.parametrize("equal_mass", [False, True])
    def test_bins_do_not_depend_on_the_order_of_predictions(self, equal_mass):
        log_prob, labels = random_predictions()
        order = torch.randperm(len(labels))
        one = reliability(log_prob, labels, equal_mass=equal_mass)
        other = reliability(log_prob[order], labels[order], equal_mass=equal_mass)
        assert one.error == pytest.approx(other.error)

    def test_rounding_above_one_stays_in_the_last_bin(self):
        log_prob = torch.tensor([[1e-6, -20.0]])
        assert reliability(log_prob, torch.tensor([0])).counts.tolist() == [0] * 19 + [1]


class TestBins:
    def test_edges_belong_to_the_bin_below(self):
        bins = reliability(log_prob_of([0.5, 0.75, 1.0]), torch.tensor([0, 0, 0]), bins=4)
        assert bins.counts.tolist() == [0, 1, 1, 1]

    def test_numbers_of_a_bin(self):
        bins = reliability(log_prob_of([0.6, 0.7, 0.9]), torch.tensor([0, 1, 0]), bins=4)
        np.testing.assert_allclose(bins.confidence, [np.nan, np.nan, 0.65, 0.9])
        np.testing.assert_allclose(bins.accuracy, [np.nan, np.nan, 0.5, 1.0])
        np.testing.assert_allclose(bins.edges, [0, 0.25, 0.5, 0.75, 1])

    def test_equal_mass_bins_hold_the_same_number(self):
        counts = reliability(*random_predictions(4000), equal_mass=True).counts
        assert counts.sum() == 4000
        assert set(counts) <= {199, 200, 201}

    def test_equal_mass_by_hand(self):
        bins = reliability(
            log_prob_of([0.6, 0.7, 0.8, 0.9]), torch.tensor([0, 1, 0, 0]), bins=2, equal_mass=True
        )
        np.testing.assert_allclose(bins.confidence, [0.65, 0.85])
        np.testing.assert_allclose(bins.accuracy, [0.5, 1.0])
        assert bins.error == pytest.approx(100 * (0.15 + 0.15) / 2)

    def test_equal_mass_bins_of_ties_count_every_prediction(self):
        bins = reliability(
            log_prob_of([0.9] * 30 + [0.6]), torch.zeros(31, dtype=torch.long), equal_mass=True
        )
        assert bins.counts.sum() == 31
        assert bins.error == pytest.approx(100 * (30 * 0.1 + 0.4) / 31)


class TestApplyTemperature:
    @pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 5.0])
    def test_probabilities_sum_to_one(self, temperature):
        tempered = apply_temperature(random_predictions()[0], temperature)
        torch.testing.assert_close(tempered.exp().sum(-1), torch.ones(4000, dtype=torch.float64))

    @pytest.mark.parametrize("temperature", [0.1, 0.7, 5.0])
    def test_the_order_of_classes_stays(self, temperature):
        log_prob = random_predictions()[0]
        assert torch.equal(apply_temperature(log_prob, temperature).argsort(-1), log_prob.argsort(-1))

    def test_high_flattens_and_low_sharpens(self):
        log_prob = log_prob_of([0.8])
        confidence = [apply_temperature(log_prob, t).exp().max().item() for t in (4.0, 2.0, 1.0, 0.5)]
        assert confidence == sorted(confidence)
        assert confidence[1] == pytest.approx(2 / 3)  # √0.8 : √0.2 = 2 : 1

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_an_impossible_class_stays_impossible(self, temperature):
        log_prob = torch.tensor([[math.log(0.8), math.log(0.2), -math.inf]])
        tempered = apply_temperature(log_prob, temperature)
        assert tempered[0, 2] == -math.inf
        assert tempered[0, :2].isfinite().all()

    def test_one_changes_nothing(self):
        log_prob = random_predictions()[0]
        assert torch.equal(apply_temperature(log_prob, 1.0), log_prob)


class TestFitTemperature:
    @pytest.mark.parametrize("true", [0.3, 1.0, 2.5, 8.0])
    def test_recovers_a_known_temperature(self, true):
        log_prob, labels = random_predictions(40_000)
        distorted = (log_prob / (1 / true)).log_softmax(-1)
        assert fit_temperature(distorted, labels) == pytest.approx(true, rel=0.03)

    @pytest.mark.parametrize("seed", range(3))
    def test_finds_what_lbfgs_finds(self, seed):
        log_prob, labels = random_predictions(500, seed=seed)
        log_prob = 1.7 * log_prob
        log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [log_t], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
        )

        def loss():
            optimizer.zero_grad()
            value = torch.nn.functional.nll_loss((log_prob / log_t.exp()).log_softmax(-1), labels)
            value.backward()
            return value

        optimizer.step(loss)
        assert fit_temperature(log_prob, labels) == pytest.approx(log_t.exp().item(), rel=1e-3)

    def test_float32_and_float64_give_the_same(self):
        log_prob, labels = random_predictions(500)
        assert fit_temperature(log_prob.float(), labels) == pytest.approx(
            fit_temperature(log_prob, labels), rel=1e-3
        )

    def test_predictions_that_are_all_right_are_sharpened_as_far_as_it_matters(self):
        log_prob = torch.tensor([[-0.2, -1.7], [-1.7, -0.2]])
        temperature = fit_temperature(log_prob, torch.tensor([0, 1]))
        assert negative_log_likelihood(apply_temperature(log_prob, temperature), torch.tensor([0, 1])) < 1e-6

    def test_predictions_that_are_all_wrong_become_uniform(self):
        log_prob = torch.tensor([[-0.2, -1.7], [-1.7, -0.2]])
        assert fit_temperature(log_prob, torch.tensor([1, 0])) == pytest.approx(1000, rel=0.01)

    def test_predictions_without_any_doubt_give_a_usable_number(self):
        log_prob = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
        assert 0.01 <= fit_temperature(log_prob, torch.tensor([0, 1])) <= 1000


def test_negative_log_likelihood_by_hand():
    log_prob = log_prob_of([0.8, 0.4])
    expected = -(math.log(0.8) + math.log(0.6)) / 2
    assert negative_log_likelihood(log_prob, torch.tensor([0, 1])) == pytest.approx(expected)


def test_accuracy_of_each_episode_in_percent():
    log_prob = torch.stack([log_prob_of([0.9, 0.8, 0.3, 0.6]), log_prob_of([0.1, 0.2, 0.3, 0.4])])
    assert accuracy_percent(log_prob, torch.tensor([0, 0, 0, 1])).tolist() == [50.0, 25.0]


@pytest.mark.parametrize("function", [fit_temperature, reliability])
class TestWhatIsNoPrediction:
    def test_no_rows(self, function):
        with pytest.raises(UserError, match="log_prob has no rows"):
            function(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))

    def test_rows_that_are_no_numbers(self, function):
        log_prob = torch.zeros(4, 3).log_softmax(-1)
        log_prob[2, 1] = torch.nan
        with pytest.raises(UserError, match="1 of 4 rows of log_prob, first 2, are NaN"):
            function(log_prob, torch.zeros(4, dtype=torch.int64))


def test_a_label_without_probability_has_no_temperature():
    log_prob = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]).log()
    assert fit_temperature(log_prob, torch.tensor([0, 1])) > 0
    with pytest.raises(UserError, match="Row 1 of log_prob gives its label probability 0"):
        fit_temperature(log_prob, torch.tensor([0, 0]))
