"""The tables of docs/own-data.md."""

import re
from collections.abc import Sequence

from benchmarks.own_data.common import OURS, Numbers

PLACE = re.compile(r"(?P<begin><!-- own_data: (?P<name>.*?) -->)\n.*?(?P<end><!-- end -->)", re.S)


def method_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the table of one number of classes, for every number of shots the best NLL first."""
    lines = [
        "| shots | method | tasks | accuracy, % | NLL | ECE, % | accuracy − GPLDLA's | NLL − GPLDLA's"
        " | time, × GPLDLA |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(rows, key=lambda row: (row["shots"], row["nll"])):
        ours = row["method"] == OURS
        differences = (
            " | "
            if ours
            else f"{_signed(row, 'accuracy_difference', 1)} | {_signed(row, 'nll_difference', 3)}"
        )
        lines.append(
            f"| {row['shots']} | {_title(row['method'])} | {row['tasks']}"
            f" | {row['accuracy']:.1f} ± {row['accuracy_interval']:.1f} | {row['nll']:.3f} | {row['ece']:.1f}"
            f" | {differences} | {row['time_ratio']:.2g} |"
        )
    return lines


def left_out_list(facts: Sequence[Numbers]) -> list[str]:
    """Return one line per method and reason that it was left out, with the tasks."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        where = f"{fact['ways']}-way {fact['shots']}-shot"
        reasons.setdefault((fact["method"], fact["reason"]), []).append(where)
    return [f"- {method}, {', '.join(where)}: {reason}." for (method, reason), where in reasons.items()]


def unknown_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the table of how well unknown classes are detected."""
    lines = ["| task | classifier | score | AUROC, % | ECE, % |", "|---|---|---|--:|--:|"]
    for row in rows:
        ece = f"{row['ece']:.1f}" if "ece" in row else ""
        score = f"`{row['score']}`" if row["score"] == "none_of_these" else row["score"]
        lines.append(
            f"| {_task(row)} | {_title(row['method'])} | {score}"
            f" | {row['auroc']:.1f} ± {row['auroc_interval']:.1f} | {ece} |"
        )
    return lines


def abstaining_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the table of answers that are given only where the expected error is small."""
    lines = [
        "| task | classifier | answered, % | right among these, % | expected, % | right of all, % |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        among = " | ".join(
            "" if row[key] is None else f"{row[key]:.1f}" for key in ("accuracy", "expected_accuracy")
        )
        lines.append(
            f"| {_task(row)} | {_title(row['method'])} | {row['answered']:.1f} | {among}"
            f" | {row['accuracy_of_all']:.1f} |"
        )
    return lines


def covariance_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the table of both covariances, with the difference of the full one to the diagonal one."""
    keys = ("auroc_total", "auroc_epistemic", "rejection_total", "rejection_epistemic")
    lines = [
        "| data | settings | covariance | accuracy, % | NLL | AUROC, total | AUROC, epistemic"
        " | kept, total | kept, epistemic |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        settings = ", ".join(f"`{key}={value:g}`" for key, value in row["settings"].items()) or "defaults"
        cells = [_with_difference(row, "accuracy", 1), _with_difference(row, "nll", 3)]
        cells += [_with_difference(row, key, 1) for key in keys]
        lines.append(
            f"| {row['data']}, {_task(row)} | {settings} | `{row['covariance']}` | {' | '.join(cells)} |"
        )
    return lines


def times_table(rows: Sequence[Numbers]) -> list[str]:
    """Return how often our time fits into that of logistic regression, by classes and shots."""
    shots = list(dict.fromkeys(row["shots"] for row in rows))
    lines = ["| classes | " + " | ".join(f"{n}-shot" for n in shots) + " |", "|--:|" + "--:|" * len(shots)]
    for ways in dict.fromkeys(row["ways"] for row in rows):
        cells = [f"{row['ratio']:.2f}" for row in rows if row["ways"] == ways]
        lines.append(f"| {ways} | " + " | ".join(cells) + " |")
    return lines


def tables(results: Numbers) -> dict[str, list[str]]:
    """Return all tables for which there are results, by their names on the page."""
    found: dict[str, list[str]] = {}
    for part in ("photographs", "text"):
        numbers = results["parts"].get(part)
        if numbers:
            for ways in dict.fromkeys(row["ways"] for row in numbers["rows"]):
                own = [row for row in numbers["rows"] if row["ways"] == ways]
                found[f"{part} {ways}-way"] = method_table(own)
            found[f"{part} left out"] = left_out_list(numbers["left_out"])
    beyond = results["parts"].get("beyond")
    if beyond:
        found["unknown"] = unknown_table(beyond["unknown"])
        found["abstaining"] = abstaining_table(beyond["abstaining"])
        found["covariance"] = covariance_table(beyond["covariance"])
    times = results["parts"].get("times")
    if times:
        found["times"] = times_table(times["rows"])
    return {name: lines for name, lines in found.items() if lines}


def render(page: str, results: Numbers) -> str:
    """Return the page with the tables filled in between <!-- own_data: NAME --> and <!-- end -->."""
    found = tables(results)

    def filled(match: re.Match[str]) -> str:
        lines = found.get(match["name"])
        return "\n".join([match["begin"], *lines, match["end"]]) if lines else match[0]

    return PLACE.sub(filled, page)


def _title(method: str) -> str:
    return f"**{method}**" if method == OURS else method


def _task(row: Numbers) -> str:
    return f"{row['ways']}-way {row['shots']}-shot"


def _signed(row: Numbers, key: str, digits: int) -> str:
    shown = f"{row[key]:+.{digits}f}".replace("-", "−")
    shown = shown if shown.strip("+−0.") else shown[1:]  # no sign for zero
    return f"{shown} ± {row[f'{key}_interval']:.{digits}f}"


def _with_difference(row: Numbers, key: str, digits: int) -> str:
    difference = f"{key}_difference"
    shown = f"{row[key]:.{digits}f}"
    return f"{shown} ({_signed(row, difference, digits)})" if difference in row else shown
