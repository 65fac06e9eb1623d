"""A FewShotClassifier as one safetensors file: data only, with checksums that reveal a changed network."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpldla import __version__
from gpldla.backbones import Backbone
from gpldla.classifier.class_names import ClassNames
from gpldla.classifier.examples import Examples
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.file_format import FORMAT, FORMAT_WITH_OWN_PRIOR, KIND
from gpldla.classifier.labels import label_array
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.novelty import Novelty
from gpldla.classifier.own_prior import OwnPrior, own_prior_head
from gpldla.classifier.stored_graph import GRAPH, OF_COSINE, OF_FIT, SCORE
from gpldla.classifier.task import AdaptedTask
from gpldla.heads.base import KnownClasses
from gpldla.utils.checksums import CHECKSUM
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors, require_finite, write_tensors

MODEL = "model."  # prefix of the names of the model's own tensors
NOVELTY = "novelty."  # prefix of what "none of these" compares rows with
NAME_ROWS, NAME_SCALE = "class_names", "name_scale"  # the embeddings of names [C, d], and their scale
SUPPORT, LABELS = "support", "numbers"  # names of the rows and class indices of the examples in a file
UNLABELLED, LABELLED_ONLY = "unlabelled", "labelled_only."  # name of the rows; prefix of that posterior
OWN_PRIOR, OWN_SHARE = "own_prior.", "own_prior_share"  # prefix of the posterior; key of its share


def save_classifier(
    classifier: FewShotClassifier,
    file: Path,
    *,
    support: bool = True,
    names: bool = True,
    graph: bytes | None = None,
) -> None:
    """Write a classifier: class names, posterior, support examples, and the model.

    Weights that come with an installed package are not written, only the network's name and fingerprint.
    Without the support examples "none of these" is calibrated first, as it cannot be done after loading.

    graph: the classifier as an ONNX graph, from which `gpldla predict` answers sooner
    """
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file, such as {file / 'classifier.safetensors'}.")
    model, task, class_names = classifier.model, classifier.task, classifier.class_names
    tensors = task.posterior.state()
    if not support and not tensors:
        raise UserError(
            f"The head {model.head_name!r} cannot predict without support examples; save them, too."
        )
    info: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT if task.own_prior is None and class_names is None else FORMAT_WITH_OWN_PRIOR,
        "gpldla": __version__,
        "classes": _savable_classes(classifier.classes.tolist()),
        "model": model.config(),
        "backbone_fingerprint": model.backbone.fingerprint(),
    }
    if task.labelled_only is not None:
        tensors |= {LABELLED_ONLY + name: tensor for name, tensor in task.labelled_only.state().items()}
    if task.own_prior is not None:
        tensors |= {OWN_PRIOR + name: tensor for name, tensor in task.own_prior.posterior.state().items()}
        info[OWN_SHARE] = task.own_prior.share
    if class_names is not None:
        tensors[NAME_ROWS] = class_names.head(model, classifier.classes).prior_mean
        info[NAME_SCALE] = class_names.scale
    if task.temperature != model.temperature:
        info["temperature"] = task.temperature
    novelty = task.novelty
    if task.examples is not None and support:
        tensors |= {SUPPORT: task.examples.rows, LABELS: task.examples.labels}
        if task.unlabelled is not None:
            tensors[UNLABELLED] = task.unlabelled
        if names and task.examples.names is not None:
            info["items"] = list(task.examples.names)
    elif task.examples is not None and task.posterior.has_novelty:
        novelty = task.calibrate_novelty()
    if graph is not None and task.posterior.has_novelty:
        novelty = task.calibrate_novelty()  # which the graph cannot
    if novelty is not None and novelty.classes is None:
        info[OF_COSINE] = [novelty.slope, novelty.offset]
    elif novelty is not None and novelty.classes is not None:
        info[OF_FIT] = [novelty.slope, novelty.offset]
        tensors |= {NOVELTY + name: tensor for name, tensor in novelty.classes._asdict().items()}
    tensors |= {
        MODEL + name: tensor
        for name, tensor in model.state_dict().items()
        if model.has_own_network or not name.startswith("backbone.")
    }
    if graph is not None:
        tensors[GRAPH] = torch.frombuffer(bytearray(graph), dtype=torch.uint8)
        info[GRAPH] = {SCORE: task.posterior.has_novelty}
    try:
        write_tensors(file, tensors, info)
    except TypeError as error:
        raise UserError(f"An option of the model cannot be written to {file} ({error}).") from None


def load_classifier(file: Path, *, backbone: str | Backbone | None = None) -> FewShotClassifier:
    """Read a classifier; raise a `UserError` if it could not reproduce the answers of the saved one.

    backbone: where its network is now, if it has moved or was given as an object; the fingerprint must fit
    """
    tensors, info = read_tensors(file)
    if not isinstance(info, dict) or info.get("kind") != KIND:
        raise UserError(f"{file} is not a classifier; make one with `gpldla fit`.")
    if info.get("format") not in (FORMAT, FORMAT_WITH_OWN_PRIOR):
        raise UserError(
            f"{file} has format {info.get('format')!r}, this version of gpldla reads {FORMAT} and"
            f" {FORMAT_WITH_OWN_PRIOR}; update gpldla."
        )
    if CHECKSUM not in info:
        raise UserError(f"{file} is damaged: it has no checksum; copy it again, or fit it again.")
    require_finite(file, tensors)
    try:
        return _restore(tensors, info, file, backbone)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        raise UserError(f"{file} is an incomplete file ({type(error).__name__}); fit it again.") from None


def _restore(
    tensors: Mapping[str, Tensor], info: dict[str, Any], file: Path, backbone_now: str | Backbone | None
) -> FewShotClassifier:
    model = _restore_model(tensors, info, file, backbone_now)
    if not all(isinstance(name, (str, int, float)) for name in info["classes"]):
        raise TypeError("classes")
    if len(set(info["classes"])) < len(info["classes"]):
        raise ValueError("classes")
    classes = label_array(info["classes"])
    examples = _restore_examples(tensors, info)
    novelty = _restore_novelty(tensors, info, (len(classes), model.backbone.feature_dim))
    backbone, temperature = model.adaptable_backbone(), _temperature(info, model)
    names = _restore_class_names(tensors, info, len(classes))
    head = model.head if names is None else names.head(model, classes)
    posterior, unlabelled = head.restore(tensors), tensors.get(UNLABELLED)
    if posterior is not None:
        posterior.fix_draws()
        task = AdaptedTask(
            head,
            posterior,
            len(classes),
            examples,
            backbone=backbone,
            temperature=temperature,
            novelty=novelty,
            unlabelled=unlabelled,
            labelled_only=head.restore(_with_prefix(tensors, LABELLED_ONLY)),
        )
    elif examples is None:
        raise UserError(f"{file} has neither a posterior nor support examples; fit it again.")
    else:
        task = AdaptedTask.adapt(
            head,
            examples,
            len(classes),
            backbone=backbone,
            temperature=temperature,
            novelty=novelty,
            unlabelled=unlabelled,
        )
    task = replace(task, own_prior=_restore_own_prior(tensors, info))
    _check_sizes(task, len(classes), model, file)
    return FewShotClassifier(model, classes, task, names)


def _restore_class_names(
    tensors: Mapping[str, Tensor], info: dict[str, Any], count: int
) -> ClassNames | None:
    if NAME_ROWS not in tensors:
        return None
    rows, scale = tensors[NAME_ROWS], info[NAME_SCALE]
    if rows.ndim != 2 or len(rows) != count or not rows.is_floating_point():
        raise ValueError(NAME_ROWS)
    return ClassNames.of_rows(rows, scale if scale == "auto" else float(scale), info["classes"])


def _restore_own_prior(tensors: Mapping[str, Tensor], info: dict[str, Any]) -> OwnPrior | None:
    if OWN_SHARE not in info:
        return None
    share, state = float(info[OWN_SHARE]), _with_prefix(tensors, OWN_PRIOR)
    posterior = own_prior_head().restore(state)
    if posterior is None or not 0 < share < 1:
        raise ValueError(OWN_PRIOR)
    return OwnPrior(posterior, share)


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it."""
    return {n.removeprefix(prefix): tensor for n, tensor in tensors.items() if n.startswith(prefix)}


def _restore_model(
    tensors: Mapping[str, Tensor], info: dict[str, Any], file: Path, backbone: str | Backbone | None
) -> FewShotModel:
    model = FewShotModel.from_config(info["model"], str(file), backbone=backbone)
    model.load_weights(_with_prefix(tensors, MODEL))
    if model.backbone.fingerprint() != info["backbone_fingerprint"]:
        raise UserError(
            f"{file} was made with another version of {model.backbone_name} than is installed, which would"
            " give wrong answers; install the version it was made with, or fit it again."
        )
    return model


def _restore_examples(tensors: Mapping[str, Tensor], info: dict[str, Any]) -> Examples | None:
    rows, labels, names = tensors.get(SUPPORT), tensors.get(LABELS), info.get("items")
    if rows is None or labels is None:
        return None
    if names is not None and not (len(names) == len(rows) and all(isinstance(name, str) for name in names)):
        raise ValueError("items")
    if labels.dtype != torch.int64 or labels.ndim != 1 or int(labels.min()) < 0:
        raise ValueError(LABELS)
    if not rows.is_floating_point():
        raise TypeError(SUPPORT)
    return Examples(rows, labels, names=None if names is None else tuple(names))


def _restore_novelty(
    tensors: Mapping[str, Tensor], info: dict[str, Any], shape: tuple[int, int]
) -> Novelty | None:
    """Return the calibration of "none of these"; shape: of the class means [C, d]."""
    key = OF_FIT if OF_FIT in info else OF_COSINE
    if key not in info:
        return None
    slope, offset = (float(value) for value in info[key])
    if not (math.isfinite(slope) and math.isfinite(offset)):
        raise ValueError(key)
    if key == OF_COSINE:
        return Novelty(slope, offset)
    classes = KnownClasses(*(tensors[NOVELTY + name] for name in KnownClasses._fields))
    if classes.means.shape != shape or classes.shrink.shape != shape[:1] or classes.spread.ndim:
        raise ValueError(NOVELTY)
    return Novelty(slope, offset, classes)


def _temperature(info: dict[str, Any], model: FewShotModel) -> float:
    temperature = float(info.get("temperature", model.temperature))
    if not 0 < temperature < math.inf:
        raise ValueError("temperature")
    return temperature


def _check_sizes(task: AdaptedTask, n_classes: int, model: FewShotModel, file: Path) -> None:
    """Refuse a file whose parts do not belong together."""
    d, takes_features = model.backbone.feature_dim, model.head.consumes == "features"
    posteriors = [task.posterior, *([] if task.own_prior is None else [task.own_prior.posterior])]
    shapes = {"posterior.weight_mean": (n_classes, d), "scale.log_pi": (n_classes,), "scale.spread": ()}
    states = [posterior.state() for posterior in posteriors]
    fits = all(state[n].shape == shape for state in states for n, shape in shapes.items() if n in state)
    if task.examples is not None:
        rows, labels = task.examples.rows, task.examples.labels
        fits = fits and len(rows) == len(labels) and int(labels.max()) < n_classes
        fits = fits and (not takes_features or rows.shape[1:] == (d,))
    fits = fits and (task.unlabelled is None or task.unlabelled.shape[1:] == (d,))
    if not fits:
        raise UserError(f"{file} is an incomplete file: its parts differ in size; fit it again.")


def _savable_classes(classes: list[Any]) -> list[Any]:
    """Return class names; refuse those that JSON cannot hold."""
    for name in classes:
        if not isinstance(name, (str, bool, int, float)) or (
            isinstance(name, float) and not math.isfinite(name)
        ):
            raise UserError(
                f"The class {name!r} is neither a string nor a finite number, so it cannot be saved;"
                " use other labels."
            )
    return classes
