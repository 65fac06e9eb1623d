"""What GPLDLA's probabilities must hold, checked on the measured rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.honesty.measure import CENTROID, HELD_OUT, LOGISTIC, OLD, OURS, UNIT, relative

Numbers = dict[str, Any]
Domains = dict[str, dict[str, Numbers]]

RIVALS = (LOGISTIC, UNIT, CENTROID)
NLL_GAIN, LARGEST_RATIO, LARGEST_ECE = 0.95, 1.10, 15.0
MEAN_ECE = {5: 7.0, 20: 9.0}
GOAL_ECE = {5: 5.0, 20: 8.0}
# The name of the NLL on the tasks of each rival, and the row
WHOSE = {
    "held_out_nll": (HELD_OUT, "constants of the other domains"),
    "ours_nll": (OURS, "the package's constants"),
}
MORE_NLL, MORE_TIME = 0.01, 1.2
ERRORS = 2.0  # standard errors that an accuracy may be lower by and still be level


def musts(cells: dict[tuple[str, int, int], Domains]) -> list[str]:
    """Return the lines of a table: what must hold, and whether it does."""
    lines = ["| what | where | bound | measured | met |", "|---|---|--:|---|---|"]
    for ways in (5, 20):
        domains = cells.get(("equal", ways, 1))
        for nll, (method, whose) in WHOSE.items() if domains else ():
            lines += _one_shot(f"{ways}-way 1-shot, {whose}", domains or {}, ways, nll, method)
    later = {key: domains for key, domains in cells.items() if key[0] == "equal" and key[2] > 1}
    if later:
        lines += _more_shots(later)
    times = {
        f"{ways}-way {shots}-shot": float(
            np.median([m[OURS]["milliseconds"] / m[OLD]["milliseconds"] for m in domains.values()])
        )
        for (kind, ways, shots), domains in cells.items()
        if kind == "equal"
    }
    slowest = max(times, key=times.__getitem__)
    lines.append(_line("time against the old prior", "every cell", MORE_TIME, times[slowest], slowest))
    return lines


def _one_shot(where: str, domains: Domains, ways: int, nll: str, method: str) -> list[str]:
    def ratio(m: dict[str, Numbers], rival: str) -> float:
        return relative(m[rival][nll], m[rival]["nll"])

    lines = []
    for rival in RIVALS:
        mean = math.exp(float(np.mean([math.log(ratio(m, rival)) for m in domains.values()])))
        lines.append(_line(f"(a) NLL / {rival}, mean", where, NLL_GAIN, mean, ""))
    worst, largest = _largest(domains, lambda m: max(ratio(m, rival) for rival in RIVALS))
    lines.append(_line("(b) NLL / best rival", where, LARGEST_RATIO, largest, worst))
    ece = [m[method]["ece"] for m in domains.values()]
    lines.append(_line("(c) ECE, mean", where, MEAN_ECE[ways], float(np.mean(ece)), ""))
    least, most = _largest(domains, lambda m: m[method]["ece"])
    lines.append(_line("(c) ECE, largest", where, LARGEST_ECE, most, least))
    lines.append(_line("goal: NLL / best rival", where, 1.0, largest, worst))
    lines.append(_line("goal: ECE, largest", where, GOAL_ECE[ways], most, least))
    return lines


def _more_shots(cells: dict[tuple[str, int, int], Domains]) -> list[str]:
    rows = {
        f"{name}, {ways}-way {shots}-shot": methods
        for (_, ways, shots), domains in cells.items()
        for name, methods in domains.items()
    }
    lines = []
    for method, whose in WHOSE.values():

        def more_nll(m: dict[str, Numbers], method: str = method) -> float:
            return float(m[method]["nll"] - m[OLD]["nll"])

        def lost(m: dict[str, Numbers], method: str = method) -> float:
            return float(m[OLD]["accuracy"] - m[method]["accuracy"] - ERRORS * m[OLD]["gain_se"])

        where = f"2 and more shots, every cell, {whose}"
        worst, nll = _largest(rows, more_nll)
        lowest, short = _largest(rows, lost)
        mean = float(np.mean([m[method]["accuracy"] - m[OLD]["accuracy"] for m in rows.values()]))
        over = sum(more_nll(m) > MORE_NLL for m in rows.values())
        lines.append(
            _line(
                f"NLL less that of the old prior ({over} of {len(rows)} above)", where, MORE_NLL, nll, worst
            )
        )
        what = f"accuracy lost, beyond {ERRORS:g} standard errors (mean gain {mean:+.2f} points)"
        lines.append(_line(what, where, 0.0, max(0.0, short), lowest if short > 0 else ""))
    return lines


def _largest(cells: Domains, number: Callable[[dict[str, Numbers]], float]) -> tuple[str, float]:
    values = {name: number(methods) for name, methods in cells.items()}
    largest = max(values, key=values.__getitem__)
    return largest, values[largest]


def _line(what: str, where: str, bound: float, measured: float, place: str) -> str:
    met = "yes" if measured <= bound else f"**no**, by {measured - bound:.3g}"
    return f"| {what} | {where} | ≤ {bound:g} | {measured:.3g}{', ' * bool(place)}{place} | {met} |"
