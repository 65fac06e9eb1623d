"""The console for tables, and what their cells may hold."""

from rich.console import Console
from rich.markup import escape

from gpldla.utils.visible import visible

TABLE_WIDTH = 160  # of tables that do not go to a terminal


def wide_console() -> Console:
    """Return a console for tables on stdout; in a file or a pipe they are not cut to 80 characters."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)
    return console


def cell(text: object) -> str:
    """Return a text of a user, such as the name of a class, for a table: neither markup nor control codes."""
    return escape(visible(text))
