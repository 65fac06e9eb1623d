"""The features of photographs and texts, and the tasks drawn from them."""

import io
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from benchmarks.own_data.common import QUERIES, SEED, Numbers
from gpldla import ImageEmbedder, TextEmbedder
from gpldla.data.catalog import find_set
from gpldla.data.paths import DataPaths
from gpldla.data.sets.base import ImageFileSet
from gpldla.data.source_files import read_tree
from gpldla.utils.errors import UserError
from gpldla.utils.files import write_atomically
from gpldla.utils.progress import SILENT, Reporter

MIN_TEXTS = 30  # per chapter


@dataclass(frozen=True)
class Data:
    """Features [n, d] and the indices of their classes [n]; base: the same of other classes, or None."""

    features: np.ndarray
    labels: np.ndarray
    base: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def facts(self) -> Numbers:
        """What the results store about it."""
        n, d = self.features.shape
        base = 0 if self.base is None else len(np.unique(self.base[1]))
        return {"examples": n, "features": d, "classes": len(np.unique(self.labels)), "base_classes": base}


def photographs(file: Path, reporter: Reporter = SILENT) -> Data:
    """Return the novel classes of CUB, every fourth of the sorted folders; base: every other."""
    if not file.exists():
        embed_photographs(file, reporter)
    with np.load(file) as stored:
        features, names = stored["X"], stored["names"]
    folders = [PurePosixPath(str(name)).parent.name for name in names]
    labels = np.unique(folders, return_inverse=True)[1]
    base, novel = labels % 2 == 0, labels % 4 == 3  # the rest, 1, is for validation and not used here
    return Data(features[novel], labels[novel], (features[base], labels[base]))


def embed_photographs(file: Path, reporter: Reporter) -> None:
    """Write the features of all images of CUB in the data root, by the default embedder with its cache."""
    cub = find_set("cub")
    assert isinstance(cub, ImageFileSet)
    folder = cub.locate(DataPaths().root)
    if folder is None:
        raise UserError(f"There is no CUB in {DataPaths().root}; get it from {cub.get}, or give --features.")
    files = cub.listing(read_tree(folder)).files_of_class
    embedder, names, features = ImageEmbedder(), [], []
    with reporter.bar("features of photographs", sum(map(len, files.values()))) as advance:
        for name, own in files.items():
            features.append(embedder.transform([Image.open(io.BytesIO(image.read())) for image in own]))
            names += [f"{name}/{image.name}" for image in own]
            advance(len(own))
    content = io.BytesIO()
    np.savez(content, X=np.concatenate(features), names=np.array(names))
    write_atomically(file, content.getvalue())


def chapters() -> Data:
    """Return the descriptions of ICD-10-CM's categories, such as A00, by chapter, without small chapters."""
    try:
        icd = import_module("simple_icd_10_cm")
    except ImportError:
        raise UserError(
            "The texts need simple-icd-10-cm; pip install simple-icd-10-cm, or leave text out with --only."
        ) from None
    codes = [code for code in icd.get_all_codes() if icd.is_category(code) and len(code) == 3]
    chapter_of = {icd.get_description(code): icd.get_ancestors(code)[-1] for code in codes}
    names, counts = np.unique(list(chapter_of.values()), return_counts=True)
    large = set(names[counts >= MIN_TEXTS])
    texts = sorted(text for text, chapter in chapter_of.items() if chapter in large)
    labels = np.unique([chapter_of[text] for text in texts], return_inverse=True)[1]
    return Data(TextEmbedder().transform(texts), labels)


@dataclass(frozen=True)
class Task:
    """Indices of rows, class by class; `outside` are rows of as many classes outside the task."""

    support: np.ndarray
    query: np.ndarray
    outside: np.ndarray


def draw_tasks(labels: np.ndarray, ways: int, shots: int, count: int, outside: int = 0) -> list[Task]:
    """Draw tasks one after another: the first few do not depend on `count`."""
    rng = np.random.default_rng([SEED, ways, shots])
    classes = np.unique(labels)
    tasks = []
    for _ in range(count):
        chosen = rng.choice(classes, ways + outside, replace=False)
        drawn = [rng.permutation(np.flatnonzero(labels == c))[: shots + QUERIES] for c in chosen]
        rest = [rows[shots:] for rows in drawn[ways:]] or [np.empty(0, dtype=int)]
        support, query = (
            np.concatenate([rows[part] for rows in drawn[:ways]])
            for part in (slice(shots), slice(shots, None))
        )
        tasks.append(Task(support, query, np.concatenate(rest)))
    return tasks
