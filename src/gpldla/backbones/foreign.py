"""Networks of other libraries as backbones, by names with a prefix such as `timm:resnet18`."""

from collections.abc import Callable
from typing import ClassVar, NoReturn

import torch
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_loader
from gpldla.backbones.names import ModelName
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.errors import UserError, first_line
from gpldla.utils.modules import evaluating

OF_A_MODULE = "module"  # prefix of the name of a network that was given as an object


class ForeignNetwork(Backbone):
    """A trained network from elsewhere, with the preprocessing that it wants."""

    pretrained: ClassVar[bool] = True

    def __init__(
        self,
        network: Callable[[Tensor], Tensor] | nn.Module,
        preprocessing: Preprocessing,
        *,
        traceable: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.traceable = network, traceable
        self.preprocessing = preprocessing
        self.feature_dim = self._count_features()
        self.name = f"{OF_A_MODULE}:{type(network).__name__}"

    def maps(self, images: Tensor) -> Tensor:
        """Raise: where the feature maps of a foreign network are is unknown."""
        self._refuse_maps()

    @property
    def map_shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Raise, as `maps` does."""
        self._refuse_maps()

    def _refuse_maps(self) -> NoReturn:
        raise UserError(
            f"{type(self.network).__name__} does not tell its feature maps; choose a head that consumes"
            " features."
        )

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


@register_loader(OF_A_MODULE)
def given_module(name: ModelName) -> Backbone:
    """Refuse: an object has no name that it could be loaded by."""
    raise UserError(
        f"The network {name.name} was given as a torch module, which a file does not contain; load it with"
        " FewShotClassifier.load(file, backbone=...) and the same module."
    )
