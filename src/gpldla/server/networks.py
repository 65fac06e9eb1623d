"""The networks that turn pictures and texts into features, one of each kind at most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpldla.classifier.embedders import ImageEmbedder, TextEmbedder
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.resolve import resolve_model
from gpldla.engines.choice import prepare
from gpldla.server.settings import Settings
from gpldla.utils.devices import torch_device
from gpldla.utils.errors import UserError

KIND_OF = {"pictures": "images", "texts": "texts"}  # what backbones read, in the words of the API


@dataclass(frozen=True)
class Network:
    """A model and what it computes from items: float32 [n, ...], as its head consumes them.

    fingerprint: of the backbone; features of another one must not be mixed with its own
    """

    kind: str
    model: FewShotModel
    embed: Callable[[Sequence[Any]], np.ndarray]
    fingerprint: str

    @classmethod
    def of(cls, model: FewShotModel) -> "Network":
        """Return the network of a model, without a cache on disk: what a client sends is not kept."""
        reads = model.backbone.reads
        embedder: Any = TextEmbedder(model) if reads == "texts" else ImageEmbedder(model)
        embed = embedder.transform
        if reads == "pictures":
            prepare(model.backbone)  # now, not in the first requests
        if model.head.consumes != "features":  # maps or pixels, which embedders do not return

            def embed(items: Sequence[Any]) -> np.ndarray:
                return model.embed(items).numpy(force=True)

        return cls(KIND_OF[reads], model, embed, model.backbone.fingerprint())


def load_networks(settings: Settings) -> dict[str, Network]:
    """Return the networks for tasks, by kind."""
    wanted = {"images": settings.image_model, "texts": settings.text_model}
    networks = {}
    for kind, name in wanted.items():
        if name is None:
            continue
        model = resolve_model(name).to(torch_device(settings.device))
        network = Network.of(model)
        if network.kind != kind:
            raise UserError(f"Model {name!r} reads {model.backbone.reads}; serve another one for {kind}.")
        if model.head.consumes != "features":
            raise UserError(
                f"The head {model.head_name!r} of {name!r} does not consume features, which tasks are stored"
                " as; serve another model."
            )
        networks[kind] = network
    if not networks:
        raise UserError("No model is served; name one for images or for texts.")
    return networks


def load_file(file: str, device: str) -> tuple[FewShotClassifier, Network]:
    """Return a classifier to be served read-only, and its network."""
    classifier = FewShotClassifier.load(file).to(torch_device(device))
    if classifier.has_novelty:
        classifier.calibrate_novelty()  # now, not in the first request
    return classifier, Network.of(classifier.model)
