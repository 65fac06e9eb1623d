"""A FewShotClassifier as one safetensors file: data only, and enough to notice a network that has changed."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpldla import __version__
from gpldla.classifier.examples import Examples
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.labels import label_array
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.novelty import Novelty
from gpldla.classifier.task import AdaptedTask
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors, write_tensors

KIND, FORMAT = "gpldla classifier", 1
MODEL = "model."  # before the names of the model's own tensors
SUPPORT, LABELS = "support", "numbers"  # the names of the examples' rows and class indices in a file


def save_classifier(
    classifier: FewShotClassifier, file: Path, *, support: bool = True, names: bool = True
) -> None:
    """Write a classifier: class names, posterior, support examples, and the model.

    A network whose weights come with an installed package is named, with its fingerprint; the weights of any
    other are written. Without the support examples, "none of these" has to be calibrated now or never.
    """
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file, such as {file / 'classifier.safetensors'}.")
    model, task = classifier.model, classifier.task
    tensors = task.posterior.state()
    if not support and not tensors:
        raise UserError(f"The head {model.head_name!r} needs its support examples to answer; save them, too.")
    info: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "gpldla": __version__,
        "classes": _plain(classifier.classes.tolist()),
        "model": model.config(),
        "backbone_fingerprint": model.backbone.fingerprint(),
    }
    novelty = task.novelty
    if task.examples is not None and support:
        tensors |= {SUPPORT: task.examples.rows, LABELS: task.examples.labels}
        if names and task.examples.names is not None:
            info["items"] = list(task.examples.names)
    elif task.examples is not None and task.posterior.has_novelty:
        novelty = task.calibrate_novelty()
    if novelty is not None:
        info["novelty"] = [novelty.slope, novelty.offset]
    pretrained = model.backbone.pretrained
    tensors |= {
        MODEL + name: tensor
        for name, tensor in model.state_dict().items()
        if not (pretrained and name.startswith("backbone."))
    }
    try:
        info["checksum"] = _checksum(tensors, info)
    except TypeError as error:
        raise UserError(f"An option of the model cannot be written to {file} ({error}).") from None
    write_tensors(file, tensors, info)


def load_classifier(file: Path) -> FewShotClassifier:
    """Read a classifier, or say in a sentence why it cannot give the answers that it was saved with."""
    tensors, info = read_tensors(file)
    if not isinstance(info, dict) or info.get("kind") != KIND:
        raise UserError(f"{file} is not a classifier; make one with `gpldla fit`.")
    if info.get("format") != FORMAT:
        raise UserError(
            f"{file} has format {info.get('format')!r}, this version of gpldla reads {FORMAT}; update gpldla."
        )
    if _checksum(tensors, info) != info.get("checksum"):
        raise UserError(f"{file} is damaged: its checksum does not fit; get it anew, or fit it anew.")
    try:
        return _restore(tensors, info, file)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        raise UserError(f"{file} is not a whole classifier ({type(error).__name__}); fit it anew.") from None


def _restore(tensors: Mapping[str, Tensor], info: dict[str, Any], file: Path) -> FewShotClassifier:
    model = _restore_model(tensors, info, file)
    if not all(isinstance(name, (str, int, float)) for name in info["classes"]):
        raise TypeError("classes")
    if len(set(info["classes"])) < len(info["classes"]):
        raise ValueError("classes")
    classes = label_array(info["classes"])
    examples = _restore_examples(tensors, info)
    novelty = Novelty(*(float(value) for value in info["novelty"])) if "novelty" in info else None
    if novelty is not None and not (math.isfinite(novelty.slope) and math.isfinite(novelty.offset)):
        raise ValueError("novelty")
    backbone, temperature = model.adaptable_backbone(), model.temperature
    posterior = model.head.restore(tensors)
    if posterior is not None:
        posterior.fix_draws()
        task = AdaptedTask(
            model.head, posterior, len(classes), examples, None, backbone, temperature, novelty
        )
    elif examples is None:
        raise UserError(f"{file} has neither a posterior nor support examples; fit it anew.")
    else:
        task = AdaptedTask.adapt(
            model.head, examples, len(classes), backbone=backbone, temperature=temperature, novelty=novelty
        )
    _check_sizes(task, len(classes), model, file)
    return FewShotClassifier(model, classes, task)


def _restore_model(tensors: Mapping[str, Tensor], info: dict[str, Any], file: Path) -> FewShotModel:
    model = FewShotModel.from_config(info["model"], str(file))
    own = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    if model.backbone.pretrained:
        own |= {name: tensor for name, tensor in model.state_dict().items() if name.startswith("backbone.")}
    model.load_weights(own)
    if model.backbone.fingerprint() != info["backbone_fingerprint"]:
        raise UserError(
            f"{file} was made with another version of {model.backbone_name} than is installed, which would"
            " give wrong answers; install the version it was made with, or fit it anew."
        )
    return model


def _restore_examples(tensors: Mapping[str, Tensor], info: dict[str, Any]) -> Examples | None:
    rows, labels, names = tensors.get(SUPPORT), tensors.get(LABELS), info.get("items")
    if rows is None or labels is None:
        return None
    if names is not None and not (len(names) == len(rows) and all(isinstance(name, str) for name in names)):
        raise ValueError("items")
    return Examples(rows, labels, names=None if names is None else tuple(names))


def _check_sizes(task: AdaptedTask, n_classes: int, model: FewShotModel, file: Path) -> None:
    """Refuse a file whose parts do not belong together."""
    d, takes_features = model.backbone.feature_dim, model.head.consumes == "features"
    mean = task.posterior.state().get("posterior.weight_mean")
    fits = mean is None or mean.shape == (n_classes, d)
    if task.examples is not None:
        rows, labels = task.examples.rows, task.examples.labels
        fits = fits and len(rows) == len(labels) and int(labels.max()) < n_classes
        fits = fits and (not takes_features or rows.shape[1:] == (d,))
    if not fits:
        raise UserError(f"{file} is not a whole classifier: its parts are of different sizes; fit it anew.")


def _checksum(tensors: Mapping[str, Tensor], info: dict[str, Any]) -> str:
    """Return a digest of all that a file holds but the digest itself."""
    # Through JSON once, as a file has it: there every key is a text.
    facts = json.loads(json.dumps({name: value for name, value in info.items() if name != "checksum"}))
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(classes: list[Any]) -> list[Any]:
    """Return class names as JSON can hold them."""
    for name in classes:
        if not isinstance(name, (str, bool, int, float)) or (
            isinstance(name, float) and not math.isfinite(name)
        ):
            raise UserError(f"The class {name!r} is neither a string nor a number, which a file could hold.")
    return classes
