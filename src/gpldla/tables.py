"""The paper's tables, with its numbers and ours side by side; nothing is run."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gpldla.bench.heads import TIMED
from gpldla.errors import UserError, did_you_mean
from gpldla.files import read_json
from gpldla.methods import methods

PAPER = Path(__file__).with_name("paper_tables.toml")
OURS = "gpldla"
METHODS = "methods"  # the name of the view of all methods
RUNNING_TIME = "running-time"
# Where results/ is: in an installed package beside this file, in a checkout at its root.
RESULTS = (Path(__file__).with_name("results"), Path(__file__).parents[2] / "results")


@dataclass(frozen=True)
class PaperTable:
    """A table as printed: one setting a column, and a row of texts a method, empty where there is none."""

    name: str
    title: str
    measure: str
    columns: list[dict[str, Any]]
    rows: dict[str, list[str]]


def paper_tables() -> dict[str, PaperTable]:
    """Return the tables by name."""
    written = tomllib.loads(PAPER.read_text("utf-8"))
    return {name: PaperTable(name, **table) for name, table in written.items()}


def results_folder(asked: Path | None = None) -> Path:
    """Return where the measured numbers are: the folder that is asked for, or what comes with gpldla."""
    folder = asked or next((folder for folder in RESULTS if folder.is_dir()), RESULTS[-1])
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}; name the one that holds the results.")
    return folder


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """Return the measured cells: every JSON in `folder`/cells, with method, dataset, backbone and shots."""
    cells = []
    for path in sorted((folder / "cells").glob("*.json")):
        cell = read_json(path)
        if not isinstance(cell, dict) or not {"method", "dataset", "backbone", "shots"} <= cell.keys():
            raise UserError(f"{path} is no measured cell: it must name method, dataset, backbone and shots.")
        cells.append(cell)
    return cells


def tables(name: str, folder: Path | None = None) -> list[Table]:
    """Return one of the paper's tables, or with the name "methods" all that we know of every method."""
    folder = results_folder(folder)
    chosen = _chosen(name)
    cells = read_cells(folder)
    shown = []
    for table in chosen:
        if table.name == RUNNING_TIME:
            shown.append(_times_table(table, folder))
        else:
            shown += _cells_tables(table, cells)
    if name == METHODS and (folder / "compare.json").is_file():
        shown.append(_comparison(folder))
    return shown


def _chosen(name: str) -> list[PaperTable]:
    known = paper_tables()
    if name != METHODS and name not in known:
        raise UserError(f"There is no table {name!r}{did_you_mean(name, [METHODS, *known])}")
    return list(known.values()) if name == METHODS else [known[name]]


def _cells_tables(table: PaperTable, cells: Sequence[dict[str, Any]]) -> list[Table]:
    """Put our cells beside the paper's, one table a network and data set, narrow enough for a terminal.

    A method that the paper lacks gets a row if we have measured it.
    """
    shown = []
    for setting in dict.fromkeys((column["dataset"], column["backbone"]) for column in table.columns):
        numbers = [
            number
            for number, column in enumerate(table.columns)
            if (column["dataset"], column["backbone"]) == setting
        ]
        paper = {name: [row[number] for number in numbers] for name, row in table.rows.items()}
        ours = {
            (cell["method"], cell["shots"]): cell
            for cell in cells
            if (cell["dataset"], cell["backbone"]) == setting and table.measure in cell
        }
        shots = [table.columns[number]["shots"] for number in numbers]
        title = f"{table.title} ({', '.join(setting)})"
        shown.append(_setting_table(title, table.measure, shots, paper, ours))
    return shown


def _setting_table(
    title: str,
    measure: str,
    shots: list[int],
    paper: dict[str, list[str]],
    ours: dict[tuple[str, int], dict[str, Any]],
) -> Table:
    shown = _table(title)
    for number in shots:
        shown.add_column(f"{number}-shot\npaper", justify="right", no_wrap=True)
        shown.add_column("\nours", justify="right", no_wrap=True)
    notes: dict[str, str] = {}
    for name in _names(paper, {method for method, _ in ours}):
        texts = []
        for number, text in zip(shots, paper.get(name, [""] * len(shots))):
            cell = ours.get((name, number))
            texts += [text, "" if cell is None else _with_note(_value(cell, measure), cell, notes)]
        if any(texts):
            shown.add_row(_title(name), *texts, style="bold" if name == OURS else None)
    shown.caption = "\n".join(f"{mark} {note}" for note, mark in notes.items()) or None
    return shown


def _value(cell: dict[str, Any], measure: str) -> str:
    spread = f" ± {cell['interval']:.2f}" if measure == "accuracy" and "interval" in cell else ""
    return f"{cell[measure]:.2f}{spread}"


def _with_note(text: str, cell: dict[str, Any], notes: dict[str, str]) -> str:
    """Mark a cell that has something to be said about it."""
    if "note" not in cell:
        return text
    return text + notes.setdefault(cell["note"], "*" * (len(notes) + 1))


def _times_table(table: PaperTable, folder: Path) -> Table:
    """Put our times beside the paper's: of one episode on a GPU, and how many times GPLDLA's on a CPU."""
    shown = _table(table.title)
    measured = {
        device: _read_rows(folder / f"bench_heads_{device}.json")
        for device in ("cuda", "cpu")
        if (folder / f"bench_heads_{device}.json").is_file()
    }
    row_names = {_method_of(label): label for label in TIMED if _method_of(label)}
    for column in table.columns:
        shown.add_column(f"{column['shots']}-shot\npaper", justify="right", no_wrap=True)
        for device in measured:
            what = "GPU, ms" if device == "cuda" else "CPU, ratio"
            shown.add_column(f"\n{what}", justify="right", no_wrap=True)
    for name, paper in table.rows.items():
        texts = []
        for number, column in enumerate(table.columns):
            texts.append(paper[number])
            for device, results in measured.items():
                row = _single_episode(results, row_names.get(name), column["shots"])
                value = (
                    None
                    if row is None
                    else (row["us_an_episode"] / 1e3 if device == "cuda" else row["ratio"])
                )
                texts.append("" if value is None else f"{value:.2f}")
        shown.add_row(_title(name), *texts, style="bold" if name == OURS else None)
    devices = "; ".join(f"{device.upper()}: {results['device']}" for device, results in measured.items())
    shown.caption = devices and f"{devices}. All batches: gpldla bench heads."
    return shown


def _read_rows(path: Path) -> dict[str, Any]:
    results = read_json(path)
    if not isinstance(results, dict) or not {"rows", "device", "command"} <= results.keys():
        raise UserError(f"{path} does not hold results; measure them anew or remove it.")
    return results


def _single_episode(results: dict[str, Any], label: str | None, shots: int) -> dict[str, Any] | None:
    for row in results["rows"]:
        if (row["method"], row["shots"], row["batch"]) == (label, shots, 1):
            return row
    return None


def _method_of(label: str) -> str | None:
    """Return the method that a timed head stands for, if its default is timed."""
    head, options = TIMED[label]
    if options.get("predictive"):
        return None
    wanted = {"head": head, **{f"head_{key}": value for key, value in options.items()}}
    for method in methods().values():
        own = {key: value for key, value in method.settings.items() if key in wanted}
        if own == wanted:
            return method.name
    return None


def _comparison(folder: Path) -> Table:
    from gpldla.compare import comparison_table

    results = _read_rows(folder / "compare.json")
    shown = comparison_table(results["rows"])
    shown.caption = f"{shown.caption}\nBy {results['command']} on {results['device']}."
    return shown


def _names(paper: dict[str, list[str]], measured: set[str]) -> list[str]:
    """Return the rows: the paper's in its order, ours last, and before it what only we have measured."""
    others = [name for name in methods() if name in measured and name not in paper]
    last = [name for name in paper if name == OURS]
    return [*(name for name in paper if name not in last), *others, *last]


def _title(name: str) -> str:
    known = methods()
    return known[name].title if name in known else f"{name} (not here yet)"


def _table(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("\nmethod", no_wrap=True)
    return table


def as_json(name: str, folder: Path | None = None) -> str:
    """Return the paper's numbers of `tables(name)`, and all measured cells, as JSON."""
    cells = read_cells(results_folder(folder))
    paper = {table.name: vars(table) for table in _chosen(name)}
    return json.dumps({"paper": paper, "ours": cells}, indent=2, ensure_ascii=False)
