"""The command `gpldla serve`."""

import os
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpldla.cli.options import DEFAULT_DEVICE, Device
from gpldla.utils.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from gpldla.server.settings import Limits, Settings

NEEDED = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "python_multipart", "prometheus_client")
NO_MODEL = "none"
TOKEN_VARIABLE, TOKEN_LENGTH = "GPLDLA_TOKEN", 16
LOG_FORMATS = ("text", "json")


def serve(
    file: Annotated[
        Path | None,
        typer.Argument(help="A classifier by `gpldla fit`, served read-only; without one, tasks are taught."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; others than 127.0.0.1 need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses one.")] = 8000,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder for tasks and examples; without one they are lost at the end.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="URL of a database instead, such as postgresql+psycopg://user@host/name."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the folder or database.")] = 1,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the token that clients must send; else the variable {TOKEN_VARIABLE}."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Serve other machines without a token: anyone may teach.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name by which clients reach the server, such as that of a proxy; may be repeated."
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of another site whose pages may call the server; may be repeated."),
    ] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails/--no-thumbnails", help="Keep small copies of pictures.")
    ] = True,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Change a limit, see docs/serving.md; may be repeated."),
    ] = None,
    image_model: Annotated[
        str, typer.Option(help="Model for pictures, as of `gpldla fit --model`, or 'none'.")
    ] = "efficientnet-lite0",
    text_model: Annotated[str, typer.Option(help="Model for texts, or 'none'.")] = "all-minilm-l6-v2",
    log_format: Annotated[
        str | None, typer.Option(help="text or json; default: text on a terminal, json elsewhere.")
    ] = None,
    device: Device = DEFAULT_DEVICE,
) -> None:
    """Serve an HTTP API and a page on which classifiers are taught.

    Example: gpldla serve --data-dir tasks/

    One classifier, read-only: gpldla serve birds.safetensors
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(f"Serving needs {missing[0]}: pip install 'gpldla[serve]'.")
    from gpldla.server.run import serve as run
    from gpldla.server.settings import Settings

    lines = _log_format(log_format)
    if file is not None and (data_dir is not None or database is not None):
        raise UserError("A classifier is served read-only: leave out --data-dir and --database, or the file.")
    settings = Settings(
        file=None if file is None else str(file),
        host=host,
        port=port,
        database=_database(data_dir, database),
        image_model=None if image_model == NO_MODEL else image_model,
        text_model=None if text_model == NO_MODEL else text_model,
        device=device,
        token=_token(token_file),
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(_origin(one) for one in allow_origin or ()),
        thumbnails=thumbnails,
        limits=_limits(limit or []),
    )
    _check(settings, workers, no_token=no_token)
    run(settings, workers=workers, log_format=lines)


def _log_format(given: str | None) -> str:
    if given not in (None, *LOG_FORMATS):
        raise UserError(f"There is no log format {given!r}; use text or json.")
    return given or ("text" if sys.stderr.isatty() else "json")


def _check(settings: "Settings", workers: int, *, no_token: bool) -> None:
    """Refuse settings that contradict each other, or that would let in anyone by mistake."""
    if no_token and settings.token is not None:
        raise UserError("There is a token; leave out --no-token, or the token.")
    if settings.token is None and not no_token and (not settings.is_local or settings.allowed_hosts):
        where = "Through a proxy" if settings.is_local else f"On {settings.host}"
        raise UserError(
            f"{where} other machines can connect: give a token with --token-file or {TOKEN_VARIABLE}, or"
            " --no-token to let anyone in."
        )
    if workers > 1 and settings.file is None and settings.database is None:
        raise UserError("Several workers need a place to share: give --data-dir or --database.")


def _database(data_dir: Path | None, url: str | None) -> str | None:
    from gpldla.server.storage.database import sqlite_url
    from gpldla.utils.files import check_writable

    if data_dir is None:
        return url
    if url is not None:
        raise UserError("Give one of --data-dir and --database.")
    check_writable(data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # pictures of people are nobody else's business
    return sqlite_url(data_dir / "tasks.sqlite")


def _token(file: Path | None) -> str | None:
    """Return the token of a file or of the environment; a short one is refused, as it can be guessed."""
    if file is not None:
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The token cannot be read from {file} ({error}).") from None
        where = str(file)
    elif (found := os.environ.get(TOKEN_VARIABLE)) is not None:
        token, where = found.strip(), TOKEN_VARIABLE
    else:
        return None
    if len(token) < TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"The token in {where} must have at least {TOKEN_LENGTH} ASCII characters without spaces;"
            " make one with: openssl rand -hex 32."
        )
    return token


def _origin(given: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.netloc or given.rstrip("/").count("/") != 2:
        raise UserError(f"{given!r} is no origin; give scheme and host only, such as https://example.org.")
    return given.rstrip("/").lower()


def _limits(given: list[str]) -> "Limits":
    from gpldla.server.settings import Limits

    known = [field.name for field in fields(Limits)]
    chosen = {}
    for one in given:
        name, equals, value = one.partition("=")
        if name not in known:
            raise UserError(f"There is no limit {name!r}{did_you_mean(name, known)}")
        if not equals or not value.isdecimal():
            raise UserError(f"--limit {one} must be NAME=NUMBER, with a whole number.")
        chosen[name] = int(value)
    return Limits(**chosen)
