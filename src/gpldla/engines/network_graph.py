"""The ONNX graph of a network, from stored pixels or tokens to features, and its file in the cache."""

import copy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gpldla.backbones import Backbone
from gpldla.backbones.base import TokenBackbone, padded
from gpldla.data.augment.transforms import centre_crop, standardise_, to_float
from gpldla.engines.onnx_engine import INPUT, OUTPUT
from gpldla.engines.onnx_tracing import describe, trace
from gpldla.utils.modules import evaluating

TOKENS, MASK = "tokens", "mask"
# Of the usual length, for tracing, timing and comparing; other examples are its ends.
EXAMPLE_TEXT = (
    "A wren, which weighs less than a letter, sings so loudly in the hedge that people on the other side of"
    " the valley stop to ask what it may be."
)
FORMAT = 1  # increase it if graphs of the same network change: older files are then made again


class FeatureModule(nn.Module):
    """A network with its preprocessing: uint8 [n, resized, resized, channels] → float32 [n, feature_dim]."""

    def __init__(self, network: Backbone) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        """Crop, standardise and compute the features."""
        preprocessing = self.network.preprocessing
        # Cropped as bytes, and copied: standardising a part of a tensor in place makes a much slower graph.
        cropped = centre_crop(pixels.permute(0, 3, 1, 2), preprocessing)
        images = to_float(cropped, preprocessing.channels).clone()
        features: Tensor = self.network.features(standardise_(images, preprocessing))
        return features.float()


class TokenModule(nn.Module):
    """A network of texts: tokens and mask, int64 [n, longest] → float32 [n, feature_dim]."""

    def __init__(self, network: TokenBackbone) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Compute the features."""
        return self.network.encode(tokens, mask).float()


def example_inputs(network: Backbone, n: int) -> tuple[np.ndarray, ...]:
    """Return what an engine takes, for n different pictures or texts."""
    if isinstance(network, TokenBackbone):
        return padded(network.tokenise([" ".join(EXAMPLE_TEXT.split()[3 * k :]) for k in range(n)]))
    return (example_pixels(network, n),)


def example_pixels(network: Backbone, n: int) -> np.ndarray:
    """Return uint8 [n, resized, resized, channels]: noise, smooth pictures and a plain one in turn."""
    preprocessing, rng = network.preprocessing, np.random.default_rng(0)
    side, channels = preprocessing.resized, preprocessing.channels
    pictures = []
    for index in range(n):
        if index % 3 == 0:
            picture = rng.integers(0, 256, (side, side, channels))
        elif index % 3 == 1:
            waves = rng.uniform(0, 8 * np.pi / side, (2, channels))
            rows, columns = np.mgrid[:side, :side][..., None]
            picture = 127.5 * (1 + np.sin(rows * waves[0] + columns * waves[1]))
        else:
            picture = np.full((side, side, channels), rng.integers(0, 256))
        pictures.append(picture)
    return np.stack(pictures).astype(np.uint8)


def make_graph(network: Backbone) -> bytes:
    """Trace a network to a graph; raises whatever torch raises if it cannot."""
    network = copy.deepcopy(evaluating(network)).cpu().requires_grad_(False)
    inputs = [torch.from_numpy(array) for array in example_inputs(network, 2)]
    if isinstance(network, TokenBackbone):
        module: nn.Module = TokenModule(network)
        axes = {name: {0: "n", 1: "longest"} for name in (TOKENS, MASK)}
        longest = {"longest": network.preprocessing.max_tokens}
    else:
        module, axes, longest = FeatureModule(network), {INPUT: {0: "n"}}, {}
    axes |= {OUTPUT: {0: "n"}}
    model = trace(module.eval(), dict(zip(axes, inputs)), axes, [OUTPUT], longest)
    describe(model, axes, {"kind": "features", "format": FORMAT})
    content: bytes = model.SerializeToString()
    return content


def graph_file(network: Backbone, cache: Path) -> Path:
    """Return where the graph of a network with its current weights belongs in a cache folder."""
    return cache / "graphs" / f"{network.fingerprint()}-{FORMAT}.onnx"
