"""Run the demo with several seeds, and keep its numbers, time and memory in results/demo.json.

    python -m benchmarks.demo [--seeds 0 1 2] [--json results/demo.json]

Prints the table of the README.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gpldla
from gpldla.utils.provenance import provenance

KEPT = (
    "accuracy",
    "interval",
    "nll",
    "ece",
    "nll_classifier",
    "ece_classifier",
    "pixels",
    "untrained",
)


def measure(seeds: list[int]) -> dict[str, Any]:
    """Run `gpldla demo` once per seed, each in a separate folder and with an empty cache."""
    runs, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            output = Path(folder) / f"seed-{seed}"
            started = time.monotonic()
            command = [sys.executable, "-m", "gpldla", "demo", "--seed", str(seed), "-o", str(output)]
            subprocess.run([*command, "--cache", str(output / "cache")], check=True)
            seconds.append(round(time.monotonic() - started, 1))
            runs.append(json.loads((output / "results.json").read_text("utf-8")))
    rows = [
        {
            "label": lines[0]["label"],
            "dataset": lines[0]["dataset"],
            "ways": lines[0]["ways"],
            "shots": lines[0]["shots"],
            "separate_groups": lines[0]["separate_groups"],
            "episodes": lines[0]["episodes"],
            **{key: [round(line[key], 4) for line in lines] for key in KEPT},
        }
        for lines in zip(*(run["rows"] for run in runs))
    ]
    return {
        "command": f"python -m benchmarks.demo --seeds {' '.join(map(str, seeds))}",
        **provenance(),
        "version": gpldla.__version__,
        "seeds": seeds,
        "seconds": seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,  # Linux counts KiB
        "recipe": {key: value for key, value in runs[0]["recipe"].items() if key != "seed"},
        "rows": rows,
    }


def table(results: dict[str, Any]) -> list[str]:
    """Return the README's lines: means over seeds, ± the standard deviation between them."""
    lines = [
        "| classes never seen in training | accuracy, % | raw pixels | untrained network"
        " | ECE, as predicted | ECE, as answered |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        mean = {key: statistics.fmean(row[key]) for key in KEPT}
        spread = statistics.stdev(row["accuracy"]) if len(row["accuracy"]) > 1 else 0.0
        lines.append(
            f"| {row['label']} | **{mean['accuracy']:.1f}** ± {spread:.1f} | {mean['pixels']:.1f} |"
            f" {mean['untrained']:.1f} | {mean['ece']:.1f} | {mean['ece_classifier']:.1f} |"
        )
    return lines


def main() -> None:
    """Measure, write the JSON, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, default=Path("results/demo.json"))
    arguments = parser.parse_args()
    results = measure(arguments.seeds)
    arguments.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print("\n".join(table(results)))
    print(f"{results['seconds']} s, {results['peak_memory_mib']} MiB")


if __name__ == "__main__":
    main()
