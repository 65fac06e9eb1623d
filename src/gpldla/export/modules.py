"""The torch modules that are traced to ONNX graphs; all of them return probabilities."""

import math

import torch
from torch import Tensor, nn

from gpldla.backbones import Backbone
from gpldla.classifier.calibration import apply_temperature
from gpldla.classifier.own_prior import OwnPrior
from gpldla.data.augment.transforms import centre_crop, resized_images, standardise_
from gpldla.data.preprocessing import Preprocessing
from gpldla.heads import Head, Posterior
from gpldla.utils.errors import UserError


class PosteriorModule(nn.Module):
    """An adapted posterior: features [n, d] → probabilities [n, C].

    own_prior: a second answer to be mixed in, or None
    """

    def __init__(self, posterior: Posterior, temperature: float, own_prior: OwnPrior | None = None) -> None:
        super().__init__()
        self.subject = type(posterior).__name__
        self.posterior = as_constant(posterior)
        self.temperature = _positive(temperature)
        self.own_prior = own_prior
        if own_prior is not None:
            self.own_prior = OwnPrior(as_constant(own_prior.posterior), own_prior.share)

    def forward(self, features: Tensor) -> Tensor:
        """Return the probabilities, with the temperature applied."""
        log_prob = apply_temperature(self.posterior.log_prob(features), self.temperature)
        if self.own_prior is not None:
            log_prob = self.own_prior.mixed(log_prob, features)
        return log_prob.exp()


class PictureModule(nn.Module):
    """A network followed by a posterior: pixels uint8 [n, side, side, channels] → probabilities [n, C]."""

    def __init__(self, backbone: Backbone, preprocessing: Preprocessing, answers: PosteriorModule) -> None:
        super().__init__()
        self.subject = answers.subject
        self.backbone, self.preprocessing, self.answers = backbone, preprocessing, answers

    def forward(self, images: Tensor) -> Tensor:
        """Return the probabilities of resized pictures, which are cropped and standardised here."""
        resized = resized_images(images.permute(0, 3, 1, 2), self.preprocessing)
        # A copy: standardising a part of a tensor in place makes a much slower graph.
        cropped = centre_crop(resized, self.preprocessing).clone()
        features = self.backbone.features(standardise_(cropped, self.preprocessing)).float()
        probabilities: Tensor = self.answers(features)
        return probabilities


class HeadModule(nn.Module):
    """A head: support [n, d], labels [n], query [q, d] → probabilities [q, C]."""

    def __init__(self, head: Head, temperature: float) -> None:
        super().__init__()
        self.subject = type(head).__name__
        self.head, self.temperature = head, _positive(temperature)

    def forward(self, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
        """Adapt the head to the support examples and return the probabilities of the queries."""
        n_way = labels.max().item() + 1  # unknown while tracing, except ...
        torch._check(n_way >= 2)  # type: ignore[no-untyped-call, unused-ignore]  # ... for its minimum
        posterior = self.head.adapt(support, labels, n_way)  # type: ignore[arg-type]
        return apply_temperature(posterior.log_prob(query), self.temperature).exp()


Exportable = PosteriorModule | PictureModule | HeadModule


def as_constant(posterior: Posterior) -> Posterior:
    """Return a copy of a posterior with all tensors in float32 on the CPU, as constants of the graph."""

    def constant(tensor: Tensor) -> Tensor:
        tensor = tensor.detach().cpu()
        return tensor.float() if tensor.is_floating_point() else tensor

    constants = posterior.map_tensors(constant)
    constants.fix_draws()
    return constants


def _positive(temperature: float) -> float:
    if not 0 < temperature < math.inf:
        raise UserError(f"The temperature must be a positive number, not {temperature!r}.")
    return temperature
