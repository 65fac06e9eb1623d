"""The command `gpldla export`."""

from pathlib import Path
from typing import Annotated

import typer

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.cli.options import MaxError, Prevalence, messages
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say


def export(
    classifier: Annotated[Path, typer.Argument(help="A file written by `gpldla fit`.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The ONNX file, or a page such as birds.html.")
    ],
    adaptable: Annotated[
        bool,
        typer.Option("--adaptable", help="A graph that takes labelled examples and adapts inside ONNX."),
    ] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Leave the network out: features in, answers out.")
    ] = False,
    half: Annotated[bool, typer.Option("--half", help="Store and multiply in float16.")] = False,
    max_error: MaxError = MAX_ERROR,
    prevalence: Prevalence = PREVALENCE,
) -> None:
    """Write a classifier as ONNX: pictures or tokens of texts in; probabilities, none of these, unsure out.

    Example: gpldla export birds.safetensors -o birds.onnx

    A page that runs it in any browser, without a server: gpldla export birds.safetensors -o birds.html
    """
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.export import export_fitted, export_page
    from gpldla.utils.files import check_output

    check_output(output, classifier)
    loaded = FewShotClassifier.load(classifier)
    if output.suffix.lower() == ".html":
        if adaptable or features:
            raise UserError("A page has a network and classes; leave out --adaptable and --features.")
        export_page(loaded, output, half=half, max_error=max_error, prevalence=prevalence)
        say(messages, f"Wrote {output}. Open it in a browser.")
        return
    export_fitted(
        loaded,
        output,
        adaptable=adaptable,
        features=features,
        half=half,
        max_error=max_error,
        prevalence=prevalence,
        reporter=Reporter(messages),
    )
    say(messages, f"Wrote {output}.")
