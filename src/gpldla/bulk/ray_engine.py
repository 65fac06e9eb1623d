"""Bulk scoring on Ray Data: tasks read chunks, a pool of actors scores them; Ray replaces dead actors."""

import json
import logging
import os
import socket
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpldla.bulk.job import Job, PendingUnit
from gpldla.bulk.sources import ITEM, Unit
from gpldla.utils.errors import UserError

# Older versions run code that is hidden in a Parquet file's types as soon as it is opened in their process.
MIN_RAY_VERSION = (2, 55)
CONNECT_TIMEOUT = 10.0
TRIES_PREFIX = ".tries-"
TRIES = 3  # per chunk whose worker dies: Ray would retry a picture that kills its decoder for ever


class RayEngine:
    """Scores on the cluster that RAY_ADDRESS names, else on a Ray that is started on this machine.

    workers: processes that hold the classifier; default: one per GPU, or one per CPU if there is no GPU
    device: auto, cpu or cuda; Ray chooses the GPU of each worker
    report: called with a sentence when a worker has died
    """

    def __init__(
        self,
        workers: int | None = None,
        device: str = "auto",
        *,
        report: Callable[[str], None] = warnings.warn,
    ) -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise UserError(f"--engine ray takes no device {device!r}; use auto, cpu or cuda.")
        self._workers, self._device, self._report = workers, device, report
        check_ray()

    def __call__(self, job: Job, pending: list[PendingUnit]) -> Generator[int, None, None]:
        """Score chunks; yield the number of rows of each as its file is written."""
        import ray
        from ray.exceptions import RayError

        for path in job.output.glob(f"{TRIES_PREFIX}*"):  # of a run that was killed
            path.unlink(missing_ok=True)
        with _ray_connection(self._workers):
            try:
                with _small_blocks():
                    outcomes = self._outcomes(job, pending)
                for row in outcomes.iter_rows():
                    if row["problem"]:
                        raise UserError(row["problem"])
                    if row["tries"] > 1:
                        self._report(
                            "A worker has died; Ray has started another, which scored its chunk again."
                        )
                    yield row["rows"]
            except (RayError, ray.data.exceptions.SystemException) as error:
                raise UserError(
                    f"Ray gave up ({type(error).__name__}: {_first_line(error)}); all files that were written"
                    " are complete, and the same command resumes the run."
                ) from None

    def _outcomes(self, job: Job, pending: list[PendingUnit]) -> Any:
        """Return a Dataset with one row per chunk: its number of rows, or the problem."""
        import ray.data

        workers, on_gpu = self._resources()
        rows = [{"unit": json.dumps(asdict(one))} for one in pending]
        chunks = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _read_chunks,
            fn_kwargs={"job": job},
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0,  # all CPUs belong to the actors, which wait for what is read here
            compute=ray.data.TaskPoolStrategy(size=min(workers, len(rows))),
        )
        return chunks.map_batches(
            _Worker,
            fn_constructor_args=(job, "cuda" if on_gpu else "cpu"),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=1,
            num_gpus=1 if on_gpu else 0,
            compute=ray.data.ActorPoolStrategy(
                min_size=1, max_size=workers, initial_size=workers, max_tasks_in_flight_per_actor=2
            ),
        )

    def _resources(self) -> tuple[int, bool]:
        """Return the number of workers, and whether each has a GPU."""
        import ray

        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if self._device == "cuda" and not gpus:
            raise UserError("Ray has no GPU; use --device cpu.")
        on_gpu = gpus > 0 and self._device != "cpu"
        return self._workers or max(1, gpus if on_gpu else int(resources.get("CPU", 1))), on_gpu


@contextmanager
def _small_blocks() -> Iterator[None]:
    """Make each chunk a block, which goes to any free actor; for Datasets that are made in this context."""
    import ray.data

    context = ray.data.DataContext.get_current()
    kept = context.enable_progress_bars, context.target_max_block_size
    context.enable_progress_bars, context.target_max_block_size = False, 1
    try:
        yield
    finally:
        context.enable_progress_bars, context.target_max_block_size = kept


def _read_chunks(batch: pa.Table, job: Job) -> Iterator[pa.Table]:
    """Read some chunks; each is serialised to one row, which Ray can neither cut nor join."""
    facts = json.loads(batch.column("unit")[0].as_py())
    pending = PendingUnit(Unit(**facts["unit"]), facts["missing"])
    try:
        job.import_plugins()
        for index, table in job.read(pending):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            yield _chunk_row(index, sink.getvalue().to_pybytes(), "")
    except (UserError, OSError) as error:
        yield _chunk_row(-1, b"", str(error))


def _chunk_row(index: int, table: bytes, problem: str) -> pa.Table:
    columns = {"index": [index], "table": pa.array([table], pa.large_binary()), "problem": [problem]}
    return pa.table(columns)


class _Worker:
    """An actor: loads the classifier once, and scores chunks one after another."""

    def __init__(self, job: Job, device: str) -> None:
        from gpldla.utils.process import prepare_process

        prepare_process()
        self._job, self._device = job, device
        self._score: Any = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Score a chunk; an error that the user can correct is returned as a sentence."""
        rows, tries, problem = 0, 1, batch.column("problem")[0].as_py()
        if not problem:
            table = pa.ipc.open_stream(batch.column("table")[0].as_buffer()).read_all()
            try:
                index = batch.column("index")[0].as_py()
                with _count_tries(self._job, index, table) as tries:
                    rows = self._scorer()(index, table)
            except (UserError, OSError) as error:
                problem = str(error)
        return pa.table({"rows": [rows], "tries": [tries], "problem": [problem]})

    def _scorer(self) -> Any:
        """Load with the first chunk: Ray would retry a constructor that fails again and again."""
        if self._score is None:
            from gpldla.bulk.chunk_scorer import ChunkScorer
            from gpldla.classifier.few_shot import FewShotClassifier

            self._job.import_plugins()
            loaded = FewShotClassifier.load(self._job.classifier).to(self._device)
            self._score = ChunkScorer(self._job, loaded)
        return self._score


@contextmanager
def _count_tries(job: Job, index: int, table: pa.Table) -> Iterator[int]:
    """Yield which try this is; refuse a chunk that killed its workers. Only a death leaves the file."""
    tries = job.output / f"{TRIES_PREFIX}{index}"
    with tries.open("a") as file:
        file.write(f"{os.getpid()}\n")
    try:
        count = len(tries.read_text().splitlines())
        if count > TRIES:
            first, last = (table.column(ITEM)[row].as_py() for row in (0, -1))
            raise UserError(
                f"Something between {first} and {last} has ended {TRIES} workers, or memory is too small;"
                " remove it, or use a smaller --chunk-size and another folder."
            )
        yield count
    finally:
        tries.unlink(missing_ok=True)


def check_ray() -> None:
    """Raise UserError where Ray is missing or too old; nothing is started."""
    # Before the import, which reads them. No usage statistics are sent.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UserError(f"--engine ray needs Ray ({error}): pip install 'gpldla[scale]'.") from None
    if tuple(int(number) for number in ray.__version__.split(".")[:2]) < MIN_RAY_VERSION:
        needed = ".".join(map(str, MIN_RAY_VERSION))
        raise UserError(f"Ray {ray.__version__} is older than {needed}: pip install 'gpldla[scale]'.")


@contextmanager
def _ray_connection(workers: int | None) -> Iterator[None]:
    """Connect to a cluster, or start one that ends with the block; an existing connection is kept."""
    import ray

    if ray.is_initialized():
        yield
        return
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    address = os.environ.get("RAY_ADDRESS")
    try:
        _check_reachable(address or "")
        with _quiet_start():
            if address:
                ray.init(**quiet)
            else:
                ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        if not address:
            raise UserError(f"Ray cannot be started on this machine ({_first_line(error)}).") from None
        raise UserError(
            f"Ray cannot be reached at RAY_ADDRESS={address} ({_first_line(error)}); check that it runs, and"
            " set RAY_AUTH_MODE=token where it asks for a token."
        ) from None
    try:
        # Ray reports dead workers at length, in colours and on stdout; `report` does it instead.
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at the address: Ray itself would wait for minutes."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Suppress a line that Ray's core writes to stderr without Python: that logging is off."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0].rstrip(".")
