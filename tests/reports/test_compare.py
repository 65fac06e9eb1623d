import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from gpldla.data import load_protocol
from gpldla.heads import head_options
from gpldla.reports.compare import comparison_recipe, run_comparison, verdict
from gpldla.training.methods import find_method, methods
from gpldla.training.recipe import flatten, read_settings
from gpldla.utils.errors import UserError

ROOT = Path(__file__).parents[2]
NAMES = ["gpldla", "protonet", "simpleshot-cl2n"]
every_method = pytest.mark.parametrize("name", methods())


class Comparison:
    """One run of a fast comparison: what it returned, wrote and printed."""

    def __init__(self, folder):
        self.folder = folder
        console = Console(file=io.StringIO(), width=120)
        self.returned = run_comparison(folder, names=NAMES, fast=True, console=console)
        self.results = json.loads((folder / "compare.json").read_text("utf-8"))
        self.rows = {row["method"]: row for row in self.results["rows"]}
        self.report = (folder / "compare.html").read_text("utf-8")
        self.printed = console.file.getvalue()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return Comparison(tmp_path_factory.mktemp("comparison"))


def row(method, accuracy, *, nll=1.0, ece=5.0):
    return {
        "method": method,
        "title": method.upper(),
        "accuracy": accuracy,
        "interval": 1.0,
        "nll": nll,
        "ece": ece,
    }


class TestRun:
    def test_every_method_has_a_row_with_all_numbers(self, comparison):
        assert list(comparison.rows) == NAMES
        assert comparison.results["rows"] == comparison.returned["rows"]
        numbers = {"accuracy", "interval", "nll", "ece", "ms_an_episode", "time_ratio", "temperature"}
        of_five_shots = {"accuracy_5_shot", "interval_5_shot", "ece_5_shot_model_temperature"}
        for row in comparison.rows.values():
            assert numbers | of_five_shots <= row.keys()
            assert row["ms_an_episode"] > 0
            assert row["time_ratio"] > 0

    def test_times_are_compared_with_gpldla(self, comparison):
        assert comparison.rows["gpldla"]["time_ratio"] == 1

    def test_all_do_better_than_chance_and_better_with_five_shots(self, comparison):
        for row in comparison.rows.values():
            assert row["accuracy"] > 20 + row["interval"]
            assert row["accuracy_5_shot"] > row["accuracy"]

    def test_the_results_say_where_they_come_from(self, comparison):
        assert {"commit", "device", "version", "recipe"} <= comparison.results.keys()
        assert comparison.results["seeds"] == [0]
        assert comparison.results["command"] == f"gpldla demo --compare --fast -o {comparison.folder}"

    def test_the_report_shows_every_title_and_number(self, comparison):
        for row in comparison.rows.values():
            cells = [row["title"], f"{row['nll']:.3f}", f"{row['ece']:.1f}", f"{row['time_ratio']:.2f}"]
            cells += [
                f"{row['accuracy' + shots]:.1f} ± {row['interval' + shots]:.1f}" for shots in ("", "_5_shot")
            ]
            for cell in cells:
                assert f"<td>{cell}</td>" in comparison.report

    def test_the_report_has_one_plot_and_nothing_from_elsewhere(self, comparison):
        assert comparison.report.count("<svg") == 1
        assert "<script" not in comparison.report

    def test_the_printed_table_names_every_method_best_first(self, comparison):
        printed = comparison.printed[comparison.printed.index("Unseen scripts, 5-way") :]
        best_first = sorted(comparison.rows.values(), key=lambda row: -row["accuracy"])
        places = [printed.index(f"{row['title']} ") for row in best_first]
        assert places == sorted(places)

    def test_says_where_the_report_is(self, comparison):
        assert str(comparison.folder / "compare.html") in comparison.printed.replace("\n", "")

    def test_a_second_run_does_not_train_again_and_measures_the_same(self, comparison, monkeypatch):
        def train_again(*args):
            raise AssertionError("trained again")

        monkeypatch.setattr("gpldla.training.episode_stage.EpisodeStage.update", train_again)
        monkeypatch.setattr("gpldla.training.base_stage.BaseStage.update", train_again)
        again = Comparison(comparison.folder)
        for name, row in comparison.rows.items():
            measured = {key for key in row if key not in ("ms_an_episode", "time_ratio")}
            assert {key: again.rows[name][key] for key in measured} == {key: row[key] for key in measured}

    def test_an_unknown_method_is_refused_before_anything_is_written(self, tmp_path):
        with pytest.raises(UserError, match="There is no method 'protonets'; did you mean 'protonet'"):
            run_comparison(tmp_path, names=["gpldla", "protonets"], fast=True, console=Console(quiet=True))
        assert list(tmp_path.iterdir()) == []


class TestRecipe:
    @every_method
    @pytest.mark.parametrize("fast", [True, False])
    def test_all_but_the_head_and_a_variant_of_the_network_is_the_same_for_all(self, name, fast):
        method = find_method(name)
        ours = flatten(comparison_recipe(find_method("gpldla"), fast=fast, seed=3).as_dict())
        own = flatten(comparison_recipe(method, fast=fast, seed=3).as_dict())
        options = {f"head.{option}" for option in head_options(method.head)}
        may_differ = {"head.name", *options} | (
            {"backbone"} if ours["backbone"] in method.backbones else set()
        )
        assert {key for key in own if key not in ours or own[key] != ours[key]} <= may_differ
        assert ours.keys() <= own.keys()
        assert own["seed"] == 3

    @every_method
    def test_the_head_and_its_options_are_those_of_the_method(self, name):
        method, recipe = find_method(name), comparison_recipe(find_method(name), fast=False, seed=0)
        options = {key.removeprefix("head."): value for key, value in method.settings.items()}
        assert recipe.head.name == method.head
        assert recipe.head.options == {
            key: options[key] for key in head_options(method.head) if key in options
        }

    @pytest.mark.parametrize("name", ["maml", "relationnet", "baseline++", "gpdkt-cosine"])
    def test_rates_and_lengths_of_a_methods_own_paper_give_way(self, name):
        settings = flatten(comparison_recipe(find_method(name), fast=False, seed=0).as_dict())
        shared = read_settings("compare")
        assert {"learning_rate", "head_learning_rate", "episodes_per_update", "base.epochs"} <= shared.keys()
        assert {key: settings[key] for key in shared if key not in ("head.name", "backbone")} == {
            key: value for key, value in shared.items() if key not in ("head.name", "backbone")
        }

    @pytest.mark.parametrize("fast", [True, False])
    def test_the_base_stage_sees_as_many_images_as_the_episodes(self, fast):
        recipe = comparison_recipe(find_method("simpleshot-cl2n"), fast=fast, seed=0)
        images = int(load_protocol("glyphs").part("base").counts.sum())
        in_episodes = recipe.episodes * recipe.ways * (recipe.shots + recipe.queries)
        assert abs(recipe.base.epochs * images - in_episodes) <= recipe.base.batch

    def test_the_fast_training_is_shorter(self):
        fast, full = (comparison_recipe(find_method("gpldla"), fast=fast, seed=0) for fast in (True, False))
        assert fast.episodes < full.episodes / 10
        assert fast.base.epochs < full.base.epochs / 10


class TestRecorded:
    def test_the_page_names_every_method_that_came_after_the_recorded_run(self):
        recorded = json.loads((ROOT / "results" / "compare.json").read_text("utf-8"))
        measured = {row["method"] for row in recorded["rows"]}
        page = (ROOT / "docs" / "comparison.md").read_text("utf-8")
        assert measured <= methods().keys()
        (added,) = re.findall(r"^Added after this run: (.*?\.)\n\n", page, re.M | re.S)
        assert {*re.findall(r"`([^`]+)`", added)} == methods().keys() - measured


class TestVerdict:
    @pytest.mark.parametrize(
        ("ours", "words"),
        [
            (70.0, "GPLDLA is 10.0 points more accurate than B (1-shot)."),
            (50.0, "GPLDLA is 10.0 points less accurate than B (1-shot)."),
            (61.4, "GPLDLA is as accurate as the best other method, B, within the intervals (1-shot)."),
            (58.6, "GPLDLA is as accurate as the best other method, B, within the intervals (1-shot)."),
        ],
    )
    def test_compares_with_the_most_accurate_of_the_others(self, ours, words):
        assert verdict([row("a", 40.0), row("gpldla", ours), row("b", 60.0)])[0] == words

    def test_names_every_method_with_a_better_likelihood_or_calibration(self):
        rows = [row("gpldla", 60.0), row("a", 40.0, nll=0.9), row("b", 50.0, nll=0.8, ece=4.0)]
        _, likelihood, calibration = verdict(rows)
        assert likelihood == "Likelihood without temperature: A, B are better."
        assert calibration == "Calibration error without temperature: B is better."

    def test_says_that_none_is_better(self):
        _, likelihood, calibration = verdict([row("gpldla", 60.0), row("a", 70.0, nll=1.1, ece=6.0)])
        assert likelihood.endswith(": none is better.")
        assert calibration.endswith(": none is better.")

    @pytest.mark.parametrize("names", [["gpldla"], ["a", "b"], []])
    def test_says_nothing_where_there_is_nothing_to_compare(self, names):
        assert verdict([row(name, 50.0) for name in names]) == []
