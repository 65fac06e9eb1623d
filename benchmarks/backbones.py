"""Networks for photographs beside each other: accuracy, NLL and ECE on novel birds, and pictures per second.

    python -m benchmarks.backbones --write results/backbones.json

Each network embeds every fourth class of CUB's sorted folders; they take turns class by class, so that both
meet the same load of the machine. All classify the same tasks with `GPLDLAClassifier()`.
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from benchmarks.own_data.common import OURS, QUERIES, Numbers, scaled
from benchmarks.own_data.data import Data, draw_tasks
from benchmarks.own_data.known_classes import Predictions, compared, predict_task
from benchmarks.own_data.methods import Method
from gpldla import GPLDLAClassifier, ImageEmbedder
from gpldla.data.catalog import find_set
from gpldla.data.paths import DataPaths
from gpldla.data.sets.base import ImageFileSet
from gpldla.data.source_files import read_tree
from gpldla.utils.errors import UserError
from gpldla.utils.files import write_json
from gpldla.utils.progress import Reporter
from gpldla.utils.provenance import provenance

NAMES = ("efficientnet-lite0", "efficientnet-lite2")
CELLS = ((5, 1, 600), (5, 5, 600), (20, 1, 200), (20, 5, 200))  # ways, shots, tasks


def embed(names: list[str], per_class: int, reporter: Reporter) -> tuple[list[Data], list[float]]:
    """Return the features of the novel classes by each network, and its pictures per second."""
    cub = find_set("cub")
    assert isinstance(cub, ImageFileSet)
    folder = cub.locate(DataPaths().root)
    if folder is None:
        raise UserError(f"There is no CUB in {DataPaths().root}; get it from {cub.get}.")
    files = sorted(cub.listing(read_tree(folder)).files_of_class.items())[3::4]
    embedders = [ImageEmbedder(name, cache=False) for name in names]
    features: list[list[np.ndarray]] = [[] for _ in names]
    seconds = [0.0] * len(names)
    for embedder in embedders:  # loads the weights, and an engine
        embedder.fit_transform([Image.open(io.BytesIO(image.read())) for image in files[0][1][:16]])
    with reporter.bar("pictures", len(files)) as advance:
        for _, own in files:
            pictures = [Image.open(io.BytesIO(image.read())) for image in own[:per_class]]
            for picture in pictures:
                picture.load()
            for index, embedder in enumerate(embedders):
                started = time.perf_counter()
                features[index].append(embedder.transform(pictures))
                seconds[index] += time.perf_counter() - started
            advance(1)
    labels = np.repeat(np.arange(len(files)), [len(part) for part in features[0]])
    data = [Data(np.concatenate(parts), labels) for parts in features]
    return data, [len(labels) / each for each in seconds]


def measure(names: list[str], scale: float, per_class: int, reporter: Reporter) -> Numbers:
    """Return the speed of each network, and one row per cell and network."""
    data, speeds = embed(names, per_class, reporter)
    ours = Method(OURS, lambda _, __: GPLDLAClassifier())
    rows = []
    for ways, shots, tasks in CELLS:
        predictions = [Predictions([], []) for _ in names]
        drawn = draw_tasks(data[0].labels, ways, shots, scaled(tasks, scale))
        with reporter.bar(f"{ways}-way {shots}-shot", len(drawn)) as advance:
            for task in drawn:
                for own, made in zip(data, predictions):
                    predict_task(ours, own.features, task, ways, shots, made)
                advance(1)
        truth = torch.from_numpy(np.repeat(np.arange(ways), QUERIES))
        for name, made in zip(names, predictions):
            rows.append(
                {"backbone": name, "ways": ways, "shots": shots} | compared(made, predictions[0], truth)
            )
    networks = [
        {"backbone": name, "pictures_per_second": round(speed, 1), "relative": round(speed / speeds[0], 3)}
        for name, speed in zip(names, speeds)
    ]
    return {"pictures": len(data[0].labels), "networks": networks, "rows": rows}


def table(results: Numbers) -> list[str]:
    """Return the lines of the table in docs/backbones.md."""
    speed = {facts["backbone"]: facts for facts in results["networks"]}
    lines = [
        "| network | tasks | accuracy, % | NLL | ECE, % | pictures per second, relative |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        accuracy, nll = (
            f"{row[key]:.{n}f} ± {row[f'{key}_interval']:.{n}f}" for key, n in (("accuracy", 1), ("nll", 3))
        )
        where = f"`{row['backbone']}` | {row['ways']}-way {row['shots']}-shot"
        relative = speed[row["backbone"]]["relative"]
        lines.append(f"| {where} | {accuracy} | {nll} | {row['ece']:.1f} | {relative:.2f} |")
    return lines


def main() -> None:
    """Measure, print the table, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(NAMES), help="models; default: %(default)s")
    parser.add_argument("--episodes", type=float, default=1.0, help="factor of the number of tasks")
    parser.add_argument("--per-class", type=int, default=60, help="pictures of each class")
    parser.add_argument("--write", type=Path, help="file for the results")
    arguments = parser.parse_args()
    try:
        results = measure(
            arguments.names, arguments.episodes, arguments.per_class, Reporter(Console(stderr=True))
        )
    except UserError as error:
        parser.exit(2, f"{error}\n")
    if arguments.write is not None:
        command = f"python -m benchmarks.backbones --write {arguments.write}"
        write_json(arguments.write, {"command": command, **provenance("cpu"), **results})
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
