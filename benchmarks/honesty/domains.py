"""The domains: classes with examples, as features [n, d] and labels [n]."""

import ast
import gzip
import io
import os
import re
import unicodedata
import zipfile
from collections.abc import Callable, Mapping
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
DRAWINGS = "omniglot-emnist-conv4s-1shot"  # trained on Omniglot, validated on ten classes of EMNIST

Labelled = tuple[np.ndarray, np.ndarray]
Classes = dict[str, list[Any]]


def birds(per_class: int = PER_CLASS) -> Classes:
    """Return photographs of CUB's novel classes, every fourth."""

    def is_novel(name: str) -> bool:
        return int(name.split("/")[2].split(".")[0]) % 4 == 0

    return _zipped("cub/cub-*.zip", lambda name: name.split("/")[2], is_novel, per_class)


def imagenet(per_class: int = PER_CLASS) -> Classes:
    """Return photographs of miniImageNet's test classes."""
    archive = "miniimagenet/miniimagenet-test.zip"
    return _zipped(archive, lambda name: name.split("/")[-2], per_class=per_class)


def omniglot() -> Classes:
    """Return drawings of Omniglot's evaluation characters."""
    return _zipped("omniglot/images_evaluation.zip", lambda name: "/".join(name.split("/")[1:3]))


def emnist(per_class: int = PER_CLASS) -> Classes:
    """Return EMNIST's handwritten digits and letters."""
    folder = DataPaths().root / "emnist"
    with gzip.open(folder / "emnist-byclass-test-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 28, 28).transpose(0, 2, 1)
    with gzip.open(folder / "emnist-byclass-test-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read()[8:], np.uint8)
    rng = np.random.default_rng(SEED)
    chosen = {c: rng.permutation(np.flatnonzero(labels == c))[:per_class] for c in range(MAX_CLASSES)}
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


def diseases(per_class: int = 2 * PER_CLASS) -> Classes:
    """Return the descriptions of ICD-10-CM's categories by chapter."""
    icd = import_module("simple_icd_10_cm")
    chapters: dict[str, set[str]] = {}
    for code in icd.get_all_codes():
        if icd.is_category(code) and len(code) == 3:
            chapters.setdefault(icd.get_ancestors(code)[-1], set()).add(icd.get_description(code))
    return {
        name: sorted(texts)[:per_class] for name, texts in chapters.items() if len(texts) >= per_class // 2
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
    return _some(found)


def standard_library() -> Classes:
    """Return first sentences of docstrings of Python's own modules."""
    folder = Path(os.__file__).parent
    found: Classes = {}
    for file in sorted(folder.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8", errors="ignore"))
        kinds = (ast.FunctionDef, ast.ClassDef)
        texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
        found[file.stem] = [" ".join(text.split("\n\n")[0].split())[:300] for text in texts if len(text) > 30]
    return _some(found)


def character_names() -> Classes:
    """Return Unicode's names of characters by script, without the name of the script."""
    found: Classes = {}
    for code in range(0x20, 0x1FFFF):
        words = unicodedata.name(chr(code), "").split()
        if len(words) > 2:
            found.setdefault(words[0], []).append(" ".join(words[1:]).lower())
    return _some(found)


def _some(found: Classes) -> Classes:
    """Return PER_CLASS texts of at most MAX_CLASSES classes that have so many different ones."""
    rng = np.random.default_rng(SEED)
    distinct = {name: sorted(set(texts)) for name, texts in sorted(found.items())}
    large = [name for name, texts in distinct.items() if len(texts) >= PER_CLASS]
    chosen = sorted(large[i] for i in rng.permutation(len(large))[:MAX_CLASSES])
    return {n: [distinct[n][i] for i in rng.permutation(len(distinct[n]))[:PER_CLASS]] for n in chosen}


def small(classes: Classes, size: int) -> Classes:
    """Return pictures that have lost all detail below 1/size of their width."""
    return {name: [picture.resize((size, size)) for picture in own] for name, own in classes.items()}


def _zipped(
    pattern: str,
    label: Callable[[str], str],
    keep: Callable[[str], bool] = lambda _: True,
    per_class: int = PER_CLASS,
) -> Classes:
    """Return up to per_class pictures of up to MAX_CLASSES classes in archives below the data root."""
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
        picked = [names[c][i] for i in rng.permutation(len(names[c]))[:per_class]]
        found[c] = [Image.open(io.BytesIO(archive.read(name))).convert("RGB") for archive, name in picked]
    return found


def embedded(embedder: Any, make: Callable[[], Classes]) -> Labelled:
    classes = make()
    items = [item for own in classes.values() for item in own]
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in classes.values()])
    return embedder.transform(items), labels


def _pixels() -> Labelled:
    data = load_digits()
    return data.data.astype(np.float32), data.target


def _pixels_of(classes: Classes) -> Labelled:
    rows = [np.asarray(picture, np.float32).reshape(-1) / 255 for own in classes.values() for picture in own]
    return np.stack(rows), np.repeat(np.arange(len(classes)), [len(own) for own in classes.values()])


DOMAINS: dict[str, Callable[[], Labelled]] = {
    "digits as pixels": _pixels,
    "diseases": lambda: embedded(TextEmbedder(), diseases),
    "docstrings": lambda: embedded(TextEmbedder(), modules),
    "standard library": lambda: embedded(TextEmbedder(), standard_library),
    "names of characters": lambda: embedded(TextEmbedder(), character_names),
    "digits": lambda: embedded(ImageEmbedder(), digits),
    "ImageNet classes": lambda: embedded(ImageEmbedder(), imagenet),
    "ImageNet classes, 32 pixels": lambda: embedded(ImageEmbedder(), lambda: small(imagenet(), 32)),
    "EMNIST": lambda: embedded(ImageEmbedder(), emnist),
    "EMNIST as pixels": lambda: _pixels_of(emnist()),
    "EMNIST, network of drawings": lambda: embedded(ImageEmbedder(DRAWINGS), emnist),
    "Omniglot": lambda: embedded(ImageEmbedder(), omniglot),
    "glyphs": lambda: embedded(ImageEmbedder(), glyphs),
    "birds": lambda: embedded(ImageEmbedder(), birds),
    "birds, network of birds": lambda: embedded(ImageEmbedder("cub-resnet10-5shot"), birds),
}


def features(name: str, folder: Path, domains: Mapping[str, Callable[[], Labelled]] = DOMAINS) -> Labelled:
    """Return the features of a domain, from the folder if they were computed before."""
    file = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.npz"
    if not file.exists():
        X, y = domains[name]()
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, X=X.astype(np.float32), y=y)
    with np.load(file) as stored:
        return stored["X"], stored["y"]
