"""From a torch module to an ONNX graph."""

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 18, 8  # of ONNX 1.13, which runtimes since 2023 read
PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # torch's exporter needs the last one

Axes = Mapping[str, Mapping[int, str]]
"""Names of the axes that have any length, by input or output and index."""


def missing_packages() -> list[str]:
    """Return those packages that tracing needs and that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def trace(
    module: nn.Module,
    inputs: dict[str, Tensor],
    axes: Axes,
    outputs: Sequence[str],
    longest: Mapping[str, int] | None = None,
) -> "onnx.ModelProto":
    """Trace a module to an ONNX graph in which `axes` have any length; raises what torch raises.

    longest: the most that an axis of this name can have, where the module has a limit
    """
    longest = longest or {}
    lengths = {
        name: {axis: torch.export.Dim(label, max=longest.get(label)) for axis, label in axes[name].items()}
        for name in inputs
    }
    # With gradients enabled heads do not split batches by their size, which a graph cannot do.
    with _quiet(), torch.enable_grad():
        # Traced here, as torch.onnx would silently fix lengths that cannot be free.
        program = torch.export.export(module, (), inputs, dynamic_shapes=lengths, strict=False)
        exported = torch.onnx.export(
            program,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            custom_translation_table={torch.ops.aten.logaddexp.default: _logaddexp},
        )
    assert exported is not None  # as no path was given
    return exported.model_proto


def describe(model: "onnx.ModelProto", axes: Axes, facts: Mapping[str, Any]) -> None:
    """Name the axes, store the facts, and remove the exporter's metadata, which has local paths."""
    from onnx import helper

    graph = model.graph
    for value in [*graph.input, *graph.output]:
        for axis, label in axes[value.name].items():
            value.type.tensor_type.shape.dim[axis].dim_param = label
    for part in [graph, *graph.node, *graph.input, *graph.output, *graph.initializer]:
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]  # runtimes infer it
    graph.name, model.producer_name = "gpldla", "gpldla"
    model.ir_version = IR_VERSION
    helper.set_model_props(model, {name: json.dumps(fact) for name, fact in facts.items()})


def _logaddexp(a: Any, b: Any) -> Any:
    """Return log(eᵃ + eᵇ) as ONNX operations; the exporter's version overflows where a or b exceeds 88."""
    from onnxscript import opset18 as op

    larger = op.Max(a, b)
    rest = op.Log(op.Add(op.Exp(op.Neg(op.Abs(op.Sub(a, b)))), op.CastLike(op.Constant(value_float=1.0), a)))
    return op.Where(op.IsInf(larger), larger, op.Add(larger, rest))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what the exporter prints, logs and warns about; its errors are raised."""
    disabled = logging.root.manager.disable
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
