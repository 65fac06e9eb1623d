"""Opening a database: SQLite that survives a kill or a power cut, or PostgreSQL by its URL."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from gpldla.utils.errors import UserError, first_line
from gpldla.utils.files import exclusive_lock

MIGRATIONS = Path(__file__).parent / "migrations"
IN_MEMORY = "sqlite://"
WRITING = "gpldla_writing"  # option of a connection whose transaction takes SQLite's write lock at once
WAIT_FOR_LOCK = 30.0  # seconds
MIGRATION_LOCK = 0x67706C64  # any number that no other program uses in this PostgreSQL database


def open_database(url: str | None) -> Engine:
    """Return an engine with all tables, migrated to this version; None: in memory."""
    try:
        engine = _engine(url or IN_MEMORY)
        _migrate(engine)
    except CommandError:  # alembic knows no way from the tables that are there
        raise UserError(
            f"The database {_shown(url)} was written by a later version of gpldla; install that, or restore"
            " the copy that was made before."
        ) from None
    except (SQLAlchemyError, ImportError, OSError) as error:
        raise UserError(f"The database {_shown(url)} cannot be opened ({first_line(error)}).") from None
    return engine


def _shown(url: str | None) -> str | None:
    """Return a URL without its password."""
    return make_url(url).render_as_string() if url and "://" in url else url


def sqlite_url(file: Path) -> str:
    """Return the URL of an SQLite file."""
    return f"sqlite:///{file.absolute()}"


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    options: dict[str, Any] = {"connect_args": {"check_same_thread": False, "timeout": WAIT_FOR_LOCK}}
    if url == IN_MEMORY:  # one connection, or every thread would see a database of its own
        options["poolclass"] = StaticPool
    engine = create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # the driver would begin transactions late, and never for reading
        for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {setting}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that first reads and then writes would fail if another has written in between.
        writing = connection.get_execution_options().get(WRITING, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _migrate(engine: Engine) -> None:
    """Bring the tables to this version; several workers may start at once."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    folder = exclusive_lock(Path(file).parent, "server", wait=True) if file else nullcontext()
    with folder, engine.execution_options(**{WRITING: True}).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
