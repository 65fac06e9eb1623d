"""A table with its notes, for the terminal and for a Markdown page."""

from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

BETTER, WORSE = "▲", "▼"  # shown on terminals, some of which have no bold


@dataclass(frozen=True)
class Entry:
    """The content of one cell of a table.

    better: whether it is better than what it is compared with
    sign:   BETTER or WORSE, shown only on a terminal
    mark:   refers to a note
    """

    text: str = ""
    better: bool = False
    sign: str = ""
    mark: str = ""

    def for_terminal(self) -> Text:
        """Return the text with its marks before it, so that numbers are aligned."""
        return Text(f"{self.mark}{self.sign}{self.text}", style="bold" if self.better else "")

    def for_markdown(self) -> str:
        """Return the text, in bold if it is the better one."""
        text = f"**{self.text}**" if self.better else self.text
        return f"{text} {self.mark}" if self.mark else text


@dataclass(frozen=True)
class ResultTable:
    """Named rows of entries, with notes.

    head:   for each column but the first, the name of its group and its own name
    notes:  sentences; a note in backticks is a command
    legend: how to read the table, which a page with many tables states once
    named:  the title of the first column
    """

    title: str
    head: list[tuple[str, str]]
    rows: list[tuple[str, list[Entry]]]
    notes: list[str] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)
    named: str = "method"

    def __rich__(self) -> Group:
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
        table.add_column(f"\n{self.named}")
        before = ""
        for group, name in self.head:
            table.add_column(f"{group if group != before else ''}\n{name}", justify="right", no_wrap=True)
            before = group
        for name, entries in self.rows:
            table.add_row(name, *(entry.for_terminal() for entry in entries))
        notes = [*self.legend, *self.notes]
        return Group(Text(self.title, "bold"), "", table, *map(_note_for_terminal, notes), "")

    def markdown(self) -> list[str]:
        """Return the lines of the table and its notes."""
        names = [self.named, *(f"{group}, {name}" if group else name for group, name in self.head)]
        lines = [markdown_row(names), "|---|" + "--:|" * len(self.head)]
        for name, entries in self.rows:
            lines.append(markdown_row([name, *(entry.for_markdown() for entry in entries)]))
        for note in self.notes:
            lines += ["", f"    {note.strip('`')}" if _is_command(note) else note]
        return lines


def _is_command(note: str) -> bool:
    return note.startswith("`") and note.count("`") == 2 and note.endswith("`")


def _note_for_terminal(note: str) -> Text:
    if _is_command(note):  # in one line, to be copied
        return Text(f"    {note.strip('`')}", no_wrap=True, overflow="ignore")
    return Text(note, "dim")


def markdown_row(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
