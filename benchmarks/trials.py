"""Which settings a training should have: each is tried for a quarter of its length, on validation classes.

The trials of an entry in benchmarks/paper.toml are settings beside those that it has anyway. The one that is
right most often on validation classes is used for the training in full; results/trials/NAME.json keeps all of
them. Novel classes are never looked at.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpldla.classifier.calibration import fit_temperature
from gpldla.classifier.model import FewShotModel
from gpldla.data import Protocol
from gpldla.evaluation import PartEvaluator, Task, measure
from gpldla.training.recipe import Recipe
from gpldla.utils.files import read_json, write_json
from gpldla.utils.provenance import provenance

SHARE = 0.25  # of the episodes of the training in full
TASKS, SEEDS, SPLIT = 3_000, (1, 2), "trial"  # other tasks than those that choose weights during a training
VALIDATED = "validated.json"


def shortened(recipe: Recipe) -> dict[str, Any]:
    """Return what makes a trial of a training: a quarter of its episodes, and of its base stage."""
    return {"episodes": max(1, round(recipe.episodes * SHARE)), "base.epochs": recipe.base.epochs * SHARE}


def validate(model: FewShotModel, protocol: Protocol, task: Task) -> dict[str, float]:
    """Return accuracy, NLL and ECE on validation classes; each half has the temperature of the other."""
    part = PartEvaluator(model, protocol.part("validation"))
    halves = [part.predict(task, episodes=TASKS, seed=seed, split=SPLIT) for seed in SEEDS]
    temperatures = [fit_temperature(*half.flat) for half in halves]
    measured = [measure(half, temperature=t) for half, t in zip(halves, reversed(temperatures))]
    return {name: sum(one[name] for one in measured) / len(measured) for name in ("accuracy", "nll", "ece")}


def choose(
    name: str, trials: Sequence[Mapping[str, Any]], folders: Sequence[Path], results: Path
) -> Mapping[str, Any]:
    """Write the trials with what was measured, best first, and return the settings of the best."""
    rows = [{"settings": dict(trial), **read_json(f / VALIDATED)} for trial, f in zip(trials, folders)]
    rows.sort(key=lambda row: -row["accuracy"])
    facts = {"tasks": TASKS, "seeds": list(SEEDS), "share": SHARE, **provenance()}
    write_json(file_of(name, results), {"name": name, **facts, "trials": rows})
    return dict(rows[0]["settings"])


def file_of(name: str, results: Path) -> Path:
    """Return where the trials of a training are kept."""
    return results / "trials" / f"{name}.json"


def chosen(name: str, results: Path) -> dict[str, Any]:
    """Return the settings that did best among the trials of a training."""
    settings: dict[str, Any] = read_json(file_of(name, results))["trials"][0]["settings"]
    return settings
