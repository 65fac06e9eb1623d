"""The graph of a whole classifier of pictures, for its own file: `gpldla predict` answers from it sooner."""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from gpldla import __version__
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.novelty import Novelty
from gpldla.classifier.stored_graph import PROBABILITIES, SCORE
from gpldla.engines.network_graph import FeatureModule, example_pixels
from gpldla.engines.onnx_engine import INPUT, one_thread_session
from gpldla.engines.onnx_tracing import describe, missing_packages, trace
from gpldla.export.modules import PosteriorModule, as_constant
from gpldla.heads import Posterior
from gpldla.utils.errors import UserError, first_line
from gpldla.utils.modules import evaluating

TOLERANCE = 1e-4  # of probabilities, and of scores relative to the largest


class AnswerModule(nn.Module):
    """A classifier: uint8 [n, resized, resized, channels] → probabilities [n, C], and the score [n]."""

    def __init__(
        self, features: FeatureModule, answers: PosteriorModule, known: Posterior, novelty: Novelty | None
    ) -> None:
        super().__init__()
        self.features, self.answers = features, answers
        self.known, self.novelty = as_constant(known), novelty

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return the probabilities, and how known the pictures look."""
        features = self.features(pixels)
        probabilities: Tensor = self.answers(features)
        if self.novelty is None:
            return (probabilities,)
        return probabilities, self.novelty.score(self.known, features)


def graph_of(classifier: FewShotClassifier) -> bytes:
    """Return the ONNX graph that `FewShotClassifier.save` stores, checked against the classifier."""
    model, task = classifier.model, classifier.task
    if model.backbone.reads != "pictures" or model.head.consumes != "features":
        raise UserError(
            f"Only classifiers of pictures with a head that consumes features have a graph, and this one has"
            f" {model.backbone_name} with {model.head_name}; leave the graph out."
        )
    if missing := missing_packages():
        raise UserError(
            f"A graph needs packages that are not installed ({', '.join(missing)});"
            " pip install 'gpldla[fast]'."
        )
    network = copy.deepcopy(evaluating(model.backbone)).cpu().float().requires_grad_(False)
    novelty, known = task.none_of_these_parts() if classifier.has_novelty else (None, task.posterior)
    answers = PosteriorModule(task.posterior, task.temperature, task.own_prior)
    module = AnswerModule(FeatureModule(network), answers, known, novelty and novelty.to("cpu")).eval()
    names = [PROBABILITIES] if novelty is None else [PROBABILITIES, SCORE]
    axes = {name: {0: "n"} for name in (INPUT, *names)}
    try:
        traced = trace(module, {INPUT: torch.from_numpy(example_pixels(network, 2))}, axes, names)
    except Exception as error:  # torch raises all kinds for what it cannot trace
        raise UserError(
            f"{model.backbone_name} with {model.head_name} cannot be traced to a graph"
            f" ({first_line(error)}); leave the graph out."
        ) from None
    describe(traced, axes, {"kind": "classifier with its network", "version": __version__})
    content: bytes = traced.SerializeToString()
    _check(content, classifier, module)
    return content


def _check(graph: bytes, classifier: FewShotClassifier, module: AnswerModule) -> None:
    """Compare the answers of a graph with those of the classifier itself, from its features on."""
    pixels = example_pixels(module.features.network, 3)
    answers = one_thread_session(graph).run(None, {INPUT: pixels})
    with torch.no_grad():
        features = module.features(torch.from_numpy(pixels))
        expected = [part.numpy() for part in module(torch.from_numpy(pixels))]
    expected[0] = classifier.probabilities(features.to(classifier.model.device))
    for own, right in zip(answers, expected, strict=True):
        difference = float(np.abs(own - right).max() / max(1.0, np.abs(right).max()))
        if not difference <= TOLERANCE:  # NaN is refused, too
            raise UserError(f"The graph of the classifier is off by {difference:.2g}; leave the graph out.")
