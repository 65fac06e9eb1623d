"""Bulk scoring: a classifier's answers for millions of items, to Parquet, chunk after chunk.

Each chunk becomes one file that appears whole or not at all. So a run that was stopped goes on with the files
that are missing, and work that is done twice, as after the death of a worker, changes nothing.
"""

import hashlib
import json
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from PIL import Image, UnidentifiedImageError

from gpldla import __version__
from gpldla.bulk.job import Job, PendingUnit, Settings
from gpldla.bulk.sources import CHUNK_SIZES, CONTENT, ITEM, Input, find_source
from gpldla.classifier.answers import UNSURE, json_class_names
from gpldla.classifier.features import READERS
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.data.decoding import mode_of
from gpldla.data.pictures import picture_tensor
from gpldla.utils.devices import torch_device
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, read_json, write_atomically, write_json
from gpldla.utils.process import stop_signals
from gpldla.utils.progress import CountProgress, say

if TYPE_CHECKING:
    from rich.console import Console

    from gpldla.data import Access

MANIFEST, FORMAT = "_manifest.json", 1  # readers of Parquet folders pass over names with an underscore
METADATA = b"gpldla"  # the key of what a part says of itself
ANSWER, LIKELIEST, PROBABILITY, NONE, PROBABILITIES, ERROR = (
    "answer",
    "likeliest",
    "probability",
    "none_of_these",
    "probabilities",
    "error",
)
OUR_COLUMNS = (ITEM, ANSWER, LIKELIEST, PROBABILITY, NONE, PROBABILITIES, ERROR)
BATCH_PICTURES = 64  # rows of features: 16 times as many


Rows = Generator[int, None, None]
Engine = Callable[[Job, list[PendingUnit]], Rows]
"""Scores chunks; yields the rows of each as its file is written."""


def score_in_bulk(
    classifier: Path,
    items: Sequence[str],
    output: Path,
    settings: Settings,
    *,
    access: "Access",
    console: "Console",
    engine: Engine | None = None,
    column: str | None = None,
    chunk_size: int | None = None,
    device: str = "auto",
) -> bool:
    """Write the answers for pictures, Parquet rows or a data set to the folder `output`, or go on with that.

    engine: default: this process
    Return whether everything is written; False after Ctrl-C.
    """
    _check_output(output, items)
    loaded = FewShotClassifier.load(classifier).to(torch_device(device))
    model = loaded.model
    takes_features = model.head.consumes == "features"
    source = find_source(
        items,
        Input(model.backbone.reads, model.backbone.feature_dim if takes_features else None),
        column=column,
        size=getattr(model.preprocessing, "size", 0),
        access=access,
        reserved=OUR_COLUMNS,
    )
    chunk_size = chunk_size or CHUNK_SIZES[source.kind]
    survey = source.survey(chunk_size)
    chunks = survey.chunks
    total = sum(rows for _, rows in chunks)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "gpldla": __version__,
        "classifier": _sha256(classifier),
        "source": survey.fingerprint,
        "settings": asdict(settings) | {"column": column, "chunk_size": chunk_size},
        "classes": json_class_names(loaded.classes),
        "chunks": len(chunks),
        "rows": total,
    }
    _start_or_resume(output, manifest)
    job = Job(classifier.absolute(), source, output.absolute(), settings, max(5, len(str(len(chunks) - 1))))
    files = {path.name for path in output.iterdir()}
    missing = {number: rows for number, rows in chunks if job.part(number).name not in files}
    if not missing:
        say(console, f"All {total:,} rows are in {output} already.")
        return True
    works = [
        PendingUnit(unit, [number for number, _ in unit.chunks if number in missing]) for unit in survey.units
    ]
    engine = engine or partial(_in_this_process, loaded)
    written = engine(job, [work for work in works if work.missing])
    return _run(written, job, total, total - sum(missing.values()), console, output)


def _run(written: Rows, job: Job, total: int, there: int, console: "Console", output: Path) -> bool:
    """Show how it goes, and stop when asked to."""
    started, done = time.monotonic(), there
    stopped_early = False
    with (
        CountProgress(total, there, console, unit="rows") as progress,
        stop_signals() as stopped,
        closing(written),
    ):
        for rows in written:
            done += rows
            progress.update(done, {})
            if stopped() and done < total:
                stopped_early = True
                break
    seconds = max(time.monotonic() - started, 1e-9)
    now = done - there
    earlier = f"; {there:,} were there already" if there else ""
    say(console, f"{now:,} rows in {seconds:.1f} s ({now / seconds:,.1f} rows/s){earlier}.")
    if stopped_early:
        say(console, f"Stopped with {total - done:,} rows to go; the same command goes on.")
        return False
    if done < total:
        raise UserError(f"{total - done:,} rows were lost on the way; the same command goes on with them.")
    _remove_leftovers(job.output)
    say(console, f"Wrote {output}.")
    return True


def _in_this_process(classifier: FewShotClassifier, job: Job, works: list[PendingUnit]) -> Rows:
    score = ChunkScorer(job, classifier)
    for work in works:
        for number, table in job.read(work):
            yield score(number, table)


class ChunkScorer:
    """Scores chunks, and writes a file for each."""

    def __init__(self, job: Job, classifier: FewShotClassifier) -> None:
        self._job, self._classifier = job, classifier
        self._classes = pa.array(json_class_names(classifier.classes), pa.string())

    def __call__(self, number: int, table: pa.Table) -> int:
        """Write the part of a chunk; return how many rows it has."""
        part = self._job.part(number)
        if not part.exists():  # else a worker wrote it, and died before it could say so
            content = BytesIO()
            pq.write_table(self.scored(table), content, compression="zstd")
            write_atomically(part, content.getvalue())
        return table.num_rows

    def scored(self, table: pa.Table) -> pa.Table:
        """Return the answers for a chunk, and the columns that are passed on."""
        features, problems = self._features(table)
        good = np.array([problem is None for problem in problems], bool)
        if not good.all() and not self._job.settings.skip_bad:
            bad = int(np.flatnonzero(~good)[0])
            raise UserError(f"{problems[bad]}; replace it, or add --skip-bad.")
        columns = {ITEM: table.column(ITEM), **self._answers(features, good)}
        columns[ERROR] = pa.array(problems, pa.string())
        columns |= {name: table.column(name) for name in table.column_names if name not in (ITEM, CONTENT)}
        facts = {"classes": self._classes.to_pylist(), **asdict(self._job.settings)}
        return pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts).encode()})

    def _answers(self, features: torch.Tensor, good: np.ndarray) -> dict[str, pa.Array]:
        """Return our columns for n items of which some are `good` [n], with their features [n_good, ...]."""
        settings, n_classes = self._job.settings, len(self._classes)
        pieces = features.split(16 * BATCH_PICTURES) if len(features) else ()
        proba = _joined([self._classifier.probabilities(piece) for piece in pieces], (0, n_classes))
        top = proba.argmax(1)
        largest = proba[np.arange(len(proba)), top]
        right = largest.astype(np.float64)
        none = None
        if self._classifier.has_novelty:
            none = _joined(
                [self._classifier.novelty_of(piece, settings.prevalence) for piece in pieces], (0,)
            )
            right = right * (1 - none.astype(np.float64))
        likeliest = self._classes.take(pa.array(top))
        doubtful = ~(1 - right <= settings.max_error)  # also what is no number
        answer = pc.if_else(pa.array(doubtful), UNSURE, likeliest)
        offsets = pa.array(np.arange(len(proba) + 1, dtype=np.int32) * n_classes)
        columns = {
            ANSWER: answer,
            LIKELIEST: likeliest,
            PROBABILITY: pa.array(largest, pa.float32()),
            NONE: pa.nulls(len(proba), pa.float32()) if none is None else pa.array(none, pa.float32()),
            PROBABILITIES: pa.ListArray.from_arrays(offsets, pa.array(proba.ravel(), pa.float32())),
        }
        if good.all():
            return columns
        # Where nothing could be read there is no answer.
        places = pa.array(np.where(good, np.cumsum(good) - 1, 0), mask=~good)
        return {name: column.take(places) for name, column in columns.items()}

    def _features(self, table: pa.Table) -> tuple[torch.Tensor, list[str | None]]:
        """Return what the head consumes of all good items, and what is wrong with each of the others."""
        items, contents = table.column(ITEM).to_pylist(), table.column(CONTENT)
        if self._job.source.kind == "embeddings":
            return self._given_features(items, contents)
        values = contents.to_pylist()
        if self._job.source.kind == "texts":
            problems = [
                f"{item} holds no text" if text is None else None for item, text in zip(items, values)
            ]
            return self._embedded([text for text in values if text is not None]), problems
        problems = []
        parts = []
        with ThreadPoolExecutor(READERS) as pool:
            decoded = pool.map(self._decoded, items, values)  # in order, while the network computes
            waiting: list[Image.Image] = []
            for picture in decoded:
                problems.append(picture if isinstance(picture, str) else None)
                if not isinstance(picture, str):
                    waiting.append(picture)
                if len(waiting) == BATCH_PICTURES:
                    parts.append(self._embedded(waiting))
                    waiting = []
        parts.append(self._embedded(waiting))
        return torch.cat([part for part in parts if len(part)] or parts[:1]), problems

    def _embedded(self, items: list[Any]) -> torch.Tensor:
        model = self._classifier.model
        if not items:
            return torch.empty(0, model.backbone.feature_dim, device=model.device)
        return model.embed(items)

    def _decoded(self, item: str, content: bytes | None) -> Image.Image | str:
        """Return a picture in the size that the network wants, or what is wrong with it."""
        if content is None:
            return f"{item} holds no picture"
        preprocessing = self._classifier.model.preprocessing
        try:
            picture = self._job.source.picture(content, mode_of(preprocessing.channels))
            pixels = picture_tensor(picture, preprocessing)
        except UnidentifiedImageError:  # whose text may have the address of an object in it
            return f"{item} cannot be read as an image (it is of no known format)"
        except Exception as error:  # decoders of damaged files raise all kinds
            return f"{item} cannot be read as an image ({error})"
        return Image.fromarray(pixels.permute(1, 2, 0).squeeze(-1).numpy())

    def _given_features(
        self, items: list[str], column: pa.ChunkedArray
    ) -> tuple[torch.Tensor, list[str | None]]:
        """Read lists of numbers as float32 [n_good, feature_dim]."""
        model = self._classifier.model
        width = model.backbone.feature_dim
        lengths = pc.list_value_length(column).to_pylist()
        problems: list[str | None] = [_length_problem(item, n, width) for item, n in zip(items, lengths)]
        whole = np.array([problem is None for problem in problems], bool)
        kept = column.filter(pa.array(whole))
        numbers = [pc.list_flatten(part).to_numpy(zero_copy_only=False) for part in kept.chunks]
        with np.errstate(over="ignore"):
            rows = _joined(numbers, (0,)).astype(np.float32, copy=False).reshape(-1, width)
        finite = np.isfinite(rows).all(1)
        for place in np.flatnonzero(whole)[~finite]:
            problems[place] = f"{items[place]} holds numbers that are missing, infinite or not a number"
        return torch.from_numpy(rows[finite]).to(model.device), problems


def _length_problem(item: str, length: int | None, width: int) -> str | None:
    if length is None:
        return f"{item} holds no embedding"
    return None if length == width else f"{item} holds {length} numbers, not the classifier's {width}"


def _joined(parts: list[np.ndarray], empty_shape: tuple[int, ...]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(empty_shape, np.float32)


def _check_output(output: Path, items: Sequence[str]) -> None:
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file; name a folder for the Parquet files.")
    for item in items:
        source = Path(item)
        if source.is_dir() and output.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"The output {output} lies in {source}, which is to be scored; choose another folder."
            )
    check_writable(output)


def _start_or_resume(output: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, or refuse a folder that holds something else."""
    file = output / MANIFEST
    if not file.exists():
        if output.exists() and any(not path.name.startswith(".") for path in output.iterdir()):
            raise UserError(f"{output} holds other files and no {MANIFEST}; choose another folder.")
        write_json(file, manifest)
        return
    before = read_json(file)
    if not isinstance(before, dict) or before.get("format") != FORMAT:
        raise UserError(f"{file} is not a manifest of format {FORMAT}; choose another folder.")
    for key, what in (
        ("classifier", "another classifier"),
        ("settings", "other settings"),
        ("source", "other items"),
    ):
        if _compared(before.get(key)) != _compared(manifest[key]):
            raise UserError(
                f"{output} holds the answers of a run with {what}{_difference(key, before, manifest)};"
                " choose another folder, or delete this one."
            )


def _compared(value: Any) -> Any:
    """Return what must be the same in a run that goes on: bad items may be skipped from now on."""
    return {name: v for name, v in value.items() if name != "skip_bad"} if isinstance(value, dict) else value


def _difference(key: str, before: dict[str, Any], now: dict[str, Any]) -> str:
    if key != "settings" or not isinstance(before.get(key), dict):
        return ""
    changed = [
        f"{name} {before[key].get(name)}, now {value}"
        for name, value in now[key].items()
        if value != before[key].get(name)
    ]
    return f" ({'; '.join(changed)})"


def _remove_leftovers(output: Path) -> None:
    """Remove halves of files, of processes that were killed; for when everything is written."""
    for path in output.glob(".part-*"):
        path.unlink(missing_ok=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
