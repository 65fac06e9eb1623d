"""The database: what migrations make, and the same answers from PostgreSQL where there is one."""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from gpldla.server.problems import Problem
from gpldla.server.settings import Limits
from gpldla.server.storage import NewExample, Store, open_database
from gpldla.server.storage.database import sqlite_url
from gpldla.server.storage.tables import METADATA
from gpldla.utils.errors import UserError
from tests.server.helpers import client_of, small
from tests.server.test_tasks import is_problem

POSTGRES = "GPLDLA_TEST_POSTGRES"  # a URL of an empty database


@pytest.fixture(params=["memory", "file", "postgres"])
def engine(request, tmp_path):
    url = {"memory": None, "file": sqlite_url(tmp_path / "a ü.sqlite"), "postgres": os.environ.get(POSTGRES)}
    if request.param == "postgres" and url["postgres"] is None:
        pytest.skip(f"{POSTGRES} is not set")
    engine = open_database(url[request.param])
    yield engine
    if request.param == "postgres":
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()


@pytest.fixture
def store(engine):
    return Store(engine, Limits(items=10, classes=3, tasks=2))


def rows(count, seed=0):
    found = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
    return [NewExample(f"{i}.png", row, None, b"webp") for i, row in enumerate(found)]


def test_migrations_make_the_tables_that_the_code_uses(engine):
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_opening_again_changes_nothing(engine, store):
    task = store.create_task("images", "a", "f" * 64)
    if engine.url.database:
        open_database(engine.url.render_as_string(hide_password=False)).dispose()
    assert store.task(task.id) == task


def test_what_is_stored_comes_back(store):
    task = store.create_task("images", "naïve 鳥 '\"", "f" * 64)
    given = rows(3)
    added, after = store.add(task.id, "ä; DROP TABLE tasks", given)
    assert after.revision == store.revision(task.id) == 1
    store.add(task.id, "a", rows(1, 1))  # the order of classes is that of their first examples, everywhere
    assert list(store.tasks()[0].counts) == list(store.task(task.id).counts) == ["ä; DROP TABLE tasks", "a"]
    store.remove_class(task.id, "a")
    found, examples, features, unlabelled = store.rows(task.id)
    assert (found.name, found.counts) == ("naïve 鳥 '\"", {"ä; DROP TABLE tasks": 3})
    assert examples == added == store.examples(task.id)
    assert np.array_equal(features, np.stack([one.features for one in given]))
    assert unlabelled is None
    assert store.thumbnail(task.id, added[0].id) == b"webp"


def test_a_change_is_whole_or_not_at_all(store):
    task = store.create_task("images", "a", "f" * 64)
    store.add(task.id, "a", rows(8))
    for label, count in (("b", 3), ("a", 3)):
        with pytest.raises(Problem, match="at most 10"):
            store.add(task.id, label, rows(count))
    assert (store.task(task.id).revision, len(store.examples(task.id))) == (1, 8)
    store.add(task.id, "b", rows(1))
    with pytest.raises(Problem) as refused:
        store.relabel(task.id, "0" * 16, "b")
    assert refused.value.status_code == 404
    assert store.revision(task.id) == 2


def test_deleting_a_task_deletes_its_examples(engine, store):
    task = store.create_task("images", "a", "f" * 64)
    store.add(task.id, "a", rows(3))
    store.delete_task(task.id)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM examples")).scalar() == 0
    assert [store.create_task("texts", "b", "f" * 64).kind for _ in range(2)] == ["texts"] * 2
    with pytest.raises(Problem, match="delete one"):
        store.create_task("texts", "b", "f" * 64)


def test_writers_take_turns(store):
    task = store.create_task("images", "a", "f" * 64)

    def add(number):
        try:
            return store.add(task.id, "abc"[number % 3], rows(1, number))[1].revision
        except Problem as error:
            return error.status_code

    with ThreadPoolExecutor(8) as pool:
        answers = sorted(pool.map(add, range(14)))
    assert answers == [*range(1, 11), 409, 409, 409, 409]
    assert len(store.examples(task.id)) == 10


def test_a_change_is_on_disk_when_it_is_answered(tmp_path):
    engine = open_database(sqlite_url(tmp_path / "a.sqlite"))
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
    store = Store(engine, Limits())
    task = store.create_task("images", "a", "f" * 64)
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as other:  # another process would see it, too
        assert other.execute("SELECT id FROM tasks").fetchall() == [(task.id,)]
    engine.dispose()


def test_a_database_of_a_later_version_is_refused_in_a_sentence(tmp_path):
    url = sqlite_url(tmp_path / "a.sqlite")
    engine = open_database(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(UserError, match="later version"):
        open_database(url)


def test_a_database_that_cannot_be_written_is_a_problem_until_it_can(tmp_path, caplog):
    with client_of(small(database=sqlite_url(tmp_path / "a.sqlite"))) as client:
        task = client.post("/v1/tasks", json={"kind": "images"}).json()["id"]
        writer = client.app.state.service.store._engine
        with writer.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")  # as if the disk were full
        answers = [client.post("/v1/tasks", json={"kind": "images", "name": "x" * 100}) for _ in range(100)]
        assert is_problem(answers[-1], 503, "cannot be used now")
        assert "full" in caplog.text
        assert client.get(f"/v1/tasks/{task}").status_code == 200
        with writer.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 100000")
        assert client.post("/v1/tasks", json={"kind": "images"}).status_code == 201
