"""The command `gpldla fit`."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpldla.cli.items import feature_cache, given_items
from gpldla.cli.labelled import labelled_items
from gpldla.cli.options import DEFAULT_DEVICE, AsJson, Cache, Device, Report, SkipBad, messages, say_where
from gpldla.cli.table_options import Delimiter, Encoding, Label, Picture, TableOptions, Text
from gpldla.cli.unlabelled import too_few
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say
from gpldla.utils.terminal import wide_console

if TYPE_CHECKING:
    from gpldla.classifier.answers import FitSummary, Measurement
    from gpldla.classifier.class_names import ClassNames
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.classifier.model import FewShotModel

SINGLE_EXAMPLES = (
    "With one example per class, how certain the answers are is a guess; a second example for some classes"
    " would measure it."
)
UNLIKE_HOME = (
    "These are unlike what the model was trained on, so most of each answer comes from a prior that the"
    " examples themselves set."
)
ADD_UNLABELLED = "More {kind} without labels (--unlabelled) would make the answers better."
DEFAULT_MODELS = {"pictures": "efficientnet-lite0", "texts": "all-minilm-l6-v2"}

Model = Annotated[
    str | None,
    typer.Option(
        help="A pretrained backbone, hf:ORG/NAME, timm:NAME or st:ORG/NAME (or a folder of each, such as"
        " hf:/path), the folder of a trained model, or the name of a shipped one;"
        f" default: {DEFAULT_MODELS['pictures']} for pictures, {DEFAULT_MODELS['texts']} for texts."
    ),
]
Size = Annotated[
    int | None,
    typer.Option(min=1, help="Side in pixels of what the network sees, where it takes several sizes."),
]
Support = Annotated[
    bool,
    typer.Option("--support/--no-support", help="Keep the examples' features, so that more can be added."),
]
ItemNames = Annotated[
    bool,
    typer.Option(
        "--item-names/--no-item-names",
        help="Keep what the examples are called (paths, or the texts), so that a mistake can be named.",
    ),
]
Names = Annotated[
    bool,
    typer.Option(
        "--names",
        help="Use what the names of the classes mean: with a text-image model (CLIP, SigLIP), or for texts.",
    ),
]
Prompt = Annotated[
    list[str] | None,
    typer.Option(
        help="With --names: a sentence with {} for the name, such as 'a photo of a {}.'; can be repeated."
    ),
]
Graph = Annotated[
    bool,
    typer.Option(
        "--graph",
        help="Store the classifier as an ONNX graph, too: `predict` then starts several times as fast.",
    ),
]
Unlabelled = Annotated[
    list[str] | None,
    typer.Option(
        help="More pictures or texts, without labels, most of them of the same classes, such as those"
        " that will be classified: a folder, a .txt file or a table; can be repeated."
    ),
]


def fit(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with one folder per class, or a table of texts or pictures: CSV, TSV, JSON lines,"
            " Parquet or Excel; - for standard input."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the classifier.")],
    text: Text = None,
    picture: Picture = None,
    label: Label = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    model: Model = None,
    size: Size = None,
    support: Support = True,
    item_names: ItemNames = True,
    names: Names = False,
    prompt: Prompt = None,
    graph: Graph = False,
    unlabelled: Unlabelled = None,
    report: Report = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    device: Device = DEFAULT_DEVICE,
    cache: Cache = None,
) -> None:
    """Fit a classifier to a few labelled pictures or texts, and report how good it is.

    Example: gpldla fit photos/ -o birds.safetensors

    With a page to look at: gpldla fit photos/ -o birds.safetensors --report birds.html

    One example per class: gpldla fit photos/ --unlabelled album/ -o birds.safetensors

    With what the names mean: gpldla fit photos/ --names --model hf:ORG/CLIP -o birds.safetensors

    Texts: gpldla fit texts.csv --text question --label topic -o topics.safetensors
    """
    from gpldla.classifier.answer import json_class_names
    from gpldla.classifier.answers import measure_on, summarise
    from gpldla.export import graph_of
    from gpldla.utils.files import check_output

    if output.is_dir():
        raise UserError(f"{output} is a folder; name a file, such as {output / 'classifier.safetensors'}.")
    check_output(output, source)
    if report is not None:
        check_output(report, source, output)
    options = TableOptions(text, picture, label, encoding, delimiter, skip_bad)
    given = labelled_items(source, options)
    loaded = _model(model, given.kind, device, size)
    if skip_bad:
        given = given.readable(loaded)
    more = given_items(unlabelled, loaded, replace(options, label=None)).items if unlabelled else []
    embedding: dict[str, Any] = {"cache": feature_cache(loaded, cache), "reporter": Reporter(messages)}
    class_names = _class_names(loaded, given.labels, names, prompt)
    classifier = loaded.adapt(
        given.items, given.labels, unlabelled=more or None, class_names=class_names, **embedding
    )
    if sentence := too_few(len(more), given.kind, classifier):
        say(messages, sentence)
    json_class_names(classifier.classes)  # refuse now what `predict` could not write
    summary = summarise(classifier, given.items)
    if classifier.has_novelty:
        classifier.calibrate_novelty()  # kept in the file, so that `predict` need not
    stored = graph_of(classifier) if graph else None
    classifier.save(output, support=support, names=item_names, graph=stored)
    tests = {
        name: measure_on(classifier, loaded.embed(items, **embedding), labels)
        for name, (items, labels) in given.parts.items()
    }
    fitted = _Fitted(output, classifier, summary, tests, len(more) if unlabelled is not None else None)
    if report is not None:
        _write_page(report, fitted, source, given.items, (more, embedding))
    if as_json:
        typer.echo(json.dumps(fitted.as_json(), indent=2))
    else:
        _print(fitted)
    say_where(report)


@dataclass(frozen=True)
class _Fitted:
    """A classifier that was fitted; unlabelled: items without labels that were given, None if not asked."""

    output: Path
    classifier: "FewShotClassifier"
    summary: "FitSummary"
    tests: dict[str, "Measurement"]
    unlabelled: int | None

    @property
    def unlabelled_used(self) -> int:
        """How many items without labels it has learned from."""
        rows = self.classifier.task.unlabelled
        return 0 if rows is None else len(rows)

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        facts: dict[str, Any] = {"file": str(self.output), **self.summary.as_json()}
        if self.tests:
            facts["tested_on"] = {name: test.as_json() for name, test in self.tests.items()}
        if self.unlabelled is not None:
            facts["unlabelled"] = self.unlabelled_used
        return facts


def _class_names(
    model: "FewShotModel", labels: list[Any], wanted: bool, prompts: list[str] | None
) -> "ClassNames | None":
    from gpldla.classifier.class_names import ClassNames

    if prompts and not wanted:
        raise UserError("--prompt is for --names; give both.")
    return ClassNames.embed(model, list(dict.fromkeys(labels)), prompts or None) if wanted else None


def _model(name: str | None, kind: str, device: str, size: int | None) -> "FewShotModel":
    """Return the model of this name, or the usual one for pictures or texts, on a device."""
    from gpldla.backbones.names import with_size
    from gpldla.classifier.resolve import resolve_model
    from gpldla.utils.devices import torch_device

    loaded = resolve_model(with_size(name or DEFAULT_MODELS[kind], size)).to(torch_device(device))
    if loaded.backbone.reads != kind:
        raise UserError(
            f"Backbone {loaded.backbone_name!r} reads {loaded.backbone.reads}, not {kind};"
            " choose another --model."
        )
    return loaded


def _write_page(
    report: Path, fitted: _Fitted, source: Path, items: list[Any], more: tuple[list[Any], dict[str, Any]]
) -> None:
    """Write the page; more: items without labels, and how they are embedded."""
    from gpldla.reports.fit_page import FittedClassifier, write_fit_page

    unlabelled, options = more
    page = FittedClassifier(
        fitted.classifier,
        fitted.summary,
        items,
        fitted.output,
        "standard input" if str(source) == "-" else str(source),
        fitted.tests,
        (unlabelled, fitted.classifier.model.embed(unlabelled, **options)) if unlabelled else None,
        _remarks(fitted),
    )
    write_fit_page(report, page)


def _print(fitted: _Fitted) -> None:
    from gpldla.reports.terminal import expected_line, fit_tables, leave_one_out_line

    summary, output = fitted.summary, fitted.output
    kind, console = fitted.classifier.model.backbone.reads, wide_console()
    for table in fit_tables(summary):
        console.print(table)
    say(console, leave_one_out_line(summary))
    if summary.expected is not None:
        say(console, expected_line(summary.expected, kind))
    for name, test in fitted.tests.items():
        say(console, test.sentence(name))
    for sentence in _remarks(fitted):
        say(console, sentence)
    say(console, f"Wrote {output}. Next: gpldla predict {output} {kind.upper()}")


def _remarks(fitted: _Fitted) -> list[str]:
    """Return what is to be said about how the classifier was made."""
    classifier, sentences = fitted.classifier, []
    kind = classifier.model.backbone.reads
    if used := fitted.unlabelled_used:
        sentences.append(f"It has also learned from {used} {kind} without labels.")
    if classifier.class_names is not None:
        sentences.append("It uses what the names of the classes mean.")
    if classifier.own_prior_share > 0.5:
        sentences.append(UNLIKE_HOME)
    if getattr(classifier.task.posterior, "from_single_examples", False):
        hint = "" if fitted.unlabelled else " " + ADD_UNLABELLED.format(kind=kind)
        sentences.append(SINGLE_EXAMPLES + hint)
    return sentences
