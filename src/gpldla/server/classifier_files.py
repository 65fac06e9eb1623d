"""Classifiers as files: a task that a client takes away, and one that it brings back."""

import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor

from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.file_format import KIND
from gpldla.server.classifiers import Taught
from gpldla.server.networks import Network
from gpldla.server.pictures import plain_name
from gpldla.server.problems import Problem
from gpldla.server.schemas import clean_label
from gpldla.server.settings import Limits
from gpldla.server.storage import NewExample
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors

MEDIA_TYPES = {"safetensors": "application/octet-stream", "onnx": "application/octet-stream"}


def file_of(taught: Taught, form: str) -> bytes:
    """Return the classifier of a task as a file: "safetensors", or "onnx"."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"classifier.{form}"
        if form == "onnx":
            from gpldla.export import export_fitted

            export_fitted(taught.classifier, file)
        else:
            taught.classifier.save(file)
        return file.read_bytes()


class Brought:
    """What a file holds that a client has sent: labelled examples of one of the served networks.

    unlabelled: rows without labels that the classifier has learned from [m, d], or None
    """

    def __init__(self, content: bytes, networks: dict[str, Network], limits: Limits) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "classifier.safetensors"
            file.write_bytes(content)
            try:
                self.network = _network_of(file, networks)
                # Only now: a file may name any network, and loading a classifier loads that.
                classifier = FewShotClassifier.load(file)
            except UserError as error:
                raise Problem(422, str(error).replace(str(file), "The file")) from None
        task = classifier.task
        if task.examples is None:
            raise Problem(422, "The file was saved without its examples, which teaching needs.")
        self.unlabelled = None if task.unlabelled is None else _checked_rows(task.unlabelled, limits.items)
        rows = _checked_rows(task.examples.rows, limits.items)
        labels = _labels(classifier)
        names = classifier.names or ("",) * len(labels)
        self.labelled = [
            (label, self._example(name, row, index, limits))
            for index, (label, name, row) in enumerate(zip(labels, names, rows))
        ]

    def _example(self, name: str, row: np.ndarray, index: int, limits: Limits) -> NewExample:
        text = None
        if self.network.kind == "texts" and name:
            text = name[: limits.text_characters].replace("\0", "")
            name = name.replace("/", "∕")
        return NewExample(plain_name(name, f"example {index + 1}"), row, text)


def _network_of(file: Path, networks: dict[str, Network]) -> Network:
    """Return the served network that a classifier was made with; refuse files of any other."""
    _, info = read_tensors(file)
    if not isinstance(info, dict) or info.get("kind") != KIND or not isinstance(info.get("model"), dict):
        raise Problem(422, "The file is not a classifier; send one that was downloaded, or by `gpldla fit`.")
    for network in networks.values():
        served = network.model.config()
        same = all(info["model"].get(key) == served[key] for key in served if key != "info")
        if same and info.get("backbone_fingerprint") == network.fingerprint:
            return network
    names = " or ".join(repr(network.model.backbone_name) for network in networks.values())
    raise Problem(422, f"The file was made with another network than {names}, which this server has.")


def _checked_rows(rows: Tensor, most: int) -> np.ndarray:
    if len(rows) > most:
        raise Problem(409, f"The file holds {len(rows)} examples; a task has at most {most}.")
    found: np.ndarray = rows.float().numpy(force=True)
    if not np.isfinite(found).all():
        raise Problem(422, "The file holds features that are not finite numbers; make it anew.")
    return found


def _labels(classifier: FewShotClassifier) -> list[str]:
    """Return the label of each example as a name; refuse names that a task cannot have."""
    names = {}
    for label in classifier.classes.tolist():
        try:
            names[label] = clean_label(str(label))
        except ValueError as error:
            raise Problem(422, f"The name of a class {error}.") from None
    if len(set(names.values())) < len(names):
        raise Problem(422, "Two classes of the file have names that look alike; rename one.")
    return [names[label] for label in classifier.labels.tolist()]
