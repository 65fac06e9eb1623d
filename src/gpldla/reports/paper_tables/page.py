"""The page of all results: every table, the plots, and the origin of each result."""

from collections.abc import Sequence
from pathlib import Path

from gpldla.reports.paper_tables import Cell, paper_tables, read_cells, result_tables, results_folder
from gpldla.reports.paper_tables.front import front_page, front_pictures
from gpldla.reports.paper_tables.layout import Entry, ResultTable, markdown_row
from gpldla.reports.paper_tables.plots import AS_PREDICTED, confidence_plots
from gpldla.reports.paper_tables.side_by_side import (
    NO_IMAGES,
    NOT_YET,
    OURS,
    compare,
    missing_images,
    row_title,
)
from gpldla.training.setting_names import current_command
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, write_atomically

INTRODUCTION = """\
## How to read this page

Every table of the paper, with its results and ours side by side. `gpldla tables --markdown docs/results.md`
writes this page from the JSON files in `results/`; the [last section](#how-our-results-were-measured) lists
the command, commit, device and seeds of each result. `gpldla tables` prints the tables in a terminal.

**Bold** marks the better of the two results if their ± do not overlap. In tables of stand-in images it marks
the best method, if its ± overlaps no other. The ± of the paper is the standard deviation over its runs. The ±
of our accuracies is half of the 95 % interval over test tasks, or the standard deviation over training seeds
if that is larger. Results marked as short trainings are not compared with the paper. Tasks have five
classes."""

PLOTS = """\
Left and middle: reliability diagrams of GPLDLA on novel classes, without temperature and with the temperature
from validation classes. Bars that end on the dashed line are calibrated, bars below it overconfident, bars
above it underconfident; a dotted bar has fewer than 20 queries. Grey bars are the share of the queries.
Right: the accuracy of all answers above each confidence, and their share. All plots are of the first training
seed."""

SOURCES = """\
Each cell is a file in `results/cells`. Hours are training times on a device that several trainings shared. If
a command contains `start=runs/NAME-seed0`, `python -m benchmarks.paper train NAME` trains that network."""


def write_page(page: Path, folder: Path | None = None) -> list[Path]:
    """Write the page and its pictures, which go to images/NAME beside it; return the files."""
    if page.suffix != ".md":
        raise UserError(f"{page} must end in .md.")
    folder = results_folder(folder)
    check_writable(page.parent)
    pictures = page.parent / _pictures_of(page)
    text = page_text(page, folder)
    written = []
    cells = read_cells(folder)
    drawn = {f"{name}.png": confidence_plots(rows) for name, rows in _plotted(cells).items()}
    for name, picture in (drawn | front_pictures(cells)).items():
        written.append(pictures / name)
        write_atomically(written[-1], picture)
    write_atomically(page, text.encode())
    return [page, *written]


def page_text(page: Path, folder: Path) -> str:
    """Return what `write_page` writes to `page`."""
    cells = read_cells(folder)
    front = front_page(cells, folder, _pictures_of(page))
    lines = ["# Results", "", *front, *([""] if front else []), INTRODUCTION, "", *_at_a_glance(cells)]
    for paper in paper_tables().values():
        shown = result_tables(paper, folder, cells)
        alone = len(shown) == 1
        lines += ["", f"## {shown[0].title if alone else paper.title}"]
        for table in shown:
            lines += ["", *([] if alone else [f"### {table.title}", ""]), *table.markdown()]
    lines += ["", *_confidence(cells, _pictures_of(page)), "", *_sources(cells)]
    return "\n".join(lines) + "\n"


def _pictures_of(page: Path) -> Path:
    return Path("images") / page.stem


# ---- the paper's method: all settings in one table


def _at_a_glance(cells: Sequence[Cell]) -> list[str]:
    head = [("", "shots"), ("", "paper"), ("", "ours, trained as the paper says"), ("", "ours, own recipe")]
    measured = [cell for cell in cells if "accuracy" in cell.numbers and not cell.short]
    ours_by_key = {(c.setting, c.shots, c.follows_paper): c for c in measured if c.method == OURS}
    rows = []
    for table in paper_tables().values():
        if table.measure != "accuracy":
            continue
        for setting in table.settings:
            for shots, paper in table.texts(OURS, setting).items():
                ours = [ours_by_key.get((setting, shots, follows_paper)) for follows_paper in (True, False)]
                entries = [_beside(paper, cell, setting[0]) for cell in ours]
                beaten = [compare(paper, cell, "accuracy") for cell in ours if cell is not None]
                shown = Entry(paper, better=bool(beaten) and all(better is False for better in beaten))
                rows.append((", ".join(setting), [Entry(str(shots)), shown, *entries]))
    notes = [
        f"{NOT_YET}: not measured yet. {NO_IMAGES}: not measured, as its images are not freely available; the"
        " tables below give the command for those who have them."
    ]
    glance = ResultTable("", head, rows, notes, named="data set, network")
    return [
        "## GPLDLA at a glance",
        "",
        "Accuracy, %. The paper's result is bold where it is better than all of ours.",
        "",
        *glance.markdown(),
    ]


def _beside(paper: str, cell: Cell | None, dataset: str) -> Entry:
    if cell is None:
        return Entry(NO_IMAGES if missing_images(dataset) else NOT_YET)
    return Entry(cell.text("accuracy"), better=compare(paper, cell, "accuracy") is True)


# ---- calibration


def _plotted(cells: Sequence[Cell]) -> dict[str, list[tuple[str, Cell]]]:
    """Return what is drawn, one picture per data set and network: cells of GPLDLA with their titles."""
    drawn: dict[str, list[tuple[str, Cell]]] = {}
    with_bins = [cell for cell in cells if cell.method == OURS and AS_PREDICTED in cell.numbers]
    for cell in sorted(with_bins, key=lambda cell: (cell.setting, cell.shots, not cell.follows_paper)):
        title = f"{cell.shots}-shot, {row_title(OURS, cell.follows_paper)}"
        drawn.setdefault("-".join(cell.setting), []).append((title, cell))
    return drawn


def _confidence(cells: Sequence[Cell], pictures: Path) -> list[str]:
    lines = [
        "## Calibration",
        "",
        PLOTS,
    ]
    plotted = _plotted(cells)
    for name, rows in plotted.items():
        setting = ", ".join(rows[0][1].setting)
        lines += ["", f"### {setting}", "", f"![{setting}: confidence and accuracy]({pictures}/{name}.png)"]
    return lines if plotted else [*lines, "", "Not measured yet."]


# ---- how the results were measured


def _sources(cells: Sequence[Cell]) -> list[str]:
    """List every cell with its seeds, commit, device and command."""
    names = ["cell", "accuracy per seed, %", "interval", "std over seeds", "seeds", "hours"]
    lines = ["## How our results were measured", "", SOURCES]
    if not cells:
        return [*lines, "", "Not measured yet."]
    lines += ["", markdown_row([*names, "commit", "device"]), "|---|" + "--:|" * 5 + "---|---|"]
    lines += [markdown_row(_source(cell)) for cell in cells]
    lines += ["", "<details><summary>The commands</summary>", ""]
    commands = {cell.file.stem: str(cell.numbers.get("command", "unknown")) for cell in cells}
    lines += [f"- `{name}`: `{current_command(command)}`" for name, command in commands.items()]
    return [*lines, "", "</details>"]


def _source(cell: Cell) -> list[str]:
    numbers = cell.numbers
    seconds = numbers.get("seconds", [])
    seconds = seconds if isinstance(seconds, list) else [seconds]
    return [
        f"`{cell.file.stem}`",
        _listed(numbers.get("accuracies") or [numbers.get("accuracy")]),
        _listed([numbers.get("interval")]),
        _listed([numbers.get("spread")]),
        ", ".join(map(str, numbers.get("training_seeds", []))),
        _listed([one / 3600 for one in seconds]),
        str(numbers.get("commit", "")),
        str(numbers.get("device", "")),
    ]


def _listed(values: Sequence[float | None]) -> str:
    return ", ".join(f"{value:.2f}" for value in values if value is not None)
