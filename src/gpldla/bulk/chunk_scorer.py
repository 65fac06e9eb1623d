"""The answers for one chunk: its features, its probabilities, and its Parquet file."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from PIL import UnidentifiedImageError

from gpldla.bulk.job import Job
from gpldla.bulk.parts import write_part
from gpldla.bulk.sources import CONTENT, ITEM
from gpldla.classifier.abstention import is_unsure
from gpldla.classifier.answer import UNSURE, json_class_names
from gpldla.classifier.features import READERS
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.data.pictures import decoded_pixels
from gpldla.utils.errors import UserError
from gpldla.utils.parallel import map_in_threads

METADATA = b"gpldla"  # the key under which each file holds the classes and settings
ANSWER, LIKELIEST, PROBABILITY, NONE, PROBABILITIES, ERROR = (
    "answer",
    "likeliest",
    "probability",
    "none_of_these",
    "probabilities",
    "error",
)
OUR_COLUMNS = (ITEM, ANSWER, LIKELIEST, PROBABILITY, NONE, PROBABILITIES, ERROR)
AHEAD = 128  # pictures that may be decoded before the network takes them
BATCH_FEATURES = 1024  # rows that go through the posterior at once


class ChunkScorer:
    """Scores chunks, and writes one file per chunk."""

    def __init__(self, job: Job, classifier: FewShotClassifier) -> None:
        self._job, self._classifier = job, classifier
        self._classes = pa.array(json_class_names(classifier.classes), pa.string())

    def __call__(self, index: int, table: pa.Table) -> int:
        """Write the file of a chunk; return its number of rows."""
        part = self._job.part(index)
        if not part.exists():  # else a worker wrote it and died before it could report it
            content = BytesIO()
            pq.write_table(self.scored(table), content, compression="zstd")
            write_part(part, content.getvalue())
        return len(table)

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
        pieces = torch.split(features, BATCH_FEATURES) if len(features) else ()
        proba = _joined([self._classifier.probabilities(piece) for piece in pieces], (0, n_classes))
        top = proba.argmax(1)
        none = None
        if self._classifier.has_novelty:
            none = _joined(
                [self._classifier.novelty_of(piece, settings.prevalence) for piece in pieces], (0,)
            )
        likeliest = self._classes.take(pa.array(top))
        unsure = is_unsure(proba, none, settings.max_error)
        offsets = pa.array(np.arange(len(proba) + 1, dtype=np.int32) * n_classes)
        columns = {
            ANSWER: pc.if_else(pa.array(unsure), UNSURE, likeliest),
            LIKELIEST: likeliest,
            PROBABILITY: pa.array(proba[np.arange(len(proba)), top], pa.float32()),
            NONE: pa.nulls(len(proba), pa.float32()) if none is None else pa.array(none, pa.float32()),
            PROBABILITIES: pa.ListArray.from_arrays(offsets, pa.array(proba.ravel(), pa.float32())),
        }
        if good.all():
            return columns
        # Items that could not be read get null.
        rows = pa.array(np.where(good, np.cumsum(good) - 1, 0), mask=~good)
        return {name: column.take(rows) for name, column in columns.items()}

    def _features(self, table: pa.Table) -> tuple[torch.Tensor, list[str | None]]:
        """Return the input of the head for all good items, and for each item its problem or None."""
        items, contents = table.column(ITEM).to_pylist(), table.column(CONTENT)
        if self._job.source.kind == "embeddings":
            return self._given_features(items, contents)
        values = contents.to_pylist()
        if self._job.source.kind == "texts":
            problems = [
                f"{item} holds no text" if text is None else None for item, text in zip(items, values)
            ]
            return self._embedded([text for text in values if text is not None]), problems
        return self._features_of_pictures(items, values)

    def _features_of_pictures(
        self, items: list[str], contents: list[bytes | None]
    ) -> tuple[torch.Tensor, list[str | None]]:
        """Decode in threads, while the network computes those before."""
        problems: list[str | None] = []

        def good() -> Iterator[np.ndarray]:
            pairs = zip(items, contents)
            for result in map_in_threads(self._decoded, pairs, threads=READERS, ahead=AHEAD):
                problems.append(result if isinstance(result, str) else None)
                if not isinstance(result, str):
                    yield result

        return self._classifier.model.embed_pixels(good(), len(items)), problems

    def _embedded(self, items: list[Any]) -> torch.Tensor:
        model = self._classifier.model
        if not items:
            return torch.empty(0, model.backbone.feature_dim, device=model.device)
        return model.embed(items)

    def _decoded(self, pair: tuple[str, bytes | None]) -> np.ndarray | str:
        """Return a picture in the network's input size, or a sentence that says what is wrong with it."""
        item, content = pair
        if content is None:
            return f"{item} holds no picture"
        try:
            return decoded_pixels(self._job.source.picture(content), self._classifier.model.preprocessing)
        except UnidentifiedImageError:  # its message may contain the address of an object
            return f"{item} cannot be read as an image (it is of no known format)"
        except Exception as error:  # decoders raise all kinds of errors for damaged files
            return f"{item} cannot be read as an image ({error})"

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
        for row in np.flatnonzero(whole)[~finite]:
            problems[row] = f"{items[row]} holds numbers that are missing, infinite or NaN"
        return torch.from_numpy(rows[finite]).to(model.device), problems


def _length_problem(item: str, length: int | None, width: int) -> str | None:
    if length is None:
        return f"{item} holds no embedding"
    return None if length == width else f"{item} holds {length} numbers, not the classifier's {width}"


def _joined(parts: list[np.ndarray], empty_shape: tuple[int, ...]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(empty_shape, np.float32)
