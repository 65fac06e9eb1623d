"""The paper's tables: train what benchmarks/paper.toml lists, measure it on novel classes, keep the cells.

    python -m benchmarks.paper train [NAME ...] [--runs runs/paper] [--at-once 3]
    python -m benchmarks.paper collect [--runs runs/paper] [--results results]

NAME may be a pattern, 'cub-*'. `train` writes one folder per training seed with model, metrics and
measured.json, continues those that were stopped and skips those that are done. `collect` makes one JSON
per cell of them.
"""

import argparse
import math
import shlex
import statistics
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from gpldla.classifier.calibration import apply_temperature, fit_temperature, reliability
from gpldla.classifier.model import FewShotModel
from gpldla.data import Access, Protocol, load_protocol
from gpldla.evaluation import Predictions, ProtocolEvaluator, Task
from gpldla.training.recipe import stored_settings
from gpldla.training.setting_names import set_options
from gpldla.utils.devices import torch_device
from gpldla.utils.files import read_json, write_json
from gpldla.utils.provenance import provenance

PLAN = Path(__file__).with_suffix(".toml")
MEASURED = "measured.json"
CALIBRATION_TASKS, CALIBRATION_RUNS = 3_000, 5
ENLARGED = "Photographs with a shorter side of at most 224 pixels: a little enlarged for this."
MIRRORED = "Features are the mean over a picture and its mirror image, which the paper does not have."


@dataclass(frozen=True)
class Training:
    """One entry of the plan; `start` is another one, whose network (seed 0) it begins with."""

    name: str
    recipe: str
    method: str = "gpldla"
    set: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    calibration: bool = False
    episodes: int = 600
    start: str = ""
    notes: tuple[str, ...] = ()

    def command(self, seed: int, folder: Path) -> list[str]:
        """Return the command that trains."""
        command = ["gpldla", "train", self.recipe, "-o", str(folder), "--seed", str(seed)]
        if self.method != "gpldla":
            command += ["--method", self.method]
        start = {"start": folder.parent / f"{self.start}-seed0"} if self.start else {}
        return command + set_options(self.set | start)


def plan(patterns: list[str]) -> list[Training]:
    """Return the trainings whose names fit one of the patterns, or all."""
    entries = tomllib.loads(PLAN.read_text("utf-8"))
    chosen = {name for name in entries if not patterns or any(fnmatch(name, p) for p in patterns)}
    unknown = [p for p in patterns if not any(fnmatch(name, p) for name in entries)]
    if unknown:
        raise SystemExit(f"There is no training {unknown[0]!r} in {PLAN}.")
    return [Training(name, **entry) for name, entry in entries.items() if name in chosen]


def rounds(trainings: list[Training]) -> list[list[Training]]:
    """Return what is to be trained first, with all that others begin with, and what comes after it."""
    starts = {training.start for training in trainings}
    first = [t for t in plan([]) if t.name in starts or (t in trainings and not t.start)]
    return [first, [training for training in trainings if training.start]]


# ---- training and measuring


def run(training: Training, seed: int, runs: Path) -> str:
    """Train one seed and measure it, each in a separate process; return a line that says how it ended."""
    folder = runs / f"{training.name}-seed{seed}"
    if (folder / MEASURED).exists():
        return f"{folder.name}: done before"
    command = training.command(seed, folder)
    for step in (
        [sys.executable, "-m", "gpldla", *command[1:]],
        [sys.executable, "-m", "benchmarks.paper", "measure", training.name, "--runs", str(folder)],
    ):
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            return f"{folder.name}: failed: {done.stderr.strip()[-500:]}"
    accuracy = read_json(folder / MEASURED)["accuracy"]
    return f"{folder.name}: {accuracy:.2f} % on novel classes"


def trained(folder: Path) -> tuple[FewShotModel, Protocol, Task]:
    """Return a trained model, what it is to be measured on, and the task that it was chosen for."""
    model = FewShotModel.from_pretrained(folder).to(torch_device("auto"))
    recipe = stored_settings(model.info["recipe"])
    protocol = load_protocol(
        recipe["dataset"],
        size=model.preprocessing.size,
        side=recipe["stored_side"] or None,
        parts=("validation", "novel"),
        access=Access(),
    )
    return model, protocol, Task(5, recipe["validation.shots"] or recipe["shots"], 15)


def measure(training: Training, folder: Path) -> None:
    """Measure a trained model as the paper does, and write the results beside it."""
    model, protocol, task = trained(folder)
    recipe = stored_settings(model.info["recipe"])
    evaluator = ProtocolEvaluator(model, protocol)
    result = evaluator.evaluate(task, episodes=training.episodes)
    numbers = {
        "backbone": recipe["backbone"],
        "seed": recipe["seed"],
        "mirrored": recipe.get("mirrored", False),  # not in recipes of older runs
        "command": shlex.join(training.command(recipe["seed"], Path("runs") / folder.name)),
        **provenance(),
        "seconds": model.info["seconds"],
        "validation_accuracy": model.info["validation_accuracy"],
        **model.head.scalars(),
        **result.numbers,
        "reliability": _bins(result.predictions, 1.0),
        "reliability_val_temperature": _bins(result.predictions, result.numbers["temperature_val"]),
    }
    if training.calibration:
        numbers |= calibration(evaluator, task)
    write_json(folder / MEASURED, numbers)


def _bins(predictions: Predictions, temperature: float) -> dict[str, list[float | None]]:
    """Return what a reliability diagram shows; null stands for the accuracy of an empty bin."""
    log_prob, labels = predictions.flat
    diagram = reliability(apply_temperature(log_prob, temperature), labels)
    return {
        name: [None if math.isnan(value) else value for value in np.asarray(values, float).tolist()]
        for name, values in vars(diagram).items()
    }


def calibration(evaluator: ProtocolEvaluator, task: Task) -> dict[str, list[float]]:
    """Return calibration errors, in runs of 3,000 tasks to fit the temperature and 3,000 to measure.

    The paper fits on novel classes; no user can. On validation classes one can.
    """
    errors: dict[str, list[float]] = {"novel": [], "validation": []}
    for number in range(CALIBRATION_RUNS):
        measured = evaluator.part("novel").predict(
            task, episodes=CALIBRATION_TASKS, seed=number, split="novel-calibration"
        )
        for part, of_part in errors.items():
            fitted = evaluator.part(part).predict(
                task, episodes=CALIBRATION_TASKS, seed=number, split=f"{part}-calibration-temperature"
            )
            log_prob, labels = measured.flat
            temperature = fit_temperature(*fitted.flat)
            of_part.append(reliability(apply_temperature(log_prob, temperature), labels).error)
    return {f"calibration_runs_{part}": of_part for part, of_part in errors.items()}


# ---- one JSON per cell


def cell(training: Training, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over the training seeds, and their sources."""
    first = runs[0]
    numbers = {
        name: statistics.mean(run[name] for run in runs)
        for name, value in first.items()
        if isinstance(value, float) and name not in ("seconds", "seed")
    }
    if training.calibration:
        # One number per training and run: the paper's five are of one model.
        for part, name in (("novel", "ece_paper_temperature"), ("validation", "ece_val_temperature")):
            errors = [error for run in runs for error in run[f"calibration_runs_{part}"]]
            numbers[name], numbers[f"{name}_spread"] = statistics.mean(errors), statistics.stdev(errors)
    notes = [ENLARGED] if (first["dataset"], first["backbone"]) == ("cub", "resnet10") else []
    notes += [MIRRORED] if first.get("mirrored") else []
    notes += training.notes
    return {
        **({"notes": notes} if notes else {}),
        "method": training.method,
        "recipe": training.recipe,
        "dataset": first["dataset"],
        "backbone": first["backbone"],
        "shots": first["shots"],
        "command": f"{first['command']} && {_evaluation(first)}",
        "commit": first["commit"],
        "device": first["device"],
        "training_seeds": [run["seed"] for run in runs],
        "seconds": [run["seconds"] for run in runs],
        "accuracies": [run["accuracy"] for run in runs],
        "spread": statistics.stdev([run["accuracy"] for run in runs]) if len(runs) > 1 else None,
        **{name: first[name] for name in ("ways", "queries", "episodes", "repeats", "seeds")},
        **numbers,
        "reliability": first["reliability"],
        "reliability_val_temperature": first["reliability_val_temperature"],
    }


def _evaluation(run: dict[str, Any]) -> str:
    folder = shlex.split(run["command"])[4]
    length = "" if run["episodes"] == Training.episodes else f" --episodes {run['episodes']}"
    return f"gpldla eval {folder} --shots {run['shots']}{length} --json"


def collect(trainings: list[Training], runs: Path, results: Path) -> list[str]:
    """Write a cell for every training of which all seeds are measured; return one line for each."""
    lines = []
    for training in trainings:
        files = [runs / f"{training.name}-seed{seed}" / MEASURED for seed in training.seeds]
        missing = [file.parent.name for file in files if not file.exists()]
        if missing:
            lines.append(f"{training.name}: not measured yet: {', '.join(missing)}")
            continue
        numbers = cell(training, [read_json(file) for file in files])
        write_json(results / "cells" / f"{training.name}.json", numbers)
        spread = "" if numbers["spread"] is None else f" (± {numbers['spread']:.2f} over seeds)"
        lines.append(f"{training.name}: {numbers['accuracy']:.2f} ± {numbers['interval']:.2f}{spread}")
    return lines


def main() -> None:
    """Train, measure or collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["train", "measure", "collect"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_intermixed_args()  # names may stand after options, too
    trainings = plan(options.names)
    if options.at_once < 1:
        parser.error(f"--at-once must be at least 1, not {options.at_once}.")
    if options.what != "train" and not options.runs.is_dir():
        parser.error(f"There is no folder {options.runs}.")
    if options.what == "measure":
        if len(trainings) != 1:
            raise SystemExit("Name the one training whose folder --runs is.")
        measure(trainings[0], options.runs)
    elif options.what == "collect":
        print("\n".join(collect(trainings, options.runs, options.results)))
    else:
        lines = []
        with ThreadPoolExecutor(options.at_once) as pool:
            for together in rounds(trainings):
                jobs = [(training, seed) for training in together for seed in training.seeds]
                for line in pool.map(lambda job: run(job[0], job[1], options.runs), jobs):
                    print(line, flush=True)
                    lines.append(line)
        if any(": failed: " in line for line in lines):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
