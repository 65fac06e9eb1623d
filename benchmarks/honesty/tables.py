"""The tables of the pages, from the stored rows.

GPLDLA's numbers are everywhere those with the constants that were chosen on the other domains.
"""

import math
import re
from typing import Any

import numpy as np

from benchmarks.honesty.measure import HELD_OUT, OLD, OURS, UNIT, relative
from benchmarks.honesty.musts import musts

Numbers = dict[str, Any]
FEWEST = 4  # tasks that a rival is compared on
Cells = dict[tuple[str, int, int], dict[str, dict[str, Numbers]]]


def tables(results: Numbers) -> dict[str, list[str]]:
    """Return the lines of each table by name."""
    cells = cells_of(results["rows"])
    return {
        "how": [_how(results)],
        "constants": _constants(results["constants"]),
        "one shot": _by_domain(cells),
        "all shots": _summaries(cells),
        "expected": _expected(cells),
        "musts": musts(cells),
    }


def render(page: str, results: Numbers) -> str:
    """Return a page with the tables between its markers `<!-- honesty: NAME -->` and `<!-- end -->`."""
    return fill(page, tables(results))


def fill(page: str, found: dict[str, list[str]]) -> str:
    """Return a page with these tables between their markers; other tables are left as they are."""

    def replaced(match: re.Match[str]) -> str:
        lines = found.get(match[1])
        return (
            match[0]
            if lines is None
            else f"<!-- honesty: {match[1]} -->\n" + "\n".join(lines) + "\n<!-- end -->"
        )

    return re.sub(r"<!-- honesty: ([^>]+?) -->\n.*?<!-- end -->", replaced, page, flags=re.DOTALL)


def cells_of(rows: list[Numbers]) -> Cells:
    """Return rows by kind, ways and shots, then by domain, then by method."""
    found: Cells = {}
    for row in rows:
        cell = found.setdefault((row["kind"], row["ways"], row["shots"]), {})
        cell.setdefault(row["domain"], {})[row["method"]] = row
    return found


def best_rival(methods: dict[str, Numbers]) -> Numbers:
    """Return the rival with the lowest NLL, relative to GPLDLA's on the same tasks, of those with enough."""
    rivals = [row for name, row in methods.items() if name not in (OURS, HELD_OUT, OLD)]
    enough = [row for row in rivals if row["tasks"] >= FEWEST] or rivals
    return min(enough, key=lambda r: 1 / ratio(r))


def ratio(rival: Numbers) -> float:
    """Return GPLDLA's NLL relative to a rival's on the same tasks."""
    return relative(rival["held_out_nll"], rival["nll"])


def _how(results: Numbers) -> str:
    rows = results["rows"]
    one_shot = {row["ways"]: row["tasks"] for row in rows if row["shots"] == 1 and row["kind"] == "equal"}
    noise = [row["ece_noise"] for row in rows if "ece_noise" in row]
    domains = len({row["domain"] for row in rows})
    return (
        f"`{results['command']}`, commit {results['commit']}, {results['device']}: {domains} domains;"
        f" {one_shot[5]} one-shot tasks of 5 classes and {one_shot.get(20, 0)} of 20, fewer with more shots,"
        " and a part of these for the rivals, which GPLDLA is compared with on the same tasks. Standard"
        f" deviation of GPLDLA's ECE over bootstrap samples of tasks: {np.mean(noise):.1f} points on average,"
        f" {max(noise):.1f} at most."
    )


def _constants(chosen: dict[str, Numbers]) -> list[str]:
    lines = [
        "| domain left out | scale | way to one variance | likeness | freedom | growth |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, constants in chosen.items():
        label = "none" if name == "of all domains" else name
        lines.append(f"| {label} | " + " | ".join(f"{value:.3g}" for value in constants.values()) + " |")
    return lines


def _by_domain(cells: Cells) -> list[str]:
    lines = [
        "| domain | ways | accuracy, % | NLL | ECE, % | old prior: NLL | ECE, % | best rival"
        " | NLL relative to it | its ECE, % |",
        "|---|--:|--:|--:|--:|--:|--:|---|--:|--:|",
    ]
    for ways in (5, 20):
        for domain, methods in cells.get(("equal", ways, 1), {}).items():
            ours, old, rival = methods[HELD_OUT], methods[OLD], best_rival(methods)
            lines.append(
                f"| {domain} | {ways} | {ours['accuracy']:.1f} | {ours['nll']:.3f} | {ours['ece']:.1f}"
                f" | {old['nll']:.3f} | {old['ece']:.1f}"
                f" | {rival['method']} | {ratio(rival):.2f} | {rival['ece']:.1f} |"
            )
    return lines


def _summaries(cells: Cells) -> list[str]:
    lines = [
        "| task | domains | NLL against the old prior | the same, the package's constants | unit rows × 30"
        " | the best rival of each domain"
        " | largest ratio to it | accuracy against the old prior | ECE, mean | largest"
        " | answered, right among these, % | old prior | time against the old prior |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|---|--:|--:|--:|",
    ]
    for (kind, ways, shots), domains in sorted(cells.items(), key=_order):
        known = all(m[UNIT]["tasks"] >= FEWEST for m in domains.values())
        rival = {name: ratio(best_rival(m)) for name, m in domains.items()}
        ece = {name: m[HELD_OUT]["ece"] for name, m in domains.items()}
        worst, least = max(rival, key=rival.__getitem__), max(ece, key=ece.__getitem__)
        gain = np.mean([m[OLD]["gain"] for m in domains.values()])
        time = np.median([m[OURS]["milliseconds"] / m[OLD]["milliseconds"] for m in domains.values()])
        task = f"{ways}-way {shots}-shot" if kind == "equal" else kind
        shipped = _mean_ratio([relative(m[OURS]["nll"], m[OLD]["nll"]) for m in domains.values()])
        against = [_mean_ratio([ratio(m[UNIT]) for m in domains.values()]), _mean_ratio([*rival.values()])]
        against += [f"{rival[worst]:.2f}, {worst}"]
        lines.append(
            f"| {task} | {len(domains)} | {_mean_ratio([ratio(m[OLD]) for m in domains.values()])}"
            f" | {shipped} | {' | '.join(against if known else ['too few tasks'] * 3)}"
            f" | {gain:+.1f} | {np.mean([*ece.values()]):.1f}"
            f" | {ece[least]:.1f}, {least} | {_answered(domains, OURS)} | {_answered(domains, OLD)}"
            f" | {time:.2f} × |"
        )
    return lines


def _expected(cells: Cells) -> list[str]:
    lines = [
        "| task | true accuracy, % | reported | leave-one-out alone | reported less true: mean"
        " | by domain, lowest and highest | 90 % interval: holds the true one in | mean width, points |",
        "|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    for (kind, ways, shots), domains in sorted(cells.items(), key=_order):
        checked = [m[OURS]["expected_accuracy"] for m in domains.values() if "expected_accuracy" in m[OURS]]
        if not checked or kind == "a duplicated example":
            continue
        mean = {name: float(np.mean([one[name] for one in checked])) for name in checked[0]}
        bias = [one["expected"] - one["true"] for one in checked]
        task = f"{ways}-way {shots}-shot" if kind == "equal" else f"{kind} (1, 5, 1, 5, 1)"
        lines.append(
            f"| {task} | {mean['true']:.1f} | {mean['expected']:.1f} | {mean['left_out']:.1f}"
            f" | {np.mean(bias):+.1f} | {min(bias):+.1f} to {max(bias):+.1f}"
            f" | {mean['inside']:.0f} % | {mean['width']:.0f} |"
        )
    return lines


def _answered(domains: dict[str, dict[str, Numbers]], method: str) -> str:
    right = [m[method] for m in domains.values() if m[method]["answered_right"] is not None]
    given = sum(row["answered"] for row in right)
    among = sum(row["answered"] * row["answered_right"] for row in right) / max(given, 1e-9)
    return f"{given / len(domains):.0f}, {among:.1f}" if given else "0"


def _mean_ratio(ratios: list[float]) -> str:
    return f"{100 * math.expm1(float(np.mean(np.log(ratios)))):+.1f} %"


def _order(item: tuple[tuple[str, int, int], Any]) -> tuple[bool, str, int, int]:
    (kind, ways, shots), _ = item
    return kind != "equal", kind if kind != "equal" else "", ways, shots
