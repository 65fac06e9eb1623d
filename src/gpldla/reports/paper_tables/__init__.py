"""The paper's tables with its results and ours side by side, from stored measurements."""

import json
from pathlib import Path

from rich.console import RenderableType

from gpldla.reports.paper_tables.cells import RESULTS, Cell, read_cells, results_folder
from gpldla.reports.paper_tables.layout import ResultTable
from gpldla.reports.paper_tables.paper import RUNNING_TIME, PaperTable, paper_tables
from gpldla.reports.paper_tables.side_by_side import side_by_side, stand_in_for
from gpldla.reports.paper_tables.times import read_rows, read_times, times_table
from gpldla.utils.errors import UserError, did_you_mean

METHODS = "methods"  # names all tables together, and the comparison of all methods

__all__ = [
    "METHODS",
    "RESULTS",
    "Cell",
    "PaperTable",
    "ResultTable",
    "as_json",
    "paper_tables",
    "read_cells",
    "result_tables",
    "results_folder",
    "tables",
]


def tables(name: str | None = None, folder: Path | None = None) -> list[RenderableType]:
    """Return all tables or one of them; for "methods" all tables and the comparison of all methods."""
    folder = results_folder(folder)
    shown: list[RenderableType] = [
        table for paper in _chosen(name) for table in result_tables(paper, folder, read_cells(folder))
    ]
    if name == METHODS and (folder / "compare.json").is_file():
        shown.append(_comparison(folder))
    return shown


def result_tables(paper: PaperTable, folder: Path, cells: list[Cell]) -> list[ResultTable]:
    """Return a table of the paper with our results beside it, split into narrow tables."""
    return [times_table(paper, folder)] if paper.name == RUNNING_TIME else side_by_side(paper, cells)


def _chosen(name: str | None) -> list[PaperTable]:
    known = paper_tables()
    if name is None or name == METHODS:
        return list(known.values())
    if name not in known:
        raise UserError(f"There is no table {name!r}{did_you_mean(name, [METHODS, *known])}")
    return [known[name]]


def _comparison(folder: Path) -> RenderableType:
    from gpldla.reports.compare import comparison_table

    results = read_rows(folder / "compare.json")
    shown = comparison_table(results["rows"])
    shown.caption = f"{shown.caption}\nMeasured by {results['command']} on {results['device']}."
    return shown


def as_json(name: str | None = None, folder: Path | None = None) -> str:
    """Return the contents of `tables(name)` as JSON: the paper's results, ours, and the running times."""
    chosen, folder = _chosen(name), results_folder(folder)
    settings = {setting for table in chosen if table.name != RUNNING_TIME for setting in table.settings}
    settings |= {stand_in_for(setting) for setting in settings}
    cells = [cell.numbers for cell in read_cells(folder) if cell.setting in settings]
    shown = {"paper": {table.name: vars(table) for table in chosen}, "ours": cells}
    if RUNNING_TIME in shown["paper"]:
        shown["times"] = read_times(folder)
    if name == METHODS and (folder / "compare.json").is_file():
        shown["comparison"] = read_rows(folder / "compare.json")
    return json.dumps(shown, indent=2)
