"""The effect of power, mirror images and zoom on trained models, added one after another, on novel classes.

    python -m benchmarks.evaluation_steps RUN_FOLDER ... [--json results/evaluation_steps.json]

The first row is the paper's evaluation of the same weights, the last row the model's own. The settings were
chosen on validation classes, not by these results (docs/experiments.md).
"""

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.paper import trained
from gpldla.classifier.model import FewShotModel
from gpldla.data.preprocessing import ZOOM
from gpldla.evaluation import ProtocolEvaluator
from gpldla.utils.files import write_json
from gpldla.utils.provenance import provenance

NUMBERS = ("accuracy", "interval", "nll_val_temperature", "ece_val_temperature", "ece_paper_temperature")


def steps(model: FewShotModel) -> Iterator[str]:
    """Set a model to the paper's evaluation, then back to its own; yield the name of each step."""
    own, power = model.preprocessing, model.head_options.get("power", 1.0)
    model.backbone.preprocessing = replace(own, zoom=ZOOM, mirrored=False)
    model.set_head_options({"power": 1.0})
    yield "as the paper evaluates"
    model.backbone.preprocessing = replace(own, zoom=ZOOM)
    yield "mirror images"
    model.backbone.preprocessing = own
    yield f"zoom {own.zoom:g}"
    model.set_head_options({"power": power})
    yield f"power {power:g}"


def measure(folder: Path, episodes: int) -> dict[str, dict[str, Any]]:
    """Return the results of a trained model for each step."""
    model, protocol, task = trained(folder)
    return {
        step: ProtocolEvaluator(model, protocol).evaluate(task, episodes=episodes).numbers
        for step in steps(model)
    }


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    measured = {folder.name: measure(folder, options.episodes) for folder in options.runs}
    for shots in (1, 5):
        of_shots = [run for run in measured.values() if next(iter(run.values()))["shots"] == shots]
        for step in of_shots[0] if of_shots else ():
            means = {name: statistics.mean(run[step][name] for run in of_shots) for name in NUMBERS}
            rows.append({"shots": shots, "step": step, "runs": len(of_shots), **means})
    for row in rows:
        print(
            "| "
            + " | ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values())
        )
    if options.json:
        folders = " ".join(f"runs/paper/{name}" for name in measured)
        command = f"python -m benchmarks.evaluation_steps {folders} --episodes {options.episodes}"
        write_json(options.json, {"command": command, **provenance(), "rows": rows})


if __name__ == "__main__":
    main()
