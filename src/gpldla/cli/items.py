"""The pictures and texts that arguments of `gpldla fit` and `gpldla predict` name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpldla.cli.options import messages
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.classifier.feature_cache import FeatureCache
    from gpldla.classifier.model import FewShotModel
    from gpldla.data.preprocessing import Preprocessing


def pictures_of_arguments(arguments: list[str]) -> list[Any]:
    """Return the pictures that files and folders on the command line name."""
    from gpldla.data.user_files import pictures_below

    pictures: list[Any] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            found = pictures_below(path)
            if not found:
                raise UserError(f"The folder {path} holds no pictures.")
            pictures += found
            report_ignored_files(path)
        elif path.suffix.lower() == ".parquet" and path.is_file():
            raise UserError(f"{path} is a Parquet file; its answers need a folder: --output FOLDER.")
        elif path.is_file():
            pictures.append(path)
        else:
            raise UserError(f"There is no file or folder {path}.")
    return pictures


def texts_of_arguments(arguments: list[str], column: str | None) -> list[Any]:
    """Return the texts on the command line, the lines of .txt files and a column of .csv files."""
    from gpldla.data.user_files import read_lines, read_table

    texts: list[Any] = []
    for argument in arguments:
        if not argument.strip():
            raise UserError("A text is empty; leave it out.")
        path = Path(argument)
        suffix = path.suffix.lower()
        names_a_file = len(argument.split()) == 1 or _exists(path)  # a sentence may end in ".csv"
        if suffix == ".csv" and names_a_file:
            if column is None:
                raise UserError(f"{path} is a table; name the column of the texts with --text.")
            texts += read_table(path, [column])[0]
        elif suffix == ".txt" and names_a_file:
            texts += read_lines(path)
        elif _exists(path):
            raise UserError(f"{path} is neither a .txt nor a .csv file; give texts or files of them.")
        else:
            texts.append(argument)
    return texts


def _exists(path: Path) -> bool:
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
