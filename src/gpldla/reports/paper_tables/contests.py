"""Who wins where: GPLDLA against the other methods that were measured in full in the same setting."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpldla.reports.paper_tables.cells import Cell
from gpldla.reports.paper_tables.layout import Entry, ResultTable
from gpldla.reports.paper_tables.side_by_side import OURS, overlap, row_title

AS_PREDICTED, NLL_TEMPERED, ECE_TEMPERED = "ece", "nll_val_temperature", "ece_val_temperature"
NEEDED = ("accuracy", AS_PREDICTED, NLL_TEMPERED, ECE_TEMPERED, "seconds")


@dataclass(frozen=True)
class Contest:
    """One data set, network and number of shots: GPLDLA by its own recipe, and the others."""

    setting: tuple[str, str]
    shots: int
    ours: Cell
    others: list[Cell]

    @property
    def title(self) -> str:
        """Data set, network and shots."""
        return f"{', '.join(self.setting)}, {self.shots}-shot"

    @property
    def best_other(self) -> Cell:
        """The most accurate of the others."""
        return max(self.others, key=lambda cell: float(cell.numbers["accuracy"]))

    @property
    def lead(self) -> float:
        """How many points GPLDLA is ahead of the best of the others."""
        return float(self.ours.numbers["accuracy"] - self.best_other.numbers["accuracy"])

    @property
    def outcome(self) -> str:
        """'ahead', 'behind', or 'level' if the ± overlap."""
        if overlap(self.lead, self.ours.margin("accuracy"), self.best_other.margin("accuracy")):
            return "level"
        return "ahead" if self.lead > 0 else "behind"

    def better(self, measure: str) -> list[Cell]:
        """Return the others with a lower calibration error or negative log-likelihood, the best first."""
        lower = [cell for cell in self.others if cell.numbers[measure] < self.ours.numbers[measure]]
        return sorted(lower, key=lambda cell: float(cell.numbers[measure]))


def contests(cells: Sequence[Cell]) -> list[Contest]:
    """Return a contest for each setting in which GPLDLA and another method were measured in full."""
    rounds: dict[tuple[tuple[str, str], int], list[Cell]] = {}
    for cell in cells:
        if not cell.short and not cell.follows_paper and cell.numbers.keys() >= {*NEEDED}:
            rounds.setdefault((cell.setting, cell.shots), []).append(cell)
    found = []
    for (setting, shots), competing in rounds.items():
        ours = [cell for cell in competing if cell.method == OURS]
        others = [cell for cell in competing if cell.method != OURS]
        if ours and others:
            found.append(Contest(setting, shots, ours[0], others))
    return found


def minutes(cell: Cell) -> float:
    """Return how long a training took, as a mean over seeds."""
    seconds = cell.numbers["seconds"]
    several = seconds if isinstance(seconds, list) else [seconds]
    return sum(several) / len(several) / 60


def contest_table(rounds: Sequence[Contest]) -> ResultTable:
    """Return one row per contest: accuracy, cost and calibration of GPLDLA and of the best other method."""
    rows = []
    for contest in rounds:
        ours, other = contest.ours, contest.best_other
        ahead, behind = contest.outcome == "ahead", contest.outcome == "behind"
        entries = [
            Entry(str(contest.shots)),
            Entry(ours.text("accuracy"), ahead),
            Entry(f"{row_title(other.method)} {other.text('accuracy')}", behind),
            Entry(f"{contest.lead:+.1f}"),
            *(_pair(ours, other, measure, digits) for measure, digits in MEASURES),
            Entry(f"{minutes(ours):.1f}, {minutes(other):.1f}"),
        ]
        rows.append((", ".join(contest.setting), entries))
    head = ["shots", "GPLDLA", "the best other", "points", *COLUMNS, "minutes"]
    return ResultTable("", [("", name) for name in head], rows, named="data set, network")


MEASURES = ((AS_PREDICTED, 1), (ECE_TEMPERED, 1), (NLL_TEMPERED, 3))
COLUMNS = ("ECE as predicted", "ECE with T", "NLL with T")


def _pair(ours: Cell, other: Cell, measure: str, digits: int) -> Entry:
    """Return two results, GPLDLA's first, the lower in bold."""
    values = [float(cell.numbers[measure]) for cell in (ours, other)]
    texts = [f"{value:.{digits}f}" for value in values]
    return Entry(", ".join(f"**{t}**" if v == min(values) else t for v, t in zip(values, texts)))
