"""The commands about the cache folder: `gpldla cache size` and `gpldla cache clear`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpldla.cli.options import AsJson, Cache, messages
from gpldla.utils.errors import UserError, did_you_mean
from gpldla.utils.progress import say
from gpldla.utils.terminal import wide_console

if TYPE_CHECKING:
    from gpldla.data.cache_contents import CachePart

REMADE = (
    "features",
    "graphs",
)  # what `clear` removes unless told otherwise: it is computed again when needed

cache_app = typer.Typer(help="Show the size of the cache folder, and clear it.", no_args_is_help=True)


@cache_app.command("size", short_help="Show what the cache holds.")
def cache_size(as_json: AsJson = False, cache: Cache = None) -> None:
    """Show where the cache is and how large its parts are.

    Example: gpldla cache size
    """
    from rich.table import Column, Table

    folder, contents = _contents(cache)
    if as_json:
        parts = {name: {"items": len(part.paths), "bytes": part.size} for name, part in contents.items()}
        typer.echo(json.dumps({"cache": str(folder), "parts": parts}, indent=2))
        return
    right = {"justify": "right"}
    table = Table("part", Column("items", **right), Column("size", **right), "holds")  # type: ignore[arg-type]
    for name, part in contents.items():
        table.add_row(name, f"{len(part.paths):,}", _readable(part.size), part.purpose)
    console = wide_console()
    say(console, f"Cache {folder}")
    console.print(table)


@cache_app.command("clear", short_help="Remove what the cache holds.")
def clear_cache(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="features, graphs, stores or all; default: features and graphs."),
    ] = None,
    cache: Cache = None,
) -> None:
    """Remove features and graphs, which are computed again when needed; packed data sets only if named.

    Example: gpldla cache clear

    Packed data sets, too: gpldla cache clear all
    """
    from gpldla.data.cache_contents import clear

    folder, contents = _contents(cache)
    named = list(contents) if parts == ["all"] else parts or list(REMADE)
    for name in named:
        if name not in contents:
            raise UserError(f"The cache has no part {name!r}{did_you_mean(name, [*contents, 'all'])}")
    freed = clear(contents, dict.fromkeys(named))
    say(messages, f"Removed {_readable(freed)} of {' and '.join(named)} from {folder}.")


def _contents(cache: Path | None) -> "tuple[Path, dict[str, CachePart]]":
    from gpldla.data.cache_contents import cache_contents
    from gpldla.data.paths import DataPaths

    folder = DataPaths(None, cache).cache
    return folder, cache_contents(folder)


def _readable(size: int) -> str:
    """Return bytes as people read them."""
    amount, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
