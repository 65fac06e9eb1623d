"""The command `gpldla predict`: answers that are printed, or written to Parquet files in bulk."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.cli.items import feature_cache, pictures_of_arguments, readable_indices, texts_of_arguments
from gpldla.cli.options import (
    DEFAULT_DEVICE,
    AsJson,
    Cache,
    DataRoot,
    Device,
    SkipBad,
    data_access,
    load_classifier,
    messages,
)
from gpldla.cli.quick import answers_of_graph
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter

if TYPE_CHECKING:
    from gpldla.classifier.answer import Answer
    from gpldla.classifier.few_shot import FewShotClassifier

Items = Annotated[
    list[str],
    typer.Argument(
        help="Pictures and folders of them; or texts, .txt and .csv files;"
        " with --output also Parquet files, folders of them, or a data set."
    ),
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder for Parquet files, for many items; the same command resumes a stopped run."
        " Default with --engine ray: FILE-scores.",
    ),
]
MaxError = Annotated[
    float,
    typer.Option("--max-error", min=0, max=1, help="Answer 'unsure' where the expected error is larger."),
]
Prevalence = Annotated[
    float, typer.Option("--prevalence", help="Assumed share of items of no known class, between 0 and 1.")
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, with one column per class.")]
Column = Annotated[
    str | None, typer.Option("--column", help="Column of Parquet files: picture bytes, embeddings or texts.")
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
    output: OutputFolder = None,
    engine: Annotated[str, typer.Option(help="local, or ray for many processes.")] = "local",
    max_error: MaxError = MAX_ERROR,
    prevalence: Prevalence = PREVALENCE,
    text: Annotated[str | None, typer.Option(help="Column of the texts in CSV files.")] = None,
    skip_bad: SkipBad = False,
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
    if output is not None:
        if as_json or as_csv or text is not None:
            raise UserError("--output and --engine ray write Parquet; leave out --json, --csv and --text.")
        _predict_in_bulk(
            classifier,
            items,
            output,
            thresholds=(max_error, prevalence),
            skip_bad=skip_bad,
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
    if device in (DEFAULT_DEVICE, "cpu") and text is None and not skip_bad:
        answers = answers_of_graph(classifier, items, max_error, prevalence)
    if answers is None:
        loaded = load_classifier(classifier, device)
        given = _read_items(loaded, items, text, skip_bad=skip_bad)
        answers = _answer(loaded, given, max_error, prevalence, cache)
    _print_answers(answers, as_json=as_json, as_csv=as_csv)


def _read_items(
    classifier: "FewShotClassifier", arguments: list[str], column: str | None, *, skip_bad: bool
) -> list[Any]:
    if classifier.model.backbone.reads == "texts":
        return texts_of_arguments(arguments, column)
    if column is not None:
        raise UserError("The classifier is one of pictures; leave out --text.")
    pictures = pictures_of_arguments(arguments)
    return (
        [pictures[i] for i in readable_indices(pictures, classifier.model.preprocessing)]
        if skip_bad
        else pictures
    )


def _answer(
    classifier: "FewShotClassifier", items: list[Any], max_error: float, prevalence: float, cache: Path | None
) -> "list[Answer]":
    from gpldla.classifier.answer import answer, json_class_names

    model = classifier.model
    features = model.embed(items, cache=feature_cache(model, cache), reporter=Reporter(messages))
    novelty = classifier.novelty_of(features, prevalence) if classifier.has_novelty else None
    json_class_names(classifier.classes)  # refuse names that could not be distinguished in the answers
    return answer(classifier.probabilities(features), novelty, items, classifier.classes.tolist(), max_error)


def _print_answers(answers: "list[Answer]", *, as_json: bool, as_csv: bool) -> None:
    from gpldla.reports.answer_table import answers_table, write_answers_csv
    from gpldla.utils.terminal import wide_console

    if as_json:
        typer.echo(json.dumps([one.as_json() for one in answers], indent=2))
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
    skip_bad: bool,
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

    access = data_access(data_root, cache, skip_bad=skip_bad)
    if find_spec("pyarrow") is None:
        raise UserError("--output needs PyArrow: pip install 'gpldla[scale]'.")
    from gpldla.bulk.job import Settings
    from gpldla.bulk.ray_engine import RayEngine
    from gpldla.bulk.scoring import score_in_bulk

    finished = score_in_bulk(
        classifier,
        items,
        output,
        Settings(*thresholds, skip_bad),
        access=access,
        console=messages,
        engine=RayEngine(workers, device, report=access.report.say) if with_ray else None,
        column=column,
        chunk_size=chunk_size,
        device="cpu" if with_ray else device,  # the GPUs are left to Ray's workers
    )
    if not finished:
        raise typer.Exit(130)
