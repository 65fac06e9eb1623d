"""The tables of the paper, as printed."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".toml")
RUNNING_TIME = "running-time"


@dataclass(frozen=True)
class PaperTable:
    """A table as printed: one setting per column, one row of texts per method, "" where none is given.

    about: a sentence on what the paper's own number of a method is of, by method
    """

    name: str
    title: str
    measure: str
    columns: list[dict[str, Any]]
    rows: dict[str, list[str]]
    about: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> list[tuple[str, str]]:
        """Its pairs of data set and network, in order."""
        return list(dict.fromkeys((column["dataset"], column["backbone"]) for column in self.columns))

    def shots(self, setting: tuple[str, str]) -> list[int]:
        """Return the numbers of shots for a data set and network."""
        return [column["shots"] for column in self.columns if _setting(column) == setting]

    def texts(self, method: str, setting: tuple[str, str]) -> dict[int, str]:
        """Return the paper's results of a method by number of shots, without those that it does not give."""
        return {
            column["shots"]: text
            for column, text in zip(self.columns, self.rows.get(method, []))
            if _setting(column) == setting and text
        }


def _setting(column: dict[str, Any]) -> tuple[str, str]:
    return column["dataset"], column["backbone"]


def paper_tables() -> dict[str, PaperTable]:
    """Return the tables by name."""
    written = tomllib.loads(FILE.read_text("utf-8"))
    return {name: PaperTable(name, **table) for name, table in written.items()}
