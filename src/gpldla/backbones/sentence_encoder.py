"""Text encoders of sentence-transformers, by names such as `st:ORG/NAME` or `st:/path/to/folder`."""

import hashlib
import json
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpldla.backbones.base import Backbone, TextBackbone, register_loader
from gpldla.backbones.local_files import LocalModel, find_locally
from gpldla.backbones.names import ModelName, is_folder
from gpldla.data.preprocessing import TextPreprocessing
from gpldla.utils.errors import UserError, first_line

ORGANISATION = "sentence-transformers"  # of names without one
UNLIMITED = 1_000_000  # tokens, for encoders that read texts of any length
OWN = "sentence_transformers."  # modules of the library; others would be code from the folder


class SentenceEncoder(TextBackbone):
    """A text encoder with its own tokens, pooling and scaling."""

    pretrained: ClassVar[bool] = True

    def __init__(self, model: LocalModel) -> None:
        super().__init__()
        self.name, self._model = str(model.name), model
        self.encoder: Any = _load(model)
        self.preprocessing = TextPreprocessing(int(self.encoder.max_seq_length or UNLIMITED))
        self.feature_dim = self.features(["dimension"]).shape[1]

    @torch.no_grad()
    def forward(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim], as the model's own `encode` computes them."""
        features: Tensor = self.encoder.encode(
            texts, batch_size=max(len(texts), 1), show_progress_bar=False, convert_to_tensor=True
        )
        return features.clone()  # outside of the library's inference mode

    def facts(self) -> dict[str, Any]:
        """Return a hash of each small file: tokens and pooling, which the weights do not tell."""
        files = (file for file in self._model.folder.rglob("*") if file.suffix in (".json", ".txt", ".model"))
        return {
            str(file.relative_to(self._model.folder)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(files)
        }


@register_loader("st")
def sentence_encoder(name: ModelName) -> Backbone:
    """Return an encoder of sentence-transformers from the files on this machine."""
    if name.size is not None:
        raise UserError(f"Model '{name}' reads texts; leave out the size.")
    if "/" not in name.name and not is_folder(name.name):
        name = replace(name, name=f"{ORGANISATION}/{name.name}")
    return SentenceEncoder(find_locally(name))


def _load(model: LocalModel) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise UserError(
            f"Model '{model.name}' needs sentence-transformers, which cannot be imported"
            f" ({first_line(error)}); pip install 'gpldla[hf]'."
        ) from None
    _check_modules(model)
    try:
        return SentenceTransformer(
            str(model.folder), device="cpu", local_files_only=True, trust_remote_code=False
        ).float()
    except Exception as error:  # missing or damaged files, in many kinds
        raise UserError(
            f"Model '{model.name}' cannot be loaded from {model.folder} ({first_line(error)}); download its"
            " files again."
        ) from None


def _check_modules(model: LocalModel) -> None:
    """Refuse a folder without the list of the encoder's parts, or with parts that are code of their own."""
    file = model.require("modules.json")
    try:
        kinds = [str(part["type"]) for part in json.loads(file.read_bytes())]
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"{file} is damaged; download the files of model '{model.name}' again.") from None
    if strange := [kind for kind in kinds if not kind.startswith(OWN)]:
        raise UserError(
            f"Model '{model.name}' needs code of its own ({strange[0]}), which is not run; choose a model"
            " that consists of the library's parts."
        )
