"""The main job on embedded data: meta-train, test on unseen classes and another domain, write a report."""

import json
import shlex
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gpldla import __version__
from gpldla.calibration import Reliability, apply_temperature, reliability
from gpldla.data import Protocol, load_protocol
from gpldla.data.glyphs import SCRIPTS_OF_PART
from gpldla.episodes import EpisodeSampler
from gpldla.evaluation import Evaluation, ProtocolEvaluator, Task, measure
from gpldla.files import write_json
from gpldla.model import FewShotModel
from gpldla.progress import say
from gpldla.recipe import Recipe, read_recipe
from gpldla.report import (
    DrawnEpisode,
    DrawnQuery,
    prior_plot,
    reliability_plot,
    training_plot,
    write_demo_report,
)
from gpldla.training import METRICS, train

# What is measured: label, data set, ways, shots, font families kept apart
SETTINGS = [
    ("unseen scripts, 5-way 1-shot", "glyphs", 5, 1, True),
    ("unseen scripts, 5-way 5-shot", "glyphs", 5, 5, True),
    ("unseen scripts, 20-way 1-shot", "glyphs", 20, 1, True),
    ("unseen scripts, 20-way 5-shot", "glyphs", 20, 5, True),
    ("unseen scripts, font families mixed, 5-way 1-shot", "glyphs", 5, 1, False),
    ("unseen scripts, font families mixed, 5-way 5-shot", "glyphs", 5, 5, False),
    ("handwritten digits, 5-way 1-shot", "glyphs-digits", 5, 1, False),
    ("handwritten digits, 5-way 5-shot", "glyphs-digits", 5, 5, False),
]
DRAWN_QUERIES = 6


def run_demo(
    folder: Path,
    *,
    fast: bool = False,
    seed: int = 0,
    cache: str | Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, evaluate beside two controls, and write report.html and results.json to `folder`."""
    console = console or Console()
    started = time.monotonic()
    recipe = read_recipe("demo-fast" if fast else "demo", {"seed": seed})
    queries = 7_500 if fast else 45_000  # tested in each setting
    protocols = {
        name: load_protocol(name, cache=cache, announce=partial(say, console))
        for name in ("glyphs", "glyphs-digits")
    }

    model_folder = folder / ("model-fast" if fast else "model")
    trained = train(recipe, model_folder, accelerator="cpu", cache=cache, console=console)
    if not trained.finished:
        raise KeyboardInterrupt
    ours = {name: ProtocolEvaluator(trained.model, protocol) for name, protocol in protocols.items()}
    evaluations = [
        ours[dataset].evaluate(
            Task(ways, shots, 15, separate), episodes=queries // (ways * 15), repeats=1, seed=seed
        )
        for _, dataset, ways, shots, separate in SETTINGS
    ]
    rows = _rows(evaluations, recipe, protocols)
    console.print(_results_table(rows))

    metrics = [json.loads(line) for line in (model_folder / METRICS).read_text("utf-8").splitlines()]
    report, results = folder / "report.html", folder / "results.json"
    options = ["--fast"] * fast + (["--seed", str(seed)] if seed else [])
    command = shlex.join(["gpldla", "demo", *options, "-o", str(folder)])
    write_json(
        results,
        {"command": command, "version": __version__, "recipe": recipe.flat(), "rows": rows},
    )
    write_demo_report(
        report,
        {
            "training_seconds": round(trained.model.info["seconds"]),
            "total_seconds": round(time.monotonic() - started),
            "base_scripts": _listed(SCRIPTS_OF_PART["base"]),
            "validation_scripts": _listed(SCRIPTS_OF_PART["validation"]),
            "cards": _cards(rows),
            "n_queries": f"{queries:,}",
            "results": rows,
            "reliability_plot": reliability_plot(
                [
                    pair
                    for place in (0, 6)
                    for pair in _before_and_after(evaluations[place], SETTINGS[place][0])
                ]
            ),
            "episodes": [
                _draw(ours["glyphs"], Task(5, 1, 15, True), "Unseen script, one example a letter", 0),
                _draw(ours["glyphs"], Task(5, 5, 15, True), "Unseen script, five examples a letter", 1),
                _draw(ours["glyphs-digits"], Task(5, 1, 15), "Handwritten digits, one example a digit", 2),
            ],
            "n_training_episodes": f"{recipe.episodes:,}",
            "ways": recipe.ways,
            "shots": recipe.shots,
            "training_plot": training_plot(metrics),
            "prior_plot": prior_plot(metrics),
            "command": command,
            "version": __version__,
            "seed": recipe.seed,
            "model_folder": shlex.quote(str(model_folder)),
            "results_file": str(results),
        },
    )
    say(console, f"Done in {time.monotonic() - started:.0f} s. Open {report} in a browser.")
    return {"rows": rows}


def _rows(
    evaluations: list[Evaluation], recipe: Recipe, protocols: dict[str, Protocol]
) -> list[dict[str, Any]]:
    """Put the controls beside the trained model: the nearest class mean, on the same episodes."""
    torch.manual_seed(recipe.seed)
    untrained = FewShotModel(recipe.backbone, "protonet")
    controls = {
        (name, dataset): ProtocolEvaluator(model, protocol)
        for name, model in (("pixels", FewShotModel("pixels", "protonet")), ("untrained", untrained))
        for dataset, protocol in protocols.items()
    }
    rows = []
    for (label, dataset, ways, shots, separate), evaluation in zip(SETTINGS, evaluations):
        row = {"label": label, **evaluation.numbers}
        for name in ("pixels", "untrained"):
            predictions = (
                controls[name, dataset]
                .part("novel")
                .predict(
                    Task(ways, shots, 15, separate),
                    episodes=evaluation.numbers["episodes"],
                    seed=recipe.seed,
                    split="novel",
                )
            )
            row[name] = measure(predictions)["accuracy"]
        rows.append(row)
    return rows


def _cards(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    letters, digits = rows[0], rows[6]
    return [
        {
            "value": f"{letters['accuracy']:.0f} %",
            "text": f"right on unseen scripts from one example each, where chance is 20 % and pixels reach"
            f" {letters['pixels']:.0f} %",
        },
        {
            "value": f"{digits['accuracy']:.0f} %",
            "text": "right on handwritten digits, though it learned from printed letters only; pixels reach"
            f" {digits['pixels']:.0f} %",
        },
        {
            "value": f"{letters['ece_val_temperature']:.1f} points",
            "text": "between stated confidence and real accuracy on unseen scripts, after one temperature",
        },
    ]


def _results_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("accuracy on unseen classes, %", title="gpldla demo", title_justify="left")
    for column in ("gpldla", "raw pixels", "untrained", "ECE", "ECE (T)"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["label"],
            f"{row['accuracy']:.1f} ± {row['interval']:.1f}",
            f"{row['pixels']:.1f}",
            f"{row['untrained']:.1f}",
            f"{row['ece']:.1f}",
            f"{row['ece_val_temperature']:.1f}",
        )
    return table


def _before_and_after(evaluation: Evaluation, label: str) -> list[tuple[str, str, Reliability]]:
    log_prob, labels = evaluation.predictions.flat
    tempered = apply_temperature(log_prob, evaluation.val_temperature)
    return [
        (label, "as predicted", reliability(log_prob, labels)),
        (label, f"temperature {evaluation.val_temperature:.2f}", reliability(tempered, labels)),
    ]


def _draw(evaluator: ProtocolEvaluator, task: Task, title: str, seed: int) -> DrawnEpisode:
    """Answer one random task and collect what a person needs to see of it."""
    part = evaluator.protocol.part("novel")
    images = part.images().numpy()
    drawn = EpisodeSampler(
        part,
        ways=task.ways,
        shots=task.shots,
        queries=task.queries,
        seed=seed,
        split="report",
        separate_groups=task.separate_groups,
    ).draw(0, 1)
    answers = evaluator.part("novel").predict(task, episodes=1, seed=seed, split="report")
    probabilities = apply_temperature(answers.log_prob[0], evaluator.model.temperature).exp().numpy()
    shown = torch.randperm(len(drawn.query_labels), generator=torch.Generator().manual_seed(seed))[
        :DRAWN_QUERIES
    ]
    return DrawnEpisode(
        title,
        [part.class_names[c] for c in drawn.classes[0].tolist()],
        [[images[i] for i in numbers] for numbers in drawn.support[0].view(task.ways, task.shots).tolist()],
        [
            DrawnQuery(images[int(drawn.query[0, i])], int(drawn.query_labels[i]), probabilities[i])
            for i in shown.tolist()
        ],
    )


def _listed(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
