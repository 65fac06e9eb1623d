"""The command `python -m benchmarks.own_data`."""

import argparse
from pathlib import Path

from rich.console import Console

import benchmarks.own_data
from benchmarks.own_data.parts import PARTS, measure
from benchmarks.own_data.tables import render, tables
from gpldla.data.paths import DataPaths
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_json, write_atomically
from gpldla.utils.progress import Reporter

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own-data.md"


def main() -> None:
    """Measure, or render the page; print the tables."""
    parser = argparse.ArgumentParser(
        description=benchmarks.own_data.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_features = DataPaths().cache / "own_data_cub.npz"
    parser.add_argument(
        "--features", type=Path, help=f"features of the photographs; default: {default_features}"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure only these parts"
    )
    parser.add_argument("--episodes", type=float, default=1.0, help="factor of the number of tasks")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "own_data.json")
    parser.add_argument("--render", action="store_true", help="write the tables to the page; measure nothing")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="page for --render; default: docs/own-data.md"
    )
    arguments = parser.parse_args()
    try:
        if arguments.render:
            results = read_json(arguments.json)
            page = render(arguments.page.read_text("utf-8"), results)
            write_atomically(arguments.page, page.encode())
            return
        options = "" if arguments.only == list(PARTS) else f" --only {' '.join(arguments.only)}"
        options += f" --episodes {arguments.episodes:g}" if arguments.episodes != 1 else ""
        results = measure(
            arguments.only,
            arguments.features or default_features,
            arguments.episodes,
            arguments.json,
            f"python -m benchmarks.own_data{options}",
            Reporter(Console(stderr=True)),
        )
    except UserError as error:
        parser.exit(2, f"{error}\n")
    for name, lines in tables(results).items():
        print(f"{name}\n\n" + "\n".join(lines), end="\n\n")
    print(", ".join(f"{name} {part['seconds']:.0f} s" for name, part in results["parts"].items()))


if __name__ == "__main__":
    main()
