"""What unlabelled rows change: `python -m benchmarks.honesty.pool`.

Tasks of the domains of `python -m benchmarks.honesty`, each answered by `GPLDLAClassifier()` with its
examples alone and with unlabelled rows that are neither examples nor queries. The kinds of unlabelled rows:
as many of each class ("even"), or classes in random proportions and 40 % of the rows of classes that the task
does not have ("mixed").
"""

import argparse
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from benchmarks.honesty.domains import DOMAINS, SEED, features
from gpldla import GPLDLAClassifier
from gpldla.classifier.calibration import reliability
from gpldla.data.paths import DataPaths
from gpldla.utils.files import read_json, write_atomically
from gpldla.utils.progress import Reporter
from gpldla.utils.provenance import provenance

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own-data.md"
QUERIES = 8  # per class
FOREIGN = 0.4  # of "mixed" rows
TASKS = {5: 60, 20: 12}

Numbers = dict[str, Any]


class Cell(NamedTuple):
    """A kind of task: its classes and shots, and its unlabelled rows."""

    ways: int
    shots: int
    rows: int
    kind: str


CELLS = (
    Cell(5, 1, 20, "even"),
    Cell(5, 1, 50, "even"),
    Cell(5, 1, 20, "mixed"),
    Cell(5, 1, 50, "mixed"),
    Cell(5, 2, 45, "even"),
    Cell(5, 5, 30, "even"),
    Cell(5, 5, 30, "mixed"),
    Cell(20, 1, 100, "even"),
    Cell(20, 1, 200, "even"),
    Cell(20, 1, 200, "mixed"),
)


class Task(NamedTuple):
    """Indices of rows: examples and queries, class by class, and rows whose labels are not used."""

    support: np.ndarray
    query: np.ndarray
    unlabelled: np.ndarray


def draw(y: np.ndarray, cell: Cell, count: int) -> Iterator[Task]:
    """Draw tasks; none where a domain has too few classes."""
    rng = np.random.default_rng([SEED, *cell[:3], cell.kind == "mixed"])
    of_class = [np.flatnonzero(y == c) for c in np.unique(y)]
    foreign = round(cell.rows * FOREIGN) if cell.kind == "mixed" else 0
    for _ in range(count if len(of_class) > cell.ways else 0):
        order = rng.permutation(len(of_class))
        own = [rng.permutation(of_class[c]) for c in order[: cell.ways]]
        others = np.concatenate([of_class[c] for c in order[cell.ways : 2 * cell.ways]])
        rest = [rows[cell.shots + QUERIES :] for rows in own]
        share = rng.dirichlet(np.ones(cell.ways)) if foreign else np.full(cell.ways, 1 / cell.ways)
        # Each row with a probability that follows from the share of its class, without replacement
        chance = np.concatenate([np.full(len(rows), p / len(rows)) for rows, p in zip(rest, share)])
        known, wanted = np.concatenate(rest), cell.rows - foreign
        if not foreign:
            unlabelled = np.concatenate([rows[: math.ceil(wanted / cell.ways)] for rows in rest])
        else:
            unlabelled = rng.choice(known, min(wanted, len(known)), replace=False, p=chance / chance.sum())
        yield Task(
            np.concatenate([rows[: cell.shots] for rows in own]),
            np.concatenate([rows[cell.shots : cell.shots + QUERIES] for rows in own]),
            np.concatenate([unlabelled, rng.choice(others, min(foreign, len(others)), replace=False)]),
        )


def measure(X: np.ndarray, tasks: list[Task], cell: Cell) -> Numbers:
    """Return accuracy, NLL and ECE with the examples alone and with unlabelled rows."""
    labels = np.arange(cell.ways).repeat(cell.shots)
    truth = torch.arange(cell.ways).repeat_interleave(QUERIES).repeat(len(tasks))
    found: Numbers = {"tasks": len(tasks)}
    for name in ("without", "with"):
        answers = []
        for task in tasks:
            more = X[task.unlabelled] if name == "with" else None
            fitted = GPLDLAClassifier().fit(X[task.support], labels, X_unlabelled=more)
            answers.append(torch.from_numpy(fitted.predict_log_proba(X[task.query])).double())
        log_prob = torch.cat(answers)
        found[name] = {
            "accuracy": round(100 * float((log_prob.argmax(-1) == truth).double().mean()), 2),
            "nll": round(-float(log_prob.gather(-1, truth.unsqueeze(-1)).mean()), 4),
            "ece": round(float(reliability(log_prob, truth).error), 2),
        }
    return found


def tables(results: Numbers) -> dict[str, list[str]]:
    """Return the lines of each table by name."""
    rows = results["rows"]
    kinds = [
        "| task | unlabelled rows | domains | accuracy, % | lowest change | NLL | largest ratio | ECE, % |",
        "|---|---|--:|--:|---|--:|---|--:|",
    ]
    for cell in CELLS:
        own = [row for row in rows if tuple(row["cell"]) == cell]
        if not own:
            continue
        accuracy, ece = (
            " → ".join(f"{np.mean([row[name][what] for row in own]):.1f}" for name in ("without", "with"))
            for what in ("accuracy", "ece")
        )
        ratio = {row["domain"]: row["with"]["nll"] / row["without"]["nll"] for row in own}
        gain = {row["domain"]: row["with"]["accuracy"] - row["without"]["accuracy"] for row in own}
        worst, least = max(ratio, key=lambda name: ratio[name]), min(gain, key=lambda name: gain[name])
        change = 100 * (math.exp(np.mean(np.log([*ratio.values()]))) - 1)
        kinds.append(
            f"| {cell.ways}-way {cell.shots}-shot | {cell.rows}, {cell.kind} | {len(own)} | {accuracy}"
            f" | {gain[least]:+.1f}, {least} | {change:+.1f} % | {ratio[worst]:.2f}, {worst} | {ece} |"
        )
    domains = [
        "| domain | accuracy, % | NLL | ECE, % |",
        "|---|--:|--:|--:|",
    ]
    for row in rows:
        if tuple(row["cell"]) == Cell(5, 1, 50, "even"):
            domains.append(
                f"| {row['domain']} | "
                + " | ".join(
                    " → ".join(f"{row[name][what]:{digits}}" for name in ("without", "with"))
                    for what, digits in (("accuracy", ".1f"), ("nll", ".3f"), ("ece", ".1f"))
                )
                + " |"
            )
    how = [f"`{results['command']}`, commit {results['commit']}, {results['device']}."]
    return {"kinds": kinds, "domains": domains, "how": how}


def render(page: str, results: Numbers) -> str:
    """Return a page with the tables between its markers `<!-- pool: NAME -->` and `<!-- end -->`."""
    found = tables(results)

    def fill(match: re.Match[str]) -> str:
        return f"<!-- pool: {match[1]} -->\n" + "\n".join(found[match[1]]) + "\n<!-- end -->"

    return re.sub(r"<!-- pool: ([^>]+?) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


def main() -> None:
    """Measure, write the results and the tables of the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_features = DataPaths().cache / "honesty"
    parser.add_argument("--features", type=Path, default=default_features, help="folder of the features")
    parser.add_argument("--only", nargs="+", choices=[*DOMAINS], default=[*DOMAINS])
    parser.add_argument("--tasks", type=float, default=1.0, help="factor of the number of tasks")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "pool.json")
    parser.add_argument("--render", action="store_true", help="write the tables; measure nothing")
    options = parser.parse_args()
    if not options.render:
        command = "python -m benchmarks.honesty.pool"
        command += f" --tasks {options.tasks:g}" if options.tasks != 1 else ""
        rows, where, reporter = [], provenance("cpu"), Reporter(Console(stderr=True))
        for name in options.only:
            X, y = features(name, options.features)
            with reporter.bar(name, len(CELLS)) as advance:
                for cell in CELLS:
                    count = max(2, round(options.tasks * TASKS[cell.ways]))
                    if tasks := list(draw(y, cell, count)):
                        rows.append({"domain": name, "cell": cell, **measure(X, tasks, cell)})
                    advance(1)
            write_atomically(
                options.json,
                (json.dumps({"command": command, **where, "rows": rows}, indent=1) + "\n").encode(),
            )
    results = read_json(options.json)
    write_atomically(PAGE, render(PAGE.read_text("utf-8"), results).encode())
    for title, lines in tables(results).items():
        print(f"{title}\n\n" + "\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
