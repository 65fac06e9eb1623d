"""Damaged and hostile files for every loader: each is refused in one sentence, in little time and memory.

`make test` tries some changes of each kind of file and all files of tests/fuzz_corpus, which once broke a
loader; `make test-long` tries many more. A file that breaks one is left in the folder that the failure names:
put it into tests/fuzz_corpus/LOADER.
"""

import contextlib
import gzip
import json
import random
import resource
import signal
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpldla.backbones import create_backbone
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.stored_graph import read_stored_graph
from gpldla.data import Access, DataPaths, load_set
from gpldla.data.catalog import find_set
from gpldla.data.pictures import picture_pixels
from gpldla.data.preprocessing import Preprocessing
from gpldla.data.sets.folder import _read_split
from gpldla.data.store import check_store, write_store
from gpldla.data.tables import open_table
from gpldla.training.checkpoint import TrainingState
from gpldla.training.metrics import read_metrics
from gpldla.training.recipe import SHIPPED, read_recipe
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_json
from tests.helpers import tiny_set

CORPUS = Path(__file__).parent / "fuzz_corpus"
SHORT, LONG = 40, 2000  # changed files per loader
SECONDS, MEBIBYTES = 20, 1024  # per file, beyond what the process has
HOSTILE = [  # put in the place of a word, or between two
    *(b"1" + 400 * b"0", b"-1", b"nan", b"1e999", b"9223372036854775808", b"\xff\xfe", b"\0", b"\x1b[2J"),
    *(b'"\\u0000"', b"null", b"[]", b"{}", b"true", 20_000 * b"[", b'{"a":' * 3000, b"0x", b"'", b'"'),
]


# ---- one whole file for each loader, and what reads it


def _recipe(folder):
    (folder / "recipe.toml").write_bytes((SHIPPED / "demo-fast.toml").read_bytes())
    return read_recipe, folder / "recipe.toml"


def _store(folder, name):
    write_store(folder / "store", tiny_set((2, 2), size=8, groups=[np.zeros(2), np.ones(2)]), {"seed": 1})
    return lambda path: check_store(path.parent), folder / "store" / name


def _classifier(folder, **options):
    pictures = list(tiny_set((2, 2), size=8).images[:, 0])
    classifier = FewShotModel("pixels", "gpldla-auto").adapt(pictures, ["a", "a", "b", "b"])
    classifier.save(folder / "classifier.safetensors", support=False)
    return FewShotClassifier.load, folder / "classifier.safetensors"


def _graph(folder):
    return read_stored_graph, _classifier(folder)[1]


def _model(folder, name):
    FewShotModel("pixels", "gpldla").save(folder / "model")
    return lambda path: FewShotModel.from_pretrained(path.parent), folder / "model" / name


def _state(folder):
    import torch

    TrainingState({"model": {"w": torch.ones(3)}}, {"recipe": {"ways": 3}, "done": 1}).write(folder)
    return lambda path: TrainingState.read(path.parent), folder / "training-state.safetensors"


def _metrics(folder):
    (folder / "metrics.jsonl").write_text('{"episode": 2, "loss": 0.5}\n{"episode": 4, "loss": 0.25}\n')
    return lambda path: read_metrics(path.parent), folder / "metrics.jsonl"


def _json(folder):
    (folder / "facts.json").write_text(json.dumps({"a": [1, 2.5, None], "b": {"c": "d"}}))
    return read_json, folder / "facts.json"


def _split(folder, suffix):
    text = "class,part\ncat,base\ndog,novel\n" if suffix == "csv" else '{"base": ["cat"], "novel": ["dog"]}'
    (folder / f"split.{suffix}").write_text(text)
    return _read_split, folder / f"split.{suffix}"


def _table(folder, suffix):
    file = folder / f"table.{suffix}"
    rows = [{"text": "one", "label": "a"}, {"text": "two, three", "label": "b"}]
    if suffix == "csv":
        file.write_text('text,label\none,a\n"two, three",b\n')
    elif suffix == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pandas = pytest.importorskip("pandas")
        write = pandas.DataFrame(rows).to_parquet if suffix == "parquet" else pandas.DataFrame(rows).to_excel
        write(file, index=False)
    return lambda path: open_table(path, ["text", "label"]), file


def _picture(folder, suffix):
    file = folder / f"picture.{suffix}"
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file)
    preprocessing = Preprocessing(8, 3, (0.5,) * 3, (0.5,) * 3)
    return lambda path: picture_pixels(path, preprocessing), file


def _data_set(root, name):
    return lambda _: load_set(name, access=Access(DataPaths(root, root.parent / "cache")))


def _idx(folder, name):
    """EMNIST's two files, of which one will be changed."""
    files = {
        "emnist-byclass-test-images-idx3-ubyte.gz": struct.pack(">4B3I", 0, 0, 8, 3, 2, 28, 28) + bytes(1568),
        "emnist-byclass-test-labels-idx1-ubyte.gz": struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes([0, 1]),
    }
    (folder / "data" / "emnist").mkdir(parents=True)
    for file, content in files.items():
        (folder / "data" / "emnist" / file).write_bytes(gzip.compress(content))
    load = _data_set(folder / "data", "emnist")
    [changed] = [file for file in files if name in file]
    return load, folder / "data" / "emnist" / changed


def _zip(folder):
    (folder / "data").mkdir()
    with zipfile.ZipFile(folder / "data" / "pets.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            picture = folder / "one.png"
            Image.fromarray(np.full((8, 8), number, np.uint8)).save(picture)
            archive.write(picture, f"{number % 2}/{number}.png")
    return _data_set(folder / "data", f"folder:{folder / 'data' / 'pets.zip'}"), folder / "data" / "pets.zip"


LOADERS = {
    "recipe": _recipe,
    "store-manifest": lambda folder: _store(folder, "manifest.json"),
    "store-images": lambda folder: _store(folder, "images.u8"),
    "store-checksums": lambda folder: _store(folder, "images.sha256"),
    "store-groups": lambda folder: _store(folder, "groups.npy"),
    "classifier": _classifier,
    "graph": _graph,
    "model-weights": lambda folder: _model(folder, "model.safetensors"),
    "model-config": lambda folder: _model(folder, "config.json"),
    "training-state": _state,
    "metrics": _metrics,
    "json": _json,
    "split-csv": lambda folder: _split(folder, "csv"),
    "split-json": lambda folder: _split(folder, "json"),
    "table-csv": lambda folder: _table(folder, "csv"),
    "table-jsonl": lambda folder: _table(folder, "jsonl"),
    "table-parquet": lambda folder: _table(folder, "parquet"),
    "table-xlsx": lambda folder: _table(folder, "xlsx"),
    "picture-png": lambda folder: _picture(folder, "png"),
    "picture-jpeg": lambda folder: _picture(folder, "jpg"),
    "picture-webp": lambda folder: _picture(folder, "webp"),
    "picture-tiff": lambda folder: _picture(folder, "tiff"),
    "picture-gif": lambda folder: _picture(folder, "gif"),
    "idx-images": lambda folder: _idx(folder, "images"),
    "idx-labels": lambda folder: _idx(folder, "labels"),
    "zip": _zip,
}


# ---- changing files


def changed(content: bytes, generator: random.Random) -> bytes:
    """Return a file with some bits flipped, a part removed or repeated, or hostile words put in."""
    data = bytearray(content)
    for _ in range(generator.choice((1, 1, 2, 5))):
        place, length = generator.randrange(len(data) + 1), generator.choice((1, 2, 4, 8, 64))
        kind = generator.randrange(6)
        if kind == 0 and data:
            data[min(place, len(data) - 1)] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            data[place:place] = data[place : place + length]
        elif kind == 4:
            data[place : place + length] = bytes(generator.choice((0, 255, 127)) for _ in range(length))
        else:
            data[place : place + generator.choice((0, 3))] = generator.choice(HOSTILE)
    return bytes(data)


@contextlib.contextmanager
def bounded():
    """Bound the time and the memory of a block; more is a failure."""

    def too_long(*_):
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    _, most = limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (MEBIBYTES << 20), most))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def attempt(load, path, content, left) -> None:
    """Load a file with this content: it is read, or refused in one sentence."""
    path.write_bytes(content)
    sentence = "read"
    try:
        with bounded():
            load(path)
    except UserError as error:
        sentence = str(error)
    except BaseException:
        left.write_bytes(content)
        raise
    assert 0 < len(sentence.strip()) < 5000


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to bound the memory")
@pytest.mark.parametrize("rounds", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", sorted(LOADERS))
@pytest.mark.filterwarnings("ignore")
def test_no_changed_file_does_more_than_be_refused(tmp_path, name, rounds):
    load, path = LOADERS[name](tmp_path)
    content = path.read_bytes()
    load(path)
    corpus = sorted((CORPUS / name).glob("*"))
    generator = random.Random(f"{name} {rounds}")
    for file in corpus:
        attempt(load, path, file.read_bytes(), tmp_path / "broke-the-loader")
    for _ in range(rounds):
        attempt(load, path, changed(content, generator), tmp_path / "broke-the-loader")


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_hostile_words_alone_are_refused(tmp_path, name):
    load, path = LOADERS[name](tmp_path)
    for content in (b"", *HOSTILE, b"a = " + HOSTILE[12], b"a = " + 5000 * b"["):
        attempt(load, path, content, tmp_path / "broke-the-loader")


@pytest.mark.parametrize(
    "text", ["", ":", "hf:", "hf:/", "st:a/b,size=", "timm:x,size=" + 5000 * "9", "a\0b"]
)
def test_names_of_networks_are_refused(text):
    with pytest.raises(UserError):
        create_backbone(text)


def test_names_of_folders_are_refused():
    for text in ("folder:", "folder:,seed=1", "folder:x,seed=" + 5000 * "1", "folder:x,split="):
        with pytest.raises(UserError):
            find_set(text).parts(["a", "b"])
