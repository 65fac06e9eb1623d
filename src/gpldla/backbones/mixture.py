"""Several networks of the same kind side by side, for methods that keep more than one initialisation."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_backbone
from gpldla.backbones.conv4 import Conv4, Conv4S, Conv4SNP
from gpldla.data.preprocessing import Preprocessing

COMPONENTS = 3


class NetworkMixture(Backbone):
    """Networks that start from different random weights; their features and maps are concatenated.

    kind: of each network
    """

    kind: ClassVar[type[Backbone]]

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList([self.kind() for _ in range(COMPONENTS)])
        first = self.networks[0]
        assert isinstance(first, Backbone)
        channels, height, width = first.map_shape
        self.map_shape = (COMPONENTS * channels, height, width)
        self.feature_dim = COMPONENTS * first.feature_dim

    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps of all networks, [n, 3·channels, height, width]."""
        return torch.cat([network.maps(images) for network in self.networks], 1)  # type: ignore[operator]

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of all networks, [n, 3·d]."""
        return torch.cat([network(images) for network in self.networks], 1)


@register_backbone("conv4-mixture")
class Conv4Mixture(NetworkMixture):
    """Three Conv-4."""

    kind = Conv4
    preprocessing: Preprocessing = Conv4.preprocessing


@register_backbone("conv4s-mixture")
class Conv4SMixture(NetworkMixture):
    """Three Conv-4S, for characters."""

    kind = Conv4S
    preprocessing: Preprocessing = Conv4S.preprocessing


@register_backbone("conv4snp-mixture")
class Conv4SNPMixture(NetworkMixture):
    """Three of the networks with two poolings, for characters."""

    kind = Conv4SNP
    preprocessing: Preprocessing = Conv4SNP.preprocessing
