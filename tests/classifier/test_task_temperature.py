"""The temperature of a task, against plain loops, and how it travels with model and classifier."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpldla import FewShotModel
from gpldla.classifier.calibration import fit_temperature
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.file import OWN_PRIOR
from gpldla.classifier.own_prior import own_prior_head
from gpldla.classifier.task_temperature import (
    AT_HOME,
    AWAY,
    BETWEEN,
    COUNTED,
    GRID,
    MOST_SURE,
    OWN_IF_HONEST,
    OWN_IF_NOT,
    PRIOR_HOME,
    WIDER,
    Linear,
    Shape,
    TaskTemperature,
    log_gap,
)
from gpldla.data.protocols import Part
from gpldla.evaluation import PartEvaluator, Task
from gpldla.heads import create_head
from gpldla.training.home_tasks import fit_task_temperature
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors, write_tensors
from tests.helpers import tiny_set

CALIBRATION = TaskTemperature(Linear(0.3, -0.2, 0.1), Linear(1.5, -0.1, 0.05), Linear(-2.0, 0.1, -0.3))
HEADS = ("gpldla", "protonet", "gpdkt")


def task(noise, *, ways=4, shots=3, queries=50, seed=0, d=20):
    """Return support [n, d], labels, query and its labels; float64."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(ways, 1, d, generator=generator, dtype=torch.float64)
    rows = means + noise * torch.randn(ways, shots + queries, d, generator=generator, dtype=torch.float64)
    labels = torch.arange(ways)
    return (
        rows[:, :shots].flatten(0, 1),
        labels.repeat_interleave(shots),
        rows[:, shots:].flatten(0, 1),
        labels.repeat_interleave(queries),
    )


def density(x, deviation):
    return math.exp(-0.5 * (x / deviation) ** 2) / deviation


def reference(head, support, labels, ways, own_error):
    """The formulas of the module's docstring, one number at a time."""
    content = (support @ torch.arange(support.shape[1]).double().cos()).tolist()
    support = support[sorted(range(len(labels)), key=lambda i: (labels[i].item(), content[i]))]
    counts = [int((labels == c).sum()) for c in range(ways)]
    log_shots, log_ways = sum(math.log(n) for n in counts) / ways, math.log(ways / 5)
    calibration = CALIBRATION
    t, g, s = (
        part.constant + part.shots * log_shots + part.ways * log_ways
        for part in (calibration.log_temperature, calibration.log_gap, calibration.log_deviation)
    )
    seen = head.adapt(support, labels, ways).log_prob(support)
    gaps = []
    for row, own in zip(seen.tolist(), labels.tolist()):
        gaps.append(row[own] - sum(row[c] for c in range(ways) if c != own) / (ways - 1))
    gap = math.log(sum(gaps) / len(gaps))
    variance = math.exp(2 * s) + BETWEEN**2
    home = PRIOR_HOME * density(gap - g, math.sqrt(variance))
    odds = math.log(home / ((1 - PRIOR_HOME) * density(gap - g, math.sqrt(variance + WIDER**2))))
    home = 1 / (1 + math.exp(-max(-MOST_SURE, min(MOST_SURE, odds))))
    a = {None: 0.0, 3.0: OWN_IF_HONEST, 30.0: OWN_IF_NOT}[own_error]
    cases = ((home, AT_HOME), ((1 - home) * (1 - a), AWAY))
    posterior = [0.0] * len(GRID)
    for weight, deviation in cases:
        densities = [density(x, deviation) for x in GRID.tolist()]
        posterior = [p + weight * q / sum(densities) for p, q in zip(posterior, densities)]
    of_own = (1 - home) * a
    shots = counts[0]
    for k in range(shots):
        out = [c * shots + k for c in range(ways)]
        kept = [i for i in range(len(labels)) if i not in out]
        left = head.adapt(support[kept], labels[kept], ways).log_prob(support[out])
        t_left = calibration.log_temperature.constant + calibration.log_temperature.ways * log_ways
        t_left += calibration.log_temperature.shots * math.log(shots - 1)
        for own, row in enumerate(left.tolist()):
            for at, delta in enumerate(GRID.tolist()):
                weights = [math.exp(x / math.exp(t_left + delta)) for x in row]
                posterior[at] *= (weights[own] / sum(weights)) ** COUNTED
        left = (
            create_head("gpldla-auto").eval().adapt(support[kept], labels[kept], ways).log_prob(support[out])
        )
        of_own *= math.prod(left.diagonal().exp().tolist()) ** COUNTED
    mean = sum(p * x for p, x in zip(posterior, GRID.tolist())) / sum(posterior)
    return math.exp(t + mean), of_own / (of_own + sum(posterior))


class TestFormulas:
    @pytest.mark.parametrize("name", HEADS)
    @pytest.mark.parametrize("own_error", [None, 3.0, 30.0])
    @pytest.mark.parametrize("noise", [0.5, 1.5])
    def test_they_agree_with_plain_loops(self, name, own_error, noise):
        head, (support, labels, *_) = create_head(name, 20).double().eval(), task(noise)
        calibration = replace(CALIBRATION, own_error=own_error)
        found = calibration.of(head, support[None], labels, 4, own=own_prior_head())
        temperature, share = reference(head, support, labels, 4, own_error)
        assert found.temperature.item() == pytest.approx(temperature, rel=1e-6)
        assert found.share.item() == pytest.approx(share, rel=1e-6)
        assert (share == 0) == (own_error is None)

    def test_tasks_of_a_batch_do_not_change_each_other(self):
        head = create_head("gpldla").eval()
        supports = torch.stack([task(noise)[0] for noise in (0.5, 3.0)])
        labels = task(1.0)[1]
        calibration, own = replace(CALIBRATION, own_error=3.0), own_prior_head()
        together = calibration.of(head, supports, labels, 4, own=own)
        alone = [calibration.of(head, support[None], labels, 4, own=own) for support in supports]
        assert together.temperature.tolist() == pytest.approx([one.temperature.item() for one in alone])
        assert together.share.tolist() == pytest.approx([one.share.item() for one in alone], rel=1e-4)

    def test_the_order_of_examples_does_not_matter(self):
        head, (support, labels, *_) = create_head("gpldla").double().eval(), task(1.5, shots=7)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        calibration, own = replace(CALIBRATION, own_error=3.0), own_prior_head()
        found = calibration.of(head, support[None], labels, 4, own=own)
        ordered = calibration.of(head, support[order][None], labels[order], 4, own=own)
        assert ordered.temperature.item() == pytest.approx(found.temperature.item())
        assert ordered.share.item() == pytest.approx(found.share.item())

    def test_one_example_per_class_leaves_the_temperature_of_home(self):
        support, labels, *_ = task(1.0, ways=5, shots=1)
        found = CALIBRATION.of(create_head("gpldla").eval(), support[None], labels, 5)
        assert found.temperature.tolist() == [pytest.approx(math.exp(0.3))]
        assert found.share.tolist() == [0]

    def test_one_example_per_class_away_from_home_leaves_the_task_s_own_prior(self):
        head, (support, labels, *_) = create_head("gpldla").eval(), task(0.3, ways=5, shots=1)
        shares = {}
        for name, far in (("home", 0.0), ("away", 30.0)):
            calibration = TaskTemperature(
                Linear(0.3), Linear(log_gap(head, support[None], labels, 5).item()), Linear(-2.0), 3.0
            )
            answer = calibration.of(head, (support + far)[None], labels, 5, own=own_prior_head())
            shares[name] = answer.share.item()
        assert shares["home"] < 0.15
        assert shares["away"] > 0.9

    def test_unequal_shots_use_the_examples_that_can_be_left_out(self):
        support, labels, *_ = task(1.0, ways=3)
        kept = [0, 3, 4, 6, 7, 8]  # 1, 2 and 3 examples
        assert Shape.of(labels[kept]).log_shots == pytest.approx(math.log(6) / 3)
        found = CALIBRATION.of(create_head("gpldla").eval(), support[kept][None], labels[kept], 3)
        assert 0.05 < found.temperature.item() < 20

    @pytest.mark.parametrize("error", [-1.5, 1.5])
    def test_the_examples_correct_a_temperature_that_is_wrong(self, error):
        head = create_head("gpldla").eval()
        support, labels, query, truth = task(2.0, shots=8, queries=200)
        best = math.log(fit_temperature(head.adapt(support, labels, 4).log_prob(query), truth))
        away = TaskTemperature(Linear(best + error), Linear(5.0), Linear(-2.0))
        found = away.of(head, support[None], labels, 4).temperature.log().item()
        assert abs(found - best) < 0.8 * abs(error)

    def test_a_usual_gap_is_home_and_a_small_one_is_away(self):
        shape = Shape(0.0, 0.0)
        gaps = torch.tensor([1.5, 0.5], dtype=torch.float64)
        usual, small = CALIBRATION.like_home(gaps, shape).tolist()
        assert usual > 0.8
        assert small == pytest.approx(1 / (1 + math.exp(MOST_SURE)))

    def test_features_that_crowd_together_have_a_small_gap(self):
        head, (support, labels, *_) = create_head("gpldla").eval(), task(0.3)
        crowded = support + 20  # the same differences around a far mean
        near, far = (log_gap(head, rows[None], labels, 4).item() for rows in (support, crowded))
        assert far < near - 1


class TestHomeTasks:
    def test_the_usual_tasks_keep_the_model_s_temperature(self):
        model, part = FewShotModel("pixels", "protonet"), whole(tiny_set((30,) * 6))
        usual = Task(5, 5, 5)
        found = fit_task_temperature(PartEvaluator(model, part), usual, 1.7, episodes=10)
        assert found.log_temperature.at(Shape(math.log(5), 0.0)) == pytest.approx(math.log(1.7))

    def test_a_head_that_adapts_the_network_has_none(self):
        model, part = FewShotModel("conv4s", "maml"), whole(tiny_set((30,) * 6))
        assert fit_task_temperature(PartEvaluator(model, part), Task(5, 1, 5), 1.0, episodes=2) is None

    @pytest.mark.parametrize(("head", "known"), [("protonet", True), ("gpldla-auto", False)])
    def test_how_honest_the_own_prior_is_at_home(self, head, known):
        model, part = FewShotModel("pixels", head), whole(tiny_set((30,) * 6))
        found = fit_task_temperature(PartEvaluator(model, part), Task(5, 1, 5), 1.0, episodes=5)
        assert (found.own_error is not None) == known
        if known:
            assert 0 <= found.own_error <= 100


def whole(image_set):
    return Part(image_set, tuple(range(len(image_set.counts))))


class TestTravelling:
    @pytest.fixture
    def model(self):
        return FewShotModel("pixels", "gpldla", temperature=1.3, calibration=CALIBRATION)

    @pytest.fixture
    def classifier(self, model):
        rows = torch.rand(9, model.backbone.feature_dim, generator=torch.Generator().manual_seed(0))
        return FewShotClassifier.from_rows(model, rows, list("aaabbbccc"))

    def test_a_model_keeps_it(self, model, tmp_path):
        model.save(tmp_path / "model")
        assert FewShotModel.from_pretrained(tmp_path / "model").calibration == CALIBRATION

    def test_a_model_without_one_applies_its_temperature(self, model):
        model.calibration = None
        assert "calibration" not in model.config()
        rows = torch.rand(4, model.backbone.feature_dim)
        assert FewShotClassifier.from_rows(model, rows, list("aabb")).temperature == 1.3

    @pytest.mark.parametrize("value", ["x", {"log_gap": {}}, {"unknown": {"constant": 1}}, 3])
    def test_a_broken_one_is_refused(self, model, value):
        with pytest.raises(UserError, match="incomplete"):
            FewShotModel.from_config({**model.config(), "calibration": value}, "config.json")

    def test_numbers_must_be_finite(self, model):
        facts = json.loads(json.dumps(model.config()))
        facts["calibration"]["log_gap"]["shots"] = math.nan
        with pytest.raises(UserError, match="incomplete"):
            FewShotModel.from_config(facts, "config.json")

    @pytest.mark.parametrize("support", [True, False])
    def test_a_classifier_file_keeps_the_temperature(self, classifier, tmp_path, support):
        query = torch.rand(5, classifier.model.backbone.feature_dim)
        classifier.save(tmp_path / "one.safetensors", support=support)
        loaded = FewShotClassifier.load(tmp_path / "one.safetensors")
        assert loaded.temperature == classifier.temperature != 1.3
        np.testing.assert_array_equal(loaded.probabilities(query), classifier.probabilities(query))

    def test_another_temperature_may_be_chosen(self, classifier):
        query = torch.rand(5, classifier.model.backbone.feature_dim)
        raw = classifier.posterior.log_prob(query).exp().detach().numpy()
        np.testing.assert_allclose(classifier.with_temperature(1).probabilities(query), raw)
        assert classifier.temperature != 1
        assert classifier.with_temperature(2).own_prior_share == 0
        with pytest.raises(UserError, match="temperature"):
            classifier.with_temperature(0)


class TestOwnPrior:
    """A classifier away from home, where the task's own prior has a share of the answers."""

    @pytest.fixture
    def classifier(self):
        calibration = replace(CALIBRATION, own_error=3.0)
        model = FewShotModel("pixels", "gpldla", temperature=1.3, calibration=calibration)
        rows = torch.rand(9, model.backbone.feature_dim, generator=torch.Generator().manual_seed(0))
        return FewShotClassifier.from_rows(model, rows, list("aaabbbccc"))

    @pytest.fixture
    def query(self, classifier):
        shape = (5, classifier.model.backbone.feature_dim)
        return torch.rand(shape, generator=torch.Generator().manual_seed(1))

    def test_probabilities_are_a_mixture(self, classifier, query):
        share, rows, labels = classifier.own_prior_share, classifier.support, torch.arange(9) // 3
        assert 0.01 < share < 0.99
        own = own_prior_head().adapt(rows, labels, 3).log_prob(query).exp().numpy()
        model = classifier.with_temperature(classifier.temperature).probabilities(query)
        got = classifier.probabilities(query)
        np.testing.assert_allclose(got, (1 - share) * model + share * own, rtol=1e-5)
        assert np.abs(own - model).max() > 0.05

    def test_leaving_out_mixes_as_well(self, classifier):
        share, rows, labels = classifier.own_prior_share, classifier.support, torch.arange(9) // 3
        own = own_prior_head()
        own = own.leave_one_out(rows, labels, 3, None, own.adapt(rows, labels, 3)).exp().numpy()
        model = classifier.with_temperature(classifier.temperature).leave_one_out()
        np.testing.assert_allclose(
            classifier.leave_one_out(), (1 - share) * model + share * own, rtol=1e-4, atol=1e-6
        )

    @pytest.mark.parametrize("support", [True, False])
    def test_a_file_keeps_it(self, classifier, query, tmp_path, support):
        classifier.save(tmp_path / "one.safetensors", support=support)
        loaded = FewShotClassifier.load(tmp_path / "one.safetensors")
        assert loaded.own_prior_share == classifier.own_prior_share
        np.testing.assert_array_equal(loaded.probabilities(query), classifier.probabilities(query))

    def test_a_file_without_its_moments_is_refused(self, classifier, tmp_path):
        file = tmp_path / "one.safetensors"
        classifier.save(file)
        tensors, info = read_tensors(file)
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(OWN_PRIOR)}
        write_tensors(file, kept, info)
        with pytest.raises(UserError, match="incomplete"):
            FewShotClassifier.load(file)

    def test_a_model_keeps_how_honest_it_is(self, classifier, tmp_path):
        classifier.model.save(tmp_path / "model")
        assert FewShotModel.from_pretrained(tmp_path / "model").calibration.own_error == 3.0

    def test_an_evaluation_answers_as_classifiers_do(self, classifier):
        model, task = classifier.model, Task(3, 2, 4)
        evaluator = PartEvaluator(model, whole(tiny_set((30,) * 6)))
        predictions = evaluator.predict(task, episodes=3, seed=0, split="novel")
        answers = evaluator.answer(task, predictions, seed=0, split="novel")
        support, labels, query = evaluator.one_episode(task, seed=0, split="novel")
        alone = FewShotClassifier.from_rows(model, support, labels.tolist())
        assert answers.shares[0].item() == pytest.approx(alone.own_prior_share, rel=1e-4)
        got = answers.predictions.log_prob[0].exp().numpy()
        np.testing.assert_allclose(got, alone.probabilities(query), atol=1e-5)
