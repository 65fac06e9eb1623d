"""The paper's tables: train what benchmarks/paper.toml lists, measure it on novel classes, keep the cells.

    python -m benchmarks.paper train [NAME ...] [--runs runs/paper] [--at-once 3] [--minutes 9]
    python -m benchmarks.paper collect [NAME ...] [--runs runs/paper] [--results results]

NAME may be a pattern, 'cub-*'; benchmarks/rivals.toml has the methods beside GPLDLA. `train` first tries the
settings that an entry leaves open on validation classes (benchmarks/trials.py), unless that was done before,
then trains in full; with `--minutes` it stops after so many, and the same command goes on from there. Each
training seed has a folder with model, metrics and measured.json. `collect` makes one JSON per cell of them.
"""

import argparse
import math
import shlex
import signal
import statistics
import sys
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.job_queue import Job, run_jobs
from benchmarks.rivals import rival_entries
from benchmarks.trials import VALIDATED, choose, chosen, file_of, shortened, validate
from gpldla.classifier.calibration import apply_temperature, fit_temperature, reliability
from gpldla.classifier.model import FewShotModel
from gpldla.data import Access, Protocol, load_protocol
from gpldla.evaluation import Predictions, ProtocolEvaluator, Task
from gpldla.training.recipe import flatten, read_recipe, stored_settings
from gpldla.training.setting_names import set_options
from gpldla.utils.devices import torch_device
from gpldla.utils.files import read_json, write_json
from gpldla.utils.provenance import provenance

PLAN = Path(__file__).with_suffix(".toml")
MEASURED = "measured.json"
CALIBRATION_TASKS, CALIBRATION_RUNS = 3_000, 5
UNMIRRORED = ("accuracy", "interval", "nll_val_temperature", "ece_val_temperature")
ENLARGED = "Photographs with a shorter side of at most 224 pixels: a little enlarged for this."
SMALL_SOURCES = (
    "From pictures of 84 × 84 pixels, whose random crops are blurrier than those of full-size photographs."
)
MIRRORED = "Features are the mean over a picture and its mirror image, which the paper does not have."


@dataclass(frozen=True)
class Training:
    """One entry of the plan.

    start:  another entry, whose network (seed 0) this one begins with; a trial may have one as well
    trials: settings to choose from on validation classes
    as_in:  another entry, whose choice this one takes over
    """

    name: str
    recipe: str
    method: str = "gpldla"
    set: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    calibration: bool = False
    episodes: int = 600
    start: str = ""
    trials: tuple[dict[str, Any], ...] = ()
    as_in: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tried(self) -> str:
        """Name of the entry whose trials decide on the settings, "" if none do."""
        return self.as_in or (self.name if self.trials else "")

    def settings(self, results: Path) -> dict[str, Any]:
        """Return the settings of the training in full, the chosen ones among them."""
        return self.set | (chosen(self.tried, results) if self.tried else {})

    def command(self, seed: int, folder: Path, settings: dict[str, Any]) -> list[str]:
        """Return the command that trains."""
        command = ["gpldla", "train", self.recipe, "-o", str(folder), "--seed", str(seed)]
        if self.method != "gpldla":
            command += ["--method", self.method]
        start = self.start_of(settings)
        network = {"start": folder.parent / f"{start}-seed0"} if start else {}
        return command + set_options({k: v for k, v in settings.items() if k != "start"} | network)

    def start_of(self, settings: dict[str, Any]) -> str:
        """Return the name of the entry whose network a training with these settings begins with, or ""."""
        return str(settings.get("start", self.start))

    def starts(self) -> frozenset[str]:
        """Return the names of the entries whose networks this one or its trials may begin with."""
        return frozenset(self.start_of(settings) for settings in ({}, *self.trials)) - {""}


def plan(patterns: list[str]) -> list[Training]:
    """Return the trainings whose names fit one of the patterns, or all."""
    entries = rival_entries(PLAN.with_name("rivals.toml")) | tomllib.loads(PLAN.read_text("utf-8"))
    chosen = {name for name in entries if not patterns or any(fnmatch(name, p) for p in patterns)}
    unknown = [p for p in patterns if not any(fnmatch(name, p) for name in entries)]
    if unknown:
        raise SystemExit(f"There is no training {unknown[0]!r} in {PLAN}.")
    return [_entry(name, **entry) for name, entry in entries.items() if name in chosen]


def _entry(name: str, **entry: Any) -> Training:
    """Return an entry with flat names of settings: what a trial changes in a table leaves the rest of it."""
    entry["set"] = flatten(entry.get("set", {}))
    entry["trials"] = tuple(flatten(trial) for trial in entry.get("trials", ()))
    return Training(name, **entry)


def with_what_they_need(trainings: list[Training]) -> list[Training]:
    """Return the trainings after all that they begin with or whose choice of settings they take over."""
    everything = {training.name: training for training in plan([])}
    ordered: dict[str, Training] = {}

    def add(training: Training) -> None:
        for name in sorted((training.starts() | {training.as_in}) - {""}):
            add(everything[name])
        ordered.setdefault(training.name, training)

    for training in trainings:
        add(training)
    return list(ordered.values())


# ---- training and measuring


def jobs(training: Training, runs: Path, results: Path) -> list[Job]:
    """Return what is to be run for an entry: its trials, the choice, the training in full for each seed."""
    needed = tuple(runs / f"{name}-seed0" / MEASURED for name in sorted(training.starts()))
    tried: list[Job] = []
    if training.trials and not file_of(training.name, results).exists():
        tried = [_trial(training, number, runs) for number in range(len(training.trials))]
        choice = [*_this("choose", training), "--runs", str(runs), "--results", str(results)]
        tried.append(
            Job(
                f"{training.name}-choice",
                file_of(training.name, results),
                lambda: [choice],
                tuple(job.done for job in tried),
            )
        )
    if training.tried:
        needed += (file_of(training.tried, results),)
    return tried + [_in_full(training, seed, runs, results, needed) for seed in training.seeds]


def _this(what: str, training: Training) -> list[str]:
    return [sys.executable, "-m", "benchmarks.paper", what, training.name]


def trial_folder(training: Training, number: int, runs: Path) -> Path:
    """Return the folder of a trial."""
    return runs / f"{training.name}-trial{number}"


def _trial(training: Training, number: int, runs: Path) -> Job:
    folder, settings = trial_folder(training, number, runs), training.set | training.trials[number]
    start = training.start_of(settings)

    def steps() -> list[list[str]]:
        plain = {name: value for name, value in settings.items() if name != "start"}
        recipe = read_recipe(training.recipe, plain, method=training.method)
        command = training.command(0, folder, settings | shortened(recipe))
        return [
            [sys.executable, "-m", *command],
            [*_this("validate", training), "--runs", str(folder)],
        ]

    needs = (runs / f"{start}-seed0" / MEASURED,) if start else ()
    return Job(folder.name, folder / VALIDATED, steps, needs)


def _in_full(training: Training, seed: int, runs: Path, results: Path, needs: tuple[Path, ...]) -> Job:
    folder = runs / f"{training.name}-seed{seed}"

    def steps() -> list[list[str]]:
        command = training.command(seed, folder, training.settings(results))
        measuring = [*_this("measure", training), "--runs", str(folder), "--results", str(results)]
        return [[sys.executable, "-m", *command], measuring]

    return Job(folder.name, folder / MEASURED, steps, needs)


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


def measure(training: Training, folder: Path, results: Path) -> None:
    """Measure a trained model as the paper does, and write the results beside it."""
    model, protocol, task = trained(folder)
    recipe = stored_settings(model.info["recipe"])
    evaluator = ProtocolEvaluator(model, protocol)
    result = evaluator.evaluate(task, episodes=training.episodes)
    command = training.command(recipe["seed"], Path("runs") / folder.name, training.settings(results))
    numbers = {
        "backbone": recipe["backbone"],
        "seed": recipe["seed"],
        "mirrored": recipe.get("mirrored", False),  # not in recipes of older runs
        "command": shlex.join(command),
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
    if numbers["mirrored"]:  # last: it changes how the model sees images
        model.set_image_settings(mirrored=False)
        plain = ProtocolEvaluator(model, protocol).evaluate(task, episodes=training.episodes).numbers
        numbers |= {f"{name}_unmirrored": plain[name] for name in UNMIRRORED}
    write_json(folder / MEASURED, numbers)


def validate_trial(folder: Path) -> None:
    """Measure a trial on validation classes, and write the result beside it."""
    model, protocol, task = trained(folder)
    facts = {"shots": task.shots, "seconds": model.info["seconds"]}
    write_json(folder / VALIDATED, validate(model, protocol, task) | facts)


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
    notes += [SMALL_SOURCES] if first["dataset"] in ("miniimagenet", "mini-cub") else []
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
    """Train, measure or collect; `choose`, `validate` and `measure` are steps of `train`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["train", "collect", "validate", "choose", "measure"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf)
    options = parser.parse_intermixed_args()  # names may stand after options, too
    trainings = plan(options.names)
    if options.at_once < 1:
        parser.error(f"--at-once must be at least 1, not {options.at_once}.")
    if not options.minutes > 0:
        parser.error(f"--minutes must be positive, not {options.minutes}.")
    if options.what != "train" and not options.runs.is_dir():
        parser.error(f"There is no folder {options.runs}.")
    if options.what == "collect":
        print("\n".join(collect(trainings, options.runs, options.results)))
    elif options.what == "train":
        queue = [
            job for t in with_what_they_need(trainings) for job in jobs(t, options.runs, options.results)
        ]
        tell = partial(print, flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so tell the trainings to stop
        if not run_jobs(
            queue, options.runs / "logs", at_once=options.at_once, seconds=60 * options.minutes, tell=tell
        ):
            raise SystemExit(1)
    else:
        if len(trainings) != 1:
            raise SystemExit("Name the one training that is meant.")
        (training,) = trainings
        if options.what == "measure":
            measure(training, options.runs, options.results)
        elif options.what == "validate":
            validate_trial(options.runs)
        else:
            folders = [trial_folder(training, n, options.runs) for n in range(len(training.trials))]
            choose(training.name, training.trials, folders, options.results)


if __name__ == "__main__":
    main()
