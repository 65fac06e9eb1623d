"""ONNX Runtime as an engine. Nothing here needs torch, which takes a second to import."""

import os
from typing import Any

import numpy as np

from gpldla.utils.errors import UserError

INPUT, OUTPUT = "pixels", "features"
VARIABLE, CHOICES = "GPLDLA_ENGINE", ("auto", "onnxruntime", "torch")


def wanted_engine() -> str:
    """Return what the user wants: "auto", "onnxruntime" or "torch"."""
    chosen = os.environ.get(VARIABLE, "").strip() or "auto"
    if chosen not in CHOICES:
        raise UserError(f"{VARIABLE} must be {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, not {chosen!r}.")
    return chosen


def one_thread_session(graph: bytes) -> Any:
    """Return a session of ONNX Runtime that computes in the thread of its caller."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors, which are raised as well
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class OnnxEngine:
    """Runs a graph from pixels or tokens to features, one thread per call.

    Threads are those of the caller: several batches at once are faster than several threads for one batch, do
    not wait for each other when another program wants a core, and survive a fork.
    """

    parallel = True

    def __init__(self, graph: bytes) -> None:
        self._session = one_thread_session(graph)
        self._names = [each.name for each in self._session.get_inputs()]

    def features(self, *inputs: np.ndarray) -> np.ndarray:
        """Return float32 [n, feature_dim], see `Engine`."""
        features: np.ndarray
        (features,) = self._session.run([OUTPUT], dict(zip(self._names, inputs)))
        return features
