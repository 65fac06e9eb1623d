"""The command `python -m benchmarks.honesty`."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

import benchmarks.honesty
from benchmarks.honesty.constants import Choice
from benchmarks.honesty.domains import DOMAINS, features
from benchmarks.honesty.measure import Numbers, measure, time_again
from benchmarks.honesty.novelty import measure_all, novelty_tables
from benchmarks.honesty.tables import fill, render, tables
from benchmarks.honesty.tasks import draw
from gpldla.data.paths import DataPaths
from gpldla.utils.files import read_json, write_atomically
from gpldla.utils.progress import Reporter
from gpldla.utils.provenance import provenance

ROOT = Path(__file__).parents[2]
NOVELTY = ROOT / "results" / "novelty.json"
PAGES = (ROOT / "docs" / "methods" / "gpldla-auto.md", ROOT / "docs" / "own-data.md")
SHOTS = (1, 2, 5, 10)
# Numbers of tasks by ways and shots: so many that the noise of the ECE is below one point
TASKS = {
    (5, 1): 150, (5, 2): 110, (5, 5): 45, (5, 10): 45,
    (20, 1): 32, (20, 2): 80, (20, 5): 14, (20, 10): 44,
}  # fmt: skip
TIMED_TASKS = 12
SPECIAL = {
    "two classes": ((1, 1), 220),
    "unequal shots": ((1, 5, 1, 5, 1), 180),
    "a duplicated example": ((1,) * 5, 160),
}


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
    parser.add_argument("--times", action="store_true", help="measure the times again, and nothing else")
    parser.add_argument("--novelty", action="store_true", help='measure "none of these" only')
    options = parser.parse_args()
    if options.render:
        stored, novelty = read_json(options.json), read_json(NOVELTY)
        for page in PAGES:
            text = fill(render(page.read_text("utf-8"), stored), novelty_tables(novelty))
            write_atomically(page, text.encode())
        return
    if options.times:
        measure_times(options.json, options.features)
        return
    if options.novelty:
        found = measure_all(options.only, options.features, options.tasks, Reporter(Console(stderr=True)))
        write_atomically(NOVELTY, (json.dumps(found, indent=1) + "\n").encode())
        return
    command = "python -m benchmarks.honesty" + (f" --tasks {options.tasks:g}" if options.tasks != 1 else "")
    if options.shots != list(SHOTS):
        command += f" --shots {' '.join(map(str, options.shots))}"
    reporter = Reporter(Console(stderr=True))
    domains = {name: features(name, options.features) for name in options.only}
    choice = Choice(domains)
    kinds = [
        ("equal", (shots,) * ways, count) for (ways, shots), count in TASKS.items() if shots in options.shots
    ]
    kinds += [(kind, shots, count) for kind, (shots, count) in SPECIAL.items()]
    results: Numbers = {"command": command, **provenance("cpu"), "constants": {}, "rows": []}
    for name, (X, y) in domains.items():
        held_out = choice.without(name)
        results["constants"][name] = asdict(held_out)
        with reporter.bar(name, len(kinds)) as advance:
            for kind, shots, count in kinds:
                drawn = list(draw(y, shots, max(2, round(options.tasks * count)), twice="duplicated" in kind))
                facts = {"domain": name, "kind": kind, "ways": len(shots), "shots": shots[0]}
                measured = measure(X, drawn, min(shots), len(shots), held_out) if drawn else []
                results["rows"] += [{**facts, **row} for row in measured]
                advance(1)
        write_atomically(options.json, (json.dumps(results, indent=1) + "\n").encode())
    results["constants"]["of all domains"] = asdict(choice.without(None))
    write_atomically(options.json, (json.dumps(results, indent=1) + "\n").encode())
    for name, lines in tables(results).items():
        print(f"{name}\n\n" + "\n".join(lines), end="\n\n")


def measure_times(file: Path, folder: Path) -> None:
    """Measure the times of GPLDLA in the stored rows again, for when the machine was busy."""
    results = read_json(file)
    kinds = {("equal", ways, shots): (shots,) * ways for ways, shots in TASKS}
    kinds |= {(kind, len(shots), shots[0]): shots for kind, (shots, _) in SPECIAL.items()}
    times: dict[tuple[str, str, int, int], dict[str, float]] = {}
    for row in results["rows"]:
        key = (row["domain"], row["kind"], row["ways"], row["shots"])
        if key not in times:
            X, y = features(row["domain"], folder)
            shots = kinds[key[1:]]
            drawn = list(draw(y, shots, TIMED_TASKS, twice="duplicated" in row["kind"]))
            times[key] = time_again(X, drawn, min(shots), len(shots))
        row["milliseconds"] = times[key].get(row["method"], row["milliseconds"])
    write_atomically(file, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
