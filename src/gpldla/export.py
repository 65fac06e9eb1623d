"""ONNX files that give this package's probabilities without it, in any ONNX runtime.

`export_classifier` and `export_feature_classifier` write a classifier adapted to a task, from pictures or
from features to probabilities. `export_adaptable` writes the method itself: one file that takes the labelled
examples of any task and answers for its queries.

Nothing is computed a second way here: torch traces what networks, heads and posteriors do. The facts about a
file stand in its metadata, each as JSON: format, version, kind, temperature, half, and of classifiers also
classes and preprocessing.
"""

import copy
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import gpldla
from gpldla.backbones import Backbone
from gpldla.classifier.calibration import apply_temperature
from gpldla.data.augment.transforms import centre_crop, resized_images, standardise_
from gpldla.data.decoding import mode_of
from gpldla.data.preprocessing import Preprocessing
from gpldla.heads import Head, Posterior
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, write_atomically

if TYPE_CHECKING:
    import onnx

FORMAT = 1
OPSET, IR_VERSION = 18, 8  # of ONNX 1.13, which runtimes since 2023 read
TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2  # in probability, of a graph against torch
PRODUCTS = {"Conv", "Gemm", "MatMul"}  # the operations that float16 makes faster
WORTH_HALVING = 256  # values of a constant

Axes = Mapping[str, Mapping[int, str]]
"""Names of the axes that have any length, by input or output and number."""


def export_classifier(
    posterior: Posterior,
    classes: Sequence[Any],
    path: str | Path,
    *,
    backbone: Backbone,
    preprocessing: Preprocessing,
    temperature: float = 1.0,
    half: bool = False,
) -> None:
    """Write a classifier of pictures.

    Input `images`: uint8 [n, side, side, channels], pixels in grey or RGB of pictures that are resized to
    side = preprocessing.resized by Pillow's filter of the name preprocessing.interpolation. The graph crops
    and standardises them, so that nobody else has to. Output `probabilities`: float32 [n, C] in the order of
    `classes`, with the temperature applied. n is any number from 1.

    posterior: of one task, on features of `backbone`; with predictive="mc" the file keeps the draws it made
    half: weights and products (convolutions, matrices) in float16, in half the space. Inputs and outputs stay
          as they are, and so does what lies between products: the predictive needs the range of float32.
    """
    side, channels = preprocessing.resized, preprocessing.channels
    network = copy.deepcopy(backbone).cpu().float().requires_grad_(False)
    module = _OnPictures(network, preprocessing, _Answers(posterior, temperature)).eval()
    pixels = (255 * torch.rand(3, side, side, channels, generator=_generator())).byte()
    facts = {
        "kind": "image classifier",
        "classes": _plain_classes(classes, module, pixels),
        "preprocessing": {**preprocessing.as_json(), "resized": side, "mode": mode_of(channels)},
        "temperature": temperature,
    }
    axes = {"images": {0: "n"}, "probabilities": {0: "n"}}
    _export(module, {"images": pixels}, axes, Path(path), facts, half=half)


def export_feature_classifier(
    posterior: Posterior,
    classes: Sequence[Any],
    path: str | Path,
    *,
    feature_dim: int,
    temperature: float = 1.0,
    half: bool = False,
) -> None:
    """Write a classifier of features, for texts and for those who make features of their own.

    Input `features`: float32 [n, feature_dim], as the head got them. The rest is as in `export_classifier`.
    """
    module = _Answers(posterior, temperature).eval()
    features = torch.randn(3, feature_dim, generator=_generator())
    facts = {
        "kind": "feature classifier",
        "classes": _plain_classes(classes, module, features),
        "temperature": temperature,
    }
    axes = {"features": {0: "n"}, "probabilities": {0: "n"}}
    _export(module, {"features": features}, axes, Path(path), facts, half=half)


def export_adaptable(
    head: Head, feature_dim: int | None, path: str | Path, *, temperature: float = 1.0, half: bool = False
) -> None:
    """Write a method that adapts to any task inside the graph, in one call.

    Inputs `support` float32 [n, d], `labels` int64 [n] in 0..C−1 and `query` float32 [q, d], features as the
    head gets them. Output `probabilities` float32 [q, C], where C is the largest label plus one; a class
    without examples has probability 0. n, q and C are any numbers, and so is d if feature_dim is None.

    half: as in `export_classifier`; a head that does not scale features to unit length must not meet any
          beyond ±255, whose squares are too large for float16
    """
    if head.consumes != "features":
        raise UserError(
            f"{type(head).__name__} does not adapt to plain features, so it cannot be exported; choose a head"
            " that does, such as gpldla."
        )
    module = _Adapting(copy.deepcopy(head).cpu().requires_grad_(False), temperature).eval()
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
    _export(module, inputs, axes, Path(path), facts, half=half)


class _Answers(nn.Module):
    """An adapted posterior as a module: features [n, d] → probabilities [n, C]."""

    def __init__(self, posterior: Posterior, temperature: float) -> None:
        super().__init__()
        self.subject = type(posterior).__name__
        self.posterior = _as_constant(posterior)
        self.temperature = _positive(temperature)

    def forward(self, features: Tensor) -> Tensor:
        return apply_temperature(self.posterior.log_prob(features), self.temperature).exp()


class _OnPictures(nn.Module):
    """A network before a posterior: pixels uint8 [n, side, side, channels] → probabilities [n, C]."""

    def __init__(self, backbone: Backbone, preprocessing: Preprocessing, answers: _Answers) -> None:
        super().__init__()
        self.subject = answers.subject
        self.backbone, self.preprocessing, self.answers = backbone, preprocessing, answers

    def forward(self, images: Tensor) -> Tensor:
        resized = resized_images(images.permute(0, 3, 1, 2), self.preprocessing)
        # A copy, as standardising part of an image in place takes a graph long.
        cropped = centre_crop(resized, self.preprocessing).clone()
        return self.answers(self.backbone.features(standardise_(cropped, self.preprocessing)).float())


class _Adapting(nn.Module):
    """A head as a module: support [n, d], labels [n], query [q, d] → probabilities [q, C]."""

    def __init__(self, head: Head, temperature: float) -> None:
        super().__init__()
        self.subject = type(head).__name__
        self.head, self.temperature = head, _positive(temperature)

    def forward(self, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
        n_way = labels.max().item() + 1  # in a graph a number nobody knows yet ...
        torch._check(n_way >= 2)  # ... but this much
        posterior = self.head.adapt(support, labels, n_way)  # type: ignore[arg-type]
        return apply_temperature(posterior.log_prob(query), self.temperature).exp()


_Exportable = _Answers | _OnPictures | _Adapting


def _as_constant(posterior: Posterior) -> Posterior:
    """Return a posterior whose tensors, wherever in it, are in float32 on the CPU: constants of the graph."""

    def constant(tensor: Tensor) -> Tensor:
        tensor = tensor.detach().cpu()
        return tensor.float() if tensor.is_floating_point() else tensor

    constants = posterior.map_tensors(constant)
    constants.fix_draws()
    return constants


def _positive(temperature: float) -> float:
    if not 0 < temperature < math.inf:
        raise UserError(f"The temperature must be a positive number, not {temperature!r}.")
    return temperature


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)  # for the examples that are traced


def _plain_classes(classes: Sequence[Any], module: _Answers | _OnPictures, example: Tensor) -> list[Any]:
    """Return the class names as JSON has them, one for each answer that `module` gives for the example."""
    try:
        with torch.no_grad():
            answers = module(example)
    except RuntimeError as error:
        raise UserError(
            f"{module.subject} does not answer for features such as these, so it cannot be exported; choose a"
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
        raise UserError(f"Class names must be texts or numbers to stand in a file ({error}).") from None
    return plain


def _export(
    module: _Exportable,
    inputs: dict[str, Tensor],
    axes: Axes,
    path: Path,
    facts: Mapping[str, Any],
    *,
    half: bool,
) -> None:
    """Write the graph of a module, if its answers are right."""
    _check_packages()
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it, such as {path / 'classifier.onnx'}.")
    check_writable(path.parent)
    with torch.no_grad():
        if not torch.equal(module(**inputs), module(**inputs)):
            raise UserError(
                f"{module.subject} answers at random; choose a predictive that does not, as 'quadrature'."
            )
    model = _graph(module, inputs, axes)
    if half:
        _halve(model.graph)
    _describe(model, axes, {"format": FORMAT, "version": gpldla.__version__, **facts, "half": half})
    content = model.SerializeToString()
    _check_answers(content, module, inputs, half=half)
    write_atomically(path, content)


def _check_packages() -> None:
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):  # the last is for torch's exporter
            import_module(name)
    except ImportError as error:
        raise UserError(
            f"ONNX export needs packages that are not installed ({error}); pip install 'gpldla[export]'."
        ) from None


def _graph(module: _Exportable, inputs: dict[str, Tensor], axes: Axes) -> "onnx.ModelProto":
    """Trace a module to an ONNX graph, in which `axes` have any length."""
    lengths = {name: {axis: torch.export.Dim(label) for axis, label in axes[name].items()} for name in inputs}
    try:
        # Where gradients may be wanted heads do not split batches by their size, which a graph cannot.
        with _quiet(), torch.enable_grad():
            # Traced before torch.onnx does it, which would silently fix the lengths that must not be free.
            program = torch.export.export(module, (), inputs, dynamic_shapes=lengths, strict=False)
            exported = torch.onnx.export(
                program,
                input_names=list(inputs),
                output_names=["probabilities"],
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
                custom_translation_table={torch.ops.aten.logaddexp.default: _logaddexp},
            )
    except RuntimeError as error:
        raise UserError(
            f"{module.subject} needs operations or decisions that an ONNX graph cannot hold; choose another"
            " head or other options, such as gpldla with its defaults."
        ) from error
    assert exported is not None  # as no path was given
    return exported.model_proto


def _logaddexp(a: Any, b: Any) -> Any:
    """Return log(eᵃ + eᵇ) as ONNX operations; the exporter's own overflow where a or b exceeds 88."""
    from onnxscript import opset18 as op

    larger = op.Max(a, b)
    rest = op.Log(op.Add(op.Exp(op.Neg(op.Abs(op.Sub(a, b)))), op.CastLike(op.Constant(value_float=1.0), a)))
    return op.Where(op.IsInf(larger), larger, op.Add(larger, rest))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter prints, logs and warns about from the user; what it raises passes."""
    disabled = logging.root.manager.disable
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


def _halve(graph: "onnx.GraphProto") -> None:
    """Take products in float16, and store what they multiply and other large constants so.

    `x_half` is what stands for `x`.
    """
    from onnx import TensorProto, helper, numpy_helper

    multiplied = {name for node in graph.node if node.op_type in PRODUCTS for name in node.input}
    elsewhere = {name for node in graph.node if node.op_type not in PRODUCTS for name in node.input}
    halved: set[str] = set()
    nodes: list[onnx.NodeProto] = []
    for constant in graph.initializer:
        name, values = constant.name, numpy_helper.to_array(constant)
        if values.dtype == np.float32 and (name in multiplied or values.size >= WORTH_HALVING):
            with np.errstate(over="ignore"):  # what is too large shows in the answers
                constant.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
            halved.add(name)
            if name in elsewhere:
                nodes.append(helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT))
    for node in graph.node:
        if node.op_type not in PRODUCTS:
            nodes.append(node)
            continue
        for place, name in enumerate(node.input):
            if name not in halved:
                nodes.append(helper.make_node("Cast", [name], [f"{name}_half"], to=TensorProto.FLOAT16))
                halved.add(name)
            node.input[place] = f"{name}_half"
        answer = node.output[0]
        node.output[0] = f"{answer}_product"
        nodes += [node, helper.make_node("Cast", [f"{answer}_product"], [answer], to=TensorProto.FLOAT)]
    del graph.node[:]
    graph.node.extend(nodes)


def _describe(model: "onnx.ModelProto", axes: Axes, facts: Mapping[str, Any]) -> None:
    """Name the axes, note the facts, and take out the notes of the exporter, which tell of this machine."""
    from onnx import helper

    graph = model.graph
    for value in [*graph.input, *graph.output]:
        for axis, label in axes[value.name].items():
            value.type.tensor_type.shape.dim[axis].dim_param = label
    for part in [graph, *graph.node, *graph.input, *graph.output, *graph.initializer]:
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]  # runtimes infer it
    graph.name, model.producer_name, model.producer_version = "gpldla", "gpldla", gpldla.__version__
    model.ir_version = IR_VERSION
    helper.set_model_props(model, {name: json.dumps(fact) for name, fact in facts.items()})


def _check_answers(content: bytes, module: _Exportable, inputs: dict[str, Tensor], *, half: bool) -> None:
    """Compare the graph with torch, on fewer rows than it was traced with."""
    rows = {name: example[:2] for name, example in inputs.items()}
    session = import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    answers = session.run(None, {name: example.numpy() for name, example in rows.items()})[0]
    with torch.no_grad():
        difference = np.abs(answers - module(**rows).numpy()).max()
    if not difference <= (HALF_TOLERANCE if half else TOLERANCE):  # not a number is wrong, too
        remedy = "export it without half" if half else "choose another head, such as gpldla"
        raise UserError(f"The graph of {module.subject} is off by {difference:.2g} in probability; {remedy}.")
