import io
import json
import re
import time

import pytest
from rich.console import Console

from gpldla.classifier.model import FewShotModel
from gpldla.reports.demo import SETTINGS, run_demo


class Demo:
    """One run of the fast demo: where it wrote, what it printed, how long it took."""

    def __init__(self, folder):
        self.folder = folder
        console = Console(file=io.StringIO(), width=120)
        started = time.process_time()
        self.returned = run_demo(folder / "demo", fast=True, console=console)
        self.seconds = time.process_time() - started
        self.report = (folder / "demo" / "report.html").read_text("utf-8")
        self.results = json.loads((folder / "demo" / "results.json").read_text("utf-8"))
        self.printed = console.file.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return Demo(tmp_path_factory.mktemp("demo"))


def test_is_fast(demo):
    """About 25 s of computing on all cores together, whatever runs beside it."""
    assert demo.seconds < 60


def test_every_setting_has_a_row(demo):
    rows = demo.results["rows"]
    assert rows == demo.returned["rows"]
    assert [row["label"] for row in rows] == [setting.label for setting in SETTINGS]
    for row in rows:
        assert {"accuracy", "interval", "nll", "ece", "pixels", "untrained"} <= row.keys()


def test_training_helps_on_unseen_scripts(demo):
    row = demo.results["rows"][0]
    assert (row["dataset"], row["ways"], row["shots"], row["separate_groups"]) == ("glyphs", 5, 1, True)
    assert row["accuracy"] > row["untrained"] + 10


def test_more_examples_help_and_more_classes_do_not(demo):
    accuracy = [row["accuracy"] for row in demo.results["rows"]]
    assert accuracy[0] < accuracy[1]
    assert accuracy[2] < accuracy[0]


def test_the_report_shows_the_results(demo):
    for row in demo.results["rows"]:
        assert f"{row['accuracy']:.1f} ± {row['interval']:.1f}" in demo.report
        assert row["label"] in demo.report


def test_the_report_shows_home_beside_away(demo):
    for setting, place in ((SETTINGS[0], "At home"), (SETTINGS[6], "Away")):
        row = next(row for row in demo.results["rows"] if row["label"] == setting.label)
        moved = f"its error goes from {row['ece']:.1f} to {row['ece_classifier']:.1f} points"
        likelihood = f"the NLL from {row['nll']:.3f} to {row['nll_classifier']:.3f}."
        sentence = next(line for line in demo.report.splitlines() if f"<p>{place}: " in line)
        assert moved in sentence
        assert likelihood in sentence
        for number in (row["accuracy"], row["ece"], row["ece_model_temperature"], row["ece_classifier"]):
            assert f">{number:.1f}</td>" in demo.report


def test_the_report_needs_nothing_from_elsewhere(demo):
    assert not re.search(r'(src|href)\s*=\s*["\']?\s*(https?:)?//', demo.report)
    assert "<script" not in demo.report


def test_the_report_draws_three_tasks(demo):
    assert demo.report.count('<div class="episode">') == 3
    assert demo.report.count("data:image/png;base64,") == 5 * 1 + 5 * 5 + 5 * 1 + 3 * 6


def test_says_where_the_report_is(demo):
    assert str(demo.folder / "demo" / "report.html") in demo.printed


def test_leaves_a_model_that_loads(demo):
    model = FewShotModel.from_pretrained(demo.folder / "demo" / "model-fast")
    assert model.info["recipe"] == demo.results["recipe"]


def test_a_second_run_uses_the_finished_model_and_gives_the_same_numbers(demo, monkeypatch):
    weights = demo.folder / "demo" / "model-fast" / "model.safetensors"
    before = weights.read_bytes()

    def train_again(*args):
        raise AssertionError("trained again")

    monkeypatch.setattr("gpldla.training.episode_stage.EpisodeStage.update", train_again)
    again = Demo(demo.folder)
    assert again.results == demo.results
    assert weights.read_bytes() == before
