"""The command `python -m benchmarks.honesty`."""

import argparse
import json
from pathlib import Path

from rich.console import Console

import benchmarks.honesty
from benchmarks.honesty.domains import DOMAINS, features
from benchmarks.honesty.measure import Numbers, draw, measure
from benchmarks.honesty.tables import render, tables
from gpldla.data.paths import DataPaths
from gpldla.utils.files import read_json, write_atomically
from gpldla.utils.progress import Reporter
from gpldla.utils.provenance import provenance

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "methods" / "gpldla-auto.md", ROOT / "docs" / "own-data.md")
SHOTS = (1, 2, 5, 10)
TASKS = {5: 200, 20: 40}  # of one shot, by the number of classes; a quarter of them of more shots
SPECIAL = {"two classes": (1, 1), "unequal shots": (1, 5, 1, 5, 1), "a duplicated example": (1, 1, 1, 1, 1)}


def main() -> None:
    """Measure, or render the pages; print the tables."""
    parser = argparse.ArgumentParser(
        description=benchmarks.honesty.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_features = DataPaths().cache / "honesty"
    parser.add_argument("--features", type=Path, default=default_features, help="folder of the features")
    parser.add_argument("--only", nargs="+", choices=[*DOMAINS], default=[*DOMAINS])
    parser.add_argument("--shots", nargs="+", type=int, default=list(SHOTS))
    parser.add_argument("--tasks", type=float, default=1.0, help="factor of the number of tasks")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "honesty.json")
    parser.add_argument(
        "--render", action="store_true", help="write the tables to the pages; measure nothing"
    )
    options = parser.parse_args()
    if options.render:
        results = read_json(options.json)
        for page in PAGES:
            write_atomically(page, render(page.read_text("utf-8"), results).encode())
        return
    command = "python -m benchmarks.honesty" + (f" --tasks {options.tasks:g}" if options.tasks != 1 else "")
    if options.shots != list(SHOTS):
        command += f" --shots {' '.join(map(str, options.shots))}"
    tasks = {ways: max(2, round(options.tasks * count)) for ways, count in TASKS.items()}
    rows: list[Numbers] = []
    where = provenance("cpu")
    reporter = Reporter(Console(stderr=True))
    for name in options.only:
        X, y = features(name, options.features)
        cells = [("equal", (shots,) * ways) for ways in TASKS for shots in options.shots] + [*SPECIAL.items()]
        with reporter.bar(name, len(cells)) as advance:
            for kind, shots in cells:
                count = tasks.get(len(shots), tasks[5]) // (1 if max(shots) == 1 else 4)
                drawn = list(draw(y, shots, max(1, count), twice="duplicated" in kind))
                facts = {"domain": name, "kind": kind, "ways": len(shots), "shots": shots[0]}
                measured = measure(X, drawn, min(shots), len(shots)) if drawn else []
                rows += [{**facts, **row} for row in measured]
                advance(1)
        results = {"command": command, **where, "tasks": [*tasks.values()], "rows": rows}
        write_atomically(options.json, (json.dumps(results, indent=1) + "\n").encode())
    for name, lines in tables(results).items():
        print(f"{name}\n\n" + "\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
