"""The command `gpldla export`."""

from pathlib import Path
from typing import Annotated

import typer

from gpldla.cli.options import messages
from gpldla.utils.progress import Reporter, say


def export(
    classifier: Annotated[Path, typer.Argument(help="A file written by `gpldla fit`.")],
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
    from gpldla.export import export_fitted
    from gpldla.utils.files import check_output

    check_output(output, classifier)
    loaded = FewShotClassifier.load(classifier)
    export_fitted(loaded, output, adaptable=adaptable, half=half, reporter=Reporter(messages))
    say(messages, f"Wrote {output}.")
