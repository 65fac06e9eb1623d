import itertools
import json
import math

import numpy as np
import pytest
import torch

from gpldla import evaluation
from gpldla.classifier.calibration import apply_temperature, fit_temperature
from gpldla.classifier.model import FewShotModel
from gpldla.data.augment.transforms import evaluation_images
from gpldla.data.episodes import EpisodeSampler
from gpldla.data.protocols import Part, Protocol
from gpldla.evaluation import PartEvaluator, Predictions, ProtocolEvaluator, Task, measure
from gpldla.heads import create_head
from gpldla.utils.errors import UserError
from tests.helpers import tiny_protocol, tiny_set, whole

TASK = Task(ways=3, shots=2, queries=3)
MEASURED = ("accuracy", "interval", "nll", "ece")
SUFFIXES = ("", "_model_temperature", "_classifier", "_val_temperature", "_paper_temperature")


def noisy_protocol(parts=("validation", "novel")):
    """Classes that are hard to tell apart, so that accuracies lie between chance and 100 %."""
    rng = np.random.default_rng(1)
    protocol = tiny_protocol()
    for part in protocol.parts.values():
        noise = rng.integers(0, 256, part.image_set.images.shape)
        part.image_set.images[:] = (0.1 * part.image_set.images + 0.9 * noise).astype(np.uint8)
    return Protocol("noisy", {name: protocol.parts[name] for name in parts})


@pytest.fixture
def model():
    torch.manual_seed(0)
    return FewShotModel("pixels", temperature=1.7).eval()


@pytest.fixture
def evaluator(model):
    return ProtocolEvaluator(model, noisy_protocol())


class TestNumbers:
    def test_every_promised_key_is_there(self, evaluator):
        numbers = evaluator.evaluate(TASK, episodes=10, repeats=2).numbers
        for suffix in SUFFIXES:
            for name in MEASURED:
                assert isinstance(numbers[name + suffix], float)

    def test_they_are_json(self, evaluator):
        numbers = evaluator.evaluate(TASK, episodes=10, repeats=2).numbers
        assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers

    def test_what_was_measured_is_said(self, evaluator):
        numbers = evaluator.evaluate(TASK, episodes=10, repeats=2, seed=5).numbers
        said = {"dataset": "noisy", "ways": 3, "shots": 2, "queries": 3, "separate_groups": False}
        assert said.items() <= numbers.items()
        assert (numbers["episodes"], numbers["repeats"], numbers["seeds"]) == (10, 2, [5, 6])

    def test_accuracy_is_in_percent_and_a_temperature_leaves_it(self, evaluator):
        numbers = evaluator.evaluate(TASK, episodes=30, repeats=1).numbers
        assert 100 / 3 < numbers["accuracy"] < 100
        for suffix in SUFFIXES[1:]:
            assert numbers["accuracy" + suffix] == numbers["accuracy"]
            assert numbers["interval" + suffix] == numbers["interval"]

    def test_each_temperature_gives_its_own_likelihood(self, evaluator):
        result = evaluator.evaluate(TASK, episodes=30, repeats=1)
        log_prob, labels = result.predictions.flat
        temperatures = [
            1.0,
            *(result.numbers[f"temperature_{kind}"] for kind in ("model", "task", "val", "paper")),
        ]
        for suffix, temperature in zip(SUFFIXES, temperatures):
            expected = torch.nn.functional.nll_loss(apply_temperature(log_prob, temperature), labels)
            assert result.numbers["nll" + suffix] == pytest.approx(expected.item(), rel=1e-5)


class TestAgainstAPlainLoop:
    @pytest.mark.parametrize("head", ["gpldla", "protonet"])
    def test_log_probabilities_and_accuracy(self, head):
        model = FewShotModel("pixels", head).eval()
        protocol = noisy_protocol()
        numbers = ProtocolEvaluator(model, protocol).evaluate(TASK, episodes=8, repeats=1, seed=3).numbers

        part = protocol.part("novel")
        images = evaluation_images(torch.from_numpy(part.read(slice(None))), model.preprocessing)
        shape = {"ways": 3, "shots": 2, "queries": 3}
        episodes = EpisodeSampler(part, **shape, seed=3, split="novel").draw(0, 8)
        plain_head = create_head(head).eval()
        right = likelihood = 0
        with torch.no_grad():
            for support, query in zip(episodes.support, episodes.query):
                posterior = plain_head.adapt(model.backbone(images[support]), episodes.labels, 3)
                for number, label in zip(query, episodes.query_labels):
                    log_prob = posterior.log_prob(model.backbone(images[number : number + 1]))[0]
                    right += int(log_prob.argmax() == label)
                    likelihood += log_prob[label].item()
        assert numbers["accuracy"] == pytest.approx(100 * right / (8 * 9))
        assert numbers["nll"] == pytest.approx(-likelihood / (8 * 9), rel=1e-4)

    def test_labels_belong_to_the_predictions(self, evaluator):
        predictions = evaluator.part("novel").predict(TASK, episodes=4, seed=0, split="novel")
        assert predictions.log_prob.shape == (4, 9, 3)
        assert predictions.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        log_prob, labels = predictions.flat
        assert labels.tolist() == 4 * [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert torch.equal(log_prob[9:18], predictions.log_prob[1])


class TestMeasure:
    def predictions(self, right_by_episode):
        """Two-way episodes of four queries, so many of them right, each with probability 0.8."""
        log_prob = torch.tensor([0.2, 0.8]).log().repeat(len(right_by_episode), 4, 1)
        for episode, right in enumerate(right_by_episode):
            log_prob[episode, :right] = torch.tensor([0.8, 0.2]).log()
        return Predictions(log_prob, torch.zeros(4, dtype=torch.long))

    def test_interval_is_that_of_the_mean_over_episodes(self):
        accuracies = np.array([100, 50, 25, 75])
        numbers = measure(self.predictions([4, 2, 1, 3]))
        assert numbers["accuracy"] == pytest.approx(accuracies.mean())
        assert numbers["interval"] == pytest.approx(1.96 * accuracies.std() / math.sqrt(4))

    def test_deviation_is_that_of_the_means_of_the_repeats(self):
        numbers = measure(self.predictions([4, 2, 1, 3]), repeats=2)
        assert numbers["accuracy_std"] == pytest.approx(np.std([75, 50]))

    def test_likelihood_and_calibration_error(self):
        numbers = measure(self.predictions([4, 2, 1, 3]))
        assert numbers["nll"] == pytest.approx(-(10 * math.log(0.8) + 6 * math.log(0.2)) / 16, rel=1e-5)
        assert numbers["ece"] == pytest.approx(100 * abs(10 / 16 - 0.8), rel=1e-5)

    def test_one_episode_has_no_interval(self):
        assert measure(self.predictions([3]))["interval"] == 0


class TestSeeds:
    def test_the_same_seed_gives_the_same_numbers(self, model):
        runs = [
            ProtocolEvaluator(model, noisy_protocol()).evaluate(TASK, episodes=10, repeats=2)
            for _ in range(2)
        ]
        assert runs[0].numbers == runs[1].numbers

    def test_another_seed_gives_others(self, evaluator):
        one, other = (evaluator.evaluate(TASK, episodes=10, repeats=1, seed=s).numbers for s in (0, 1))
        assert one["nll"] != other["nll"]

    def test_repeats_are_runs_with_the_following_seeds(self, evaluator):
        together = evaluator.evaluate(TASK, episodes=10, repeats=3, seed=4)
        alone = [evaluator.evaluate(TASK, episodes=10, repeats=1, seed=s) for s in (4, 5, 6)]
        assert torch.equal(together.predictions.log_prob, torch.cat([a.predictions.log_prob for a in alone]))
        accuracies = [a.numbers["accuracy"] for a in alone]
        assert together.numbers["accuracy"] == pytest.approx(np.mean(accuracies))
        assert together.numbers["accuracy_std"] == pytest.approx(np.std(accuracies))

    @pytest.mark.parametrize("predictive", ["mc", "mc-logits"])
    def test_monte_carlo_follows_the_seed_and_leaves_the_generator_alone(self, model, predictive):
        model.set_head_options({"predictive": predictive})
        evaluator = ProtocolEvaluator(model, noisy_protocol())
        before = torch.get_rng_state()
        one = evaluator.evaluate(TASK, episodes=5, repeats=1).numbers
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        assert evaluator.evaluate(TASK, episodes=5, repeats=1).numbers == one
        assert evaluator.evaluate(TASK, episodes=5, repeats=1, seed=1).numbers["nll"] != one["nll"]


class TestChunks:
    @pytest.mark.parametrize("name", ["PROBS_PER_CHUNK", "IMAGES_PER_CHUNK"])
    @pytest.mark.parametrize("size", [1, 7, 200, 10**9])
    def test_their_size_changes_nothing(self, model, monkeypatch, name, size):
        usual = ProtocolEvaluator(model, noisy_protocol()).evaluate(TASK, episodes=20, repeats=2)
        monkeypatch.setattr(evaluation, name, {"cpu": size})
        other = ProtocolEvaluator(model, noisy_protocol()).evaluate(TASK, episodes=20, repeats=2)
        torch.testing.assert_close(
            other.predictions.log_prob, usual.predictions.log_prob, atol=1e-5, rtol=1e-5
        )
        assert other.numbers["accuracy"] == pytest.approx(usual.numbers["accuracy"])


class TestTemperatures:
    def test_the_first_is_fitted_on_validation_classes(self, evaluator):
        result = evaluator.evaluate(TASK, episodes=20, repeats=1)
        predictions = evaluator.part("validation").predict(
            TASK, episodes=20, seed=0, split="validation-temperature"
        )
        assert result.numbers["temperature_val"] == fit_temperature(*predictions.flat)

    def test_a_protocol_without_validation_uses_the_one_of_the_model(self, model):
        evaluator = ProtocolEvaluator(model, noisy_protocol(parts=["novel"]))
        assert evaluator.evaluate(TASK, episodes=5, repeats=1).numbers["temperature_val"] == 1.7

    def test_the_second_is_fitted_on_other_episodes_than_are_measured(self, evaluator, monkeypatch):
        drawn = []
        draw = EpisodeSampler.draw

        def spy(sampler, first, count):
            episodes = draw(sampler, first, count)
            drawn.append((sampler, episodes))
            return episodes

        part = evaluator.part("novel")
        monkeypatch.setattr(EpisodeSampler, "draw", spy)
        monkeypatch.setattr(evaluator, "protocol", Protocol("novel only", {"novel": part.part}))
        evaluator.evaluate(TASK, episodes=40, repeats=2)
        *measured, other = [torch.cat([e.support, e.query], 1).tolist() for _, e in drawn]
        assert len(measured) == 2
        assert len(other) == 80
        seen = {tuple(episode) for episodes in measured for episode in episodes}
        assert len(seen) == 80
        assert not seen & {tuple(episode) for episode in other}


class TestRepresentingOnce:
    def test_each_image_passes_the_network_once(self, model, monkeypatch):
        passed = []
        forward = model.backbone.forward

        def spy(images):
            passed.append(len(images))
            return forward(images)

        monkeypatch.setattr(model.backbone, "forward", spy)
        protocol = noisy_protocol()
        evaluator = ProtocolEvaluator(model, protocol)
        for shots in (1, 2):
            evaluator.evaluate(Task(3, shots, 3), episodes=10, repeats=2)
        assert sum(passed) == sum(len(part.indices) for part in protocol.parts.values())

    @pytest.fixture
    def reads(self, monkeypatch):
        """The numbers that each request to a part asks for."""
        asked, read = [], Part.read

        def spy(part, numbers):
            asked.append(numbers.tolist())
            return read(part, numbers)

        monkeypatch.setattr(Part, "read", spy)
        return asked

    def test_only_images_that_an_episode_needs_are_read_and_each_once(self, model, reads):
        part = whole(tiny_set())
        evaluator, needed = PartEvaluator(model, part), set()
        for seed in (0, 1, 2):
            evaluator.predict(TASK, episodes=1, seed=seed, split="novel")
            drawn = TASK.sampler(part, seed=seed, split="novel").draw(0, 1)
            needed |= {*drawn.support.flatten().tolist(), *drawn.query.flatten().tolist()}
            assert sorted(itertools.chain(*reads)) == sorted(needed)
        assert len(needed) < 30

    def test_what_was_represented_before_changes_no_answer(self, model):
        part = whole(tiny_set())
        evaluator = PartEvaluator(model, part)
        for seed in (0, 1, 2):
            used = evaluator.predict(TASK, episodes=2, seed=seed, split="novel")
            fresh = PartEvaluator(model, part).predict(TASK, episodes=2, seed=seed, split="novel")
            torch.testing.assert_close(used.log_prob, fresh.log_prob)

    def test_only_a_few_images_are_read_at_once(self, model, reads, monkeypatch):
        monkeypatch.setattr(evaluation, "IMAGES_PER_CHUNK", {"cpu": 7})
        PartEvaluator(model, whole(tiny_set())).predict(TASK, episodes=50, seed=0, split="novel")
        assert list(map(len, reads)) == [7, 7, 7, 7, 2]

    def test_the_model_is_put_in_evaluation_mode(self, model):
        model.train()
        PartEvaluator(model, whole(tiny_set()))
        assert not model.training


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(5, 1, 3), "needs 5 classes"),
        (Task(3, 1, 9), "fewer than 1 shots"),
        (Task(3, 0, 1), "shots must be"),
        (Task(3, 1, 3, separate_groups=True), "has no groups"),
    ],
)
def test_a_task_that_the_data_cannot_give_is_refused(evaluator, task, message):
    with pytest.raises(UserError, match=message):
        evaluator.evaluate(task, episodes=5, repeats=1)


def test_validation_classes_of_too_few_images_use_the_stored_temperature(model):
    protocol = noisy_protocol()
    small = whole(tiny_set((3, 4, 3, 4)))
    evaluator = ProtocolEvaluator(model, Protocol("noisy", {**protocol.parts, "validation": small}))
    numbers = evaluator.evaluate(TASK, episodes=4, repeats=1).numbers
    assert (numbers["temperature_val"], numbers["temperature_val_is_fitted"]) == (1.7, False)


def test_more_ways_than_validation_classes_use_the_stored_temperature(model):
    protocol = noisy_protocol()
    few = Part(protocol.part("validation").image_set, (0, 1))
    evaluator = ProtocolEvaluator(model, Protocol("noisy", {**protocol.parts, "validation": few}))
    assert evaluator.evaluate(TASK, episodes=4, repeats=1).numbers["temperature_val"] == model.temperature
