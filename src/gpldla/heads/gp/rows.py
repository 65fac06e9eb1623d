"""Features scaled to unit length, whose products are computed without storing the scaled features."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gpldla.heads.base import can_read_values, norms_in_safe_range, rescale_rows, unit_length

LINEAR_BELOW = 1e-3  # entries below this, relative to the root mean square, grow linearly with any power


@dataclass
class Rows:
    """φ [..., n, d]: the features x themselves, or x/‖x‖; a zero feature stays zero.

    Every use of φ is a product, so x is multiplied unscaled and the smaller result is scaled: fewer passes
    over the features. scale is 1/‖x‖ [..., n, 1] or None; unit: whether every ‖φ‖ is known to be 1.
    """

    x: Tensor
    scale: Tensor | None
    unit: bool = False

    @cached_property
    def x2(self) -> Tensor:
        """x², which not every product needs."""
        return self.x.square()

    @classmethod
    def of(cls, features: Tensor, *, normalize: bool, power: float = 1.0) -> "Rows":
        """Return features [..., n, d], raised to a power and then, with `normalize`, at unit length."""
        if power != 1:
            features = power_transform(features, power)
        if not normalize:
            return cls(features, None)
        if can_read_values(features):
            norm = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
            if norms_in_safe_range(norm.square()):
                return cls(features, norm.reciprocal(), unit=True)
            features = rescale_rows(features)  # norms are too large or too small, or a feature is zero
        elif torch.compiler.is_compiling():
            # A compiled graph cannot check norms; and products of features near unit length fit in float16.
            features = unit_length(features)
        rows = cls(features, None)
        norm2 = rows.x2.sum(-1, keepdim=True)
        rows.scale = norm2.where(norm2 > 0, 1).rsqrt()
        return rows

    def every_nth(self, step: int) -> "Rows":
        """Return every step-th row."""
        scale = None if self.scale is None else self.scale[..., ::step, :]
        return Rows(self.x[..., ::step, :], scale, self.unit)

    def dot(self, W: Tensor, b: Tensor) -> Tensor:
        """Return φWᵀ + b for W [..., C, d] and b [..., C]: [..., n, C]."""
        return _scaled(self.x @ W.mT, self.scale, b)

    def squared_dot(self, V: Tensor, b: Tensor) -> Tensor:
        """Return φ²Vᵀ + b for V [..., C, d] and b [..., C]: [..., n, C]."""
        return _scaled(self.x2 @ V.mT, None if self.scale is None else self.scale.square(), b)

    def weighted_sum(self, A: Tensor) -> Tensor:
        """Return Aᵀφ for A [..., n, C]: [..., C, d]."""
        return (A if self.scale is None else A * self.scale).mT @ self.x

    def squared_weighted_sum(self, A: Tensor) -> Tensor:
        """Return Aᵀφ² for A [..., n, C]: [..., C, d]."""
        return (A if self.scale is None else A * self.scale.square()).mT @ self.x2

    def gram(self) -> Tensor:
        """Return φφᵀ, [..., n, n]."""
        return self.cross(self)

    def cross(self, other: "Rows") -> Tensor:
        """Return φ·φ' with other rows [..., m, d] that are also scaled, or also not: [..., n, m]."""
        product = self.x @ other.x.mT
        if self.scale is None or other.scale is None:
            return product
        return product * self.scale * other.scale.mT

    def norm2(self) -> Tensor:
        """Return ‖φ‖², [..., n]: one, or zero for a zero feature, at unit length."""
        norm2 = self.x2.sum(-1)
        return norm2 if self.scale is None else norm2 * self.scale.squeeze(-1).square()


def power_transform(x: Tensor, power: float) -> Tensor:
    """Raise features [..., d] to a power, signs kept, up to a factor per row that unit length removes.

    Entries far below the root mean square grow linearly instead, as the slope of a root at 0 is infinite.
    """
    relative = unit_length(x) * x.shape[-1] ** 0.5
    powered: Tensor = relative * (relative.square() + LINEAR_BELOW**2) ** ((power - 1) / 2)
    return powered


def _scaled(product: Tensor, scale: Tensor | None, b: Tensor) -> Tensor:
    """Return product·scale + b: [..., n, C], [..., n, 1] or None, [..., C]."""
    b = b.unsqueeze(-2)
    return product + b if scale is None else torch.addcmul(b, product, scale)
