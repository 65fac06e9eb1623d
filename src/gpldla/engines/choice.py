"""Which engine computes a network's features: ONNX Runtime on CPUs where it pays, else torch."""

import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from gpldla.backbones import Backbone
from gpldla.backbones.base import TokenBackbone
from gpldla.data.paths import DataPaths
from gpldla.engines.base import Engine
from gpldla.engines.network_graph import example_inputs, graph_file, make_graph
from gpldla.engines.onnx_engine import OnnxEngine, wanted_engine
from gpldla.engines.onnx_tracing import missing_packages
from gpldla.engines.torch_engine import TorchEngine
from gpldla.utils.errors import UserError
from gpldla.utils.files import write_atomically
from gpldla.utils.modules import device_of

TOLERANCE = 1e-4  # the largest difference between features of both engines, relative to the largest feature
PROBED = 3  # items that are compared and timed ...
PROBE_FROM = 32  # ... once the network has been asked for so many
# Seconds of torch's work from which on the other engine is worth its preparation: to load a graph takes about
# a quarter of a second, to make one several.
LOAD_FROM, MAKE_FROM = 0.5, 3.0
LARGEST = 1 << 30  # bytes of weights: a graph is one file of at most 2 GiB, and copied while it is made
MANY = 1_000_000_000  # items, for which everything pays


def engine_for(network: Backbone, items: int, *, say: Callable[[str], None] = lambda line: None) -> Engine:
    """Return the engine for so many pictures or texts; the choice is remembered until the network changes.

    GPLDLA_ENGINE=torch rules out the other engine; GPLDLA_ENGINE=onnxruntime prepares it for any number.
    """
    wanted, token = wanted_engine(), _token(network)
    if wanted == "torch" or token is None or device_of(network).type != "cpu":
        return TorchEngine(network)
    choice = _choices.get(network)
    if choice is None or choice.token != token:
        choice = _choices[network] = _Choice(token, _can_replace(network))
    choice.prepare(network, items, say, at_once=wanted == "onnxruntime")
    return choice.fast or TorchEngine(network)


def prepare(network: Backbone) -> bool:
    """Load the graph of a network, or make it, for however few items; return whether it can be used."""
    return engine_for(network, MANY).parallel


class _Choice:
    """What is known of the engines for one network, with its weights of one moment.

    fast: ONNX Runtime, once it has been prepared
    """

    def __init__(self, token: list[object], possible: bool) -> None:
        self.token = token
        self.fast: OnnxEngine | None = None
        self._possible = possible
        self._seconds: float | None = None  # of torch, per item
        self._seen = 0
        self._busy = threading.Lock()

    def prepare(self, network: Backbone, items: int, say: Callable[[str], None], *, at_once: bool) -> None:
        """Prepare the fast engine if that takes less time than it will save."""
        self._seen += items
        if not self._possible or self.fast is not None or not (at_once or self._seen >= PROBE_FROM):
            return
        # Another thread may be at it for seconds: this one then does its work with torch.
        if self._busy.acquire(blocking=False):
            try:
                self._prepare(network, items, say, at_once=at_once)
            finally:
                self._busy.release()

    def _prepare(self, network: Backbone, items: int, say: Callable[[str], None], *, at_once: bool) -> None:
        if self._seconds is not None and not at_once and self._seen * self._seconds < LOAD_FROM:
            return
        inputs = example_inputs(network, PROBED)
        expected, self._seconds = _timed(TorchEngine(network), inputs)
        if not at_once and self._seen * self._seconds < LOAD_FROM:
            return
        file = graph_file(network, DataPaths().cache)
        self.fast = _checked(_content(file), inputs, expected)
        if self.fast is not None or not (at_once or items * self._seconds >= MAKE_FROM):
            return
        self._possible = False  # one attempt
        if missing_packages():
            return
        say("Preparing the network for ONNX Runtime, once.")
        try:
            graph = make_graph(network)
        except Exception:  # torch raises all kinds for networks that it cannot trace
            return
        self.fast = _checked(graph, inputs, expected)
        if self.fast is not None:
            _keep(file, graph)


_choices: WeakKeyDictionary[Backbone, _Choice] = WeakKeyDictionary()


def _checked(graph: bytes | None, inputs: tuple[np.ndarray, ...], expected: np.ndarray) -> OnnxEngine | None:
    """Return an engine for a graph if it can be loaded and gives the features that torch gives."""
    if graph is None:
        return None
    try:
        engine = OnnxEngine(graph)
        features = engine.features(*inputs)
    except Exception:  # a damaged file, or an operation that this version does not know
        return None
    same = features.shape == expected.shape and features.dtype == expected.dtype
    return engine if same and _largest_difference(features, expected) <= TOLERANCE else None


def _can_replace(network: Backbone) -> bool:
    """Return whether it makes sense to try."""
    tensors = [*network.parameters(), *network.buffers()]
    return (
        (network.reads == "pictures" or isinstance(network, TokenBackbone))
        and network.traceable
        and 0 < sum(tensor.nbytes for tensor in tensors) <= LARGEST
        and all(tensor.dtype in (torch.float32, torch.int64) for tensor in tensors)
        and find_spec("onnxruntime") is not None
    )


def _token(network: Backbone) -> list[object] | None:
    """Return what changes when a network is changed; None if no graph may stand for it."""
    state: list[object] = [network.preprocessing]
    parts: list[nn.Module] = [network]  # not network.modules(), which takes longer than all the rest
    try:
        for part in parts:
            if part._forward_hooks or part._forward_pre_hooks:
                return None  # a graph would not call them
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None:
                    state += (tensor.data_ptr(), tensor._version)
            parts += [inner for inner in part._modules.values() if inner is not None]
    except RuntimeError:  # tensors made in inference mode do not count their changes
        return None
    return state


def _timed(engine: Engine, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, float]:
    """Return the features of inputs and the seconds per item; torch's first call takes a little longer."""
    started = time.perf_counter()
    features = engine.features(*inputs)
    return features, (time.perf_counter() - started) / len(features)


def _largest_difference(features: np.ndarray, expected: np.ndarray) -> float:
    """Return max |a − b| / max |b| over the rows; NaN where there is one."""
    scale = np.abs(expected).max(1)
    return float((np.abs(features - expected).max(1) / np.where(scale == 0, 1, scale)).max())


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _keep(file: Path, graph: bytes) -> None:
    try:
        write_atomically(file, graph)
    except (OSError, UserError):  # a read-only cache: the graph is made again by the next process
        return
