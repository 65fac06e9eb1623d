"""The console for tables."""

from rich.console import Console

TABLE_WIDTH = 160  # of tables that do not go to a terminal


def wide_console() -> Console:
    """Return a console for tables on stdout; in a file or a pipe they are not cut to 80 characters."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)
    return console
