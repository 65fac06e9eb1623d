"""Our results: one JSON file per cell of the tables."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpldla.training.methods import methods
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_json

# results/ is beside the code in an installed package, and at the root of a checkout.
RESULTS = (Path(__file__).parents[2] / "results", Path(__file__).parents[4] / "results")
NEEDED = ("method", "dataset", "backbone", "shots")


@dataclass(frozen=True)
class Cell:
    """The results of one method, trained in one way, in one setting."""

    file: Path
    numbers: dict[str, Any]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.numbers["method"])

    @cached_property
    def setting(self) -> tuple[str, str]:
        """Its data set and network; a variant of a network made for this method counts as the usual one."""
        network = self.numbers["backbone"]
        if self.method in methods():
            usual = {variant: name for name, variant in methods()[self.method].backbones.items()}
            network = usual.get(network, network)
        return self.numbers["dataset"], network

    @property
    def shots(self) -> int:
        """Examples per class."""
        return int(self.numbers["shots"])

    @property
    def follows_paper(self) -> bool:
        """Whether it was trained as the paper describes."""
        return str(self.numbers.get("recipe", "")).endswith("-paper")

    @property
    def short(self) -> bool:
        """Whether its training was too short for a comparison, as some were before there were recipes."""
        return "recipe" not in self.numbers and bool(self.notes)

    @property
    def notes(self) -> list[str]:
        """Sentences that a reader should know."""
        return list(self.numbers.get("notes", []))

    def margin(self, measure: str) -> float | None:
        """Return the ± of a measure; of accuracy the larger of that over tasks and that over trainings."""
        if measure != "accuracy":
            return self.numbers.get(f"{measure}_spread")
        known = [self.numbers.get(name) for name in ("interval", "spread")]
        return max((value for value in known if value is not None), default=None)

    def text(self, measure: str) -> str:
        """Return a result with its ±."""
        margin = self.margin(measure)
        return f"{self.numbers[measure]:.2f}" + ("" if margin is None else f" ± {margin:.2f}")


def results_folder(asked: Path | None = None) -> Path:
    """Return the folder with the results: the one asked for, or the one that comes with gpldla."""
    folder = asked or next((folder for folder in RESULTS if folder.is_dir()), RESULTS[-1])
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}; name the folder that holds the results.")
    return folder


def read_cells(folder: Path) -> list[Cell]:
    """Return every cell in `folder`/cells, except short trainings of cells that were also trained in full."""
    cells = []
    for path in sorted((folder / "cells").glob("*.json")):
        numbers = read_json(path)
        if not isinstance(numbers, dict) or not numbers.keys() >= {*NEEDED}:
            raise UserError(f"{path} is not a measured cell: it must have the keys {', '.join(NEEDED)}.")
        _check_kinds(path, numbers)
        notes = numbers.get("notes", [])
        if "note" in numbers or not (isinstance(notes, list) and all(isinstance(n, str) for n in notes)):
            raise UserError(f"{path} must have its notes as a list of sentences under the key 'notes'.")
        cells.append(Cell(path, numbers))
    in_full = {_key(cell) for cell in cells if not cell.short}
    cells = [cell for cell in cells if not cell.short or _key(cell) not in in_full]
    _check_duplicates(cells)
    return cells


def _check_kinds(path: Path, numbers: dict[str, Any]) -> None:
    for name in ("method", "dataset", "backbone"):
        if not isinstance(numbers[name], str):
            raise UserError(f"{path}: {name} must be a word, not {numbers[name]!r}.")
    if type(numbers["shots"]) is not int:
        raise UserError(f"{path}: shots must be a whole number, not {numbers['shots']!r}.")
    for name in ("accuracy", "interval", "spread"):
        value = numbers.get(name, 0.0)
        unknown = value is None and name != "accuracy"  # a single task or training has no ±
        if not unknown and (type(value) not in (int, float) or not math.isfinite(value)):
            raise UserError(f"{path}: {name} must be a number, not {value!r}.")


def _key(cell: Cell) -> tuple[object, ...]:
    return cell.method, cell.setting, cell.shots


def _check_duplicates(cells: Iterable[Cell]) -> None:
    seen: dict[tuple[object, ...], Cell] = {}
    for cell in cells:
        other = seen.setdefault((_key(cell), cell.follows_paper), cell)
        if other is not cell:
            raise UserError(f"{other.file} and {cell.file} describe the same cell; remove one of them.")
