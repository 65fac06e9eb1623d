"""Answers for the terminal and as CSV. Nothing here needs torch."""

import csv
from collections.abc import Sequence
from typing import TextIO

from rich.markup import escape
from rich.table import Column, Table

from gpldla.classifier.answer import UNSURE, Answer
from gpldla.data.user_files import printable


def answers_table(answers: Sequence[Answer]) -> Table:
    """Show the answer for each item, its probability and the second most probable class."""
    table = Table(Column("item", overflow="fold"), "answer", Column("p", justify="right"), "or")
    if any(one.none_of_these is not None for one in answers):
        table.add_column("none of these", justify="right")
    for one in answers:
        ranked = sorted(one.probabilities.items(), key=lambda pair: -pair[1])
        name, second = ranked[1]
        answer = f"unsure ({one.label})" if one.unsure else str(one.label)
        row = [
            escape(one.item),
            escape(answer),
            f"{one.probability:.2f}",
            f"{escape(str(name))} {second:.2f}",
        ]
        table.add_row(*row, *([] if one.none_of_these is None else [f"{one.none_of_these:.2f}"]))
    return table


def write_answers_csv(stream: TextIO, answers: Sequence[Answer]) -> None:
    """Write one line per item, with one column per class."""
    writer = csv.writer(stream, lineterminator="\n")
    classes = answers[0].probabilities if answers else ()
    writer.writerow(["item", "answer", "probability", "none_of_these", *map(printable, classes)])
    for one in answers:
        answer = UNSURE if one.unsure else one.label
        none = "" if one.none_of_these is None else f"{one.none_of_these:.4f}"
        values = [f"{p:.6f}" for p in one.probabilities.values()]
        writer.writerow([one.item, answer, f"{one.probability:.6f}", none, *values])
