"""What can be exported: a fitted classifier, of pictures or of features, or a method that still adapts."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpldla.backbones import Backbone
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.own_prior import OwnPrior
from gpldla.data.decoding import mode_of
from gpldla.data.preprocessing import Preprocessing
from gpldla.export.modules import HeadModule, PictureModule, PosteriorModule
from gpldla.export.onnx_graph import write_graph
from gpldla.heads import Head, Posterior
from gpldla.utils.errors import UserError
from gpldla.utils.progress import SILENT, Reporter


def export_fitted(
    classifier: FewShotClassifier,
    path: str | Path,
    *,
    adaptable: bool = False,
    half: bool = False,
    reporter: Reporter = SILENT,
) -> None:
    """Write a fitted classifier, of pictures from pixels on, of texts from their features on.

    adaptable: write the classifier's method instead, with the prior that was chosen for its task
    """
    model, classes = classifier.model, classifier.classes.tolist()
    shared: dict[str, Any] = {"temperature": classifier.temperature, "half": half}
    feature_dim = model.backbone.feature_dim
    if adaptable:
        export_adaptable(_adaptable_head(classifier, reporter), feature_dim, path, **shared)
    elif model.backbone.reads == "texts":
        export_feature_classifier(
            classifier.posterior,
            classes,
            path,
            feature_dim=feature_dim,
            own_prior=classifier.task.own_prior,
            **shared,
        )
    else:
        export_classifier(
            classifier.posterior,
            classes,
            path,
            backbone=model.backbone,
            preprocessing=model.preprocessing,
            own_prior=classifier.task.own_prior,
            **shared,
        )


def _adaptable_head(classifier: FewShotClassifier, reporter: Reporter) -> Head:
    """Return the head to be written, with the β that was chosen for this task."""
    head = classifier.model.head.exportable(classifier.posterior)
    if head is not classifier.model.head:
        reporter.say("The graph centres features but does not whiten them, see docs/own-data.md.")
    return head


def export_classifier(
    posterior: Posterior,
    classes: Sequence[Any],
    path: str | Path,
    *,
    backbone: Backbone,
    preprocessing: Preprocessing,
    temperature: float = 1.0,
    own_prior: OwnPrior | None = None,
    half: bool = False,
) -> None:
    """Write a classifier of pictures.

    Input `images`: uint8 [n, side, side, channels], the grey or RGB pixels of pictures that are resized to
    side = preprocessing.resized as `preprocessing` in the metadata says: with Pillow's BILINEAR, or another
    `interpolation`; stretched, or with `keep_aspect` cut to a square. The graph crops and standardises them.
    Output `probabilities`: float32 [n, C] in the order of `classes`, with the temperature applied. n is at
    least 1.

    posterior: of one task, on features of `backbone`; with predictive="mc" its draws are fixed in the file
    own_prior: a second answer that is mixed with that of the posterior, or None
    half: store weights and compute products (convolutions, matrices) in float16. Inputs, outputs and all
          other operations stay in float32, whose range the predictive needs.
    """
    side, channels = preprocessing.resized, preprocessing.channels
    network = copy.deepcopy(backbone).cpu().float().requires_grad_(False)
    module = PictureModule(network, preprocessing, PosteriorModule(posterior, temperature, own_prior)).eval()
    pixels = (255 * torch.rand(3, side, side, channels, generator=_generator())).byte()
    facts = {
        "kind": "image classifier",
        "classes": _plain_classes(classes, module, pixels),
        "preprocessing": {**preprocessing.as_json(), "resized": side, "mode": mode_of(channels)},
        "temperature": temperature,
    }
    axes = {"images": {0: "n"}, "probabilities": {0: "n"}}
    write_graph(module, {"images": pixels}, axes, Path(path), facts, half=half)


def export_feature_classifier(
    posterior: Posterior,
    classes: Sequence[Any],
    path: str | Path,
    *,
    feature_dim: int,
    temperature: float = 1.0,
    own_prior: OwnPrior | None = None,
    half: bool = False,
) -> None:
    """Write a classifier of features, for texts and for features that are computed elsewhere.

    Input `features`: float32 [n, feature_dim], as the head was given. The rest is as in `export_classifier`.
    """
    module = PosteriorModule(posterior, temperature, own_prior).eval()
    features = torch.randn(3, feature_dim, generator=_generator())
    facts = {
        "kind": "feature classifier",
        "classes": _plain_classes(classes, module, features),
        "temperature": temperature,
    }
    axes = {"features": {0: "n"}, "probabilities": {0: "n"}}
    write_graph(module, {"features": features}, axes, Path(path), facts, half=half)


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


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)  # for the example inputs of the trace


def _plain_classes(
    classes: Sequence[Any], module: PosteriorModule | PictureModule, example: Tensor
) -> list[Any]:
    """Return the class names as JSON values, one for each probability that `module` returns."""
    try:
        with torch.no_grad():
            answers = module(example)
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
