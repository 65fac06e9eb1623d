"""Writing a torch module as an ONNX file that is checked against it."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpldla import __version__
from gpldla.engines.onnx_tracing import PACKAGES, Axes, describe, trace
from gpldla.export.networks import Exportable
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, write_atomically

if TYPE_CHECKING:
    import onnx

FORMAT = 1
TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2  # the largest difference in probability between the graph and torch
PRODUCTS = {"Conv", "Gemm", "MatMul"}  # the operations that float16 makes faster
MIN_HALVED_VALUES = 256  # of a constant, from which on it is stored in float16


def write_graph(
    module: Exportable,
    inputs: dict[str, Tensor],
    axes: Axes,
    path: Path,
    facts: Mapping[str, Any],
    *,
    half: bool,
    longest: Mapping[str, int] | None = None,
) -> None:
    """Trace a module and write its graph, if the graph gives the same answers as the module.

    axes: names of the axes that have any length, by input; longest: the most of them, as in `trace`
    """
    _check_packages()
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it, such as {path / 'classifier.onnx'}.")
    check_writable(path.parent)
    with torch.no_grad():
        if not all(map(torch.equal, module(**inputs), module(**inputs))):
            raise UserError(
                f"{module.subject} gives other probabilities at each call; choose a deterministic predictive,"
                " such as 'quadrature'."
            )
    model = _traced(module, inputs, axes, longest)
    if half:
        _halve(model.graph)
    model.producer_version = __version__
    describe(model, axes, {"format": FORMAT, "version": __version__, **facts, "half": half})
    content = model.SerializeToString()
    _check_answers(content, module, inputs, half=half)
    write_atomically(path, content)


def _check_packages() -> None:
    try:
        for name in PACKAGES:
            import_module(name)
    except ImportError as error:
        raise UserError(
            f"ONNX export needs packages that are not installed ({error}); pip install 'gpldla[export]'."
        ) from None


def _traced(
    module: Exportable, inputs: dict[str, Tensor], axes: Axes, longest: Mapping[str, int] | None
) -> "onnx.ModelProto":
    try:
        return trace(module, inputs, axes, module.outputs, longest)
    except RuntimeError as error:
        raise UserError(
            f"{module.subject} needs operations or decisions that an ONNX graph cannot hold; choose another"
            " head or other options, such as gpldla with its defaults."
        ) from error


def _halve(graph: "onnx.GraphProto") -> None:
    """Compute products in float16, and store their factors and other large constants in float16.

    `x_half` replaces `x`. What is computed in float64 needs its precision and stays.
    """
    from onnx import TensorProto, helper, numpy_helper

    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    exact = {name for name, kind in kinds.items() if kind == TensorProto.DOUBLE}

    def is_halved(node: "onnx.NodeProto") -> bool:
        return node.op_type in PRODUCTS and exact.isdisjoint(node.output)

    multiplied = {name for node in graph.node if is_halved(node) for name in node.input}
    elsewhere = {name for node in graph.node if not is_halved(node) for name in node.input}
    halved: set[str] = set()
    nodes: list[onnx.NodeProto] = []
    for constant in graph.initializer:
        name, values = constant.name, numpy_helper.to_array(constant)
        if values.dtype == np.float32 and (name in multiplied or values.size >= MIN_HALVED_VALUES):
            with np.errstate(over="ignore"):  # overflow shows in the check of the probabilities
                constant.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
            halved.add(name)
            if name in elsewhere:
                nodes.append(helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT))
    for node in graph.node:
        if not is_halved(node):
            nodes.append(node)
            continue
        for index, name in enumerate(node.input):
            if name not in halved:
                nodes.append(helper.make_node("Cast", [name], [f"{name}_half"], to=TensorProto.FLOAT16))
                halved.add(name)
            node.input[index] = f"{name}_half"
        output = node.output[0]
        node.output[0] = f"{output}_product"
        nodes += [node, helper.make_node("Cast", [f"{output}_product"], [output], to=TensorProto.FLOAT)]
    del graph.node[:]
    graph.node.extend(nodes)


def _check_answers(content: bytes, module: Exportable, inputs: dict[str, Tensor], *, half: bool) -> None:
    """Compare the graph with the module, on fewer rows than it was traced with."""
    rows = {name: example[:2] for name, example in inputs.items()}
    session = import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    answers = session.run(None, {name: example.numpy() for name, example in rows.items()})
    with torch.no_grad():
        expected = [answer.numpy() for answer in module(**rows)]
    # Whether an answer is unsure follows, and may differ where the expected error is at the limit.
    pairs = [pair for pair in zip(answers, expected, strict=True) if pair[1].dtype != bool]
    difference = max(np.abs(own - right).max() for own, right in pairs)
    if not difference <= (HALF_TOLERANCE if half else TOLERANCE):  # NaN is refused, too
        remedy = "export it without half" if half else "choose another head, such as gpldla"
        raise UserError(f"The graph of {module.subject} is off by {difference:.2g} in probability; {remedy}.")
