"""The effect of fast training on accuracy: plain in float32 and fast in bfloat16, on CUB with Conv-4.

    python -m benchmarks.precision [--episodes 10000] [--seeds 0 1 2] [--json results/precision.json]

All trainings run at the same time, each in its own process; needs a GPU and the images of CUB. The trained
weights are evaluated in float32 and with the network in bfloat16, and the head's probabilities are compared
with float64.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from gpldla import kernels
from gpldla.classifier.model import FewShotModel
from gpldla.data import Access, load_protocol
from gpldla.evaluation import PartEvaluator, ProtocolEvaluator, Task
from gpldla.training.recipe import read_recipe
from gpldla.training.run import train
from gpldla.training.stage import Acceleration
from gpldla.utils.provenance import provenance

WAYS = {"plain": "32-true", "fast": "bf16-mixed"}
TASK = Task(ways=5, shots=1, queries=15)
HEAD_EPISODES = 200


def train_and_evaluate(way: str, seed: int, episodes: int, folder: Path) -> dict[str, Any]:
    """Train by the recipe `cub` and measure the kept weights on novel classes."""
    settings = {
        "ways": 5,  # the usual episodes and crops
        "queries": 16,
        "smallest_crop": 0.08,
        "precision": WAYS[way],
        "episodes": episodes,
        "seed": seed,
        "validation.every": max(1, episodes // 5),
        "checkpoint_every": episodes,
    }
    recipe = read_recipe("cub", settings)
    plain = way == "plain"  # neither graphs nor kernels
    acceleration = Acceleration(graphs=not plain)
    with kernels.USE.disabled() if plain else nullcontext():
        result = train(recipe, folder, accelerator="cuda", acceleration=acceleration, show_progress=False)
    protocol = load_protocol(
        "cub", size=84, side=recipe.stored_side, parts=("validation", "novel"), access=Access()
    )
    model = result.model
    in_float32 = ProtocolEvaluator(model, protocol).evaluate(TASK).numbers
    return {
        "way": way,
        "seed": seed,
        "seconds": result.model.info["seconds"],
        "accuracy": in_float32["accuracy"],
        "interval": in_float32["interval"],
        "nll": in_float32["nll"],
        "accuracy_in_bfloat16": _in_bfloat16(model, protocol),
        "head_error": _head_error(model, protocol),
    }


def _in_bfloat16(model: FewShotModel, protocol: Any) -> float:
    """Return the accuracy when the network, but not the head, computes in bfloat16."""
    network = model.backbone.forward

    def reduced(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return network(images)

    model.backbone.forward = reduced  # type: ignore[method-assign]
    try:
        result: float = ProtocolEvaluator(model, protocol).evaluate(TASK).numbers["accuracy"]
        return result
    finally:
        model.backbone.forward = network  # type: ignore[method-assign]


@torch.no_grad()
def _head_error(model: FewShotModel, protocol: Any) -> float:
    """Return the largest difference in probability between the head on the GPU and in float64 on the CPU."""
    evaluator, exact, worst = PartEvaluator(model, protocol.part("novel")), model.head.double().cpu(), 0.0
    for number in range(HEAD_EPISODES):
        support, labels, query = evaluator.one_episode(TASK, seed=number, split="novel")
        wide = [t.double().cpu() if t.is_floating_point() else t.cpu() for t in (support, labels, query)]
        reference = exact.adapt(wide[0], wide[1], TASK.ways).log_prob(wide[2]).exp()
        model.head.float().to(support.device)
        ours = model.head.adapt(support, labels, TASK.ways).log_prob(query).exp()
        worst = max(worst, (ours.double().cpu() - reference).abs().max().item())
        exact = model.head.double().cpu()
    model.head.float().to(model.device)
    return worst


def measure(seeds: list[int], episodes: int) -> dict[str, Any]:
    """Run all trainings at the same time and compare the two ways."""
    with tempfile.TemporaryDirectory() as name:
        files = {(way, seed): Path(name) / f"{way}-{seed}" for way in WAYS for seed in seeds}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.precision", "--episodes", str(episodes)]  # noqa: RUF005
                + ["--one", way, str(seed), str(file)]
            )
            for (way, seed), file in files.items()
        ]
        for process in processes:
            if process.wait():
                raise RuntimeError(f"A training failed with code {process.returncode}.")
        runs = [json.loads((file / "numbers.json").read_text()) for file in files.values()]
    of = {way: [run["accuracy"] for run in runs if run["way"] == way] for way in WAYS}
    difference = statistics.mean(of["fast"]) - statistics.mean(of["plain"])
    errors = [statistics.stdev(values) / math.sqrt(len(values)) for values in of.values()]
    return {
        "episodes": episodes,
        "seeds": seeds,
        "task": "5-way 1-shot, 5 × 600 episodes of CUB novel",
        "runs": runs,
        "difference": difference,
        "standard_error": math.hypot(*errors),
        "largest_bfloat16_difference": max(abs(r["accuracy_in_bfloat16"] - r["accuracy"]) for r in runs),
        "largest_head_error": max(run["head_error"] for run in runs),
    }


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, metavar=("WAY", "SEED", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if len(options.seeds) < 2:
        parser.error("--seeds needs two or more, for a standard error")
    if options.one:
        way, seed, folder = options.one[0], int(options.one[1]), Path(options.one[2])
        numbers = train_and_evaluate(way, seed, options.episodes, folder)
        (folder / "numbers.json").write_text(json.dumps(numbers))
        return
    seeds = " ".join(map(str, options.seeds))
    results = {
        "command": f"python -m benchmarks.precision --episodes {options.episodes} --seeds {seeds}",
        **provenance(),
        **measure(options.seeds, options.episodes),
    }
    for run in results["runs"]:
        print(
            f"{run['way']:6s} seed {run['seed']}: {run['accuracy']:.2f} ± {run['interval']:.2f} %,"
            f" in bfloat16 {run['accuracy_in_bfloat16']:.2f} %, head off by {run['head_error']:.1e},"
            f" {run['seconds']:.0f} s"
        )
    print(
        f"fast − plain: {results['difference']:+.2f} points, standard error {results['standard_error']:.2f}"
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
