"""Bulk scoring: a classifier's answers for millions of items, written to Parquet files chunk by chunk.

The file of a chunk appears whole or not at all. So a stopped run resumes with the files that are missing, and
scoring a chunk twice, as after the death of a worker, changes nothing.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpldla.bulk.chunk_scorer import OUR_COLUMNS, ChunkScorer
from gpldla.bulk.job import Job, PendingUnit, Settings, imported_plugins
from gpldla.bulk.manifest import make_manifest, start_or_resume
from gpldla.bulk.parts import remove_damaged
from gpldla.bulk.sources import CHUNK_SIZES, Accepted, find_source
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.utils.devices import torch_device
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, exclusive_lock
from gpldla.utils.process import stop_signals
from gpldla.utils.progress import CountProgress, say

if TYPE_CHECKING:
    from rich.console import Console

    from gpldla.data import Access

Rows = Generator[int, None, None]
Engine = Callable[[Job, list[PendingUnit]], Rows]
"""Scores chunks; yields the number of rows of each as its file is written."""


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
    reading: tuple[str | None, str | None] = (None, None),
    chunk_size: int | None = None,
    device: str = "auto",
) -> bool:
    """Write the answers for pictures, rows of tables or a data set to the folder `output`, or resume that.

    engine: default: this process; reading: encoding and delimiter of CSV files, None: found out
    Return whether everything is written; False after Ctrl-C.
    """
    _check_output(output, items)
    loaded = FewShotClassifier.load(classifier).to(torch_device(device))
    model = loaded.model
    takes_features = model.head.consumes == "features"
    source = find_source(
        items,
        Accepted(model.backbone.reads, model.backbone.feature_dim if takes_features else None),
        column=column,
        size=getattr(model.preprocessing, "size", 0),
        access=access,
        reserved=OUR_COLUMNS,
        reading=reading,
    )
    chunk_size = chunk_size or CHUNK_SIZES[source.kind]
    survey = source.survey(chunk_size)
    chunks = survey.chunks
    total = sum(rows for _, rows in chunks)
    given = {"column": column, "chunk_size": chunk_size}
    manifest = make_manifest(classifier, loaded.classes, survey, settings, given)
    digits = max(5, len(str(len(chunks) - 1)))
    job = Job(classifier.absolute(), source, output.absolute(), settings, digits, imported_plugins())
    with exclusive_lock(output, "bulk scoring"):
        start_or_resume(output, manifest)
        missing = _missing(job, chunks, console)
        if not missing:
            say(console, f"All {total:,} rows are in {output} already.")
            return True
        pending = [
            PendingUnit(unit, [index for index, _ in unit.chunks if index in missing])
            for unit in survey.units
        ]
        engine = engine or partial(_score_here, loaded)
        written = engine(job, [one for one in pending if one.missing])
        return _run(written, job, total, total - sum(missing.values()), console, output)


def _missing(job: Job, chunks: Sequence[tuple[int, int]], console: "Console") -> dict[int, int]:
    """Return the chunks that have no whole file yet, with their numbers of rows."""
    files = {path.name for path in job.output.iterdir()}
    for part in remove_damaged(part for index, _ in chunks if (part := job.part(index)).name in files):
        say(console, f"{part} is damaged: its checksum does not match; it is scored again.")
        files.remove(part.name)
    return {index: rows for index, rows in chunks if job.part(index).name not in files}


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


def _score_here(classifier: FewShotClassifier, job: Job, pending: list[PendingUnit]) -> Rows:
    score = ChunkScorer(job, classifier)
    for one in pending:
        for index, table in job.read(one):
            yield score(index, table)


def _run(written: Rows, job: Job, total: int, already: int, console: "Console", output: Path) -> bool:
    """Show the progress, and stop on Ctrl-C. already: rows that an earlier run has written."""
    started, done = time.monotonic(), already
    stopped_early = False
    with (
        CountProgress(total, already, console, unit="rows") as progress,
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
    now = done - already
    earlier = f"; {already:,} were there already" if already else ""
    say(console, f"{now:,} rows in {seconds:.1f} s ({now / seconds:,.1f} rows/s){earlier}.")
    if stopped_early:
        say(console, f"Stopped with {total - done:,} rows to go; the same command resumes the run.")
        return False
    if done < total:
        raise UserError(f"{total - done:,} rows were not written; run the same command again.")
    for leftover in job.output.glob(".part-*"):  # incomplete files of processes that were killed
        leftover.unlink(missing_ok=True)
    say(console, f"Wrote {output}.")
    return True
