"""Small generated data in the layouts in which people keep the real data.

Each class is one random picture with noise, so that there is something to learn. `write_root` writes every
data set; the functions for a single one take the folder of that data set.
"""

import csv
import gzip
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from PIL import Image, ImageDraw

from gpldla.data.sets import SETS
from gpldla.data.sets.emnist import CHARACTERS
from gpldla.data.sets.emnist import IMAGES as EMNIST_IMAGES
from gpldla.data.sets.emnist import LABELS as EMNIST_LABELS

TABLE_OF_PART = {"base": "train", "validation": "val", "novel": "test"}
REAL_ROOT = Path(os.environ.get("GPLDLA_DATA") or Path(__file__).parents[3] / "shared" / "data")  # or nothing
LATIN = ("Latin/character01", "Latin/character02")


def write_root(root: Path, *, classes_per_part: int = 8, images_per_class: int = 25, side: int = 24) -> Path:
    """Write a data root with every data set, and a plain folder of class folders, `pets`.

    Characters keep their own sizes, 105 pixels in Omniglot and 28 in EMNIST.
    """
    options = {"classes_per_part": classes_per_part, "images_per_class": images_per_class}
    write_cub(root / "cub", **options, side=side)
    write_omniglot(root / "omniglot", **options)
    write_emnist(root / "emnist", **options)
    write_miniimagenet(root / "miniimagenet", **options, side=side)
    write_tieredimagenet(root / "tieredimagenet", **options, side=side)
    write_tinyimagenet_mini(root / "tinyimagenet-mini", **options, side=side)
    write_folder(root / "pets", n_classes=4 * classes_per_part, images_per_class=images_per_class, side=side)
    return root


def write_cub(folder: Path, *, classes_per_part: int = 2, images_per_class: int = 3, side: int = 16) -> Path:
    """Write CUB_200_2011/images/001.Black_footed_Albatross/Black_footed_Albatross_0001.jpg and so on."""
    for name in sorted(first_classes("cub", classes_per_part)):
        for number, picture in enumerate(pictures(name, images_per_class, side, side + side // 4), 1):
            save(picture, folder / "CUB_200_2011" / "images" / name / f"{name[4:]}_{number:04}.jpg")
    return folder


def write_omniglot(folder: Path, *, classes_per_part: int = 2, images_per_class: int = 3) -> Path:
    """Write `classes_per_part` characters that are not Latin, over both halves, and two that are."""
    names = SETS["omniglot"].class_lists["base"]
    half = (classes_per_part + 1) // 2
    later = [name for name in names if name.startswith(("Angelic/", "Atemayar_Qelisayer/"))]
    _write_characters(folder / "images_background", [*names[:half], *LATIN], images_per_class)
    _write_characters(folder / "images_evaluation", later[: classes_per_part - half], images_per_class)
    return folder


def _write_characters(folder: Path, names: Sequence[str], images_per_class: int) -> None:
    for place, name in enumerate(names, 1):
        for number, drawing in enumerate(drawings(name, images_per_class, 105), 1):
            save(
                drawing.convert("1", dither=Image.Dither.NONE), folder / name / f"{place:04}_{number:02}.png"
            )


def write_emnist(folder: Path, *, classes_per_part: int = 2, images_per_class: int = 3) -> Path:
    """Write the two gzipped IDX files: transposed, ink bright on black, classes in no order."""
    names = [name for part in SETS["emnist"].class_lists.values() for name in part[:classes_per_part]]
    labels = np.repeat([CHARACTERS.index(name) for name in names], images_per_class).astype(np.uint8)
    upright = np.stack([np.asarray(d) for name in names for d in drawings(name, images_per_class, 28)])
    order = np.random.default_rng(0).permutation(len(labels))
    write_idx(folder / f"{EMNIST_IMAGES}.gz", (255 - upright[order]).transpose(0, 2, 1))
    write_idx(folder / f"{EMNIST_LABELS}.gz", labels[order])
    return folder


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write bytes as IDX, gzipped where the name says so."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def write_miniimagenet(
    folder: Path,
    *,
    classes_per_part: int = 2,
    images_per_class: int = 3,
    side: int = 16,
    set_name: str = "miniimagenet",
    ending: str = ".jpg",
) -> Path:
    """Write images/n0153282900000001.jpg and so on, with train.csv, val.csv and test.csv."""
    for part, table in TABLE_OF_PART.items():
        lines = []
        for label in SETS[set_name].class_lists[part][:classes_per_part]:
            for number, picture in enumerate(pictures(label, images_per_class, side, side), 1):
                save(picture, folder / "images" / f"{label}{number:08}{ending}")
                lines.append((f"{label}{number:08}{ending}", label))
        write_table(folder / f"{table}.csv", lines)
    return folder


def write_table(path: Path, lines: Sequence[tuple[str, str]], header: Sequence[str] = ("filename", "label")):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *lines])


def write_tinyimagenet_mini(folder: Path, **options) -> Path:
    """Write tinyimagenet-mini/images/*.webp with the tables beside them, inside `folder`."""
    write_miniimagenet(folder / "tinyimagenet-mini", set_name="tinyimagenet-mini", ending=".webp", **options)
    return folder


def write_miniimagenet_folders(
    folder: Path, *, classes_per_part: int = 2, images_per_class: int = 3, side: int = 16
) -> Path:
    """Write miniImageNet in its other layout: one folder a class, below train, val and test."""
    return _write_wordnet(folder, "miniimagenet", classes_per_part, images_per_class, side)


def write_tieredimagenet(
    folder: Path, *, classes_per_part: int = 2, images_per_class: int = 3, side: int = 16
) -> Path:
    """Write train/n01530575/n01530575_1.JPEG and so on."""
    return _write_wordnet(folder, "tieredimagenet", classes_per_part, images_per_class, side)


def _write_wordnet(
    folder: Path, set_name: str, classes_per_part: int, images_per_class: int, side: int
) -> Path:
    for part, outer in TABLE_OF_PART.items():
        for name in SETS[set_name].class_lists[part][:classes_per_part]:
            for number, picture in enumerate(pictures(name, images_per_class, side, side + side // 4), 1):
                save(picture, folder / outer / name / f"{name}_{number}.JPEG")
    return folder


def write_folder(folder: Path, *, n_classes: int = 8, images_per_class: int = 3, side: int = 16) -> Path:
    """Write a plain folder of class folders: kind-00/0.png and so on."""
    for place in range(n_classes):
        write_class(folder / f"kind-{place:02}", images_per_class=images_per_class, side=side)
    return folder


def write_class(folder: Path, *, images_per_class: int = 3, side: int = 16, ending: str = ".png") -> Path:
    """Write one folder of images that show what its name stands for."""
    for number, picture in enumerate(pictures(folder.name, images_per_class, side, side)):
        save(picture, folder / f"{number}{ending}")
    return folder


def first_classes(set_name: str, classes_per_part: int) -> list[str]:
    """Return the first classes of each part of a data set, part after part."""
    return [name for names in SETS[set_name].class_lists.values() for name in names[:classes_per_part]]


def pictures(name: str, count: int, height: int, width: int) -> Iterator[Image.Image]:
    """Draw `count` photographs of the class: four by four coloured fields with noise."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    fields = rng.integers(40, 216, (4, 4, 3))
    clean = fields[np.arange(height) * 4 // height][:, np.arange(width) * 4 // width]
    for _ in range(count):
        noise = rng.integers(-40, 41, (height, width, 3))
        yield Image.fromarray((clean + noise).astype(np.uint8))


def drawings(name: str, count: int, side: int) -> Iterator[Image.Image]:
    """Draw `count` characters of the class: dark strokes through points that move a little, on white."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    points = rng.uniform(0.2, 0.8, (5, 2))
    for _ in range(count):
        paper = Image.new("L", (side, side), 255)
        moved = (points + rng.normal(0, 0.03, points.shape)) * side
        ImageDraw.Draw(paper).line([tuple(p) for p in moved.tolist()], fill=0, width=max(2, side // 20))
        yield paper


def save(picture: Image.Image, path: Path, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)
    return path


def zip_up(folder: Path, *, into: int = 1) -> list[Path]:
    """Put everything in `folder` into `into` zips that lie there instead, as the same tree."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    archives = [folder / f"part-{number}.zip" for number in range(1, into + 1)]
    for number, archive in enumerate(archives):
        with ZipFile(archive, "w") as target:
            for file in files[number * len(files) // into : (number + 1) * len(files) // into]:
                target.write(file, file.relative_to(folder))
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path not in archives:
            path.unlink()
    return archives


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything below, to see that nothing was touched."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }
