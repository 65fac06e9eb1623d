"""The effect of the stored image size: short trainings on CUB, measured on its validation classes.

    python -m benchmarks.stored_side [--sides 96 120 160] [--seeds 0 1] [--json results/stored_side.json]

All trainings run at the same time on one GPU. Test classes are not used.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

from gpldla.data import load_protocol
from gpldla.training.recipe import read_recipe
from gpldla.training.run import train
from gpldla.utils.provenance import provenance

SETTINGS = {
    "ways": 5,  # the usual episodes and crops
    "queries": 16,
    "smallest_crop": 0.08,
    "episodes": 5_000,
    "ema": 0.998,
    "validation_episodes": 1_000,
}


def validation_accuracy(side: int, seed: int, episodes: int) -> float:
    """Train by the recipe `cub`, shortened, with images stored at `side` pixels."""
    recipe = read_recipe("cub", {**SETTINGS, "stored_side": side, "episodes": episodes, "seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        result = train(recipe, Path(folder) / "run", show_progress=False)
    return round(float(result.model.info["validation_accuracy"]), 2)


def _pack(side: int) -> None:
    load_protocol("cub", side=side)


def measure(sides: list[int], seeds: list[int], episodes: int) -> list[dict[str, Any]]:
    """Pack once per side, then run all trainings at the same time, each in its own process."""
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used after a fork
    with context.Pool(len(sides) * len(seeds)) as pool:
        pool.map(_pack, sides, chunksize=1)
        runs = [(side, seed, episodes) for side in sides for seed in seeds]
        accuracies = pool.starmap(validation_accuracy, runs, chunksize=1)
    return [
        {"side": side, "validation_accuracy": accuracies[i * len(seeds) : (i + 1) * len(seeds)]}
        for i, side in enumerate(sides)
    ]


def table(results: dict[str, Any]) -> list[str]:
    """Return the table of the documentation."""
    lines = ["| stored at | accuracy on validation classes, % (per seed) | mean |", "|--:|--:|--:|"]
    for row in results["rows"]:
        accuracies = row["validation_accuracy"]
        each = " / ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        lines.append(f"| {row['side']} px | {each} | {statistics.mean(accuracies):.2f} |")
    return lines


def main() -> None:
    """Measure, print a table, and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", type=int, nargs="+", default=[96, 120, 144, 160, 192, 224])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--episodes", type=int, default=SETTINGS["episodes"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {
        "command": f"python -m benchmarks.stored_side --sides {' '.join(map(str, options.sides))}"
        f" --seeds {' '.join(map(str, options.seeds))} --episodes {options.episodes}",
        **provenance(),
        "settings": {**SETTINGS, "episodes": options.episodes},
        "seeds": options.seeds,
        "rows": measure(options.sides, options.seeds, options.episodes),
    }
    print("\n".join(table(results)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
