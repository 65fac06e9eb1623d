"""Our results beside the paper's; where images are missing, the command to run, and a stand-in."""

from collections.abc import Sequence
from dataclasses import replace

from gpldla.backbones import backbone_preprocessing
from gpldla.data.catalog import sources_of
from gpldla.reports.paper_tables.cells import Cell
from gpldla.reports.paper_tables.layout import BETTER, WORSE, Entry, ResultTable
from gpldla.reports.paper_tables.paper import PaperTable, paper_tables
from gpldla.training.methods import methods
from gpldla.training.recipe import list_recipes, read_settings

OURS = "gpldla"
ABLATIONS = ("laplace", "lda")
NOT_FREE = {"miniimagenet": "miniImageNet", "tieredimagenet": "tieredImageNet"}
STAND_INS = {"miniimagenet": "tinyimagenet-mini", "mini-cub": "tinyimagenet-cub"}
STOOD_IN_FOR = {"miniimagenet": "miniImageNet", "mini-cub": "miniImageNet → CUB"}  # their usual names
STAND_IN_NETWORKS = {"resnet18": "resnet18-84"}  # the stand-in images are too small for inputs of 224 pixels
# What the paper's protocol changes for five shots, as stated in the recipes.
FIVE_SHOT = "--set shots=5 --set decay_every=4000 --episodes 40000"
NOT_YET, NO_IMAGES = "–", "no images"
NOTE_MARKS = "†‡§¶"

# Our columns by measure of the table, each a name and a key of the cell. The first is compared.
OWN_COLUMNS = {
    "accuracy": [("ours", "accuracy")],
    "ece_paper_temperature": [
        ("ours", "ece_paper_temperature"),
        ("T val.", "ece_val_temperature"),
        ("no T", "ece"),
    ],
}
RULE = f"{BETTER} ours is better, {WORSE} the paper's is; no mark where the ± overlap."
BEST = f"{BETTER} the best, where no other ± overlaps its own."
OUR_MARGIN = "the 95 % interval over tasks, or the deviation over training seeds where that is larger"
MARGINS = f"±: of the paper, over its runs; of ours, {OUR_MARGIN}."
ABOUT_TEMPERATURES = (
    "Lower is better. ours: temperature from other tasks of the novel classes, as in the paper, though no"
    " user has such tasks; T val.: from validation classes; no T: as predicted. ±: over runs."
)


def side_by_side(table: PaperTable, cells: Sequence[Cell]) -> list[ResultTable]:
    """Return one table per data set and network, narrow enough for a terminal, each followed by its stand-in.

    A method that is not in the paper gets a row if we have measured it.
    """
    shown = []
    for setting in table.settings:
        own = [cell for cell in cells if cell.setting == setting and table.measure in cell.numbers]
        shots = table.shots(setting)
        wide = len(OWN_COLUMNS[table.measure]) > 1
        for together in [[number] for number in shots] if wide else [shots]:
            in_shots = [cell for cell in own if cell.shots in together]
            shown.append(_setting_table(table, setting, together, in_shots))
        shown += _stand_in_tables(table, setting, cells)
    return shown


def _setting_table(
    table: PaperTable, setting: tuple[str, str], shots: list[int], cells: Sequence[Cell]
) -> ResultTable:
    columns = OWN_COLUMNS[table.measure]
    notes = _Notes(cells)
    gap = NO_IMAGES if missing_images(setting[0]) else NOT_YET
    rows = []
    for method, follows_paper in row_names([*table.rows], cells):
        paper, ours = table.texts(method, setting), _by_shots(cells, method, follows_paper)
        if not paper and not ours:
            continue
        filler = Entry(gap if method in methods() else "")
        entries = []
        for number in shots:
            printed = Entry(paper.get(number, ""))
            if printed.text and method in table.about:
                printed = replace(printed, mark=notes.mark(table.about[method]))
            entries += _entries(printed, ours.get(number), table.measure, notes, filler)
        rows.append((row_title(method, follows_paper), entries))
    head = [(f"{n}-shot", name) for n in shots for name in ("paper", *(name for name, _ in columns))]
    texts = {entry.text for _, entries in rows for entry in entries}
    about = [
        *([ABOUT_TEMPERATURES] if len(columns) > 1 else []),
        *notes.lines,
        *([_about_ablations()] if set(ABLATIONS) & table.rows.keys() else []),
        *([f"{NOT_YET}: not measured yet."] if NOT_YET in texts else []),
        *(_about_missing_images(setting) if NO_IMAGES in texts else []),
    ]
    compared = any(entry.sign for _, entries in rows for entry in entries)
    with_margins = cells and table.measure == "accuracy"
    legend = [*([RULE] if compared else []), *([MARGINS] if with_margins else [])]
    place = [*setting, *([f"{shots[0]}-shot"] if len(shots) == 1 else [])]
    return ResultTable(f"{table.title} ({', '.join(place)})", head, rows, about, legend)


def _by_shots(cells: Sequence[Cell], method: str, follows_paper: bool) -> dict[int, Cell]:
    wanted = (method, follows_paper)
    return {cell.shots: cell for cell in cells if (cell.method, cell.follows_paper) == wanted}


def _entries(paper: Entry, cell: Cell | None, measure: str, notes: "_Notes", filler: Entry) -> list[Entry]:
    """Return the paper's result and ours, the better one marked; a filler where we have none."""
    columns = OWN_COLUMNS[measure]
    if cell is None:
        return [paper, filler, *[Entry()] * (len(columns) - 1)]
    better = compare(paper.text, cell, measure)
    sign = {True: BETTER, False: WORSE, None: ""}[better]
    others = [Entry(cell.text(name) if name in cell.numbers else NOT_YET) for _, name in columns[1:]]
    return [
        replace(paper, better=better is False),
        Entry(cell.text(measure), better is True, sign, notes.marks(cell)),
        *others,
    ]


def compare(paper: str, cell: Cell, measure: str) -> bool | None:
    """Return whether our result is better than the paper's; None if the ± overlap or ours is short."""
    if not paper or cell.short:
        return None
    value, _, margin = paper.partition(" ± ")
    gain = cell.numbers[measure] - float(value)
    if overlap(gain, float(margin or 0), cell.margin(measure)):
        return None
    return bool(gain > 0 if measure == "accuracy" else gain < 0)


def overlap(difference: float, *margins: float | None) -> bool:
    """Return whether the ± of two results with this difference overlap."""
    return abs(difference) <= sum(margin or 0 for margin in margins)


def row_names(paper: Sequence[str], cells: Sequence[Cell]) -> list[tuple[str, bool]]:
    """Return for each row the method, and whether it was trained as the paper says.

    The paper's methods come first, in its order, then what only we have measured, then GPLDLA.
    """
    measured = {(cell.method, cell.follows_paper) for cell in cells}
    others = [name for name in methods() if name not in paper and {(name, True), (name, False)} & measured]
    names = [*(name for name in paper if name != OURS), *(name for name in others if name != OURS), OURS]
    ways = {name: [way for way in (True, False) if (name, way) in measured] or [False] for name in names}
    return [(name, way) for name in names for way in ways[name]]


def row_title(method: str, follows_paper: bool = False) -> str:
    """Return the title of a row."""
    known = methods()
    title = known[method].title if method in known else f"{method} (not implemented)"
    return f"{title}, trained as the paper says" if follows_paper else title


class _Notes:
    """The notes on the cells of a table, with marks, except notes that hold for all cells."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._marks: dict[str, str] = {}
        first, *others = [self._sentences(cell) for cell in cells] or [[]]
        self._shared = [note for note in first if others and all(note in notes for notes in others)]

    def marks(self, cell: Cell) -> str:
        own = [note for note in self._sentences(cell) if note not in self._shared]
        return " ".join(map(self.mark, own))

    def mark(self, note: str) -> str:
        """Return the mark of a note, a new one if it has none yet."""
        number = len(self._marks)
        return self._marks.setdefault(note, NOTE_MARKS[number % 4] * (1 + number // 4))

    @staticmethod
    def _sentences(cell: Cell) -> list[str]:
        return [f"{note} Not compared with the paper." if cell.short else note for note in cell.notes]

    @property
    def lines(self) -> list[str]:
        return [*self._shared, *(f"{mark} {note}" for note, mark in self._marks.items())]


def _about_ablations() -> str:
    titles = " and ".join(row_title(name) for name in ABLATIONS)
    return f"{titles}: from the paper's ablation table."


# ---- missing images


def missing_images(dataset: str) -> list[str]:
    """Return the titles of the data sets of a protocol that can only be made from ImageNet."""
    sets = {name for name, _ in sources_of(dataset).values()}
    return [title for name, title in NOT_FREE.items() if name in sets]


def command(dataset: str, backbone: str) -> str:
    """Return the command that trains and tests GPLDLA, by the paper's recipe where there is one."""
    recipe = f"{dataset}-paper" if f"{dataset}-paper" in list_recipes() else dataset
    settings, folder, options = read_settings(recipe), f"runs/{dataset}", ""
    if settings["backbone"] != backbone:
        folder, options = f"{folder}-{backbone}", f" --set backbone={backbone}"
        if 0 < settings.get("stored_side", 0) <= backbone_preprocessing(backbone).size:
            options += " --set stored_side=0"  # chosen for this network's input size
    return f"gpldla train {recipe}{options} -o {folder} && gpldla eval {folder}"


def _about_missing_images(setting: tuple[str, str]) -> list[str]:
    dataset, backbone = setting
    images = " and ".join(missing_images(dataset))
    return [
        f"{NO_IMAGES}: not measured, as it needs the images of {images}. With them in place (`gpldla data"
        " list` shows where) one command measures it:",
        f"`{command(dataset, backbone)}`",
        f"For 5-shot add `{FIVE_SHOT}` to the training.",
    ]


def stand_in_for(setting: tuple[str, str]) -> tuple[str, str]:
    """Return the data set and network that are measured instead, or the setting itself."""
    dataset, backbone = setting
    if dataset not in STAND_INS:
        return setting
    return STAND_INS[dataset], STAND_IN_NETWORKS.get(backbone, backbone)


def _stand_in_tables(table: PaperTable, setting: tuple[str, str], cells: Sequence[Cell]) -> list[ResultTable]:
    """Return the table of what was measured on other images instead, if any is planned."""
    dataset, _ = setting
    if dataset not in STAND_INS or table.measure != "accuracy":
        return []
    stand_in, backbone = stand_in_for(setting)
    own = [cell for cell in cells if cell.setting == (stand_in, backbone) and table.measure in cell.numbers]
    if not own and read_settings(stand_in)["backbone"] != backbone:
        return []
    shots, notes, rows = table.shots(setting), _Notes(own), []
    best = {number: _best([cell for cell in own if cell.shots == number]) for number in shots}
    for method, follows_paper in row_names(_in_paper_order({cell.method for cell in own}), own):
        ours = _by_shots(own, method, follows_paper)
        entries = [_accuracy(ours.get(number), best[number], notes) for number in shots]
        rows.append((row_title(method, follows_paper), entries))
    about = [
        f"Other images than in the paper: not comparable with its results for {STOOD_IN_FOR[dataset]}.",
        *notes.lines,
    ]
    if any(entry.text == NOT_YET for _, entries in rows for entry in entries):
        about.append(f"{NOT_YET}: not measured yet.")
    if {cell.shots for cell in own if cell.method == OURS} != {*shots}:
        about += [f"One command measures {row_title(OURS)}:", f"`{command(stand_in, backbone)}`"]
    head = [(f"{number}-shot", "ours") for number in shots]
    title = f"Stand-in for {STOOD_IN_FOR[dataset]}: accuracy, % ({stand_in}, {backbone})"
    legend = [*([BEST] if any(best.values()) else []), *([f"±: {OUR_MARGIN}."] if own else [])]
    return [ResultTable(title, head, rows, about, legend)]


def _in_paper_order(names: set[str]) -> list[str]:
    """Return those of the methods that are in any table of the paper, in order of appearance."""
    printed = dict.fromkeys(name for table in paper_tables().values() for name in table.rows)
    return [name for name in printed if name in names]


def _best(cells: Sequence[Cell]) -> Cell | None:
    """Return the most accurate of several cells, if no other's ± overlaps its own."""
    if len(cells) < 2:
        return None
    first, *others = sorted(cells, key=lambda cell: -cell.numbers["accuracy"])
    for other in others:
        lead = first.numbers["accuracy"] - other.numbers["accuracy"]
        if overlap(lead, first.margin("accuracy"), other.margin("accuracy")):
            return None
    return first


def _accuracy(cell: Cell | None, best: Cell | None, notes: _Notes) -> Entry:
    if cell is None:
        return Entry(NOT_YET)
    leads = cell is best
    return Entry(cell.text("accuracy"), leads, BETTER if leads else "", notes.marks(cell))
