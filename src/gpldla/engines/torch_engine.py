"""The engine that is always there."""

import numpy as np
import torch

from gpldla.backbones import Backbone
from gpldla.backbones.base import TokenBackbone
from gpldla.data.augment.transforms import evaluation_images
from gpldla.utils.modules import evaluating


class TorchEngine:
    """Runs the network itself, on the device where it is."""

    parallel = False  # torch divides each operation among its own threads

    def __init__(self, network: Backbone) -> None:
        self._network = evaluating(network)

    @torch.no_grad()
    def features(self, *inputs: np.ndarray) -> np.ndarray:
        """Return float32 [n, feature_dim], see `Engine`."""
        network, weight = self._network, next(self._network.parameters(), torch.empty(0))
        tensors = [torch.from_numpy(array).to(weight.device) for array in inputs]
        with torch.autocast(weight.device.type, enabled=False):
            if isinstance(network, TokenBackbone):
                rows = network.encode(*tensors)
            else:
                images = evaluation_images(tensors[0].permute(0, 3, 1, 2), network.preprocessing)
                images = images.to(weight.dtype).contiguous(memory_format=torch.channels_last)
                rows = network.features(images)
        return rows.float().cpu().numpy()
