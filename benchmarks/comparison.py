"""Print the tables of docs/comparison.md from stored results; nothing is measured.

gpldla demo --compare -o demo && cp demo/compare.json results/
gpldla bench heads --device cpu --json results/bench_heads_cpu.json
gpldla bench heads --device cuda --json results/bench_heads_cuda.json
python -m benchmarks.comparison
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
# The titles of methods that stored results have under an earlier one.
TITLES = {"GPyTorch, one GP a class": "GPyTorch, one GP per class"}


def accuracy_table(results: dict[str, Any]) -> list[str]:
    """Return the table of `gpldla demo --compare`, the best NLL first; times as ratios."""
    lines = [
        "| method | accuracy, % | NLL | ECE, % | NLL, with temperature | ECE, with temperature | 5-shot, %"
        " | time, × GPLDLA |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(results["rows"], key=lambda row: row["nll"]):
        title = f"**{row['title']}**" if row["method"] == "gpldla" else row["title"]
        lines.append(
            f"| {title} | {row['accuracy']:.1f} ± {row['interval']:.1f} | {row['nll']:.3f} | {row['ece']:.1f}"
            f" | {row['nll_model_temperature']:.3f} | {row['ece_model_temperature']:.1f}"
            f" | {row['accuracy_5_shot']:.1f} ± {row['interval_5_shot']:.1f} | {row['time_ratio']:.2g} |"
        )
    return lines


def times_table(results: dict[str, Any], shots: int, *, ratios: bool) -> list[str]:
    """Return the table of `gpldla bench heads`: µs per episode, or multiples of GPLDLA's time."""
    batches = sorted({row["batch"] for row in results["rows"]})
    lines = [
        f"| {shots}-shot, episodes per batch | " + " | ".join(f"{batch:,}" for batch in batches) + " |",
        "|---|" + "--:|" * len(batches),
    ]
    rows = [row for row in results["rows"] if row["shots"] == shots]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {row["batch"]: row for row in rows if row["method"] == method}
        key = "ratio" if ratios else "us_an_episode"
        cells = [f"{own[batch][key]:,.3g}" if batch in own else "" for batch in batches]
        lines.append(f"| {TITLES.get(method, method)} | " + " | ".join(cells) + " |")
    return lines


def tables() -> list[list[str]]:
    """Return all tables of docs/comparison.md."""
    read = {name: json.loads((RESULTS / f"{name}.json").read_text("utf-8")) for name in NAMES}
    return [
        accuracy_table(read["compare"]),
        *(times_table(read["bench_heads_cuda"], shots, ratios=False) for shots in (1, 5)),
        *(times_table(read["bench_heads_cuda"], shots, ratios=True) for shots in (1, 5)),
        *(times_table(read["bench_heads_cpu"], shots, ratios=True) for shots in (1, 5)),
    ]


NAMES = ("compare", "bench_heads_cuda", "bench_heads_cpu")

if __name__ == "__main__":
    for table in tables():
        print("\n".join(table), end="\n\n")
