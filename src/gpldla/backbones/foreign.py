"""Networks of other libraries as backbones, by names with a prefix such as `timm:resnet18`."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_loader
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.errors import UserError, first_line
from gpldla.utils.modules import evaluating

Device = torch.device


class ForeignNetwork(Backbone):
    """A trained network from elsewhere, with the preprocessing that it wants."""

    pretrained: ClassVar[bool] = True

    def __init__(self, network: Callable[[Tensor], Tensor] | nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        self.preprocessing = preprocessing
        self.feature_dim = self._count_features()

    def maps(self, images: Tensor) -> Tensor:
        """Raise: where the feature maps of a foreign network are is unknown."""
        raise UserError(f"{type(self.network).__name__} does not tell its feature maps.")

    def forward(self, images: Tensor) -> Tensor:
        """Return the features [n, feature_dim]."""
        return self.network(images)

    def _count_features(self) -> int:
        name, facts = type(self.network).__name__, self.preprocessing
        shape = (1, facts.channels, facts.size, facts.size)
        device = next(self.parameters(), torch.empty(0)).device
        try:
            with torch.no_grad():
                features = evaluating(self).network(torch.zeros(shape, device=device))
        except Exception as error:  # whatever the code of a stranger raises
            raise UserError(
                f"{name} cannot read images of shape {list(shape)} ({first_line(error)});"
                " change preprocessing."
            ) from None
        if not isinstance(features, Tensor) or features.ndim != 2:
            given = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(f"{name} gives {given}, not features [n, d]; pool and flatten its output.")
        return features.shape[1]


@register_loader("timm")
def timm_network(name: str) -> Backbone:
    """Return a network of timm with its pretrained weights and its preprocessing."""
    try:
        import timm.data
    except (ImportError, RuntimeError) as error:  # a torchvision that does not fit is a RuntimeError
        raise UserError(
            f"Model 'timm:{name}' needs timm, which cannot be imported ({first_line(error)});"
            " pip install timm."
        ) from None
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)  # without the classes: features
    except Exception as error:  # an unknown name, or weights that cannot be had
        raise UserError(f"timm cannot make {name!r} ({first_line(error)}).") from None
    facts = timm.data.resolve_model_data_config(network)
    channels, size, _ = facts["input_size"]
    return ForeignNetwork(network, Preprocessing(size, channels, tuple(facts["mean"]), tuple(facts["std"])))
