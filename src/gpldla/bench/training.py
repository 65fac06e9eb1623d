"""How long meta-training and evaluation take, compared with what the hardware allows."""

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn

from gpldla import kernels
from gpldla.classifier.model import FewShotModel
from gpldla.data.protocols import Part, Protocol
from gpldla.data.store import ImageSet, open_store, write_store
from gpldla.evaluation import ProtocolEvaluator, Task
from gpldla.training.episode_stage import EpisodeStage
from gpldla.training.recipe import make_recipe
from gpldla.training.stage import Acceleration, StageContext
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.provenance import provenance
from gpldla.utils.timing import now, two_digits

CLASSES, IMAGES_PER_CLASS, SIDE = 50, 59, 224  # the size of CUB's novel part
SECONDS_PER_CASE = {"cuda": 2.0, "cpu": 5.0}
ROUNDS = 5
EVALUATED_EPISODES, EVALUATED_REPEATS = 600, 5


@dataclass(frozen=True)
class Case:
    """One way to train: on which network, in which precision, and with which acceleration."""

    label: str
    backbone: str
    shots: int
    precision: str
    episodes_per_update: int = 1
    graphs: bool = True
    compiled: bool = False


def cases(device: torch.device) -> list[Case]:
    """Return what is measured on a device."""
    small, large = ("conv4", 1), ("resnet10", 5)
    if device.type == "cpu":
        return [Case("plain operations", *network, "32-true", graphs=False) for network in (small, large)]
    return [
        Case("plain operations", *small, "32-true", graphs=False),
        Case("plain operations, bfloat16", *small, "bf16-mixed", graphs=False),
        Case("graphs and kernels", *small, "32-true"),
        Case("graphs and kernels, bfloat16", *small, "bf16-mixed"),
        Case("the same, compiled head", *small, "bf16-mixed", compiled=True),
        Case("the same, 4 episodes per update", *small, "bf16-mixed", 4, compiled=True),
        Case("the same, 16 episodes per update", *small, "bf16-mixed", 16, compiled=True),
        Case("plain operations, bfloat16", *large, "bf16-mixed", graphs=False),
        Case("graphs and kernels, bfloat16", *large, "bf16-mixed"),
        Case("the same, compiled head", *large, "bf16-mixed", compiled=True),
    ]


# ---- the least that an episode costs


@dataclass(frozen=True)
class Cost:
    """Of one image: floating-point operations, and bytes between memory and chip."""

    operations: float
    bytes: float


def image_cost(backbone: str, bytes_per_value: int) -> Cost:
    """Return the least that one image costs in a training step.

    Operations: two for each product of the convolutions, in the forward pass and for both gradients; images
    have none. Bytes: what a convolution reads is written once and read once in the forward pass; it is read
    again in the backward pass, where its gradient is written and read. Statistics and everything between two
    convolutions are computed again where they are needed. The stored image is read, and what the network sees
    of it is read twice.
    """
    network = FewShotModel(backbone).backbone.eval()
    size = network.preprocessing.size
    image = torch.zeros(1, network.preprocessing.channels, size, size)
    operations, moved = 0.0, float(3 * SIDE**2)
    inputs: list[Tensor] = []  # a shortcut reads what its block reads

    def count(layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        nonlocal operations, moved
        assert isinstance(layer, nn.Conv2d)
        is_first = given[0] is image
        operations += 2 * output.numel() * layer.weight[0].numel() * (2 if is_first else 3)
        if not any(given[0] is known for known in inputs):
            inputs.append(given[0])
            moved += bytes_per_value * given[0].numel() * (2 if is_first else 5)

    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    hooks = [convolution.register_forward_hook(count) for convolution in convolutions]
    with torch.no_grad():
        network(image)
    for hook in hooks:
        hook.remove()
    return Cost(operations, moved)


def hardware(device: torch.device) -> dict[str, float]:
    """Measure two limits: operations per second of a large product, bytes per second of a large copy."""
    on_gpu = device.type == "cuda"
    n = 8192 if on_gpu else 2048
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32) for _ in "ab")
    source = torch.rand((1 << 28) if on_gpu else (1 << 26), device=device)
    target = torch.empty_like(source)
    return {
        "operations_a_second": 2 * n**3 / _seconds(lambda: a @ b, device),
        "bytes_a_second": 2 * source.nbytes / _seconds(lambda: target.copy_(source), device),
    }


# ---- what it costs


def bench_training(
    device: torch.device, *, rounds: int = ROUNDS, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Measure every case on random images: speed does not depend on what they show."""
    images = generated_images()
    limits = hardware(device)
    rows = []
    everything = cases(device)
    with reporter.bar("training", len(everything) + 1) as advance:
        for case in everything:
            rows.append(_measure(case, images, device, limits, rounds))
            advance(1)
        evaluation = _evaluation_seconds(images, device, rounds)
        advance(1)
    return {
        "command": f"gpldla bench training --device {device.type}"
        + ("" if rounds == ROUNDS else f" --rounds {rounds}"),
        **provenance(device),
        **limits,
        "rounds": rounds,
        "rows": rows,
        "evaluation": evaluation,
    }


def generated_images() -> ImageSet:
    """Return random pictures of the size of stored photographs."""
    pixels = np.random.default_rng(0).integers(
        0, 256, (CLASSES * IMAGES_PER_CLASS, 3, SIDE, SIDE), dtype=np.uint8
    )
    names = tuple(f"class {number}" for number in range(CLASSES))
    shapes = np.tile(np.array([[375, 500]], np.int32), (len(pixels), 1))  # as photographs were
    return ImageSet("generated", pixels, names, np.full(CLASSES, IMAGES_PER_CLASS), shapes=shapes)


def _measure(
    case: Case, images: ImageSet, device: torch.device, limits: dict[str, float], rounds: int
) -> dict[str, Any]:
    stage = _stage(case, images, device)
    images_per_episode = stage.images_per_episode
    with nullcontext() if case.graphs else kernels.USE.disabled():
        for _ in range(5 if device.type == "cuda" else 1):  # warm-up, and the recording of a graph
            stage.update()
        seconds = _seconds(stage.update, device, rounds) / case.episodes_per_update
    cost = image_cost(case.backbone, 2 if case.precision == "bf16-mixed" else 4)
    floors = (
        images_per_episode * cost.operations / limits["operations_a_second"],
        images_per_episode * cost.bytes / limits["bytes_a_second"],
    )
    return {
        "case": case.label,
        "backbone": case.backbone,
        "shots": case.shots,
        "precision": case.precision,
        "episodes_an_update": case.episodes_per_update,
        "images_an_episode": images_per_episode,
        "gflop_an_episode": images_per_episode * cost.operations / 1e9,
        "mb_an_episode": images_per_episode * cost.bytes / 1e6,
        "operations_floor_ms": 1e3 * floors[0],
        "bytes_floor_ms": 1e3 * floors[1],
        "ms_an_episode": 1e3 * seconds,
        "images_a_second": images_per_episode / seconds,
        "times_the_floor": seconds / max(floors),
    }


def _stage(case: Case, images: ImageSet, device: torch.device) -> EpisodeStage:
    """Return a stage for a case; its updates include sampling and augmentation."""
    recipe = make_recipe(
        {
            "dataset": "cub",
            "backbone": case.backbone,
            "shots": case.shots,
            "augment": "photographs",
            "precision": case.precision,
            "episodes_per_update": case.episodes_per_update,
            "ema": 0.999,
            "episodes": 10_000_000,
        }
    )
    fabric = Fabric(accelerator=device.type, devices=1, precision=case.precision)  # type: ignore[arg-type]
    fabric.launch()
    torch.manual_seed(0)
    model = FewShotModel(case.backbone).to(device)
    part = Part(images, tuple(range(CLASSES)))
    acceleration = Acceleration(graphs=case.graphs, compile_from_updates=0 if case.compiled else None)
    return EpisodeStage(StageContext(recipe, model, part, fabric, acceleration), frozen_backbone=False)


def _evaluation_seconds(images: ImageSet, device: torch.device, rounds: int) -> dict[str, Any]:
    """Time a whole evaluation from a packed store: features, episodes, temperatures and all measures."""
    if device.type == "cpu":
        rounds = 1
    classes = tuple(range(CLASSES))
    model = FewShotModel("conv4").to(device).eval()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "store"
        write_store(folder, images, {})

        def evaluate() -> None:
            stored = open_store(folder)
            parts = {part: Part(stored, classes) for part in ("validation", "novel")}
            ProtocolEvaluator(model, Protocol("generated", parts)).evaluate(
                Task(ways=5, shots=5), episodes=EVALUATED_EPISODES, repeats=EVALUATED_REPEATS
            )

        evaluate()
        spent = []
        for _ in range(rounds):
            started = time.perf_counter()
            evaluate()
            spent.append(time.perf_counter() - started)
    return {
        "episodes": EVALUATED_EPISODES * EVALUATED_REPEATS,
        "images": 2 * len(images.images),
        "seconds": median(spent),
    }


def _seconds(call: Callable[[], object], device: torch.device, rounds: int = 3) -> float:
    """Return the median over rounds of the mean seconds per call; a GPU is synchronised once per round."""
    call()
    started = now(device)
    call()
    calls = max(1, int(SECONDS_PER_CASE[device.type] / rounds / max(now(device) - started, 1e-6)))
    measured = []
    for _ in range(rounds):
        started = now(device)
        for _ in range(calls):
            call()
        measured.append((now(device) - started) / calls)
    return median(measured)


def training_table(results: dict[str, Any]) -> Table:
    """Show the time per episode in every case, and how many times the floor that is."""
    evaluation = results["evaluation"]
    table = Table(
        title="Meta-training, 5-way, 16 queries per class, sampling and augmentation included",
        title_justify="left",
        caption=f"The floor: {results['operations_a_second'] / 1e12:.3g} TFLOP/s and"
        f" {results['bytes_a_second'] / 1e12:.2g} TB/s, measured here.\n"
        f"Evaluation of {evaluation['episodes']:,} episodes from a packed store, temperatures included:"
        f" {evaluation['seconds']:.2g} s.\n{results['device']}.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("network", no_wrap=True)
    table.add_column("case", no_wrap=True)
    for column in ("floor, ms", "ms per episode", "times the floor", "images/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in results["rows"]:
        table.add_row(
            f"{row['backbone']}, {row['shots']}-shot",
            row["case"],
            two_digits(max(row["operations_floor_ms"], row["bytes_floor_ms"])),
            two_digits(row["ms_an_episode"]),
            two_digits(row["times_the_floor"]),
            f"{row['images_a_second']:,.0f}",
        )
    return table
