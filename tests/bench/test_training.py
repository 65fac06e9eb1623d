import json

import numpy as np
import pytest
import torch

from gpldla.bench import training
from gpldla.bench.training import Case, bench_training, cases, image_cost, training_table
from gpldla.data.store import ImageSet
from gpldla.training.stage import Acceleration
from tests.helpers import call

CPU = torch.device("cpu")


class TestCost:
    def test_conv4_is_what_a_hand_counts(self):
        places = [84**2, 42**2, 21**2, 10**2]
        products = [27 * 64 * places[0], *(9 * 64 * 64 * n for n in places[1:])]
        inputs = [3 * places[0], *(64 * n for n in places[1:])]
        for bytes_per_value in (2, 4):
            cost = image_cost("conv4", bytes_per_value)
            assert cost.operations == 2 * (2 * products[0] + 3 * sum(products[1:]))
            assert cost.bytes == 3 * 224**2 + bytes_per_value * (2 * inputs[0] + 5 * sum(inputs[1:]))

    def test_a_shortcut_reads_what_its_block_reads(self):
        """ResNet-10 has 12 convolutions, three of them beside another one that has the same input."""
        stage = [(64, 56), (64, 56), (64, 56), (128, 28), (128, 28), (256, 14), (256, 14), (512, 7)]
        moved = 3 * 224**2 + 2 * (2 * 3 * 224**2 + 5 * sum(c * side**2 for c, side in stage))
        assert image_cost("resnet10", 2).bytes == moved


@pytest.fixture
def small(monkeypatch):
    """A few small images, and one short case."""

    def few_images():
        pixels = np.random.default_rng(0).integers(0, 256, (8 * 25, 3, 24, 24), dtype=np.uint8)
        return ImageSet("few", pixels, tuple("abcdefgh"), np.full(8, 25))

    monkeypatch.setattr(training, "generated_images", few_images)
    monkeypatch.setattr(training, "CLASSES", 8)
    monkeypatch.setattr(training, "SECONDS_PER_CASE", {"cpu": 0.01})
    monkeypatch.setattr(training, "EVALUATED_EPISODES", 4)
    monkeypatch.setattr(training, "cases", lambda device: [Case("plain operations", "conv4s", 1, "32-true")])
    monkeypatch.setattr(training, "hardware", lambda device: dict.fromkeys(LIMITS, 1e9))


LIMITS = ("operations_a_second", "bytes_a_second")


def test_a_row_sets_the_time_beside_the_floor(small):
    results = bench_training(CPU, rounds=1)
    (row,) = results["rows"]
    cost = image_cost("conv4s", 4)
    assert row["images_an_episode"] == 85
    assert row["operations_floor_ms"] == pytest.approx(85 * cost.operations / 1e6)
    assert row["bytes_floor_ms"] == pytest.approx(85 * cost.bytes / 1e6)
    floor = max(row["operations_floor_ms"], row["bytes_floor_ms"])
    assert row["times_the_floor"] == pytest.approx(row["ms_an_episode"] / floor)
    assert row["images_a_second"] == pytest.approx(85e3 / row["ms_an_episode"])
    assert results["evaluation"] == {
        "episodes": 20,
        "images": 400,
        "seconds": pytest.approx(results["evaluation"]["seconds"]),
    }
    assert training_table(results).row_count == 1


def test_the_command_prints_and_writes(small, tmp_path, capsys):
    file = tmp_path / "numbers.json"
    assert call("bench", "training", "--device", "cpu", "--rounds", "1", "--json", file) == 0
    results = json.loads(file.read_text("utf-8"))
    assert results["command"] == "gpldla bench training --device cpu --rounds 1"
    assert {"commit", "device", *LIMITS} <= results.keys()
    out = capsys.readouterr().out
    assert "times the floor" in out
    assert "plain operations" in out


@pytest.mark.parametrize(("graphs", "compiled"), [(True, True), (True, False), (False, False)])
def test_a_case_trains_with_its_own_acceleration(small, graphs, compiled):
    case = Case("", "conv4s", 1, "32-true", graphs=graphs, compiled=compiled)
    acceleration = training._stage(case, training.generated_images(), CPU).context.acceleration
    assert acceleration == Acceleration(graphs=graphs, compile_from_updates=0 if compiled else None)


def test_a_gpu_is_measured_in_every_version():
    labels = [(case.backbone, case.episodes_per_update, case.graphs) for case in cases(torch.device("cuda"))]
    assert ("conv4", 1, False) in labels
    assert ("conv4", 16, True) in labels
    assert ("resnet10", 1, True) in labels
    assert {case.graphs for case in cases(CPU)} == {False}
