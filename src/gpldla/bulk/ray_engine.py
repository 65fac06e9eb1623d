"""Bulk scoring on Ray Data: tasks read chunks, a pool of actors scores them; Ray replaces those that die."""

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

# Older ones run code that is hidden in a Parquet file's types as soon as it is opened beside them.
MIN_RAY_VERSION = (2, 55)
CONNECT_TIMEOUT = 10.0
TRIES_PREFIX = ".tries-"
TRIES = 3  # of a chunk whose worker dies: Ray would try a picture that kills its decoder for ever


class RayEngine:
    """Scores on the cluster that RAY_ADDRESS names, else on a Ray of its own on this machine.

    workers: processes that hold the classifier; None: one a GPU, or one a CPU where there are none
    tell: hears when a worker has died
    """

    def __init__(
        self, workers: int | None = None, device: str = "auto", *, tell: Callable[[str], None] = warnings.warn
    ) -> None:
        self._workers, self._device, self._tell = workers, device, tell
        check_ray()

    def __call__(self, job: Job, works: list[PendingUnit]) -> Generator[int, None, None]:
        """Score chunks; yield the rows of each as its file is written."""
        import ray
        from ray.exceptions import RayError

        for path in job.output.glob(f"{TRIES_PREFIX}*"):  # of a run that was killed
            path.unlink(missing_ok=True)
        with _ray_connection(self._workers):
            try:
                with _small_blocks():
                    answers = self._answers(job, works)
                for row in answers.iter_rows():
                    if row["problem"]:
                        raise UserError(row["problem"])
                    if row["tries"] > 1:
                        self._tell("A worker has died; Ray has started another, which did its chunk anew.")
                    yield row["rows"]
            except (RayError, ray.data.exceptions.SystemException) as error:
                raise UserError(
                    f"Ray gave up ({type(error).__name__}: {_first_line(error)}); what is written is whole,"
                    " and the same command goes on."
                ) from None

    def _answers(self, job: Job, works: list[PendingUnit]) -> Any:
        """Return the Dataset of what becomes of each chunk: its rows, or a problem."""
        import ray.data

        workers, on_gpu = self._resources()
        rows = [{"work": json.dumps(asdict(work))} for work in works]
        chunks = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _read_chunks,
            fn_kwargs={"job": job},
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0,  # the actors have all CPUs, and need what is read here
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
        """Return how many workers there shall be, and whether each has a GPU."""
        import ray

        has = ray.cluster_resources()
        gpus = int(has.get("GPU", 0))
        if self._device == "cuda" and not gpus:
            raise UserError("Ray has no GPU; use --device cpu.")
        on_gpu = gpus > 0 and self._device != "cpu"
        return self._workers or max(1, gpus if on_gpu else int(has.get("CPU", 1))), on_gpu


@contextmanager
def _small_blocks() -> Iterator[None]:
    """Make each chunk a block, which goes to whoever is free; only for Datasets that are made meanwhile."""
    import ray.data

    context = ray.data.DataContext.get_current()
    kept = context.enable_progress_bars, context.target_max_block_size
    context.enable_progress_bars, context.target_max_block_size = False, 1
    try:
        yield
    finally:
        context.enable_progress_bars, context.target_max_block_size = kept


def _read_chunks(batch: pa.Table, job: Job) -> Iterator[pa.Table]:
    """Read some chunks; each is one row, as a whole, that Ray can neither cut nor join."""
    facts = json.loads(batch.column("work")[0].as_py())
    work = PendingUnit(Unit(**facts["unit"]), facts["missing"])
    try:
        for number, table in job.read(work):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            yield _chunk_row(number, sink.getvalue().to_pybytes(), "")
    except (UserError, OSError) as error:
        yield _chunk_row(-1, b"", str(error))


def _chunk_row(number: int, table: bytes, problem: str) -> pa.Table:
    columns = {"number": [number], "table": pa.array([table], pa.large_binary()), "problem": [problem]}
    return pa.table(columns)


class _Worker:
    """An actor: loads the classifier once, and scores one chunk after the other."""

    def __init__(self, job: Job, device: str) -> None:
        from gpldla.utils.process import prepare_process

        prepare_process()
        self._job, self._device = job, device
        self._score: Any = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Score a chunk; what a user can mend comes back as a sentence."""
        rows, tries, problem = 0, 1, batch.column("problem")[0].as_py()
        if not problem:
            table = pa.ipc.open_stream(batch.column("table")[0].as_buffer()).read_all()
            try:
                with _count_tries(self._job, batch.column("number")[0].as_py(), table) as tries:
                    rows = self._scorer()(batch.column("number")[0].as_py(), table)
            except (UserError, OSError) as error:
                problem = str(error)
        return pa.table({"rows": [rows], "tries": [tries], "problem": [problem]})

    def _scorer(self) -> Any:
        """Load with the first chunk: what goes wrong in a constructor, Ray would try again and again."""
        if self._score is None:
            from gpldla.bulk.scoring import ChunkScorer
            from gpldla.classifier.few_shot import FewShotClassifier

            loaded = FewShotClassifier.load(self._job.classifier).to(self._device)
            self._score = ChunkScorer(self._job, loaded)
        return self._score


@contextmanager
def _count_tries(job: Job, number: int, table: pa.Table) -> Iterator[int]:
    """Give which try this is; refuse a chunk that workers died of. Only a death leaves the count behind."""
    tries = job.output / f"{TRIES_PREFIX}{number}"
    with tries.open("a") as file:
        file.write(f"{os.getpid()}\n")  # who is at it
    try:
        count = len(tries.read_text().splitlines())
        if count > TRIES:
            first, last = (table.column(ITEM)[place].as_py() for place in (0, -1))
            raise UserError(
                f"Something between {first} and {last} has ended {TRIES} workers, or memory does not suffice;"
                " look for it, or use a smaller --chunk-size in another folder."
            )
        yield count
    finally:
        tries.unlink(missing_ok=True)


def check_ray() -> None:
    """Say in a sentence where Ray is missing or too old; nothing is started."""
    # Before the import, as Ray reads them there. It tells nobody how it is used.
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
    """Connect to a cluster, or start one that ends with the block; keep the connection that a program has."""
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
        # What Ray prints of dead workers is long, in colours, and on the wrong stream: `tell` says it.
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would wait for minutes."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Keep a line off the terminal that Ray's core writes past Python: that it has been asked to be quiet."""
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
