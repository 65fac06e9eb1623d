"""The domains: classes with examples, as features [n, d] and labels [n]."""

import gzip
import io
import re
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from gpldla import ImageEmbedder, TextEmbedder
from gpldla.data.paths import DataPaths
from gpldla.data.sets.glyphs import Glyphs

SEED = 0
PER_CLASS = 20  # examples
MAX_CLASSES = 50

Labelled = tuple[np.ndarray, np.ndarray]
Classes = dict[str, list[Any]]


def birds() -> Classes:
    """Return photographs of CUB's novel classes, every fourth."""

    def is_novel(name: str) -> bool:
        return int(name.split("/")[2].split(".")[0]) % 4 == 0

    return _zipped("cub/cub-*.zip", lambda name: name.split("/")[2], is_novel)


def imagenet() -> Classes:
    """Return photographs of miniImageNet's test classes."""
    return _zipped("miniimagenet/miniimagenet-test.zip", lambda name: name.split("/")[-2])


def omniglot() -> Classes:
    """Return drawings of Omniglot's evaluation characters."""
    return _zipped("omniglot/images_evaluation.zip", lambda name: "/".join(name.split("/")[1:3]))


def emnist() -> Classes:
    """Return EMNIST's handwritten digits and letters."""
    folder = DataPaths().root / "emnist"
    with gzip.open(folder / "emnist-byclass-test-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 28, 28).transpose(0, 2, 1)
    with gzip.open(folder / "emnist-byclass-test-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read()[8:], np.uint8)
    rng = np.random.default_rng(SEED)
    chosen = {c: rng.permutation(np.flatnonzero(labels == c))[:PER_CLASS] for c in range(MAX_CLASSES)}
    return {f"{c:02d}": [Image.fromarray(images[i]) for i in rows] for c, rows in chosen.items()}


def digits() -> Classes:
    """Return scikit-learn's digits of 8 × 8 pixels."""
    data = load_digits()
    pictures = (data.images * 15.9).astype(np.uint8)
    return {
        str(c): [Image.fromarray(x) for x in pictures[data.target == c][: 2 * PER_CLASS]] for c in range(10)
    }


def glyphs() -> Classes:
    """Return printed letters of the fonts that matplotlib ships."""
    drawn = Glyphs().make()
    ends = np.cumsum(drawn.counts)
    found = {}
    for c in np.random.default_rng(SEED).permutation(len(ends))[:MAX_CLASSES]:
        rows = drawn.images[ends[c] - drawn.counts[c] : ends[c]][:PER_CLASS]
        found[drawn.class_names[c]] = [Image.fromarray(x[0]) for x in rows]
    return found


def diseases() -> Classes:
    """Return the descriptions of ICD-10-CM's categories by chapter."""
    icd = import_module("simple_icd_10_cm")
    chapters: dict[str, set[str]] = {}
    for code in icd.get_all_codes():
        if icd.is_category(code) and len(code) == 3:
            chapters.setdefault(icd.get_ancestors(code)[-1], set()).add(icd.get_description(code))
    return {
        name: sorted(texts)[: 2 * PER_CLASS] for name, texts in chapters.items() if len(texts) >= PER_CLASS
    }


def modules() -> Classes:
    """Return first sentences of docstrings of packages that this one needs, by module."""
    import numpy
    import scipy
    import sklearn

    found: Classes = {}
    for package in (numpy, scipy, sklearn):
        root = Path(package.__file__ or "").parent
        for file in sorted(root.rglob("*.py")):
            if "test" in str(file.relative_to(root)):
                continue
            text = file.read_text(encoding="utf-8", errors="ignore")
            lines = re.findall(r'def \w+\([^"]*?\):\s+r?"""\s*([A-Z][^\n"]{30,200})', text)
            name = f"{package.__name__}.{file.relative_to(root).parts[0]}"
            found.setdefault(name, []).extend(lines)
    rng = np.random.default_rng(SEED)
    distinct = {name: sorted(set(texts)) for name, texts in found.items()}
    return {
        name: [texts[i] for i in rng.permutation(len(texts))[:PER_CLASS]]
        for name, texts in sorted(distinct.items())
        if len(texts) >= PER_CLASS
    }


def _zipped(
    pattern: str, label: Callable[[str], str], keep: Callable[[str], bool] = lambda _: True
) -> Classes:
    """Return up to PER_CLASS pictures of up to MAX_CLASSES classes in archives below the data root."""
    names: dict[str, list[tuple[zipfile.ZipFile, str]]] = {}
    for file in sorted(DataPaths().root.glob(pattern)):
        archive = zipfile.ZipFile(file)
        for name in sorted(archive.namelist()):
            if name.endswith((".webp", ".png", ".jpg")) and keep(name):
                names.setdefault(label(name), []).append((archive, name))
    rng = np.random.default_rng(SEED)
    classes = sorted(names)
    chosen = [classes[i] for i in sorted(rng.permutation(len(classes))[:MAX_CLASSES])]
    found: Classes = {}
    for c in chosen:
        picked = [names[c][i] for i in rng.permutation(len(names[c]))[:PER_CLASS]]
        found[c] = [Image.open(io.BytesIO(archive.read(name))).convert("RGB") for archive, name in picked]
    return found


def _embedded(embedder: Any, make: Callable[[], Classes]) -> Labelled:
    classes = make()
    items = [item for own in classes.values() for item in own]
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in classes.values()])
    return embedder.transform(items), labels


def _pixels() -> Labelled:
    data = load_digits()
    return data.data.astype(np.float32), data.target


DOMAINS: dict[str, Callable[[], Labelled]] = {
    "digits as pixels": _pixels,
    "diseases": lambda: _embedded(TextEmbedder(), diseases),
    "docstrings": lambda: _embedded(TextEmbedder(), modules),
    "digits": lambda: _embedded(ImageEmbedder(), digits),
    "ImageNet classes": lambda: _embedded(ImageEmbedder(), imagenet),
    "EMNIST": lambda: _embedded(ImageEmbedder(), emnist),
    "Omniglot": lambda: _embedded(ImageEmbedder(), omniglot),
    "glyphs": lambda: _embedded(ImageEmbedder(), glyphs),
    "birds": lambda: _embedded(ImageEmbedder(), birds),
    "birds, network of birds": lambda: _embedded(ImageEmbedder("cub-resnet10-5shot"), birds),
}


def features(name: str, folder: Path) -> Labelled:
    """Return the features of a domain, from the folder if they were computed before."""
    file = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.npz"
    if not file.exists():
        X, y = DOMAINS[name]()
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, X=X.astype(np.float32), y=y)
    with np.load(file) as stored:
        return stored["X"], stored["y"]
