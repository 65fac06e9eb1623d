"""Networks in front of a decision: from pixels, or from tokens, to answers."""

from collections.abc import Sequence

from torch import Tensor, nn

from gpldla.backbones import Backbone
from gpldla.backbones.base import TokenBackbone
from gpldla.data.augment.transforms import centre_crop, resized_images, standardise_
from gpldla.data.preprocessing import Preprocessing
from gpldla.export.decision import DecisionModule
from gpldla.export.modules import HeadModule


class PictureModule(nn.Module):
    """Pixels, uint8 [n, side, side, channels] → what `DecisionModule` returns."""

    def __init__(self, backbone: Backbone, preprocessing: Preprocessing, decision: DecisionModule) -> None:
        super().__init__()
        self.subject = decision.subject
        self.backbone, self.preprocessing, self.decision = backbone, preprocessing, decision

    @property
    def outputs(self) -> Sequence[str]:
        """The names of what `forward` returns."""
        return self.decision.outputs

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the answers for resized pictures, which are cropped and standardised here."""
        resized = resized_images(images.permute(0, 3, 1, 2), self.preprocessing)
        # A copy: standardising a part of a tensor in place makes a much slower graph.
        cropped = centre_crop(resized, self.preprocessing).clone()
        features = self.backbone.features(standardise_(cropped, self.preprocessing)).float()
        answers: tuple[Tensor, ...] = self.decision(features)
        return answers


class TextModule(nn.Module):
    """Tokens and their mask, int64 [n, longest] → what `DecisionModule` returns."""

    def __init__(self, encoder: TokenBackbone, decision: DecisionModule) -> None:
        super().__init__()
        self.subject, self.encoder, self.decision = decision.subject, encoder, decision

    @property
    def outputs(self) -> Sequence[str]:
        """The names of what `forward` returns."""
        return self.decision.outputs

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the answers for texts as tokens."""
        answers: tuple[Tensor, ...] = self.decision(self.encoder.encode(tokens, mask).float())
        return answers


Exportable = DecisionModule | PictureModule | TextModule | HeadModule
