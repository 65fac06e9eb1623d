"""Files of a user's own: class folders of pictures, tables of texts, and what a fit tells about them."""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpldla.backbones import Preprocessing
from gpldla.data.source_files import files_below, is_hidden, is_image
from gpldla.errors import UserError, did_you_mean
from gpldla.model import FewShotClassifier
from gpldla.pictures import picture_tensor

CONFUSIONS_SHOWN, SUSPECTS_SHOWN = 5, 10
SUSPICIOUS = 0.7  # the probability of another class from which on a label is doubted
OTHER_PICTURES = frozenset(
    {".heic", ".heif", ".jxl", ".svg", ".psd", ".eps", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".rw2"}
)
UNSURE = "unsure"  # what stands for a label in answers that are too doubtful


def read_class_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the pictures below each folder of `folder`, with the folder's name as label."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}; name one that holds a folder of pictures a class.")
    pictures: list[Path] = []
    labels: list[str] = []
    names = sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
    if len(names) < 2:
        count = "no folders" if not names else f"only one folder, {names[0].name}"
        raise UserError(f"{folder} holds {count}; give one folder of pictures a class, of at least two.")
    for class_folder in names:
        found = pictures_below(class_folder)
        if not found:
            raise UserError(f"The class folder {class_folder} holds no pictures; add some or remove it.")
        pictures += found
        labels += [class_folder.name] * len(found)
    return pictures, labels


def pictures_below(folder: Path) -> list[Path]:
    """Return all pictures in a folder and the folders in it, linked ones too, in order."""
    return sorted(path for path in files_below(folder) if is_image(path.name))


def passed_over(folder: Path) -> str:
    """Name the files in a folder that look like pictures of kinds that are not read, in a sentence, or ""."""
    others = sorted(path for path in files_below(folder) if path.suffix.lower() in OTHER_PICTURES)
    if not others:
        return ""
    return (
        f"Passed over {len(others)} files whose format is not read, such as {printable(others[0])};"
        " convert them to JPEG or PNG."
    )


def readable_pictures(pictures: Sequence[Path], preprocessing: Preprocessing) -> tuple[list[int], list[str]]:
    """Return the places of pictures that can be decoded, and a sentence for each that cannot."""
    good, bad = [], []
    for place, picture in enumerate(pictures):
        try:
            picture_tensor(picture, preprocessing)
        except UserError as error:
            bad.append(str(error))
        else:
            good.append(place)
    return good, bad


def read_table(file: Path, columns: Sequence[str]) -> list[list[str]]:
    """Return one list a named column of a CSV file with a header; every cell must hold something."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            names = reader.fieldnames
            if not names:
                raise UserError(f"{file} is empty; give it a header and rows.")
            for column in columns:
                if column not in names:
                    raise UserError(f"{file} has no column {column!r}{did_you_mean(column, names)}")
                if names.count(column) > 1:
                    raise UserError(f"{file} has two columns {column!r}; rename one of them.")
            values: list[list[str]] = [[] for _ in columns]
            for row in reader:
                if any(row.get(None) or ()):
                    raise UserError(
                        f"{file}, line {reader.line_num}: there are more cells than columns;"
                        " put quotes around texts with commas."
                    )
                for column, cells in zip(columns, values):
                    cell = (row[column] or "").strip()
                    if not cell:
                        raise UserError(
                            f"{file}, line {reader.line_num}: the column {column!r} is empty;"
                            " fill it in or remove the line."
                        )
                    cells.append(cell)
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a CSV file in UTF-8 ({error}).") from None
    if not values[0]:
        raise UserError(f"{file} holds no rows below its header.")
    return values


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file that hold something."""
    try:
        lines = [line for line in file.read_text("utf-8-sig").split("\n") if line.strip()]
    except FileNotFoundError:
        raise UserError(f"There is no file {file}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as text in UTF-8 ({error}).") from None
    if not lines:
        raise UserError(f"{file} holds no lines; write one text a line.")
    return lines


def printable(item: object) -> str:
    """Return the name of an item as any terminal or file can hold it: file names need not be Unicode."""
    return str(item).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Suspect:
    """An example that the others speak against."""

    item: str
    label: Any
    rather: Any
    probability: float  # of `rather`, without the example


@dataclass(frozen=True)
class FitSummary:
    """What the examples say about themselves.

    counts: examples a class; accuracy (percent) and nll: leave-one-out, None where each class has only one
    confused: (label, taken for, how often), the most frequent pairs
    """

    counts: dict[Any, int]
    accuracy: float | None
    nll: float | None
    tested: int
    confused: list[tuple[Any, Any, int]]
    suspects: list[Suspect]

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "classes": {str(name): count for name, count in self.counts.items()},
            "leave_one_out": {"accuracy": self.accuracy, "nll": self.nll, "examples": self.tested},
            "confused": [{"label": a, "taken_for": b, "times": n} for a, b, n in self.confused],
            "suspects": [vars(suspect) for suspect in self.suspects],
        }


def summarise(classifier: FewShotClassifier, items: Sequence[Any]) -> FitSummary:
    """Leave each of the classifier's examples out in turn; `items` are their names, in order."""
    proba, numbers = classifier.leave_one_out(), classifier.numbers.cpu().numpy()
    classes = classifier.classes.tolist()
    tested = np.flatnonzero(~np.isnan(proba).any(1))
    own = proba[tested, numbers[tested]]
    guess = proba[tested].argmax(1) if len(tested) else np.empty(0, int)
    wrong = guess != numbers[tested]
    pairs = Counter((classes[a], classes[b]) for a, b in zip(numbers[tested][wrong], guess[wrong]))
    suspects = [
        Suspect(
            printable(items[place]), classes[numbers[place]], classes[number], float(proba[place, number])
        )
        for place, number in zip(tested[wrong], guess[wrong])
        if proba[place, number] >= SUSPICIOUS
    ]
    suspects.sort(key=lambda suspect: -suspect.probability)
    return FitSummary(
        {name: int((numbers == number).sum()) for number, name in enumerate(classes)},
        float(100 * (1 - wrong.mean())) if len(tested) else None,
        float(-np.log(own.clip(1e-30, 1)).mean()) + 0.0 if len(tested) else None,  # no −0
        len(tested),
        [(a, b, count) for (a, b), count in pairs.most_common(CONFUSIONS_SHOWN)],
        suspects[:SUSPECTS_SHOWN],
    )


@dataclass(frozen=True)
class Answer:
    """What is said of one item: `unsure` where the expected error is larger than asked for.

    The expected error counts both mistaking one class for another and an item of no known class.
    """

    item: str
    label: Any
    probability: float
    none_of_these: float | None
    unsure: bool
    probabilities: dict[Any, float]

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return vars(self) | {"probabilities": {str(k): v for k, v in self.probabilities.items()}}


def names_in_answers(classes: np.ndarray) -> list[str]:
    """Return classes as files have them; what could be mistaken there is refused."""
    names: dict[str, Any] = {}
    for label in classes.tolist():
        name = printable(label)
        if name in names:
            raise UserError(
                f"The classes {names[name]!r} and {label!r} are written alike; give them other names."
            )
        names[name] = label
    if UNSURE in names:
        raise UserError(f"A class is called {UNSURE!r}, as doubtful answers are; give it another name.")
    return list(names)


def answer(
    proba: np.ndarray,
    none_of_these: np.ndarray | None,
    items: Sequence[Any],
    classes: Sequence[Any],
    max_error: float,
) -> list[Answer]:
    """Put probabilities [n, C] and [n] into words."""
    answers = []
    for place, item in enumerate(items):
        top = int(proba[place].argmax())
        none = None if none_of_these is None else float(none_of_these[place])
        right = float(proba[place, top]) * (1 - (none or 0.0))
        probabilities = {name: float(p) for name, p in zip(classes, proba[place])}
        unsure = not 1 - right <= max_error  # also where it is no number
        answers.append(
            Answer(printable(item), classes[top], float(proba[place, top]), none, unsure, probabilities)
        )
    return answers
