"""The tables of the pages, from the stored rows."""

import math
import re
from typing import Any

import numpy as np

from benchmarks.honesty.measure import OURS, UNIT

Numbers = dict[str, Any]


def tables(results: Numbers) -> dict[str, list[str]]:
    """Return the lines of each table by name: one shot by domain, and all kinds of tasks together."""
    cells = _cells(results["rows"])
    return {
        "one shot": _by_domain(cells),
        "all shots": _summaries(cells),
        "how": [
            f"`{results['command']}`, commit {results['commit']}, {results['device']}:"
            f" {results['tasks'][0]} one-shot tasks of 5 or 2 classes and {results['tasks'][1]} of 20,"
            " a quarter of them with more shots, and of these 15 % for LDA and logistic regression with C by"
            " cross-validation (5-way only);"
            f" standard deviation of GPLDLA's ECE over bootstrap samples of tasks:"
            f" {_noise(results['rows']):.1f} points on average."
        ],
    }


def render(page: str, results: Numbers) -> str:
    """Return a page with the tables between its markers `<!-- honesty: NAME -->` and `<!-- end -->`."""
    found = tables(results)

    def fill(match: re.Match[str]) -> str:
        return f"<!-- honesty: {match[1]} -->\n" + "\n".join(found[match[1]]) + "\n<!-- end -->"

    return re.sub(r"<!-- honesty: ([^>]+?) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


def _cells(rows: list[Numbers]) -> dict[tuple[str, int, int], dict[str, dict[str, Numbers]]]:
    """Return rows by kind, ways and shots, then by domain, then by method."""
    found: dict[tuple[str, int, int], dict[str, dict[str, Numbers]]] = {}
    for row in rows:
        cell = found.setdefault((row["kind"], row["ways"], row["shots"]), {})
        cell.setdefault(row["domain"], {})[row["method"]] = row
    return found


def _by_domain(cells: dict[tuple[str, int, int], dict[str, dict[str, Numbers]]]) -> list[str]:
    lines = [
        "| domain | ways | accuracy, % | NLL | ECE, % | best rival | its NLL | its ECE, % |",
        "|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    for ways in (5, 20):
        for domain, methods in cells.get(("equal", ways, 1), {}).items():
            ours, rival = methods[OURS], _best_rival(methods)
            lines.append(
                f"| {domain} | {ways} | {ours['accuracy']:.1f} | {ours['nll']:.3f} | {ours['ece']:.1f}"
                f" | {rival['method']} | {rival['nll']:.3f} | {rival['ece']:.1f} |"
            )
    return lines


def _summaries(cells: dict[tuple[str, int, int], dict[str, dict[str, Numbers]]]) -> list[str]:
    lines = [
        "| task | domains | NLL against unit rows × 30 | NLL against the best rival of each domain"
        " | largest ratio to it | ECE, mean | ECE, largest | answered, right among these, % |",
        "|---|--:|--:|--:|---|--:|---|--:|",
    ]
    for (kind, ways, shots), domains in sorted(cells.items(), key=_order):
        ratio = {name: 1 / _ratio(_best_rival(m)) for name, m in domains.items()}
        unit = np.mean([math.log(m[OURS]["nll"] / m[UNIT]["nll"]) for m in domains.values()])
        ece = {name: m[OURS]["ece"] for name, m in domains.items()}
        worst, least = max(ratio, key=ratio.__getitem__), max(ece, key=ece.__getitem__)
        right = [m[OURS] for m in domains.values() if m[OURS]["answered_right"] is not None]
        given = sum(row["answered"] for row in right)
        among = sum(row["answered"] * row["answered_right"] for row in right) / max(given, 1e-9)
        task = f"{ways}-way {shots}-shot" if kind == "equal" else kind
        lines.append(
            f"| {task} | {len(domains)} | {100 * math.expm1(unit):+.1f} %"
            f" | {100 * math.expm1(np.mean(np.log([*ratio.values()]))):+.1f} %"
            f" | {ratio[worst]:.2f}, {worst} | {np.mean([*ece.values()]):.1f}"
            f" | {ece[least]:.1f}, {least} | {given / len(domains):.0f}, {among:.1f} |"
        )
    return lines


def _order(item: tuple[tuple[str, int, int], Any]) -> tuple[bool, str, int, int]:
    (kind, ways, shots), _ = item
    return kind != "equal", kind if kind != "equal" else "", ways, shots


def _best_rival(methods: dict[str, Numbers]) -> Numbers:
    return min((row for name, row in methods.items() if name != OURS), key=_ratio)


def _ratio(rival: Numbers) -> float:
    """Return a rival's NLL relative to GPLDLA's on the same tasks."""
    return float(rival["nll"] / rival["ours_nll"])


def _noise(rows: list[Numbers]) -> float:
    return float(np.mean([row["ece_noise"] for row in rows if row["method"] == OURS]))
