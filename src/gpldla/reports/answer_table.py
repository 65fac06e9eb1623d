"""Answers for the terminal and as files. Nothing here needs torch."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.table import Column, Table

from gpldla.classifier.answer import UNSURE, Answer
from gpldla.data.tables import cell_text, passthrough_names
from gpldla.data.user_files import printable
from gpldla.reports.short_names import short_names
from gpldla.utils.errors import UserError
from gpldla.utils.terminal import cell

FILE_TYPES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")  # of `write_answers`
COLUMNS_SHOWN = 3  # of the user's own in the terminal; files have all


def answers_table(answers: Sequence[Answer]) -> Table:
    """Show the answer for each item, its probability and the second most probable class."""
    others = list(answers[0].columns)[:COLUMNS_SHOWN] if answers else []
    table = Table(Column("item", overflow="fold"))
    for name in others:
        table.add_column(cell(printable(name)), overflow="fold")
    for name in ("answer", "p", "or"):
        table.add_column(name, justify="right" if name == "p" else "left")
    if any(one.none_of_these is not None for one in answers):
        table.add_column("none of these", justify="right")
    items, table.caption = short_names([one.item for one in answers])
    for item, one in zip(items, answers):
        ranked = sorted(one.probabilities.items(), key=lambda pair: -pair[1])
        name, second = ranked[1]
        answer = f"unsure ({one.label})" if one.unsure else str(one.label)
        row = [
            cell(item),
            *(cell(printable(cell_text(one.columns[name]))) for name in others),
            cell(answer),
            f"{one.probability:.2f}",
            f"{cell(name)} {second:.2f}",
        ]
        table.add_row(*row, *([] if one.none_of_these is None else [f"{one.none_of_these:.2f}"]))
    return table


def write_answers_csv(stream: TextIO, answers: Sequence[Answer], delimiter: str = ",") -> None:
    """Write one line per item: the columns of its table, the answer, and one column per class."""
    writer = csv.writer(stream, lineterminator="\n", delimiter=delimiter)
    columns = _columns(answers, rounded=True)
    writer.writerow(columns)
    writer.writerows(zip(*([printable(cell_text(value)) for value in values] for values in columns.values())))


def write_answers(file: Path, answers: Sequence[Answer]) -> None:
    """Write a file of one of `FILE_TYPES`: the columns of CSV, or objects as of `gpldla predict --json`."""
    from gpldla.utils.files import write_atomically  # which loads torch

    suffix = file.suffix.lower()
    if suffix == ".parquet":
        content = _parquet(answers)
    elif suffix in (".csv", ".tsv"):
        stream = io.StringIO()
        write_answers_csv(stream, answers, "\t" if suffix == ".tsv" else ",")
        content = stream.getvalue().encode()
    elif suffix == ".json":
        content = answers_json(answers).encode() + b"\n"
    else:
        content = "".join(json.dumps(one.as_json(), default=str) + "\n" for one in answers).encode()
    write_atomically(file, content)


def answers_json(answers: Sequence[Answer]) -> str:
    """Return the answers as a readable list of objects."""
    return json.dumps([one.as_json() for one in answers], indent=2, default=str)


def _columns(answers: Sequence[Answer], *, rounded: bool) -> dict[str, list[Any]]:
    """Return one list per column; rounded: probabilities as strings of some digits."""

    def number(value: float | None, digits: int) -> Any:
        return f"{value:.{digits}f}" if rounded and value is not None else value

    ours = {
        "answer": [UNSURE if one.unsure else one.label for one in answers],
        "probability": [number(one.probability, 6) for one in answers],
        "none_of_these": [number(one.none_of_these, 4) for one in answers],
    }
    for name in answers[0].probabilities if answers else ():
        ours[printable(name)] = [number(one.probabilities[name], 6) for one in answers]
    others = answers[0].columns if answers else {}
    renamed = passthrough_names(others, ["item", *ours])
    passed = {printable(new): [one.columns[name] for one in answers] for name, new in renamed.items()}
    return {"item": [one.item for one in answers], **passed, **ours}


def _parquet(answers: Sequence[Answer]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError("Parquet needs PyArrow: pip install 'gpldla[tables]'.") from None
    arrays = {}
    for name, values in _columns(answers, rounded=False).items():
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, UnicodeError):  # values of several types
            arrays[name] = pa.array([printable(cell_text(value)) for value in values])
    content = io.BytesIO()
    pq.write_table(pa.table(arrays), content)
    return content.getvalue()
