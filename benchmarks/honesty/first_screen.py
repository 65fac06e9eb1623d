"""The table at the top of the README, from the stored matrix: `python -m benchmarks.honesty.first_screen`."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.honesty.measure import relative
from gpldla.utils.files import read_json, write_atomically

ROOT = Path(__file__).parents[2]
OURS = "GPLDLA"
RIVALS = {
    "logistic regression": "logistic regression",
    "the same, unit rows × 30": "logistic regression, unit rows × 30",
}
SHOTS = (1, 2, 5)

Numbers = dict[str, Any]


def first_screen(rows: list[Numbers]) -> list[str]:
    """Return the lines of the table: ECE of GPLDLA and of rivals, and its NLL against theirs."""
    lines = [
        "| classes, examples of each | ECE | "
        + " | ".join(f"ECE, {name}" for name in RIVALS)
        + " | NLL against these |",
        "|---|--:|" + "--:|" * len(RIVALS) + "--:|",
    ]
    for ways in (5, 20):
        for shots in SHOTS:
            cell = _cell(rows, ways, shots)
            if not cell.get(OURS):
                continue
            ours = cell[OURS]
            logs = {
                rival: [np.log(relative(row["nll"], cell[rival][name]["nll"])) for name, row in ours.items()]
                for rival in RIVALS.values()
            }
            change = [100 * np.expm1(np.mean(of_rival)) for of_rival in logs.values()]
            errors = [_mean_and_largest(cell[method]) for method in (OURS, *RIVALS.values())]
            lines.append(
                f"| {ways}, {shots} | **{errors[0]}** | {' | '.join(errors[1:])}"
                f" | {', '.join(f'{value:+.0f} %' for value in change).replace('-', '−')} |"
            )
    return lines


def _cell(rows: list[Numbers], ways: int, shots: int) -> dict[str, dict[str, Numbers]]:
    """Return the rows of one kind of tasks by method, then by domain."""
    found: dict[str, dict[str, Numbers]] = {}
    for row in rows:
        if (row["kind"], row["ways"], row["shots"]) == ("equal", ways, shots):
            found.setdefault(row["method"], {})[row["domain"]] = row
    return found


def _mean_and_largest(by_domain: dict[str, Numbers]) -> str:
    errors = [row["ece"] for row in by_domain.values()]
    return f"{np.mean(errors):.1f}, at most {max(errors):.0f}"


def render(page: str, results: Numbers) -> str:
    """Return a page with the table between `<!-- first screen -->` and `<!-- end -->`."""
    table = "\n".join(first_screen(results["rows"]))
    pattern = r"<!-- first screen -->\n.*?<!-- end -->"
    return re.sub(pattern, lambda _: f"<!-- first screen -->\n{table}\n<!-- end -->", page, flags=re.DOTALL)


if __name__ == "__main__":
    page = ROOT / "README.md"
    results = read_json(ROOT / "results" / "honesty.json")
    write_atomically(page, render(page.read_text("utf-8"), results).encode())
