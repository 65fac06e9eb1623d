"""A FewShotClassifier as one safetensors file: data only, and enough to notice a network that has changed."""

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpldla import __version__
from gpldla.classifier.model import FewShotClassifier, FewShotModel, label_array
from gpldla.classifier.novelty import Novelty
from gpldla.heads import Posterior
from gpldla.heads.gp.linear_gp import LinearGP, LinearGPPosterior
from gpldla.heads.gp.task_space import TaskSpace
from gpldla.heads.gpldla_auto import GPLDLAAuto, TaskPosterior
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors, write_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND, FORMAT = "gpldla classifier", 1
MODEL = "model."  # before the names of the model's own tensors
LINEAR = ("weight_mean", "bias_mean", "weight_var", "bias_var", "sigma2")
SPACE = ("center", "directions", "shrink")


def save_classifier(classifier: FewShotClassifier, file: Path, *, support: bool = True) -> None:
    """Write a classifier: class names, posterior, support examples, and the model.

    A network whose weights come with an installed package is named, with its fingerprint; the weights of any
    other are written.
    """
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file, such as {file / 'classifier.safetensors'}.")
    model = classifier.model
    tensors = _posterior_tensors(classifier.posterior)
    if support:
        if classifier.support is not None:
            tensors |= {"support": classifier.support, "numbers": classifier.numbers}
    elif not tensors:
        raise UserError(f"The head {model.head_name!r} needs its support examples to answer; save them, too.")
    pretrained = model.backbone.pretrained
    tensors |= {
        MODEL + name: tensor
        for name, tensor in model.state_dict().items()
        if not (pretrained and name.startswith("backbone."))
    }
    info = {
        "kind": KIND,
        "format": FORMAT,
        "gpldla": __version__,
        "classes": _plain(classifier.classes.tolist()),
        "model": model.config(),
        "backbone_fingerprint": model.backbone.fingerprint(),
    }
    if isinstance(classifier.posterior, TaskPosterior) and (classifier.support is not None):
        novelty = classifier.novelty()
        info["novelty"] = [novelty.slope, novelty.offset]
    elif classifier.cached_novelty is not None:
        info["novelty"] = [classifier.cached_novelty.slope, classifier.cached_novelty.offset]
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


def _restore(tensors: "Mapping[str, Tensor]", info: dict[str, Any], file: Path) -> FewShotClassifier:
    config = info["model"]
    model = FewShotModel.from_config(config, str(file))
    own = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    if model.backbone.pretrained:
        own |= {name: tensor for name, tensor in model.state_dict().items() if name.startswith("backbone.")}
    model.load_weights(own)
    if model.backbone.fingerprint() != info["backbone_fingerprint"]:
        raise UserError(
            f"{file} was made with another version of {model.backbone_name} than is installed, which would"
            " give wrong answers; install the version it was made with, or fit it anew."
        )
    model.eval()
    if not all(isinstance(name, (str, int, float)) for name in info["classes"]):
        raise TypeError("classes")
    if len(set(info["classes"])) < len(info["classes"]):
        raise ValueError("classes")
    classes = label_array(info["classes"])
    support, numbers = tensors.get("support"), tensors.get("numbers")
    posterior = _posterior_of(tensors, model)
    if posterior is None:
        if support is None or numbers is None:
            raise UserError(f"{file} has neither a posterior nor support examples; fit it anew.")
        with torch.no_grad():
            posterior = model.posterior(support, numbers, len(classes))
    novelty = Novelty(*(float(value) for value in info["novelty"])) if "novelty" in info else None
    if novelty is not None and not (math.isfinite(novelty.slope) and math.isfinite(novelty.offset)):
        raise ValueError("novelty")
    _check_sizes(posterior, support, numbers, len(classes), model, file)
    return FewShotClassifier.from_parts(model, classes, posterior, support, numbers, novelty)


def _posterior_tensors(posterior: Posterior) -> dict[str, Tensor]:
    """Return the tensors of a posterior that can be written; none where it cannot."""
    if isinstance(posterior, TaskPosterior) and posterior.inner is posterior.diagonal:
        space = posterior.space
        tensors = {f"space.{name}": getattr(space, name) for name in SPACE}
        tensors |= {f"posterior.{name}": getattr(posterior.diagonal, name) for name in LINEAR}
        tensors["posterior.beta"] = posterior.beta
        if posterior.means is not posterior.diagonal.weight_mean:
            tensors["posterior.means"] = posterior.means
    elif isinstance(posterior, LinearGPPosterior):
        tensors = {f"posterior.{name}": getattr(posterior, name) for name in LINEAR}
    else:
        return {}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _posterior_of(tensors: "Mapping[str, Tensor]", model: FewShotModel) -> Posterior | None:
    head = model.head
    if "posterior.weight_mean" not in tensors or not isinstance(head, LinearGP):
        return None
    w, b, V, v, sigma2 = (tensors.get(f"posterior.{name}") for name in LINEAR)
    if w is None or b is None or V is None or v is None:
        raise KeyError("posterior")
    diagonal = head.make_posterior(w, b, V, v, sigma2)
    if "posterior.beta" not in tensors or not isinstance(head, GPLDLAAuto):
        return diagonal
    center, directions, shrink = (tensors.get(f"space.{name}") for name in SPACE)
    space = TaskSpace(head.normalize_first, center, head.metric, directions, shrink)
    return TaskPosterior(
        space, diagonal, diagonal, tensors.get("posterior.means", w), tensors["posterior.beta"]
    )


def _check_sizes(
    posterior: Posterior,
    support: Tensor | None,
    numbers: Tensor | None,
    n_classes: int,
    model: FewShotModel,
    file: Path,
) -> None:
    """Refuse a file whose parts do not belong together."""
    d = model.backbone.feature_dim
    diagonal = posterior.diagonal if isinstance(posterior, TaskPosterior) else posterior
    fits = not isinstance(diagonal, LinearGPPosterior) or diagonal.weight_mean.shape == (n_classes, d)
    if support is not None and numbers is not None:
        fits = fits and len(support) == len(numbers) and int(numbers.max()) < n_classes
        fits = fits and (model.head.consumes != "features" or support.shape[1:] == (d,))
    if not fits:
        raise UserError(f"{file} is not a whole classifier: its parts are of different sizes; fit it anew.")


def _checksum(tensors: "Mapping[str, Tensor]", info: dict[str, Any]) -> str:
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
