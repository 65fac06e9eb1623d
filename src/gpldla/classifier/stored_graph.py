"""Answers from the graph that a classifier's file may hold, without torch, which takes a second to import.

The graph is that of the whole classifier, from pixels to probabilities; `gpldla.export.stored_graph` makes
it, and ONNX Runtime runs it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from gpldla.classifier.file_format import FORMAT, FORMAT_WITH_OWN_PRIOR, KIND
from gpldla.data.pictures import ImageLike, picture_pixels
from gpldla.data.preprocessing import Preprocessing
from gpldla.engines.onnx_engine import INPUT, one_thread_session, wanted_engine
from gpldla.utils.checksums import CHECKSUM, checksum

GRAPH = "graph"  # name of the tensor with the graph, uint8, and of its facts in the header
PROBABILITIES, SCORE = "probabilities", "score"  # outputs: float32 [n, C] and, of some heads, [n]
# The calibration of "none of these", by its score. To earlier versions, which know the first key only, a file
# with the second has no calibration yet.
OF_COSINE, OF_FIT = "novelty", "novelty_of_fit"


@dataclass(frozen=True)
class StoredGraph:
    """A classifier of pictures that can answer, and nothing else.

    novelty: slope and offset of the log odds of "none of these", or None if the head cannot tell
    """

    classes: np.ndarray
    preprocessing: Preprocessing
    novelty: tuple[float, float] | None
    session: Any

    def predict(
        self, pictures: Sequence[ImageLike], prevalence: float
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the probabilities [n, C] of pictures, and those of "none of these" [n], or None."""
        proba, none = [], []
        for picture in pictures:
            pixels = picture_pixels(picture, self.preprocessing)[None]
            answers = self.session.run(None, {INPUT: pixels})
            proba.append(answers[0])
            if self.novelty is not None:
                slope, offset = self.novelty
                odds = np.log(prevalence) - np.log1p(-prevalence)
                none.append(1 / (1 + np.exp(slope * answers[1].astype(float) - offset - odds)))
        return np.concatenate(proba), np.concatenate(none) if none else None


def read_stored_graph(file: Path) -> StoredGraph | None:
    """Return the graph in a file; None where there is none or it cannot be used.

    Whatever is wrong with the file, `load_classifier` says it: this only looks whether there is a faster way.
    """
    if wanted_engine() == "torch" or find_spec("onnxruntime") is None:
        return None
    try:
        with safe_open(file, "np") as opened:
            info = json.loads((opened.metadata() or {}).get("info", "{}"))
            known = info.get("kind") == KIND and info.get("format") in (FORMAT, FORMAT_WITH_OWN_PRIOR)
            if not known or GRAPH not in info:
                return None
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        return _restored(tensors, info)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _restored(tensors: dict[str, np.ndarray], info: dict[str, Any]) -> StoredGraph | None:
    parts = [
        (name, f"torch.{tensor.dtype}", list(tensor.shape), tensor.reshape(-1).view(np.uint8).data)
        for name, tensor in tensors.items()
    ]
    if checksum(parts, info) != info[CHECKSUM]:
        return None
    facts = info["model"]["preprocessing"]
    preprocessing = Preprocessing(**{**facts, "mean": tuple(facts["mean"]), "std": tuple(facts["std"])})
    novelty = info.get(OF_FIT, info.get(OF_COSINE)) if info[GRAPH][SCORE] else None
    classes = np.empty(len(info["classes"]), object)
    classes[:] = info["classes"]
    try:
        session = one_thread_session(tensors[GRAPH].tobytes())
    except Exception:  # an operation that this version of ONNX Runtime does not know
        return None
    return StoredGraph(classes, preprocessing, novelty and (novelty[0], novelty[1]), session)
