"""EMNIST ByClass: handwritten digits and letters, 62 classes; here its official test split."""

import gzip
import math
import struct
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gpldla.data.packing import refuse, report_skipped_files
from gpldla.data.sets.base import StoredSet, Survey, register_dataset
from gpldla.data.source_files import SourceFile, read_tree
from gpldla.data.store import ImageSet, write_store
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # by label
SIDE = 28
LARGEST_IDX = (
    128 << 20
)  # bytes; the images take 87 MiB, and a gzip file may promise a thousand times its size
IMAGES, LABELS = "emnist-byclass-test-images-idx3-ubyte", "emnist-byclass-test-labels-idx1-ubyte"


@register_dataset
class EMNIST(StoredSet):
    """Two IDX files, gzipped or not, in a folder or a zip. Stored upright, dark ink on light paper."""

    name = "emnist"
    title = "EMNIST ByClass, test split"
    default_size = 28
    n_images = 116_323
    folders = ("emnist", "EMNIST")
    get = "https://www.nist.gov/itl/products-and-services/emnist-dataset (binary format)"
    put = f"{IMAGES}.gz and {LABELS}.gz, or the zip that has them"
    protocol_parts = ()  # it has no base classes; see omniglot-emnist

    def settings(self, size: int, side: int | None = None) -> dict[str, Any]:
        """Images keep their 28 pixels for every backbone."""
        return {"version": 1}

    def survey(self, folder: Path) -> Survey:
        """Read the files and count labels."""
        files, bad = _files(folder)
        if len(files) < 2:
            return Survey({}, bad)
        try:
            _, labels = _read_both(files)
        except UserError as error:
            return Survey({}, (*bad, str(error)))
        counts = np.bincount(labels, minlength=len(CHARACTERS))
        return Survey({name: int(n) for name, n in zip(CHARACTERS, counts) if n}, bad)

    def pack(
        self, folder: Path, store: Path, source: dict[str, Any], report: Reporter, skip_bad: bool
    ) -> None:
        """Turn the images upright, invert them, sort them by class. Without both files there is no set."""
        files, bad = _files(folder)
        if len(files) < 2:
            raise UserError(bad[0] if bad else self.empty_message(folder))
        if not skip_bad:
            refuse(bad, f"gpldla data prepare {self.name} --skip-bad")
        images, labels = _read_both(files)
        counts = np.bincount(labels, minlength=len(CHARACTERS))
        by_class = np.argsort(labels, kind="stable")
        upright = 255 - images[by_class].transpose(0, 2, 1)  # files hold images transposed
        present = np.flatnonzero(counts)
        image_set = ImageSet(
            self.name, upright[:, None], tuple(CHARACTERS[label] for label in present), counts[present]
        )
        write_store(store, image_set, {**source, "left_out": list(bad)})
        report_skipped_files(bad, self.name, report)


def _files(folder: Path) -> tuple[dict[str, SourceFile], tuple[str, ...]]:
    """Return those of the two files that exist, and one sentence per fault."""
    tree = read_tree(folder)
    names = {PurePosixPath(path).name.removesuffix(".gz"): file for path, file in tree.files.items()}
    files = {name: names[name] for name in (IMAGES, LABELS) if name in names}
    missing = [
        f"{folder} has {other}, but not {name}.gz; get it and put it there."
        for name, other in ((IMAGES, LABELS), (LABELS, IMAGES))
        if name not in files and other in files
    ]
    return files, (*tree.bad, *missing)


def _read_both(files: dict[str, SourceFile]) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [n, 28, 28] as stored in the file, and labels uint8 [n]."""
    labels = _read_idx(files[LABELS], dimensions=1)
    if len(labels) == 0 or labels.max() >= len(CHARACTERS):
        raise UserError(f"{files[LABELS]} does not hold labels from 0 to {len(CHARACTERS) - 1}; get it anew.")
    images = _read_idx(files[IMAGES], dimensions=3)
    if images.shape != (len(labels), SIDE, SIDE):
        raise UserError(
            f"{files[IMAGES]} holds images of shape {list(images.shape)}, not {[len(labels), SIDE, SIDE]}"
            f" as {files[LABELS].name} has it; get both anew."
        )
    return images, labels


def _read_idx(file: SourceFile, dimensions: int) -> np.ndarray:
    """Read an IDX file of bytes: two zeros, a type, the number of dimensions, the sizes, the data."""
    content = file.read()
    if file.name.endswith(".gz"):
        try:
            with gzip.open(BytesIO(content)) as unpacked:
                content = unpacked.read(LARGEST_IDX + 1)
        except Exception as error:  # gzip, zlib and EOF errors
            raise UserError(f"{file} is not a whole gzip file ({error}); get it anew.") from None
        if len(content) > LARGEST_IDX:
            raise UserError(f"{file} holds more than {LARGEST_IDX >> 20} MiB, which no part of EMNIST does.")
    header = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < header:
        raise UserError(
            f"{file} does not begin as an IDX file with {dimensions} dimensions of bytes does; get it anew."
        )
    sizes = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(sizes):
        raise UserError(
            f"{file} announces {' × '.join(map(str, sizes))} values and has {len(content) - header};"
            " get it anew."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)
