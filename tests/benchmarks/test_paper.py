"""The trainings behind the paper's tables: the plan, what is measured, and the cells that come of it."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from benchmarks.job_queue import run_jobs
from benchmarks.paper import Training, cell, collect, jobs, measure, plan, with_what_they_need
from benchmarks.trials import VALIDATED, chosen, file_of

from benchmarks import evaluation_steps, paper
from gpldla.evaluation import Predictions
from gpldla.reports.paper_tables import paper_tables, read_cells, result_tables
from gpldla.training.recipe import list_recipes, read_recipe
from gpldla.training.run import train
from gpldla.utils.files import write_json

TRAININGS = {training.name: training for training in plan([])}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_name_says_what_is_trained(name):
    training = TRAININGS[name]
    recipe = read_recipe(training.recipe, training.set, method=training.method)
    shots = recipe.validation_shots
    rest = "" if training.method == "gpldla" else f"-{training.method}"
    rest += "-paper" if training.recipe.endswith("-paper") else ""
    assert name == f"{recipe.dataset}-{recipe.backbone}-{shots}shot{rest}"


def test_every_training_has_a_place_in_a_table(tmp_path):
    for training in TRAININGS.values():
        recipe = read_recipe(training.recipe, training.set, method=training.method)
        numbers = {"method": training.method, "recipe": training.recipe, "dataset": recipe.dataset}
        numbers |= {"backbone": recipe.backbone, "shots": recipe.validation_shots}
        numbers |= {"accuracy": len(list(tmp_path.rglob("*.json"))) + 0.25, "interval": 0.1}
        write_json(tmp_path / "cells" / f"{training.name}.json", numbers)
    shown = "\n".join(
        line
        for table in paper_tables().values()
        for part in result_tables(table, tmp_path, read_cells(tmp_path))
        for line in part.markdown()
    )
    missing = [n for n in range(len(TRAININGS)) if f"{n}.25 ± 0.10" not in shown]
    assert not missing


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("-paper")])
def test_recipes_of_the_paper_have_its_numbers(name):
    recipe = read_recipe(name)
    assert recipe.dataset == name.removesuffix("-paper")
    assert (recipe.head.name, recipe.head.options) == ("gpldla", {})
    assert (recipe.ways, recipe.shots, recipe.queries) == (5, 1, 16)
    assert (recipe.learning_rate, recipe.head_learning_rate) == (0.002, 0.005)
    assert (recipe.schedule, recipe.decay_factor, recipe.ema) == ("step", 0.5, 0)
    assert recipe.episodes == 10 * recipe.decay_every
    assert (recipe.smallest_crop, recipe.colour_jitter) == (0.08, 0.4)
    assert (recipe.zoom, recipe.mirrored, recipe.weight_decay) == (1.15, False, 0)


def test_patterns_choose_from_the_plan():
    assert [t.name for t in plan(["cub-conv4-1shot"])] == ["cub-conv4-1shot"]
    assert {t.recipe for t in plan(["*-paper"])} == {"cub-paper", "omniglot-emnist-paper"}
    assert len(plan(["cub-*", "*-lda*"])) < len(plan([]))
    with pytest.raises(SystemExit, match="There is no training 'cub-conv5'"):
        plan(["cub-conv5"])


def test_what_others_begin_with_comes_first():
    asked = plan(["tinyimagenet-cub-resnet18-84-5shot", "mini-cub-conv4-1shot"])
    assert [training.name for training in with_what_they_need(asked)] == [
        "tinyimagenet-cub-resnet18-84-1shot-simpleshot-cl2n",
        "tinyimagenet-cub-resnet18-84-5shot",
        "miniimagenet-conv4-1shot-simpleshot-cl2n",
        "miniimagenet-conv4-1shot",
        "mini-cub-conv4-1shot",
    ]
    for training in TRAININGS.values():
        for name in training.starts():
            base = TRAININGS[name]
            assert not base.starts()
            assert (base.recipe, base.set.get("backbone")) == (training.recipe, training.set.get("backbone"))


def test_one_that_begins_with_another_is_measured_by_itself(monkeypatch, tmp_path):
    name, measured = "tinyimagenet-cub-resnet18-84-5shot", []
    monkeypatch.setattr(
        paper, "measure", lambda training, folder, _: measured.append((training.name, folder))
    )
    for command in (["measure", name, "--runs", str(tmp_path)], ["measure", "--runs", str(tmp_path), name]):
        monkeypatch.setattr(paper.sys, "argv", ["paper", *command])
        paper.main()
    assert measured == 2 * [(name, tmp_path)]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["collect", "--runs", "none"], "There is no folder none."),
        (["measure", "cub-conv4-1shot", "--runs", "none"], "There is no folder none."),
        (["train", "cub-conv4-1shot", "--at-once", "0"], "--at-once must be at least 1, not 0."),
    ],
)
def test_wrong_options_are_one_line(monkeypatch, capsys, tmp_path, command, complaint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper.sys, "argv", ["paper", *command])
    with pytest.raises(SystemExit) as exit_:
        paper.main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {complaint}\n")


def test_beginning_with_another_is_part_of_the_command(tmp_path):
    training = Training("a", "cub", set={"shots": 5}, start="b")
    assert training.command(1, tmp_path / "a-seed1", training.set)[-4:] == [
        "--set",
        "shots=5",
        "--set",
        f"start={tmp_path / 'b-seed0'}",
    ]


def test_the_command_is_what_a_user_would_type(tmp_path):
    training = Training("a", "cub-paper", "lda", {"shots": 5, "backbone": "resnet10"})
    assert " ".join(training.command(2, tmp_path, training.set)) == (
        f"gpldla train cub-paper -o {tmp_path} --seed 2 --method lda --set shots=5 --set backbone=resnet10"
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two short trainings on printed letters, measured."""
    runs = tmp_path_factory.mktemp("runs")
    settings = {"episodes": 3, "ways": 5, "validation.episodes": 2, "validation.temperature_episodes": 2}
    training = Training("letters", "demo-fast", set=settings, seeds=(0, 1), calibration=True, episodes=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "CALIBRATION_TASKS", 40)
        for seed in training.seeds:
            folder = runs / f"letters-seed{seed}"
            train(read_recipe("demo-fast", {**settings, "seed": seed}), folder, accelerator="cpu")
            measure(training, folder, runs)
    return training, runs


def test_a_training_is_measured_as_the_paper_does(measured):
    _, runs = measured
    numbers = json.loads((runs / "letters-seed1" / paper.MEASURED).read_text())
    assert (numbers["ways"], numbers["shots"], numbers["queries"]) == (5, 1, 15)
    assert (numbers["episodes"], numbers["repeats"], numbers["seed"]) == (60, 5, 1)
    assert numbers["command"].startswith(
        "gpldla train demo-fast -o runs/letters-seed1 --seed 1 --set episodes=3"
    )
    for part in ("novel", "validation"):
        errors = numbers[f"calibration_runs_{part}"]
        assert len(set(errors)) == 5
        assert all(0 <= error < 50 for error in errors)
    bins = numbers["reliability"]
    assert sum(bins["counts"]) == 5 * 60 * 75
    right = sum(a * n for a, n in zip(bins["accuracy"], bins["counts"]) if n)
    assert 100 * right / sum(bins["counts"]) == pytest.approx(numbers["accuracy"])
    for name, error in (("reliability", "ece"), ("reliability_val_temperature", "ece_val_temperature")):
        bins = numbers[name]
        rows = zip(bins["accuracy"], bins["confidence"], bins["counts"])
        gaps = sum(abs(right - said) * n for right, said, n in rows if n)
        assert 100 * gaps / sum(bins["counts"]) == pytest.approx(numbers[error])


def test_steps_from_the_papers_evaluation_to_a_models_own(tmp_path):
    settings = {"episodes": 3, "ways": 5, "validation.episodes": 2, "validation.temperature_episodes": 2}
    settings |= {"zoom": 1.4, "mirrored": True, "head.power": 0.5}
    train(read_recipe("demo-fast", settings), tmp_path, accelerator="cpu")
    rows = evaluation_steps.measure(tmp_path, episodes=20)
    assert list(rows) == ["as the paper evaluates", "mirror images", "zoom 1.4", "power 0.5"]
    assert len({row["nll"] for row in rows.values()}) == 4
    own = Training("letters", "demo-fast", set=settings, episodes=20)
    measure(own, tmp_path, tmp_path)
    measured = json.loads((tmp_path / paper.MEASURED).read_text())
    assert rows["power 0.5"]["nll"] == pytest.approx(measured["nll"])
    assert measured["mirrored"] is True
    assert measured["nll_val_temperature_unmirrored"] != measured["nll_val_temperature"]


def test_temperatures_are_fitted_on_other_tasks_than_are_measured():
    asked = []

    class Part:
        def __init__(self, name):
            self.name = name

        def predict(self, task, *, episodes, seed, split):
            asked.append((self.name, split, seed, episodes))
            log_prob = torch.randn(episodes, 4, 2, generator=torch.Generator().manual_seed(seed)).log_softmax(
                -1
            )
            return Predictions(log_prob, torch.tensor([0, 0, 1, 1]))

    paper.calibration(SimpleNamespace(part=Part), None)
    measured = [row for row in asked if row[1] == "novel-calibration"]
    assert [row[0] for row in measured] == ["novel"] * 5
    for part in ("novel", "validation"):
        fitted = [row for row in asked if row[1] == f"{part}-calibration-temperature"]
        assert [(row[0], row[2]) for row in fitted] == [(part, number) for number in range(5)]
    assert {row[3] for row in asked} == {3000}
    assert len(asked) == 15


def test_a_cell_is_the_mean_over_training_seeds(measured):
    training, runs = measured
    one, other = (json.loads((runs / f"letters-seed{s}" / paper.MEASURED).read_text()) for s in (0, 1))
    numbers = cell(training, [one, other])
    assert numbers["accuracies"] == [one["accuracy"], other["accuracy"]]
    assert numbers["accuracy"] == pytest.approx((one["accuracy"] + other["accuracy"]) / 2)
    assert numbers["spread"] == pytest.approx(abs(one["accuracy"] - other["accuracy"]) / 2**0.5)
    errors = [error for run in (one, other) for error in run["calibration_runs_novel"]]
    assert numbers["ece_paper_temperature"] == pytest.approx(sum(errors) / 10)
    assert 0 < numbers["ece_paper_temperature_spread"] < max(errors) - min(errors)
    assert "notes" not in numbers
    noted = replace(training, notes=("It rained.",))
    mirrored, note = cell(noted, [one | {"mirrored": True}, other])["notes"]
    assert "mirror image" in mirrored
    assert note == "It rained."
    assert numbers["training_seeds"] == [0, 1]
    assert numbers["command"].endswith("&& gpldla eval runs/letters-seed0 --shots 1 --episodes 60 --json")
    assert {
        "method",
        "recipe",
        "dataset",
        "backbone",
        "shots",
        "commit",
        "device",
        "seconds",
    } <= numbers.keys()


def test_cells_come_when_all_seeds_are_there(measured, tmp_path):
    training, runs = measured
    lines = collect([training, Training("more", "demo", seeds=(0,))], runs, tmp_path)
    assert lines[0].startswith("letters: ")
    assert lines[1] == "more: not measured yet: more-seed0"
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["letters.json"]


class TestQueue:
    """Trials, the choice and the trainings in full, with small stand-ins for the commands."""

    ENTRY = Training("a", "cub", set={"shots": 5}, seeds=(3,), trials=({"zoom": 1.3}, {"zoom": 1.0}))

    def test_tries_then_trains_in_full_with_the_best_then_measures(self, tmp_path):
        results = tmp_path / "results"
        *trials, choice, full = jobs(self.ENTRY, tmp_path, results)
        assert [job.name for job in trials] == ["a-trial0", "a-trial1"]
        short, check = trials[0].steps()
        assert short[3:] == [
            *("train", "cub", "-o", str(tmp_path / "a-trial0"), "--seed", "0", "--set", "shots=5"),
            *("--set", "zoom=1.3", "--set", "episodes=15000", "--set", "base.epochs=22.5"),
        ]
        assert check[1:] == ["-m", "benchmarks.paper", "validate", "a", "--runs", str(tmp_path / "a-trial0")]
        assert choice.needs == tuple(tmp_path / f"a-trial{n}" / VALIDATED for n in range(2))
        for number, accuracy in enumerate((60.5, 61.5)):
            write_json(tmp_path / f"a-trial{number}" / VALIDATED, {"accuracy": accuracy})
        paper.choose("a", self.ENTRY.trials, [tmp_path / f"a-trial{n}" for n in range(2)], results)
        assert full.needs == (file_of("a", results),)
        training, measuring = full.steps()
        assert training[-4:] == ["--set", "shots=5", "--set", "zoom=1.0"]
        assert measuring[3:6] == ["measure", "a", "--runs"]
        assert full.done == tmp_path / "a-seed3" / paper.MEASURED

    def test_what_was_tried_is_not_tried_again(self, tmp_path):
        write_json(file_of("a", tmp_path), {"trials": [{"settings": {"zoom": 1.3}, "accuracy": 60.0}]})
        (full,) = jobs(self.ENTRY, tmp_path, tmp_path)
        assert full.steps()[0][-1] == "zoom=1.3"
        assert self.ENTRY.settings(tmp_path) == {"shots": 5, "zoom": 1.3}
        (other,) = jobs(Training("b", "cub", as_in="a"), tmp_path, tmp_path)
        assert other.needs == (file_of("a", tmp_path),)
        assert other.steps()[0][-1] == "zoom=1.3"

    def test_a_trial_may_begin_with_another_network(self, tmp_path):
        entry = replace(self.ENTRY, trials=({"start": "b"}, {}))
        first, second, _, full = jobs(entry, tmp_path, tmp_path)
        needed = (tmp_path / "b-seed0" / paper.MEASURED,)
        assert (first.needs, second.needs) == (needed, ())
        assert full.needs == (*needed, file_of("a", tmp_path))
        assert f"start={tmp_path / 'b-seed0'}" in first.steps()[0]

    def test_the_whole_queue_on_printed_letters(self, tmp_path, monkeypatch):
        small = 'recipe = "demo-fast"\nset = { episodes = 8, ways = 5, validation.episodes = 2, '
        small += "validation.temperature_episodes = 2 }\nepisodes = 20\n"
        small += "trials = [{ learning_rate = 0.1 }, { learning_rate = 0.0001 }]\n"
        plan_file = tmp_path / "plan.toml"
        plan_file.write_text(f"[letters]\n{small}")
        monkeypatch.setattr(paper, "PLAN", plan_file)
        monkeypatch.setattr(paper, "_this", in_this_process(plan_file))
        told = []
        (entry,) = plan([])
        queue = jobs(entry, tmp_path / "runs", tmp_path / "results")
        assert run_jobs(queue, tmp_path / "logs", at_once=2, tell=told.append), told
        rows = json.loads(file_of("letters", tmp_path / "results").read_text())["trials"]
        assert rows[0]["accuracy"] >= rows[1]["accuracy"]
        assert chosen("letters", tmp_path / "results") == rows[0]["settings"]
        command = json.loads((tmp_path / "runs/letters-seed0" / paper.MEASURED).read_text())["command"]
        assert command.endswith(f"--set learning_rate={rows[0]['settings']['learning_rate']}")


def in_this_process(plan_file):
    """The steps of the queue, with another plan than the repository's."""
    program = "import sys, pathlib, benchmarks.paper as p; p.PLAN = pathlib.Path(sys.argv.pop(1)); p.main()"

    def this(what, training):
        return [sys.executable, "-c", program, str(plan_file), what, training.name]

    return this
