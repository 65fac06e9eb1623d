"""The demo on embedded data: meta-train, test on unseen classes and another domain, write a report."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gpldla import __version__
from gpldla.classifier.calibration import apply_temperature
from gpldla.classifier.model import FewShotModel
from gpldla.data import Access, DataPaths, Protocol, load_protocol
from gpldla.data.sets.glyphs import SCRIPTS_OF_PART
from gpldla.evaluation import Evaluation, ProtocolEvaluator, Task, measure
from gpldla.reports.home_and_away import judge, plots, sentences
from gpldla.reports.html import DrawnEpisode, DrawnQuery, write_demo_report
from gpldla.reports.plots import prior_plot, training_plot
from gpldla.training.metrics import read_metrics
from gpldla.training.recipe import Recipe, read_recipe
from gpldla.training.run import train
from gpldla.utils.files import write_json
from gpldla.utils.progress import Reporter, say


@dataclass(frozen=True)
class Setting:
    """The tasks of one row of the results, and their data set."""

    label: str
    dataset: str
    task: Task


LETTERS = Setting("unseen scripts, 5-way 1-shot", "glyphs", Task(5, 1, separate_groups=True))
DIGITS = Setting("handwritten digits, 5-way 1-shot", "glyphs-digits", Task(5, 1))
SETTINGS = (
    LETTERS,
    Setting("unseen scripts, 5-way 5-shot", "glyphs", Task(5, 5, separate_groups=True)),
    Setting("unseen scripts, 20-way 1-shot", "glyphs", Task(20, 1, separate_groups=True)),
    Setting("unseen scripts, 20-way 5-shot", "glyphs", Task(20, 5, separate_groups=True)),
    Setting("unseen scripts, font families mixed, 5-way 1-shot", "glyphs", Task(5, 1)),
    Setting("unseen scripts, font families mixed, 5-way 5-shot", "glyphs", Task(5, 5)),
    DIGITS,
    Setting("handwritten digits, 5-way 5-shot", "glyphs-digits", Task(5, 5)),
)
DRAWN_QUERIES = 6


def run_demo(
    folder: Path,
    *,
    fast: bool = False,
    seed: int = 0,
    data_paths: DataPaths | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, evaluate beside two controls, and write report.html and results.json to `folder`."""
    console = console or Console()
    started = time.monotonic()
    recipe = read_recipe("demo-fast" if fast else "demo", {"seed": seed})
    protocols = {
        name: load_protocol(name, access=Access(data_paths or DataPaths(), Reporter(console)))
        for name in ("glyphs", "glyphs-digits")
    }
    model_folder = folder / ("model-fast" if fast else "model")
    trained = train(
        recipe, model_folder, accelerator="cpu", protocol=protocols[recipe.dataset], console=console
    )
    if not trained.finished:
        raise KeyboardInterrupt
    evaluators = {name: ProtocolEvaluator(trained.model, protocol) for name, protocol in protocols.items()}
    n_queries = 3_000 if fast else 45_000
    evaluations = {
        setting: evaluators[setting.dataset].evaluate(
            setting.task,
            episodes=n_queries // (setting.task.ways * setting.task.queries),
            repeats=1,
            seed=seed,
        )
        for setting in SETTINGS
    }
    rows = _rows(evaluations, recipe, protocols)
    console.print(_results_table(rows))

    report, results = folder / "report.html", folder / "results.json"
    made_by = {"command": demo_command(folder, fast=fast, seed=seed), "version": __version__}
    write_json(results, {**made_by, "recipe": recipe.as_dict(), "rows": rows})
    facts = {
        **made_by,
        **_training_facts(recipe, trained.model, model_folder),
        **_result_facts(rows, evaluations, trained.model),
        "n_queries": f"{n_queries:,}",
        "episodes": _drawn_episodes(evaluators),
        "total_seconds": round(time.monotonic() - started),
        "results_file": str(results),
    }
    write_demo_report(report, facts)
    say(console, f"Done in {time.monotonic() - started:.0f} s. Open {report} in a browser.")
    return {"rows": rows}


def demo_command(folder: Path, *flags: str, fast: bool, seed: int) -> str:
    """Return the command that writes the same results."""
    options = ["--fast"] * fast + (["--seed", str(seed)] if seed else [])
    return shlex.join(["gpldla", "demo", *flags, *options, "-o", str(folder)])


def _training_facts(recipe: Recipe, model: FewShotModel, folder: Path) -> dict[str, Any]:
    """Return what the page shows of the training."""
    metrics = read_metrics(folder)
    return {
        "training_seconds": round(model.info["seconds"]),
        "base_scripts": _listed(SCRIPTS_OF_PART["base"]),
        "validation_scripts": _listed(SCRIPTS_OF_PART["validation"]),
        "n_training_episodes": f"{recipe.episodes:,}",
        "ways": recipe.ways,
        "shots": recipe.shots,
        "seed": recipe.seed,
        "training_plot": training_plot(metrics),
        "prior_plot": prior_plot(metrics),
        "model_folder": shlex.quote(str(folder)),
    }


def _result_facts(
    rows: list[dict[str, Any]], evaluations: dict[Setting, Evaluation], model: FewShotModel
) -> dict[str, Any]:
    """Return what the page shows of the evaluation."""
    places = [("at home", evaluations[LETTERS]), ("away", evaluations[DIGITS])]
    stages = judge(places, model)
    return {
        "results": rows,
        "cards": _cards(rows),
        "home": LETTERS.label,
        "away": DIGITS.label,
        "stages": stages,
        "verdict": sentences(stages),
        "reliability_plots": plots(stages),
    }


def _drawn_episodes(evaluators: dict[str, ProtocolEvaluator]) -> list[DrawnEpisode]:
    letters, digits = evaluators["glyphs"], evaluators["glyphs-digits"]
    return [
        _draw(letters, LETTERS.task, "Unseen script, one example per letter", 0),
        _draw(letters, SETTINGS[1].task, "Unseen script, five examples per letter", 1),
        _draw(digits, DIGITS.task, "Handwritten digits, one example per digit", 2),
    ]


def _rows(
    evaluations: dict[Setting, Evaluation], recipe: Recipe, protocols: dict[str, Protocol]
) -> list[dict[str, Any]]:
    """Return the results of the model and of two controls, nearest class means, on the same episodes."""
    torch.manual_seed(recipe.seed)
    untrained = FewShotModel(recipe.backbone, "protonet")
    controls = {
        (name, dataset): ProtocolEvaluator(model, protocol).part("novel")
        for name, model in (("pixels", FewShotModel("pixels", "protonet")), ("untrained", untrained))
        for dataset, protocol in protocols.items()
    }
    rows = []
    for setting, evaluation in evaluations.items():
        row = {"label": setting.label, **evaluation.numbers}
        for name in ("pixels", "untrained"):
            predictions = controls[name, setting.dataset].predict(
                setting.task, episodes=evaluation.numbers["episodes"], seed=recipe.seed, split="novel"
            )
            row[name] = measure(predictions)["accuracy"]
        rows.append(row)
    return rows


def _row_of(setting: Setting, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["label"] == setting.label)


def _cards(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    letters, digits = _row_of(LETTERS, rows), _row_of(DIGITS, rows)
    return [
        {
            "value": f"{letters['accuracy']:.0f} %",
            "text": f"right on unseen scripts from one example each, where chance is 20 % and pixels reach"
            f" {letters['pixels']:.0f} %",
        },
        {
            "value": f"{letters['ece_classifier']:.1f} points",
            "text": "between confidence and accuracy on them (ECE)",
        },
        {
            "value": f"{digits['accuracy']:.0f} %",
            "text": "right on handwritten digits, after training on printed letters only; pixels reach"
            f" {digits['pixels']:.0f} %",
        },
        {
            "value": f"{digits['ece_classifier']:.1f} points",
            "text": "between confidence and accuracy on digits, away from what it was trained on",
        },
    ]


def _results_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("accuracy on unseen classes, %", title="gpldla demo", title_justify="left")
    for column in ("gpldla", "raw pixels", "untrained", "ECE", "as answered"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["label"],
            f"{row['accuracy']:.1f} ± {row['interval']:.1f}",
            f"{row['pixels']:.1f}",
            f"{row['untrained']:.1f}",
            f"{row['ece']:.1f}",
            f"{row['ece_classifier']:.1f}",
        )
    return table


def _draw(evaluator: ProtocolEvaluator, task: Task, title: str, seed: int) -> DrawnEpisode:
    """Predict one random task, and return its images and probabilities."""
    part = evaluator.protocol.part("novel")
    drawn = task.sampler(part, seed=seed, split="report").draw(0, 1)
    predictions = evaluator.part("novel").predict(task, episodes=1, seed=seed, split="report")
    probabilities = apply_temperature(predictions.log_prob[0], evaluator.model.temperature).exp().numpy()
    shown = torch.randperm(len(drawn.query_labels), generator=torch.Generator().manual_seed(seed))[
        :DRAWN_QUERIES
    ]
    return DrawnEpisode(
        title,
        [part.class_names[c] for c in drawn.classes[0].tolist()],
        [list(part.read(indices)) for indices in drawn.support[0].view(task.ways, task.shots).numpy()],
        [
            DrawnQuery(image, int(drawn.query_labels[i]), probabilities[i])
            for i, image in zip(shown.tolist(), part.read(drawn.query[0, shown].numpy()))
        ],
    )


def _listed(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
