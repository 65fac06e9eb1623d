"""The commands for one's own data: fit, predict and export."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel

messages = Console(stderr=True)
PICTURES, TEXTS = "efficientnet-lite0", "all-minilm-l6-v2"
PREVALENCE = 0.1  # of items of no known class among those to be predicted

CacheFolder = Annotated[
    Path | None, typer.Option("--cache", help="Folder for features that were computed before.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="List pictures that cannot be read and leave them out.")
]


def fit(
    source: Annotated[Path, typer.Argument(help="A folder of class folders, or a CSV file of texts.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the classifier.")],
    text: Annotated[str | None, typer.Option(help="Column of the texts, for a CSV file.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the labels, for a CSV file.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A pretrained backbone, the folder of a trained model, or the name of a shipped one;"
            f" default: {PICTURES}, texts {TEXTS}."
        ),
    ] = None,
    support: Annotated[
        bool, typer.Option("--support/--no-support", help="Keep the examples' features, to add to later.")
    ] = True,
    skip_bad: SkipBad = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    cache: CacheFolder = None,
) -> None:
    """Make a classifier from a few labelled pictures or texts, and say how well it does on them.

    Example: gpldla fit photos/ -o birds.safetensors

    Texts: gpldla fit texts.csv --text question --label topic -o topics.safetensors
    """
    from gpldla.classifier.answers import json_class_names, summarise
    from gpldla.data.user_files import read_class_folders, read_table
    from gpldla.reports.terminal import fit_tables
    from gpldla.utils.files import check_output

    if output.is_dir():
        raise UserError(f"{output} is a folder; name a file, such as {output / 'classifier.safetensors'}.")
    check_output(output, source)
    if (text is None) != (label is None):
        raise UserError("Texts need both --text COLUMN and --label COLUMN.")
    items: list[Any]
    if text is not None and label is not None:
        items, labels = read_table(source, [text, label])
    elif source.is_file():
        raise UserError(f"{source} is a file; name its columns with --text and --label, or give a folder.")
    else:
        items, labels = read_class_folders(source)
        _report_ignored_files(source)
    loaded = _load_model(model or (PICTURES if text is None else TEXTS), device)
    _check_reads(loaded, "pictures" if text is None else "texts")
    if skip_bad and text is None:
        kept = _readable(items, loaded)
        emptied = set(labels) - {labels[i] for i in kept}
        if emptied:
            raise UserError(f"No picture of the class {min(emptied)} can be read; add some or remove it.")
        items, labels = [items[i] for i in kept], [labels[i] for i in kept]
    classifier = loaded.adapt(items, labels, cache=_cache(loaded, cache), reporter=Reporter(messages))
    json_class_names(classifier.classes)  # said now, not by `predict`
    summary = summarise(classifier, items)
    if classifier.has_novelty:
        classifier.calibrate_novelty()  # kept in the file, so that `predict` need not
    classifier.save(output, support=support)
    if as_json:
        typer.echo(json.dumps({"file": str(output), **summary.as_json()}, indent=2))
        return
    console = _console()
    for table in fit_tables(summary):
        console.print(table)
    say(console, _loo_sentence(summary.accuracy, summary.nll, summary.tested))
    say(console, f"Wrote {output}. Next: gpldla predict {output} {'IMAGES' if text is None else 'TEXTS'}")


def predict(
    classifier: Annotated[Path, typer.Argument(help="A file that `gpldla fit` wrote.")],
    items: Annotated[
        list[str],
        typer.Argument(
            help="Pictures and folders of them; or texts, .txt and .csv files;"
            " with --output also Parquet files, folders of them, or a data set."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for Parquet files, for many items; goes on after a stop."
            " Default with --engine ray: FILE-scores.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray for many processes; writes Parquet files.")
    ] = "local",
    max_error: Annotated[
        float, typer.Option(min=0, max=1, help="Say 'unsure' where the expected error is larger.")
    ] = 0.25,
    prevalence: Annotated[
        float, typer.Option(help="How common items of no known class are, between 0 and 1.")
    ] = PREVALENCE,
    text: Annotated[str | None, typer.Option(help="Column of the texts, for CSV files.")] = None,
    skip_bad: SkipBad = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV, one column a class.")] = False,
    column: Annotated[
        str | None, typer.Option(help="Column of Parquet files: picture bytes, embeddings or texts.")
    ] = None,
    chunk_size: Annotated[
        int | None, typer.Option(min=1, help="Rows of each Parquet file that is written.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of --engine ray; default: all that Ray has.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_root: Annotated[Path | None, typer.Option(help="Folder with the data sets.")] = None,
    cache: CacheFolder = None,
) -> None:
    """Print the probabilities of new pictures or texts, and 'unsure' where they do not suffice.

    Example: gpldla predict birds.safetensors new.jpg holidays/ --csv

    Millions, on all cores or a cluster: gpldla predict birds.safetensors archive/ -o scores --engine ray
    """
    from gpldla.classifier.answers import UNSURE, answer, json_class_names
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.reports.terminal import answers_table
    from gpldla.utils.devices import torch_device

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
        if data_root is not None and not data_root.is_dir():
            raise UserError(f"There is no folder {data_root}; name the folder that holds the data sets.")
        _predict_in_bulk(
            classifier,
            items,
            output,
            engine=engine,
            workers=workers,
            device=device,
            places=(data_root, cache),
            settings={"max_error": max_error, "prevalence": prevalence, "skip_bad": skip_bad},
            column=column,
            chunk_size=chunk_size,
        )
        return
    if column is not None or chunk_size is not None or data_root is not None:
        raise UserError(
            "--column, --chunk-size and --data-root need a folder for the answers: --output FOLDER."
        )
    loaded = FewShotClassifier.load(classifier).to(torch_device(device))
    found = _items(items, loaded, text)
    if skip_bad and loaded.model.backbone.reads == "pictures":
        found = [found[i] for i in _readable(found, loaded.model)]
    features = loaded.model.embed(found, cache=_cache(loaded.model, cache), reporter=Reporter(messages))
    novel = loaded.novelty_of(features, prevalence) if loaded.has_novelty else None
    names, classes = json_class_names(loaded.classes), loaded.classes.tolist()
    answers = answer(loaded.probabilities(features), novel, found, classes, max_error)
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in answers], indent=2))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["item", "answer", "probability", "none_of_these", *names])
        for one in answers:
            shown = UNSURE if one.unsure else one.label
            none = "" if one.none_of_these is None else f"{one.none_of_these:.4f}"
            values = [f"{p:.6f}" for p in one.probabilities.values()]
            writer.writerow([one.item, shown, f"{one.probability:.6f}", none, *values])
    else:
        _console().print(answers_table(answers))


def _predict_in_bulk(
    classifier: Path,
    items: list[str],
    output: Path,
    *,
    engine: str,
    workers: int | None,
    device: str,
    places: tuple[Path | None, Path | None],
    settings: dict[str, Any],
    **how: Any,
) -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise UserError("--output needs PyArrow: pip install 'gpldla[scale]'.")
    from gpldla.bulk.ray_engine import RayEngine
    from gpldla.bulk.scoring import Settings, score_in_bulk
    from gpldla.data import Access, DataPaths

    access = Access(DataPaths(*places), Reporter(messages), settings["skip_bad"])
    finished = score_in_bulk(
        classifier,
        items,
        output,
        Settings(**settings),
        access=access,
        console=messages,
        engine=RayEngine(workers, device, tell=access.report.say) if engine == "ray" else None,
        device="cpu" if engine == "ray" else device,  # there the workers have the GPUs
        **how,
    )
    if not finished:
        raise typer.Exit(130)


def export(
    classifier: Annotated[Path, typer.Argument(help="A file that `gpldla fit` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file.")],
    adaptable: Annotated[
        bool,
        typer.Option("--adaptable", help="A graph that takes labelled examples and adapts inside ONNX."),
    ] = False,
    half: Annotated[bool, typer.Option("--half", help="Store and multiply in float16.")] = False,
) -> None:
    """Write a classifier as ONNX: pictures (or features of texts) in, probabilities out.

    Example: gpldla export birds.safetensors -o birds.onnx
    """
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.export import export_adaptable, export_classifier, export_feature_classifier
    from gpldla.utils.files import check_output

    check_output(output, classifier)
    loaded = FewShotClassifier.load(classifier)
    model, classes = loaded.model, loaded.classes.tolist()
    if adaptable:
        export_adaptable(
            _adaptable_head(loaded),
            model.backbone.feature_dim,
            output,
            temperature=model.temperature,
            half=half,
        )
    elif model.backbone.reads == "texts":
        export_feature_classifier(
            loaded.posterior,
            classes,
            output,
            feature_dim=model.backbone.feature_dim,
            temperature=model.temperature,
            half=half,
        )
    else:
        export_classifier(
            loaded.posterior,
            classes,
            output,
            backbone=model.backbone,
            preprocessing=model.preprocessing,
            temperature=model.temperature,
            half=half,
        )
    say(messages, f"Wrote {output}.")


def _adaptable_head(classifier: "FewShotClassifier") -> Any:
    """Return the head to be written, with the β that was chosen for this task."""
    head = classifier.model.head.exportable(classifier.posterior)
    if head is not classifier.model.head:
        say(messages, "The graph centres features but does not whiten them, see docs/own-data.md.")
    return head


def _load_model(name: str, device: str) -> "FewShotModel":
    from gpldla.backbones import list_backbones
    from gpldla.classifier.model import FewShotModel
    from gpldla.classifier.shipped import shipped_models
    from gpldla.utils.devices import torch_device
    from gpldla.utils.errors import did_you_mean

    if Path(name).is_dir() or name in shipped_models():
        model = FewShotModel.from_pretrained(name)
    elif name in list_backbones():
        model = FewShotModel(name, "gpldla-auto")
        if not model.backbone.pretrained and any(True for _ in model.backbone.parameters()):
            raise UserError(f"Backbone {name!r} is untrained; give the folder of a model trained with it.")
    else:
        pretrained = [PICTURES, TEXTS, *shipped_models()]
        raise UserError(f"There is no model {name!r}{did_you_mean(name, pretrained)}")
    return model.to(torch_device(device)).eval()


def _check_reads(model: "FewShotModel", wanted: str) -> None:
    if model.backbone.reads != wanted:
        raise UserError(
            f"Backbone {model.backbone_name!r} reads {model.backbone.reads}, not {wanted};"
            " choose another --model."
        )


def _cache(model: "FewShotModel", folder: Path | None) -> Any:
    from gpldla.classifier.features import FeatureCache
    from gpldla.data.paths import DataPaths

    return FeatureCache.of(model.backbone, DataPaths(None, folder), say=lambda text: say(messages, text))


def _readable(pictures: list[Any], model: "FewShotModel") -> list[int]:
    from gpldla.data.user_files import readable_pictures

    good, bad = readable_pictures(pictures, model.preprocessing)
    for sentence in bad:
        say(messages, f"Left out: {sentence}")
    if not good:
        raise UserError("None of the pictures can be read.")
    return good


def _report_ignored_files(folder: Path) -> None:
    from gpldla.data.user_files import ignored_files

    if sentence := ignored_files(folder):
        say(messages, sentence)


def _items(given: list[str], classifier: "FewShotClassifier", column: str | None) -> list[Any]:
    """Return the pictures or texts that arguments of the command line stand for."""
    from gpldla.data.user_files import pictures_below, read_lines, read_table

    items: list[Any] = []
    reads_texts = classifier.model.backbone.reads == "texts"
    if column is not None and not reads_texts:
        raise UserError("The classifier is one of pictures; leave out --text.")
    for argument in given:
        if reads_texts and not argument.strip():
            raise UserError("A text is empty; leave it out.")
        path = Path(argument)
        suffix = path.suffix.lower()
        names_a_file = len(argument.split()) == 1 or _exists(path)
        if reads_texts and suffix == ".csv" and names_a_file:
            if column is None:
                raise UserError(f"{path} is a table; name the column of the texts with --text.")
            items += read_table(path, [column])[0]
        elif reads_texts and suffix == ".txt" and names_a_file:
            items += read_lines(path)
        elif reads_texts and _exists(path):
            raise UserError(f"{path} is neither a .txt nor a .csv file; give texts or files of them.")
        elif reads_texts:
            items.append(argument)
        elif path.is_dir():
            found = pictures_below(path)
            if not found:
                raise UserError(f"The folder {path} holds no pictures.")
            items += found
            _report_ignored_files(path)
        elif suffix == ".parquet" and path.is_file():
            raise UserError(f"{path} is a Parquet file; its answers need a folder: --output FOLDER.")
        elif path.is_file():
            items.append(path)
        else:
            raise UserError(f"There is no file or folder {path}.")
    return items


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a text too long for the name of a file
        return False


def _loo_sentence(accuracy: float | None, nll: float | None, tested: int) -> str:
    if accuracy is None or nll is None:
        return "Every class has a single example, so none can be left out to test the classifier."
    return f"Leave-one-out: accuracy {accuracy:.1f} %, NLL {nll:.3f}, on {tested} examples."


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)  # a file or a pipe has no edge
    return console
