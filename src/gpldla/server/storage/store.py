"""Tasks and examples in a database: every change is one transaction, on disk when the method returns."""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, Row, bindparam, delete, func, insert, select, text, update
from sqlalchemy.pool import StaticPool

from gpldla.server.problems import Problem
from gpldla.server.settings import Limits
from gpldla.server.storage.database import WRITING
from gpldla.server.storage.records import ExampleRecord, NewExample, TaskRecord
from gpldla.server.storage.tables import EXAMPLES, TASKS

_SHOWN = (
    EXAMPLES.c.id,
    EXAMPLES.c.label,
    EXAMPLES.c.name,
    EXAMPLES.c.text,
    EXAMPLES.c.thumbnail.is_not(None).label("has_thumbnail"),
)
# Asked in every request, so it is not made anew each time.
_REVISION = select(TASKS.c.revision).where(
    TASKS.c.id == bindparam("task"), TASKS.c.expires > bindparam("now")
)


class Store:
    """All methods may be called by many threads, and many processes may have one database open."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine, self._limits = engine, limits
        # A task and its examples are read in two queries, of which both must see the same revision.
        self._snapshots = engine
        if engine.dialect.name == "postgresql":  # SQLite's transactions are snapshots anyway
            self._snapshots = engine.execution_options(isolation_level="REPEATABLE READ")
        # A database in memory is one connection, which only one thread may use at a time.
        self._lock = threading.RLock() if isinstance(engine.pool, StaticPool) else None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def check(self) -> None:
        """Raise if the database does not answer."""
        with self._reading() as connection:
            connection.execute(text("SELECT 1"))

    def create_task(
        self,
        kind: str,
        name: str,
        network: str,
        labelled: Sequence[tuple[str, NewExample]] = (),
        unlabelled: np.ndarray | None = None,
    ) -> TaskRecord:
        """Make a task, with examples if it comes from a classifier; unlabelled: more rows [m, d]."""
        now = time.time()
        task_id = secrets.token_hex(16)
        with self._writing() as connection:
            connection.execute(delete(TASKS).where(TASKS.c.expires <= now))
            count = connection.scalar(select(func.count()).select_from(TASKS)) or 0
            if count >= self._limits.tasks:
                raise Problem(409, f"There are {count} tasks, the most this server keeps; delete one.")
            values = {"kind": kind, "name": name, "network": network, "created": now, "revision": 0}
            expires = now + self._limits.lifetime_s
            rows = None if unlabelled is None else _to_bytes(unlabelled)
            connection.execute(insert(TASKS).values(id=task_id, expires=expires, unlabelled=rows, **values))
            self._insert(connection, task_id, labelled)
            return self._task(connection, task_id)

    def tasks(self) -> list[TaskRecord]:
        """Return all tasks, the oldest first."""
        with self._reading() as connection:
            alive = select(TASKS).where(TASKS.c.expires > time.time()).order_by(TASKS.c.created)
            found = connection.execute(alive).all()
            counted = select(EXAMPLES.c.task, EXAMPLES.c.label, func.count()).where(~EXAMPLES.c.deleted)
            counts: dict[str, Counter[str]] = {}
            grouped = counted.group_by(EXAMPLES.c.task, EXAMPLES.c.label).order_by(
                func.min(EXAMPLES.c.number)
            )
            for task, label, count in connection.execute(grouped):
                counts.setdefault(task, Counter())[label] = count
            return [_record(row, counts.get(row.id, Counter())) for row in found]

    def task(self, task_id: str) -> TaskRecord:
        """Return a task; one that does not exist, or not any more, is a problem."""
        with self._reading() as connection:
            return self._task(connection, task_id)

    def revision(self, task_id: str) -> int:
        """Return the revision of a task alone, which is quick."""
        with self._reading() as connection:
            revision = connection.scalar(_REVISION, {"task": task_id, "now": time.time()})
        if revision is None:
            raise _no_task()
        return int(revision)

    def rename_task(self, task_id: str, name: str) -> TaskRecord:
        """Give a task another name."""
        with self._changing(task_id) as connection:
            connection.execute(update(TASKS).where(TASKS.c.id == task_id).values(name=name))
            return self._task(connection, task_id)

    def delete_task(self, task_id: str) -> None:
        """Delete a task and its examples."""
        with self._writing() as connection:
            self._task(connection, task_id)
            connection.execute(delete(TASKS).where(TASKS.c.id == task_id))

    def delete_expired(self) -> int:
        """Delete tasks whose time is over; return how many."""
        with self._writing() as connection:
            return connection.execute(delete(TASKS).where(TASKS.c.expires <= time.time())).rowcount

    def add(
        self, task_id: str, label: str, examples: Sequence[NewExample]
    ) -> tuple[list[ExampleRecord], TaskRecord]:
        """Add examples of one class, all or none."""
        with self._changing(task_id) as connection:
            ids = self._insert(connection, task_id, [(label, example) for example in examples])
            shown = [
                ExampleRecord(one_id, label, one.name, one.text, one.thumbnail is not None)
                for one_id, one in zip(ids, examples)
            ]
            return shown, self._task(connection, task_id)

    def examples(self, task_id: str) -> list[ExampleRecord]:
        """Return the examples of a task, in the order in which they were added."""
        with self._reading() as connection:
            self._task(connection, task_id)
            return [_example(row) for row in connection.execute(_alive(task_id, *_SHOWN))]

    def thumbnail(self, task_id: str, example_id: str) -> bytes | None:
        """Return the thumbnail of an example, removed or not; None if it has none."""
        with self._reading() as connection:
            self._task(connection, task_id)
            chosen = select(EXAMPLES.c.thumbnail).where(*_is(task_id, example_id))
            row = connection.execute(chosen).one_or_none()
            if row is None:
                raise _no_example()
            thumbnail: bytes | None = row.thumbnail
            return thumbnail

    def relabel(self, task_id: str, example_id: str, label: str) -> tuple[ExampleRecord, TaskRecord]:
        """Give an example another label."""
        return self._change_example(task_id, example_id, deleted=False, values={"label": label})

    def remove(self, task_id: str, example_id: str) -> TaskRecord:
        """Remove an example; it can be restored."""
        return self._change_example(task_id, example_id, deleted=False, values={"deleted": True})[1]

    def restore(self, task_id: str, example_id: str) -> tuple[ExampleRecord, TaskRecord]:
        """Bring a removed example back."""
        return self._change_example(task_id, example_id, deleted=True, values={"deleted": False})

    def rename_class(self, task_id: str, label: str, new: str) -> tuple[list[str], TaskRecord]:
        """Give a class another name, that of another class too; return the ids of its examples."""
        return self._change_class(task_id, label, {"label": new})

    def remove_class(self, task_id: str, label: str) -> tuple[list[str], TaskRecord]:
        """Remove all examples of a class; return their ids, by which they can be restored."""
        return self._change_class(task_id, label, {"deleted": True})

    def rows(self, task_id: str) -> tuple[TaskRecord, list[ExampleRecord], np.ndarray, np.ndarray | None]:
        """Return a task, its examples, their features [n, d], and rows without labels [m, d] or None."""
        with self._reading() as connection:
            task = self._task(connection, task_id)
            found = connection.execute(_alive(task_id, *_SHOWN, EXAMPLES.c.features)).all()
            unlabelled = connection.scalar(select(TASKS.c.unlabelled).where(TASKS.c.id == task_id))
        features = np.stack([_from_bytes(row.features) for row in found]) if found else np.empty((0, 0))
        more = None if unlabelled is None else _from_bytes(unlabelled).reshape(-1, features.shape[1])
        return task, [_example(row) for row in found], features, more

    def _insert(
        self, connection: Connection, task_id: str, labelled: Sequence[tuple[str, NewExample]]
    ) -> list[str]:
        if not labelled:
            return []
        self._make_room(connection, task_id, len(labelled))
        ids = [secrets.token_hex(8) for _ in labelled]
        values = [
            {
                "id": one_id,
                "task": task_id,
                "label": label,
                "name": one.name,
                "text": one.text,
                "features": _to_bytes(one.features),
                "thumbnail": one.thumbnail,
                "deleted": False,
            }
            for one_id, (label, one) in zip(ids, labelled)
        ]
        connection.execute(insert(EXAMPLES), values)
        self._check_classes(connection, task_id)
        return ids

    def _make_room(self, connection: Connection, task_id: str, more: int) -> None:
        """Refuse more examples than a task may have; removed ones make room."""
        most, of_task = self._limits.items, EXAMPLES.c.task == task_id
        count = connection.scalar(select(func.count()).select_from(EXAMPLES).where(of_task)) or 0
        if count + more <= most:
            return
        connection.execute(delete(EXAMPLES).where(of_task, EXAMPLES.c.deleted))
        count = connection.scalar(select(func.count()).select_from(EXAMPLES).where(of_task)) or 0
        if count + more > most:
            raise Problem(409, f"A task has at most {most} examples; this one has {count}: remove some.")

    def _check_classes(self, connection: Connection, task_id: str) -> None:
        classes = len(self._counts(connection, task_id))
        if classes > self._limits.classes:
            raise Problem(409, f"A task has at most {self._limits.classes} classes; add to one of these.")

    def _change_example(
        self, task_id: str, example_id: str, *, deleted: bool, values: dict[str, Any]
    ) -> tuple[ExampleRecord, TaskRecord]:
        with self._changing(task_id) as connection:
            which = (*_is(task_id, example_id), EXAMPLES.c.deleted.is_(deleted))
            if connection.execute(update(EXAMPLES).where(*which).values(**values)).rowcount == 0:
                raise _no_example()
            self._check_classes(connection, task_id)
            row = connection.execute(select(*_SHOWN).where(*_is(task_id, example_id))).one()
            return _example(row), self._task(connection, task_id)

    def _change_class(self, task_id: str, label: str, values: dict[str, Any]) -> tuple[list[str], TaskRecord]:
        with self._changing(task_id) as connection:
            of_class = (EXAMPLES.c.task == task_id, EXAMPLES.c.label == label, ~EXAMPLES.c.deleted)
            ids = list(connection.scalars(select(EXAMPLES.c.id).where(*of_class).order_by(EXAMPLES.c.number)))
            if not ids:
                raise Problem(404, f"The task has no class {label!r}.")
            connection.execute(update(EXAMPLES).where(*of_class).values(**values))
            return ids, self._task(connection, task_id)

    def _task(self, connection: Connection, task_id: str) -> TaskRecord:
        alive = select(TASKS).where(TASKS.c.id == task_id, TASKS.c.expires > time.time())
        row = connection.execute(alive).one_or_none()
        if row is None:
            raise _no_task()
        return _record(row, self._counts(connection, task_id))

    def _counts(self, connection: Connection, task_id: str) -> Counter[str]:
        counted = select(EXAMPLES.c.label, func.count(), func.min(EXAMPLES.c.number)).where(
            EXAMPLES.c.task == task_id, ~EXAMPLES.c.deleted
        )
        grouped = counted.group_by(EXAMPLES.c.label).order_by(func.min(EXAMPLES.c.number))
        return Counter({label: count for label, count, _ in connection.execute(grouped)})

    @contextmanager
    def _changing(self, task_id: str) -> Iterator[Connection]:
        """Begin a transaction that changes a task: its revision grows, and its life is prolonged."""
        now = time.time()
        with self._writing() as connection:
            alive = (TASKS.c.id == task_id, TASKS.c.expires > now)
            changed = {"revision": TASKS.c.revision + 1, "expires": now + self._limits.lifetime_s}
            if connection.execute(update(TASKS).where(*alive).values(**changed)).rowcount == 0:
                raise _no_task()
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._alone(), self._snapshots.begin() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._alone(), self._engine.execution_options(**{WRITING: True}).begin() as connection:
            yield connection

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._lock is None:
            yield
        else:
            with self._lock:
                yield


def _alive(task_id: str, *columns: Any) -> Any:
    """Return the query for the examples of a task that are not removed."""
    return select(*columns).where(EXAMPLES.c.task == task_id, ~EXAMPLES.c.deleted).order_by(EXAMPLES.c.number)


def _is(task_id: str, example_id: str) -> tuple[Any, Any]:
    return EXAMPLES.c.task == task_id, EXAMPLES.c.id == example_id


def _no_task() -> Problem:
    return Problem(404, "There is no such task; it may have been deleted, or its time is over.")


def _no_example() -> Problem:
    return Problem(404, "The task has no such example.")


def _example(row: Row[Any]) -> ExampleRecord:
    return ExampleRecord(row.id, row.label, row.name, row.text, bool(row.has_thumbnail))


def _record(row: Row[Any], counts: Counter[str]) -> TaskRecord:
    return TaskRecord(row.id, row.kind, row.name, row.network, row.created, row.expires, row.revision, counts)


def _to_bytes(features: np.ndarray) -> bytes:
    return features.astype("<f4").tobytes()


def _from_bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<f4").astype(np.float32)
