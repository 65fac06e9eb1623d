"""The parts of the benchmark: which cells they measure, and how the results are saved."""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import sklearn
import torch
from sklearn.datasets import load_digits

import gpldla
from benchmarks.own_data.beyond import OpenTasks, measure_covariance, measure_unknown
from benchmarks.own_data.common import FLOOR, QUERIES, SEED, Numbers, scaled
from benchmarks.own_data.data import Data, chapters, photographs
from benchmarks.own_data.known_classes import measure_cell
from benchmarks.own_data.times import measure_times
from gpldla.utils.files import read_json, write_json
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.provenance import provenance

PARTS = ("photographs", "text", "beyond", "times")
SHOTS = (1, 2, 5, 10)
PHOTOGRAPHS, TEXTS = {5: 200, 50: 10}, {5: 200, 20: 40}  # number of classes → number of tasks

Save = Callable[[Numbers], None]


def measure_tables(
    data: Data, ways: Mapping[int, int], scale: float, save: Save, reporter: Reporter = SILENT
) -> None:
    """Measure all cells of a data set. ways: number of classes → number of tasks, fewest classes first."""
    part: Numbers = {"data": data.facts, "rows": [], "left_out": []}
    classes = data.facts["classes"]
    for most_ways, tasks in ways.items():
        few = most_ways == min(ways)
        for shots in SHOTS:
            rows, left_out = measure_cell(
                data, min(most_ways, classes), shots, tasks, scale, many=not few, reporter=reporter
            )
            part["rows"] += rows
            part["left_out"] += left_out
            save(part)
            best = ", ".join(
                f"{row['method']} {row['accuracy']:.1f} % NLL {row['nll']:.3f}" for row in rows[:3]
            )
            reporter.say(f"{rows[0]['ways']}-way {shots}-shot: {best}")


def measure_text_times(data: Data, scale: float, save: Save, reporter: Reporter = SILENT) -> None:
    """Measure how long our defaults take on texts, and those of logistic regression."""
    part: Numbers = {"data": data.facts, "rows": []}
    for ways in TEXTS:
        for shots in SHOTS:
            part["rows"].append(measure_times(data, min(ways, data.facts["classes"]), shots, scale, reporter))
            save(part)


def measure_beyond(data: Data, scale: float, save: Save, reporter: Reporter = SILENT) -> None:
    """Measure unknown classes, abstaining and kinds of uncertainty."""
    part: Numbers = {"data": data.facts, "unknown": [], "abstaining": [], "covariance": []}
    most = data.facts["classes"] // 2
    cells = [
        OpenTasks(data, min(ways, most), shots, scaled(tasks, scale))
        for ways, shots, tasks in ((5, 5, 100), (10, 10, 40))
    ]
    for cell in cells:
        unknown, abstaining = measure_unknown(cell, scale, reporter)
        part["unknown"] += unknown
        part["abstaining"] += abstaining
        save(part)
    digits = Data(*load_digits(return_X_y=True))
    pixels = OpenTasks(digits, 5, 5, scaled(100, scale))
    compared_settings: list[tuple[str, OpenTasks, dict[str, Any]]] = [
        *(("CUB", cell, {}) for cell in cells),
        ("digits", pixels, {}),
        *(("digits", pixels, {"map_steps": 5, "beta": beta}) for beta in (1.0, 4.0)),
    ]
    for name, cell, settings in compared_settings:
        part["covariance"] += measure_covariance(name, cell, settings, reporter)
        save(part)


def measure(
    parts: Sequence[str], features: Path, scale: float, json_file: Path, command: str, reporter: Reporter
) -> Numbers:
    """Measure parts and save after every cell; the results of other parts in the file stay."""
    photos = photographs(features, reporter) if {"photographs", "beyond"} & set(parts) else None
    texts = chapters() if {"text", "times"} & set(parts) else None
    # One thread for all methods: libraries that wait for each other's threads would distort the times.
    torch.set_num_threads(1)
    import_module("threadpoolctl").threadpool_limits(1)

    old = read_json(json_file).get("parts", {}) if json_file.exists() else {}
    facts: Numbers = {"command": command, **provenance("cpu"), "version": gpldla.__version__}
    facts |= {"scikit_learn": sklearn.__version__, "seeds": [SEED], "scale": scale}
    results: Numbers = {**facts, "queries": QUERIES, "floor": FLOOR, "parts": old}
    for name in parts:
        started = time.monotonic()

        def save(part: Numbers, *, name: str = name, started: float = started) -> None:
            part_facts = {**facts, "finished": False, "seconds": round(time.monotonic() - started, 1)}
            measured = {**results["parts"], name: {**part_facts, **part}}
            results["parts"] = {key: measured[key] for key in PARTS if key in measured}
            write_json(json_file, results)

        if name == "photographs" and photos is not None:
            measure_tables(photos, PHOTOGRAPHS, scale, save, reporter)
        elif name == "text" and texts is not None:
            measure_tables(texts, TEXTS, scale, save, reporter)
        elif name == "times" and texts is not None:
            measure_text_times(texts, scale, save, reporter)
        elif name == "beyond" and photos is not None:
            measure_beyond(photos, scale, save, reporter)
        results["parts"][name] |= {"finished": True, "seconds": round(time.monotonic() - started, 1)}
        write_json(json_file, results)
    return results
