"""The pictures and texts that arguments of `gpldla fit` and `gpldla predict` name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpldla.cli.options import messages
from gpldla.cli.table_options import TableOptions, table_items
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.classifier.feature_cache import FeatureCache
    from gpldla.classifier.model import FewShotModel
    from gpldla.data.preprocessing import Preprocessing
    from gpldla.data.tables import Table


@dataclass(frozen=True)
class Given:
    """Pictures or texts, and what their tables say about each.

    columns: one value per item, None for items of no table and of tables without this column
    """

    items: list[Any]
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def kept(self, indices: Sequence[int]) -> "Given":
        """Return some of the items."""
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return Given([self.items[i] for i in indices], columns)


def given_items(arguments: Sequence[str], model: "FewShotModel", options: TableOptions) -> Given:
    """Return the items that the arguments name, of the kind that a model reads.

    Texts are themselves, lines of .txt files and rows of tables; pictures are files, folders and rows.
    """
    reads = model.backbone.reads
    options.for_classifier_of(reads)
    parts = [(_texts_of if reads == "texts" else _pictures_of)(argument, options) for argument in arguments]
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns = {
        name: [value for part in parts for value in part.columns.get(name) or [None] * len(part)]
        for name in names
    }
    given = Given([item for part in parts for item in part.items], columns)
    if options.skip_bad and reads == "pictures":
        return given.kept(readable_indices(given.items, model.preprocessing))
    return given


def _pictures_of(argument: str, options: TableOptions) -> Given:
    from gpldla.data.pictures import local_file
    from gpldla.data.tables import STANDARD_INPUT, is_table
    from gpldla.data.user_files import pictures_below

    path = Path(local_file(argument))
    if path.is_dir():
        found = pictures_below(path)
        if not found:
            raise UserError(f"The folder {path} holds no pictures.")
        report_ignored_files(path)
        return Given(list(found))
    if argument == STANDARD_INPUT and options.picture is None:
        return _lines_of(path, "pictures", options)
    if not path.is_file() and argument != STANDARD_INPUT:
        raise UserError(f"There is no file or folder {path}.")
    if path.suffix.lower() == ".parquet" and options.picture is None:
        raise UserError(
            f"{path} is a Parquet file; name its column of paths with --picture, or a folder for the answers"
            " to the pictures in it: --output FOLDER."
        )
    if is_table(path):
        return _rows_of(options.open(path), "pictures", options)
    return Given([path])


def _texts_of(argument: str, options: TableOptions) -> Given:
    from gpldla.data.tables import STANDARD_INPUT, is_table

    if not argument.strip():
        raise UserError("A text is empty; leave it out.")
    path = Path(argument)
    names_a_file = len(argument.split()) == 1 or is_there(path)  # a sentence may end in ".csv"
    if (path.suffix.lower() == ".txt" and names_a_file) or (argument == STANDARD_INPUT and not options.text):
        return _lines_of(path, "texts", options)
    if is_table(path) and names_a_file:
        return _rows_of(options.open(path), "texts", options)
    if is_there(path):
        raise UserError(
            f"{path} is neither a table nor a .txt file; give texts, or files such as .csv, .xlsx or .txt."
        )
    return Given([argument])


def _lines_of(path: Path, reads: str, options: TableOptions) -> Given:
    from gpldla.data.tables import LINE

    table = options.open_lines(path)
    return Given(table_items(table, LINE, reads, skip_bad=options.skip_bad))


def _rows_of(table: "Table", reads: str, options: TableOptions) -> Given:
    column = options.item_column(table, reads)
    table = options.filled(table, column)
    return Given(table_items(table, column, reads, skip_bad=options.skip_bad), table.others(column))


def is_there(path: Path) -> bool:
    """Return whether a path exists, which may be any text."""
    try:
        return path.exists()
    except OSError:  # a text that is too long for a file name
        return False


def readable_indices(pictures: list[Any], preprocessing: "Preprocessing") -> list[int]:
    """Return the indices of the pictures that can be read; report the others on stderr."""
    from gpldla.data.user_files import readable_pictures

    good, bad = readable_pictures(pictures, preprocessing)
    for sentence in bad:
        say(messages, f"Left out: {sentence}")
    if not good:
        raise UserError("None of the pictures can be read.")
    return good


def report_ignored_files(folder: Path) -> None:
    """Report the files of a folder whose picture format is not read."""
    from gpldla.data.user_files import ignored_files

    if sentence := ignored_files(folder):
        say(messages, sentence)


def feature_cache(model: "FewShotModel", folder: Path | None) -> "FeatureCache":
    """Return where features of the model's backbone are kept between commands."""
    from gpldla.classifier.feature_cache import FeatureCache
    from gpldla.data.paths import DataPaths

    return FeatureCache.of(model.backbone, DataPaths(None, folder), warn=lambda text: say(messages, text))
