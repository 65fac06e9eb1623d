"""Networks of transformers, by names such as `hf:facebook/dinov2-small` or `hf:/path/to/folder`."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_loader
from gpldla.backbones.hub_preprocessing import read_facts, read_preprocessing
from gpldla.backbones.local_files import LocalModel, find_locally
from gpldla.backbones.names import ModelName
from gpldla.utils.errors import UserError, did_you_mean, first_line

VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")  # of a config
BICUBIC, BILINEAR = 3, 2  # Pillow's numbers


def _pooled(network: Any, images: Tensor, other_size: bool) -> Tensor:
    """Return the pooled output; these networks adapt to any size by themselves."""
    return _tensor(network(pixel_values=images))


def _class_token(network: Any, images: Tensor, other_size: bool) -> Tensor:
    """Return the class token; the pooling layer on top of it is trained in few checkpoints."""
    states: Tensor = network(pixel_values=images, interpolate_pos_encoding=other_size).last_hidden_state
    return states[:, 0]


def _projected(network: Any, images: Tensor, other_size: bool) -> Tensor:
    """Return the image's features in the space that it shares with texts."""
    return _tensor(network.get_image_features(pixel_values=images, interpolate_pos_encoding=other_size))


def _tensor(output: Any) -> Tensor:
    """Return features, which newer versions wrap."""
    features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return features


@dataclass(frozen=True)
class Family:
    """What the networks of one model type have in common.

    features:  from the network, images and whether they have another size than it was trained with
    resample, stretched: see `read_preprocessing`
    has_texts: whether it also has an encoder of texts, into the same space
    pads_texts: whether that was trained on texts that are padded to its full length
    options:   for the library's loader
    """

    features: Callable[[Any, Tensor, bool], Tensor]
    resample: int = BICUBIC
    stretched: bool = False
    has_texts: bool = False
    pads_texts: bool = False
    options: dict[str, Any] = field(default_factory=dict)


_WITH_TOKEN = Family(_class_token, BILINEAR, stretched=True, options={"add_pooling_layer": False})
FAMILIES: dict[str, Family] = {
    "dinov2": Family(_pooled),
    "dinov2_with_registers": Family(_pooled),
    "dinov3_vit": Family(_pooled, BILINEAR, stretched=True),
    "dinov3_convnext": Family(_pooled, BILINEAR, stretched=True),
    "clip": Family(_projected, has_texts=True),
    "siglip": Family(_projected, stretched=True, has_texts=True, pads_texts=True),
    "convnext": Family(_pooled),
    "convnextv2": Family(_pooled),
    "vit": _WITH_TOKEN,
    "deit": _WITH_TOKEN,
}


class HubNetwork(Backbone):
    """A trained network of transformers, with the preprocessing that its files ask for."""

    pretrained: ClassVar[bool] = True

    def __init__(self, model: LocalModel) -> None:
        super().__init__()
        self.name, self._model = str(model.name), model
        config_file = model.require("config.json")
        self._config = read_facts(config_file, model)
        kind = str(self._config.get("model_type"))
        if kind not in FAMILIES:
            raise UserError(
                f"Model '{self.name}' is of type {kind!r}, which is not known here"
                f"{did_you_mean(kind, FAMILIES)} Text encoders are read by st:NAME; any other network can be"
                " given as a torch module."
            )
        self.family = FAMILIES[kind]
        self.network: Any = _load(model, self.family.options)
        vision: Any = getattr(self.network.config, "vision_config", self.network.config)
        preprocessing = read_preprocessing(
            model, vision.num_channels, resample=self.family.resample, stretched=self.family.stretched
        )
        size = model.name.size
        if size is not None:
            self._check_size(size, getattr(vision, "patch_size", 1))
            preprocessing = preprocessing.with_size(size)
        self.preprocessing = preprocessing
        self._trained_size = getattr(vision, "image_size", preprocessing.size)
        self._tokenizer: Any = None
        self.feature_dim = self._count_features()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features [n, feature_dim]."""
        other_size = self.preprocessing.size != self._trained_size
        return self.family.features(self.network, images, other_size)

    def text_features(self, texts: list[str]) -> Tensor:
        """Return the features [n, feature_dim] of texts, in the same space as those of images."""
        if not self.family.has_texts:
            return super().text_features(texts)
        tokens = self._tokens(texts)
        return _tensor(self.network.get_text_features(**tokens))

    def maps(self, images: Tensor) -> Tensor:
        """Raise: the networks of the hub have no common kind of feature maps."""
        self._refuse_maps()

    @property
    def map_shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Raise, as `maps` does."""
        self._refuse_maps()

    def facts(self) -> dict[str, Any]:
        """Return what the weights do not tell: the configuration, and how texts are divided into tokens."""
        facts = {name: value for name, value in self._config.items() if name not in VOLATILE}
        if self.family.has_texts and (
            file := self._model.file("tokenizer.json", "vocab.json", "spiece.model")
        ):
            facts["tokenizer"] = hashlib.sha256(file.read_bytes()).hexdigest()
        return facts

    def _refuse_maps(self) -> NoReturn:
        raise UserError(f"Model '{self.name}' has no feature maps; choose a head that consumes features.")

    def _tokens(self, texts: list[str]) -> dict[str, Tensor]:
        if self._tokenizer is None:
            self._tokenizer = _load_tokenizer(self._model)
        length = self.network.config.text_config.max_position_embeddings
        if self.family.pads_texts:
            tokens = self._tokenizer(texts, padding="max_length", truncation=True, max_length=length)
            names = ["input_ids"]
        else:
            tokens = self._tokenizer(texts, padding=True, truncation=True, max_length=length)
            names = ["input_ids", "attention_mask"]
        device = next(self.network.parameters()).device
        return {name: torch.tensor(tokens[name], device=device) for name in names}

    def _check_size(self, size: int, patch: int) -> None:
        if size % patch:
            below = size // patch * patch
            nearest = f"{below} or {below + patch}" if below else str(patch)
            raise UserError(
                f"Model '{self.name}' divides pictures into patches of {patch} pixels, which do not fit into"
                f" {size}; choose {nearest}."
            )

    def _count_features(self) -> int:
        facts = self.preprocessing
        example = torch.zeros(1, facts.channels, facts.size, facts.size)
        try:
            with torch.no_grad():
                features = self.features(example)
        except Exception as error:  # whatever the network raises
            raise UserError(
                f"Model '{self.name}' cannot read pictures of {facts.size} pixels ({first_line(error)});"
                " leave out the size."
            ) from None
        return features.shape[1]


@register_loader("hf")
def hub_network(name: ModelName) -> Backbone:
    """Return a network of transformers from the files on this machine."""
    return HubNetwork(find_locally(name))


def _load(model: LocalModel, options: dict[str, Any]) -> nn.Module:
    """Return the network with the weights in a folder; transformers reads data only, and asks no network."""
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise UserError(
            f"Model '{model.name}' needs transformers, which cannot be imported ({first_line(error)});"
            " pip install 'gpldla[hf]'."
        ) from None
    try:
        with _quiet():
            network, report = AutoModel.from_pretrained(
                model.folder,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # missing or damaged files, in many kinds
        raise UserError(
            f"Model '{model.name}' cannot be loaded from {model.folder} ({first_line(error)}); download its"
            " files again."
        ) from None
    missing = sorted([*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])])
    if missing:
        raise UserError(
            f"Model '{model.name}' has no weights for {missing[0]} in {model.folder}, so it would compute"
            " with random numbers; download its files again."
        )
    loaded: nn.Module = network.eval()
    return loaded


def _load_tokenizer(model: LocalModel) -> Any:
    from transformers import AutoTokenizer

    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(model.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # missing or damaged files, or another package that it needs
        raise UserError(
            f"The tokenizer of model '{model.name}' cannot be loaded from {model.folder}"
            f" ({first_line(error)}); download its files again."
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and reporting weights that are not needed."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
