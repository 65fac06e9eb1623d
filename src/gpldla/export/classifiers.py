"""What can be exported: a fitted classifier, of pictures or of features, or a method that still adapts."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gpldla.backbones import Backbone
from gpldla.backbones.base import TokenBackbone
from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.own_prior import OwnPrior
from gpldla.data.decoding import mode_of
from gpldla.data.preprocessing import Preprocessing
from gpldla.engines.network_graph import MASK, TOKENS, example_inputs
from gpldla.export.decision import Decision, DecisionModule
from gpldla.export.modules import HeadModule, PosteriorModule
from gpldla.export.networks import Exportable, PictureModule, TextModule
from gpldla.export.onnx_graph import write_graph
from gpldla.heads import Head, Posterior
from gpldla.utils.errors import UserError
from gpldla.utils.progress import SILENT, Reporter

DEFAULT_DECISION = Decision()

Network = TypeVar("Network", bound=Backbone)


def export_fitted(
    classifier: FewShotClassifier,
    path: str | Path,
    *,
    adaptable: bool = False,
    features: bool = False,
    half: bool = False,
    max_error: float = MAX_ERROR,
    prevalence: float = PREVALENCE,
    reporter: Reporter = SILENT,
) -> None:
    """Write a fitted classifier: of pictures from pixels on, of texts from tokens on, else from features on.

    adaptable: write the classifier's method instead, with the prior that was chosen for its task
    features: leave the network out
    max_error, prevalence: with which answers are unsure, as in `gpldla predict`
    """
    model, classes, task = classifier.model, classifier.classes.tolist(), classifier.task
    shared: dict[str, Any] = {"temperature": classifier.temperature, "half": half}
    if adaptable:
        head = model.head.exportable(classifier.posterior)
        export_adaptable(head, model.backbone.feature_dim, path, **shared)
        return
    shared |= {
        "own_prior": task.own_prior,
        "decision": Decision.of(classifier, max_error, prevalence),
    }
    reads, network = model.backbone.reads, model.backbone
    if reads == "pictures" and not features:
        export_classifier(
            classifier.posterior,
            classes,
            path,
            backbone=network,
            preprocessing=model.preprocessing,
            **shared,
        )
    elif isinstance(network, TokenBackbone) and network.tokenizer_json() and not features:
        export_text_classifier(classifier.posterior, classes, path, encoder=network, **shared)
    else:
        if not features:
            reporter.say(f"{model.backbone_name} is not in the graph, which takes its features of texts.")
        export_feature_classifier(
            classifier.posterior, classes, path, feature_dim=network.feature_dim, **shared
        )


def export_classifier(
    posterior: Posterior,
    classes: Sequence[Any],
    path: str | Path,
    *,
    backbone: Backbone,
    preprocessing: Preprocessing,
    temperature: float = 1.0,
    own_prior: OwnPrior | None = None,
    decision: Decision = DEFAULT_DECISION,
    half: bool = False,
) -> None:
    """Write a classifier of pictures.

    Input `images`: uint8 [n, side, side, channels], the grey or RGB pixels of pictures that are resized to
    side = preprocessing.resized as `preprocessing` in the metadata says: with Pillow's BILINEAR, or another
    `interpolation`; stretched, or with `keep_aspect` cut to a square. The graph crops and standardises them.
    Output `probabilities`: float32 [n, C] in the order of `classes`, with the temperature applied; if the
    decision has it, `none_of_these`: float32 [n]; `unsure`: bool [n]. n is at least 1.

    posterior: of one task, on features of `backbone`; with predictive="mc" its draws are fixed in the file
    own_prior: a second answer that is mixed with that of the posterior, or None
    decision: when an answer is unsure, and what tells items of no known class
    half: store weights and compute products (convolutions, matrices) in float16. Inputs, outputs and all
          other operations stay in float32, whose range the predictive needs.
    """
    side, channels = preprocessing.resized, preprocessing.channels
    answers = DecisionModule(PosteriorModule(posterior, temperature, own_prior), decision)
    module = PictureModule(_constant(backbone), preprocessing, answers).eval()
    pixels = (255 * torch.rand(3, side, side, channels, generator=_generator())).byte()
    facts = {
        "kind": "image classifier",
        "classes": _plain_classes(classes, module, {"images": pixels}),
        "preprocessing": {**preprocessing.as_json(), "resized": side, "mode": mode_of(channels)},
        "temperature": temperature,
        **decision.facts,
    }
    write_graph(module, {"images": pixels}, _rows(module, {"images": {}}), Path(path), facts, half=half)


def export_text_classifier(
    posterior: Posterior,
    classes: Sequence[Any],
    path: str | Path,
    *,
    encoder: TokenBackbone,
    temperature: float = 1.0,
    own_prior: OwnPrior | None = None,
    decision: Decision = DEFAULT_DECISION,
    half: bool = False,
) -> None:
    """Write a classifier of texts, with its encoder.

    Inputs `tokens` and `mask`: int64 [n, longest], the numbers of each text's tokens, filled up with 0, and 1
    where there is a token. How to get them is in the metadata: `tokenizer` is what is elsewhere the file
    tokenizer.json, for `Tokenizer.from_str` of tokenizers. The rest is as in `export_classifier`.
    """
    answers = DecisionModule(PosteriorModule(posterior, temperature, own_prior), decision)
    module = TextModule(_constant(encoder), answers).eval()
    tokens, mask = (torch.from_numpy(array) for array in example_inputs(encoder, 3))
    inputs = {TOKENS: tokens, MASK: mask}
    facts = {
        "kind": "text classifier",
        "classes": _plain_classes(classes, module, inputs),
        "tokenizer": json.loads(encoder.tokenizer_json() or "null"),
        "temperature": temperature,
        **decision.facts,
    }
    axes = _rows(module, {TOKENS: {1: "longest"}, MASK: {1: "longest"}})
    longest = {"longest": encoder.preprocessing.max_tokens}
    write_graph(module, inputs, axes, Path(path), facts, half=half, longest=longest)


def export_feature_classifier(
    posterior: Posterior,
    classes: Sequence[Any],
    path: str | Path,
    *,
    feature_dim: int,
    temperature: float = 1.0,
    own_prior: OwnPrior | None = None,
    decision: Decision = DEFAULT_DECISION,
    half: bool = False,
) -> None:
    """Write a classifier of features, which are computed elsewhere.

    Input `features`: float32 [n, feature_dim], as the head was given. The rest is as in `export_classifier`.
    """
    module = DecisionModule(PosteriorModule(posterior, temperature, own_prior), decision).eval()
    features = torch.randn(3, feature_dim, generator=_generator())
    facts = {
        "kind": "feature classifier",
        "classes": _plain_classes(classes, module, {"features": features}),
        "temperature": temperature,
        **decision.facts,
    }
    write_graph(module, {"features": features}, _rows(module, {"features": {}}), Path(path), facts, half=half)


def export_adaptable(
    head: Head, feature_dim: int | None, path: str | Path, *, temperature: float = 1.0, half: bool = False
) -> None:
    """Write a method that adapts to any task inside the graph, in one call.

    Inputs `support` float32 [n, d], `labels` int64 [n] in 0..C−1 and `query` float32 [q, d], features as the
    head is given them. Output `probabilities` float32 [q, C], where C is the largest label plus one; a class
    without examples has probability 0. n, q and C are free, and so is d if feature_dim is None.

    half: as in `export_classifier`; a head that does not scale features to unit length must not be given
          values beyond ±255, whose squares are too large for float16
    """
    if head.consumes != "features":
        raise UserError(
            f"{type(head).__name__} does not adapt to plain features, so it cannot be exported; choose a head"
            " that does, such as gpldla."
        )
    module = HeadModule(copy.deepcopy(head).cpu().requires_grad_(False), temperature).eval()
    generator = _generator()
    labels = torch.tensor([0, 1, 2, 2, 0, 1])
    support, query = (torch.randn(n, feature_dim or 16, generator=generator) for n in (len(labels), 4))
    d = {} if feature_dim else {1: "d"}
    axes = {
        "support": {0: "n", **d},
        "labels": {0: "n"},
        "query": {0: "q", **d},
        "probabilities": {0: "q", 1: "classes"},
    }
    inputs = {"support": support, "labels": labels, "query": query}
    facts = {"kind": "adaptable", "temperature": temperature}
    write_graph(module, inputs, axes, Path(path), facts, half=half)


def _constant(network: Network) -> Network:
    """Return a copy of a network to be traced."""
    return copy.deepcopy(network).cpu().float().requires_grad_(False)


def _rows(module: Exportable, inputs: dict[str, dict[int, str]]) -> dict[str, dict[int, str]]:
    """Return the axes of any length: the first of all, n, and those that are given for inputs."""
    first = {name: {0: "n"} for name in module.outputs}
    return {name: {0: "n", **own} for name, own in inputs.items()} | first


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)  # for the example inputs of the trace


def _plain_classes(classes: Sequence[Any], module: Exportable, inputs: dict[str, Tensor]) -> list[Any]:
    """Return the class names as JSON values, one for each probability that `module` returns."""
    try:
        with torch.no_grad():
            answers = module(**inputs)[0]
    except RuntimeError as error:
        raise UserError(
            f"{module.subject} cannot predict from features like these, so it cannot be exported; choose a"
            " head that consumes plain features, such as gpldla."
        ) from error
    if answers.ndim != 2:
        raise UserError(f"This {module.subject} is of a batch of tasks; export one task at a time.")
    if len(classes) != answers.shape[-1]:
        raise UserError(f"There are {len(classes)} names for {answers.shape[-1]} classes; give one each.")
    plain = [name.item() if isinstance(name, np.generic) else name for name in classes]
    try:
        json.dumps(plain)
    except TypeError as error:
        raise UserError(f"Class names must be texts or numbers to be stored in a file ({error}).") from None
    return plain
