"""Answers for a few pictures from the graph in a classifier's file.

`gpldla predict FILE PICTURE...` starts several times as fast without torch and without a parser of options.
Whatever is unusual is left to the command itself, which also says what is wrong.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.utils.errors import UserError

if TYPE_CHECKING:
    from gpldla.classifier.answer import Answer

FEW = 32  # picture files that are answered for in one thread and without the cache of features


def answered(arguments: Sequence[str]) -> bool:
    """Print the answers if the arguments are predict, a file with a graph and few pictures; say whether."""
    if len(arguments) < 3 or arguments[0] != "predict" or any(given.startswith("-") for given in arguments):
        return False
    try:
        answers = answers_of_graph(Path(arguments[1]), arguments[2:], MAX_ERROR, PREVALENCE)
        if answers is None:
            return False
        from gpldla.reports.answer_table import answers_table
        from gpldla.utils.terminal import wide_console

        for stream in (sys.stdout, sys.stderr):  # not every terminal can show every character
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        wide_console().print(answers_table(answers))
    except UserError:  # the command says it
        return False
    except KeyboardInterrupt:
        sys.exit(130)
    return True


def answers_of_graph(
    classifier: Path, pictures: Sequence[str], max_error: float, prevalence: float
) -> "list[Answer] | None":
    """Return the answers for a few picture files; None if they need the classifier itself."""
    if len(pictures) > FEW or not all(map(_is_picture_file, pictures)):
        return None
    from gpldla.classifier.stored_graph import read_stored_graph

    graph = read_stored_graph(classifier)
    if graph is None:
        return None
    from gpldla.classifier.answer import answer, json_class_names

    json_class_names(graph.classes)
    paths = list(map(Path, pictures))
    proba, none = graph.predict(paths, prevalence)
    return answer(proba, none, paths, graph.classes.tolist(), max_error)


def _is_picture_file(name: str) -> bool:
    from gpldla.data.tables import is_table

    return os.path.isfile(name) and not is_table(Path(name))  # noqa: PTH113 (any string)
