"""A last layer that compares directions, fitted to the support set by gradient descent."""

import math

import torch
from torch import Tensor

from gpldla.heads.common.fine_tuning import GradientDescent, softmax_residual

START_LENGTH = math.sqrt(1 / 3)  # the expected initial length of a row of torch.nn.Linear, in any dimension


def fit_cosine_layer(
    phi: Tensor, member: Tensor, scale: float, descent: GradientDescent, *, learn_norms: bool
) -> Tensor:
    """Return weights [..., C, d] of scores scale·g_j·cos(v_j, φ), fitted to unit features [..., n, d].

    v_j = Σ_i A_ij φ_i + r_j e_j throughout, with A [..., n, C] and e_j the initial direction, orthogonal to
    all examples.

    member [..., n, C]: one-hot labels
    learn_norms: whether the norms g_j are fitted, too; they are 1 otherwise
    """
    gram = phi @ phi.mT

    def gradient(parameters: list[Tensor]) -> list[Tensor]:
        A, r, *norms = parameters
        g = norms[0] if norms else torch.ones_like(r)
        along = gram @ A  # φ_i·v_j, [..., n, C]
        length = _length(A, along, r)
        residual = softmax_residual(scale * g * along / length, member)
        slope = (residual * along).sum(-2, keepdim=True)  # [..., 1, C]
        turn = scale * g / length
        # The derivative of v/‖v‖ has no component along v.
        of_directions = [
            turn * (residual - A * slope / length.square()),
            -turn * r * slope / length.square(),
        ]
        return [*of_directions, scale * slope / length] if norms else of_directions

    initial = torch.full_like(member[..., :1, :], START_LENGTH)
    start = [torch.zeros_like(member), initial, *([initial.clone()] if learn_norms else [])]
    A, r, *norms = descent.minimise(start, gradient, member.shape[-2])
    unit = A / _length(A, gram @ A, r)
    return (scale * (norms[0] * unit if norms else unit)).mT @ phi


def _length(A: Tensor, along: Tensor, r: Tensor) -> Tensor:
    """Return ‖v_j‖ [..., 1, C]."""
    return ((A * along).sum(-2, keepdim=True) + r.square()).sqrt()


def widened_cosine(cosine: Tensor, margin: float) -> Tensor:
    """Return cos(θ + margin) of angles given by cos θ, and cos θ itself where that is not positive."""
    sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
    return torch.where(cosine > 0, cosine * math.cos(margin) - sine * math.sin(margin), cosine)
