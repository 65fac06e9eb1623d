"""Images per second: packed store with batched transforms, beside Pillow image by image in a DataLoader.

    python -m benchmarks.loading [--seconds 5] [--rounds 3] [--json results/loading.json]

Both sides give the same images on the CPU, with two workers: processes for the DataLoader, which decodes its
files each time, as is usual, and threads for the store, whose images were decoded and reduced once. They take
turns, so that other load affects both. Photographs are those of CUB if the data root has it, else generated;
characters are Omniglot's. If kornia is installed, its transforms are timed on the same pixels, too.
"""

import argparse
import io
import json
import math
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gpldla.backbones import backbone_preprocessing
from gpldla.data import Access, DataPaths, Part, load_set
from gpldla.data.augment.training_images import TRAINING_TRANSFORMS
from gpldla.data.catalog import find_set
from gpldla.data.part_images import PartImages
from gpldla.data.preprocessing import Preprocessing
from gpldla.data.sets import StoredSet
from gpldla.data.source_files import read_tree
from gpldla.utils.process import prepare_process
from gpldla.utils.provenance import provenance

WORKERS = 2
BATCH = 85  # a 5-way 1-shot episode with 16 queries per class


@dataclass(frozen=True)
class Case:
    """One kind of images and their transforms."""

    label: str
    set_name: str
    backbone: str
    augment: str


class PillowImages(Dataset[Tensor]):
    """Opens, changes and converts one image at a time, as torchvision's transforms do."""

    def __init__(self, files: list[Path], preprocessing: Preprocessing, augment: str) -> None:
        self._files, self._preprocessing, self._augment = files, preprocessing, augment
        self._mean = torch.tensor(preprocessing.mean).view(-1, 1, 1)
        self._std = torch.tensor(preprocessing.std).view(-1, 1, 1)

    def __len__(self) -> int:
        """Return a length that no run reaches."""
        return 10_000_000

    def __getitem__(self, number: int) -> Tensor:
        """Return a random image, float32 [c, size, size]."""
        with Image.open(random.choice(self._files)) as opened:
            image = opened.convert("L" if self._preprocessing.channels == 1 else "RGB")
        image = self._augmented(image) if self._augment == "photographs" else self._evaluated(image)
        array = np.array(image).reshape(*image.size, -1)
        tensor = torch.from_numpy(array).permute(2, 0, 1).contiguous().float().div_(255)
        return tensor.sub_(self._mean).div_(self._std)

    def _evaluated(self, image: Image.Image) -> Image.Image:
        size, side = self._preprocessing.size, self._preprocessing.resized
        margin = (side - size) // 2
        resized = image.resize((side, side), Image.Resampling.BILINEAR)
        return resized.crop((margin, margin, margin + size, margin + size))

    def _augmented(self, image: Image.Image) -> Image.Image:
        size = self._preprocessing.size
        left, top, width, height = self._box(*image.size)
        image = image.crop((left, top, left + width, top + height)).resize(
            (size, size), Image.Resampling.BILINEAR
        )
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = change(image).enhance(random.uniform(0.6, 1.4))
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image

    @staticmethod
    def _box(width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if w <= width and h <= height:
                return random.randint(0, width - w), random.randint(0, height - h), w, h
        return 0, 0, width, height


def pillow_rate(files: list[Path], case: Case, seconds: float) -> float:
    """Return images per second through a DataLoader with two workers, after it has filled its queue."""
    dataset = PillowImages(files, backbone_preprocessing(case.backbone), case.augment)
    batches = iter(DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS))
    for _ in range(4 * WORKERS):
        next(batches)
    started, images = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        images += len(next(batches))
    return images / (time.perf_counter() - started)


def packed_rate(part: Part, case: Case, seconds: float) -> float:
    """Return images per second from the store through the batched transforms, in two threads."""
    images, preprocessing = PartImages(part, "cpu"), backbone_preprocessing(case.backbone)
    transform = TRAINING_TRANSFORMS[case.augment]

    def batch() -> None:
        numbers = torch.randint(len(images), (BATCH,))
        changes = transform.draw(
            torch.rand(BATCH, transform.n_uniforms), images.original_shapes(numbers), images.stored_shape
        )
        transform.apply(images[numbers], changes, preprocessing)

    return _rate_in_threads(batch, seconds)


def _rate_in_threads(batch: Callable[[], object], seconds: float) -> float:
    """Return images per second of a function that makes one batch, called repeatedly in two threads."""
    done = [0] * WORKERS
    stop = threading.Event()

    def work(worker: int) -> None:
        while not stop.is_set():
            batch()
            done[worker] += BATCH

    with ThreadPoolExecutor(WORKERS) as pool:
        workers = [pool.submit(work, worker) for worker in range(WORKERS)]
        time.sleep(min(2.0, seconds))  # warm-up
        started, before = time.perf_counter(), sum(done)
        time.sleep(seconds)
        rate = (sum(done) - before) / (time.perf_counter() - started)
        stop.set()
        for worker in workers:
            worker.result()  # raises the worker's error
    return rate


def kornia_rates(part: Part, seconds: float) -> dict[str, Any] | None:
    """Return images per second of kornia's and our photograph transforms on the same pixels in memory."""
    try:
        from kornia import __version__, augmentation  # type: ignore[import-not-found]
    except ImportError:
        return None
    preprocessing, transform = backbone_preprocessing("conv4"), TRAINING_TRANSFORMS["photographs"]
    size = preprocessing.size
    pixels = torch.from_numpy(part.read(np.arange(BATCH)))
    theirs = torch.nn.Sequential(
        augmentation.RandomResizedCrop((size, size), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)),
        augmentation.ColorJiggle(0.4, 0.4, 0.4, 0.0),
        augmentation.RandomHorizontalFlip(),
    )

    def ours() -> None:
        side = (pixels.shape[2], pixels.shape[3])
        changes = transform.draw(torch.rand(BATCH, transform.n_uniforms), None, side)
        transform.apply(pixels, changes, preprocessing)

    return {
        "version": __version__,
        "kornia": _rate_in_threads(lambda: theirs(pixels.float() / 255), seconds),
        "ours": _rate_in_threads(ours, seconds),
    }


def unpacked_files(set_name: str, access: Access, folder: Path, limit: int) -> list[Path]:
    """Write some image files of a data set to `folder`, unpacked, for a DataLoader."""
    source = _place(set_name, access.data_paths)
    assert source is not None
    files = list(read_tree(source).images.values())
    paths = []
    for number in np.unique(np.linspace(0, len(files) - 1, min(limit, len(files))).astype(int)):
        path = folder / f"{number}{Path(files[number].name).suffix}"
        path.write_bytes(files[number].read())
        paths.append(path)
    return paths


def _place(set_name: str, data_paths: DataPaths) -> Path | None:
    data_set = find_set(set_name)
    assert isinstance(data_set, StoredSet)
    return data_set.locate(data_paths.root)


def generate_photographs(folder: Path, classes: int = 10, images: int = 40) -> None:
    """Write smooth noise as JPEGs of the size of CUB's originals."""
    rng = np.random.default_rng(0)
    for number in range(classes * images):
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        content = io.BytesIO()
        small.resize((500, 375), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        path = folder / f"class {number % classes}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.getvalue())


def measure(seconds: float, rounds: int, limit: int) -> dict[str, Any]:
    """Time all cases, both sides in turn."""
    prepare_process()  # as the command line does
    torch.set_num_threads(1)  # one thread per worker
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data_paths = DataPaths(None, os.environ.get("GPLDLA_CACHE") or folder / "cache")
        access = Access(data_paths)
        photographs = "cub"
        if _place("cub", data_paths) is None:
            generate_photographs(folder / "photographs")
            photographs = f"folder:{folder / 'photographs'}"
        cases = [
            Case("photographs, training", photographs, "conv4", "photographs"),
            Case("photographs, evaluation", photographs, "conv4", "none"),
        ]
        if _place("omniglot", data_paths) is not None:
            cases.append(Case("characters", "omniglot", "conv4s", "none"))
        kornia = None
        for case in cases:
            unpacked = folder / case.label
            unpacked.mkdir()
            files = unpacked_files(case.set_name, access, unpacked, limit)
            image_set = load_set(
                case.set_name, size=backbone_preprocessing(case.backbone).size, access=access
            )
            part = Part(image_set, tuple(range(len(image_set.counts))))
            rates = [
                (packed_rate(part, case, seconds), pillow_rate(files, case, seconds)) for _ in range(rounds)
            ]
            rows.append(
                {
                    "case": case.label,
                    "data": "generated" if case.set_name.startswith("folder:") else case.set_name,
                    "backbone": case.backbone,
                    "stored_side": image_set.images.shape[-1],
                    "packed": [round(packed) for packed, _ in rates],
                    "pillow": [round(pillow) for _, pillow in rates],
                    "ratio": round(statistics.median(packed / pillow for packed, pillow in rates), 1),
                }
            )
            if case.augment == "photographs":
                kornia = kornia_rates(part, seconds)
    return {"seconds": seconds, "workers": WORKERS, "batch": BATCH, "rows": rows, "kornia": kornia}


def table(results: dict[str, Any]) -> list[str]:
    """Return the table of the documentation: ratios only, as rates depend on the machine."""
    lines = ["| images | stored at | times as many images as Pillow |", "|---|--:|--:|"]
    for row in results["rows"]:
        lines.append(f"| {row['case']} ({row['data']}) | {row['stored_side']} px | {row['ratio']} |")
    if results["kornia"]:
        rates = results["kornia"]
        ratio = rates["ours"] / rates["kornia"]
        lines.append(f"| transforms alone, beside kornia {rates['version']} | | {ratio:.1f} |")
    return lines


def main() -> None:
    """Measure, print the table, and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--files", type=int, default=5000, help="the most files that are unpacked for the DataLoader"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {
        "command": f"python -m benchmarks.loading --seconds {options.seconds:g} --rounds {options.rounds}"
        f" --files {options.files}",
        **provenance(),
        **measure(options.seconds, options.rounds, options.files),
    }
    for row in results["rows"]:
        packed, pillow = (statistics.median(row[side]) for side in ("packed", "pillow"))
        print(f"{row['case']}: {packed:,.0f} images/s from the store, {pillow:,.0f} with Pillow")
    print("\n".join(table(results)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
