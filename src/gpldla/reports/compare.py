"""The comparison of all methods: trained briefly on the same images, tested on unseen scripts, timed."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gpldla import __version__
from gpldla.classifier.model import FewShotModel
from gpldla.data import Access, DataPaths, load_protocol
from gpldla.evaluation import PartEvaluator, Task, measure
from gpldla.heads import head_class
from gpldla.reports.demo import demo_command
from gpldla.reports.html import write_comparison_report
from gpldla.reports.plots import comparison_plot
from gpldla.training.methods import Method, find_method, methods
from gpldla.training.recipe import Recipe, make_recipe, read_settings
from gpldla.training.run import train
from gpldla.utils.files import write_json
from gpldla.utils.progress import Reporter, say
from gpldla.utils.provenance import provenance
from gpldla.utils.timing import seconds_per_call

OURS = "gpldla"
TIMED_TASK = Task(5, 1, separate_groups=True)
TASKS = {"": TIMED_TASK, "_5_shot": Task(5, 5, separate_groups=True)}  # by suffix in the results
TIMING_ROUNDS = 5


def run_comparison(
    folder: Path,
    *,
    fast: bool = False,
    seed: int = 0,
    names: Sequence[str] | None = None,
    data_paths: DataPaths | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and test methods; write compare.html and compare.json to `folder`.

    names: of methods; None: those of `compared_methods`
    """
    console = console or Console()
    started = time.monotonic()
    chosen = compared_methods() if names is None else [find_method(name) for name in names]
    protocol = load_protocol("glyphs", access=Access(data_paths or DataPaths(), Reporter(console)))
    novel = protocol.part("novel")
    episodes = 20 if fast else 120
    evaluators, rows = {}, []
    for number, method in enumerate(chosen, 1):
        say(console, f"{number} of {len(chosen)}: {method.title}")
        result = train(
            comparison_recipe(method, fast=fast, seed=seed),
            folder / ("compare-fast" if fast else "compare") / method.name,
            accelerator="cpu",
            protocol=protocol,
            console=console,
            show_progress=console.is_terminal,
        )
        if not result.finished:
            raise KeyboardInterrupt
        evaluators[method.name] = PartEvaluator(result.model, novel)
        rows.append(_measured(method, evaluators[method.name], episodes, seed))
    _add_times(rows, evaluators, seed)

    results = {
        "command": demo_command(folder, "--compare", fast=fast, seed=seed),
        **provenance("cpu"),
        "version": __version__,
        "seeds": [seed],
        "recipe": comparison_recipe(find_method(OURS), fast=fast, seed=seed).as_dict(),
        "episodes": episodes,
        "queries": TIMED_TASK.ways * TIMED_TASK.queries,
        "seconds": round(time.monotonic() - started, 1),
        "rows": rows,
    }
    write_json(folder / "compare.json", results)
    write_comparison_report(folder / "compare.html", {**results, "plot": comparison_plot(rows, OURS)})
    console.print(comparison_table(rows))
    for sentence in verdict(rows):
        say(console, sentence)
    say(console, f"Done in {results['seconds']:.0f} s. Open {folder / 'compare.html'} in a browser.")
    return results


def compared_methods() -> list[Method]:
    """Return all methods but those that train the whole network anew for each task, which takes hours."""
    return [method for method in methods().values() if not head_class(method.head).needs_base_images]


def comparison_recipe(method: Method, *, fast: bool, seed: int) -> Recipe:
    """Return the recipe of a method in the comparison; everything but the head is the same for all."""
    shared = read_settings("compare")
    if fast:
        shared |= {"episodes": 8, "base.epochs": 0.03, "validation.episodes": 5}
        shared |= {"validation.temperature_episodes": 5}
    equal = {key: value for key, value in shared.items() if key not in ("head.name", "backbone")}
    return make_recipe({**method.apply_to(shared), **equal, "seed": seed})


def _measured(method: Method, evaluator: PartEvaluator, episodes: int, seed: int) -> dict[str, Any]:
    """Test on unseen scripts, without temperature and with the one from validation classes."""
    model = evaluator.model
    row: dict[str, Any] = {
        "method": method.name,
        "title": method.title,
        "training_seconds": model.info["seconds"],
        "temperature": model.temperature,
    }
    for suffix, task in TASKS.items():
        predictions = evaluator.predict(task, episodes=episodes, seed=seed, split="novel")
        row |= {key + suffix: value for key, value in measure(predictions).items()}
        tempered = measure(predictions, temperature=model.temperature)
        row |= {f"{key}{suffix}_model_temperature": tempered[key] for key in ("nll", "ece")}
    return row


def _add_times(rows: list[dict[str, Any]], evaluators: dict[str, PartEvaluator], seed: int) -> None:
    """Time adapting and predicting per episode, all methods in turn; MAML's time includes the network."""

    def prediction(name: str) -> Callable[[], object]:
        model: FewShotModel = evaluators[name].model
        support, labels, query = evaluators[name].one_episode(TIMED_TASK, seed=seed, split="novel")
        return lambda: model.posterior(support, labels, TIMED_TASK.ways).log_prob(query)

    with torch.no_grad():
        seconds = seconds_per_call(
            {name: prediction(name) for name in evaluators}, torch.device("cpu"), TIMING_ROUNDS
        )
    for row in rows:
        spent = seconds[row["method"]]
        row["ms_an_episode"] = 1e3 * median(spent)
        if OURS in seconds:
            row["time_ratio"] = median(spent) / median(seconds[OURS])


def comparison_table(rows: list[dict[str, Any]]) -> Table:
    """Return the table for the terminal, best accuracy first."""
    table = Table(
        title="Unseen scripts, 5-way: every method on the same training images",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="T: temperature from a validation script. ms: adapting and predicting, per episode.",
        caption_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for column in ("1-shot, %", "NLL", "ECE", "ECE (T)", "5-shot, %", "ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: -row["accuracy"]):
        cells = (
            row["title"],
            f"{row['accuracy']:.1f} ± {row['interval']:.1f}",
            f"{row['nll']:.3f}",
            f"{row['ece']:.1f}",
            f"{row['ece_model_temperature']:.1f}",
            f"{row['accuracy_5_shot']:.1f} ± {row['interval_5_shot']:.1f}",
            f"{row['ms_an_episode']:.3g}",
        )
        table.add_row(*cells, style="bold" if row["method"] == OURS else None)
    return table


def verdict(rows: list[dict[str, Any]]) -> list[str]:
    """Compare GPLDLA with the other methods in sentences."""
    ours = next((row for row in rows if row["method"] == OURS), None)
    if ours is None or len(rows) < 2:
        return []
    others = [row for row in rows if row is not ours]
    best = max(others, key=lambda row: row["accuracy"])
    margin = (ours["interval"] ** 2 + best["interval"] ** 2) ** 0.5
    difference = ours["accuracy"] - best["accuracy"]
    if abs(difference) <= margin:
        accuracy = f"GPLDLA is as accurate as the best other method, {best['title']}, within the intervals"
    else:
        word = "more" if difference > 0 else "less"
        accuracy = f"GPLDLA is {abs(difference):.1f} points {word} accurate than {best['title']}"
    better_nll = [row["title"] for row in others if row["nll"] < ours["nll"]]
    better_ece = [row["title"] for row in others if row["ece"] < ours["ece"]]
    return [
        f"{accuracy} (1-shot).",
        f"Likelihood without temperature: {_better(better_nll)}.",
        f"Calibration error without temperature: {_better(better_ece)}.",
    ]


def _better(titles: list[str]) -> str:
    return (
        "none is better"
        if not titles
        else f"{', '.join(titles)} {'is' if len(titles) == 1 else 'are'} better"
    )
