"""The command `gpldla predict`: answers that are printed, or written to Parquet files in bulk."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.cli.items import Given, feature_cache, given_items, is_there
from gpldla.cli.options import (
    DEFAULT_DEVICE,
    AsJson,
    Cache,
    DataRoot,
    Device,
    MaxError,
    Prevalence,
    Report,
    SkipBad,
    data_access,
    load_classifier,
    messages,
    say_where,
)
from gpldla.cli.quick import answers_of_graph
from gpldla.cli.table_options import Delimiter, Encoding, Picture, TableOptions, Text
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say

if TYPE_CHECKING:
    from gpldla.classifier.answer import Answer
    from gpldla.classifier.few_shot import FewShotClassifier

Items = Annotated[
    list[str],
    typer.Argument(
        help="Pictures and folders of them; or texts and .txt files; or tables of either (CSV, TSV, JSON"
        " lines, Parquet, Excel); - for standard input. With --output FOLDER also Parquet files of pictures"
        " or embeddings, folders of them, or a data set."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File for the answers (.csv, .tsv, .jsonl, .json or .parquet); or a folder for Parquet files,"
        " for many items: the same command then resumes a stopped run."
        " Default with --engine ray: FILE-scores.",
    ),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, with one column per class.")]
Column = Annotated[
    str | None,
    typer.Option(
        "--column", help="With --output FOLDER: column of Parquet files: picture bytes, embeddings or texts."
    ),
]
ChunkSize = Annotated[
    int | None, typer.Option("--chunk-size", min=1, help="Rows per Parquet file that is written.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes of --engine ray; default: all that Ray has.")
]


def predict(
    classifier: Annotated[Path, typer.Argument(help="A file written by `gpldla fit`.")],
    items: Items,
    output: Output = None,
    engine: Annotated[str, typer.Option(help="local, or ray for many processes.")] = "local",
    max_error: MaxError = MAX_ERROR,
    prevalence: Prevalence = PREVALENCE,
    text: Text = None,
    picture: Picture = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    skip_bad: SkipBad = False,
    report: Report = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    column: Column = None,
    chunk_size: ChunkSize = None,
    workers: Workers = None,
    device: Device = DEFAULT_DEVICE,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Print the probabilities of new pictures or texts, and 'unsure' where the expected error is too large.

    Example: gpldla predict birds.safetensors new.jpg holidays/ --csv

    A table, whose other columns stay: gpldla predict topics.safetensors tickets.csv --text body -o new.csv

    With a page to look at: gpldla predict birds.safetensors holidays/ --report holidays.html

    Millions, on all cores or a cluster: gpldla predict birds.safetensors archive/ -o scores --engine ray
    """
    if as_json and as_csv:
        raise UserError("Choose one of --json and --csv.")
    if not 0 < prevalence < 1:
        raise UserError(f"--prevalence must lie between 0 and 1, not {prevalence}.")
    if engine not in ("local", "ray"):
        raise UserError(f"There is no engine {engine!r}; use local or ray.")
    if workers is not None and engine != "ray":
        raise UserError("--workers is for --engine ray.")
    if engine == "ray" and output is None:
        output = Path(f"{classifier.stem}-scores")
    options = TableOptions(text, picture, None, encoding, delimiter, skip_bad)
    if output is not None and (as_json or as_csv):
        raise UserError("--output and --engine ray write files; leave out --json and --csv.")
    _check_outputs(report, output, classifier, items)
    if output is not None and (engine == "ray" or not _is_answer_file(output)):
        if report is not None:
            raise UserError("--report is a page of a few items; leave out --engine ray and the folder.")
        _predict_in_bulk(
            classifier,
            items,
            output,
            thresholds=(max_error, prevalence),
            options=options,
            column=column,
            chunk_size=chunk_size,
            workers=workers,
            data_root=data_root,
            cache=cache,
            device=device,
            with_ray=engine == "ray",
        )
        return
    if column is not None or chunk_size is not None or data_root is not None:
        raise UserError(
            "--column, --chunk-size and --data-root need a folder for the answers: --output FOLDER."
        )
    answers = None
    if device in (DEFAULT_DEVICE, "cpu") and options == TableOptions() and report is None:
        answers = answers_of_graph(classifier, items, max_error, prevalence)
    if answers is None:
        given = _Task(load_classifier(classifier, device), classifier, max_error, prevalence)
        answers = given.answers(given_items(items, given.loaded.model, options), cache, report)
    _give_answers(answers, output, as_json=as_json, as_csv=as_csv)
    say_where(report)


def _check_outputs(report: Path | None, output: Path | None, classifier: Path, items: list[str]) -> None:
    """Refuse files that cannot be written or are read; a folder is checked by what writes to it."""
    from gpldla.utils.files import check_output

    inputs = (classifier, *filter(is_there, map(Path, items)))
    if report is not None:
        check_output(report, *inputs)
    if output is not None and _is_answer_file(output):
        check_output(output, *inputs)


def _is_answer_file(output: Path) -> bool:
    from gpldla.reports.answer_table import FILE_TYPES

    return output.suffix.lower() in FILE_TYPES and not output.is_dir()


@dataclass(frozen=True)
class _Task:
    """A classifier, its file, and when its answers are unsure."""

    loaded: "FewShotClassifier"
    file: Path
    max_error: float
    prevalence: float

    def answers(self, given: Given, cache: Path | None, report: Path | None) -> "list[Answer]":
        """Answer for the items, and write the page about them."""
        from gpldla.classifier.answer import answer, json_class_names

        loaded, model = self.loaded, self.loaded.model
        features = model.embed(given.items, cache=feature_cache(model, cache), reporter=Reporter(messages))
        novelty = loaded.novelty_of(features, self.prevalence) if loaded.has_novelty else None
        json_class_names(loaded.classes)  # refuse names that could not be distinguished in the answers
        proba, classes = loaded.probabilities(features), loaded.classes.tolist()
        answers = answer(proba, novelty, given.items, classes, self.max_error, given.columns)
        if report is not None:
            from gpldla.reports.answers_page import AnsweredItems, write_answers_page

            limits = (self.max_error, self.prevalence)
            page = AnsweredItems(loaded, answers, given.items, features, self.file, *limits)
            write_answers_page(report, page)
        return answers


def _give_answers(answers: "list[Answer]", output: Path | None, *, as_json: bool, as_csv: bool) -> None:
    """Write the answers to a file, or print them."""
    from gpldla.reports.answer_table import answers_json, answers_table, write_answers, write_answers_csv
    from gpldla.utils.terminal import wide_console

    if output is not None:
        write_answers(output, answers)
        unsure = sum(one.unsure for one in answers)
        say(messages, f"Wrote {output}: {len(answers):,} answers, of which {unsure:,} are unsure.")
    elif as_json:
        typer.echo(answers_json(answers))
    elif as_csv:
        write_answers_csv(sys.stdout, answers)
    else:
        wide_console().print(answers_table(answers))


def _predict_in_bulk(
    classifier: Path,
    items: list[str],
    output: Path,
    *,
    thresholds: tuple[float, float],
    options: TableOptions,
    column: str | None,
    chunk_size: int | None,
    workers: int | None,
    data_root: Path | None,
    cache: Path | None,
    device: str,
    with_ray: bool,
) -> None:
    """Write the answers to Parquet files. thresholds: max_error and prevalence."""
    from importlib.util import find_spec

    access = data_access(data_root, cache, skip_bad=options.skip_bad)
    if find_spec("pyarrow") is None:
        raise UserError("A folder of answers needs PyArrow: pip install 'gpldla[tables]'.")
    from gpldla.bulk.job import Settings
    from gpldla.bulk.ray_engine import RayEngine
    from gpldla.bulk.scoring import score_in_bulk

    finished = score_in_bulk(
        classifier,
        items,
        output,
        Settings(*thresholds, options.skip_bad),
        access=access,
        console=messages,
        engine=RayEngine(workers, device, report=access.report.say) if with_ray else None,
        column=column or options.item,
        reading=(options.encoding, options.delimiter),
        chunk_size=chunk_size,
        device="cpu" if with_ray else device,  # the GPUs are left to Ray's workers
    )
    if not finished:
        raise typer.Exit(130)
