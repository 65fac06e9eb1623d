"""Whitening by matrix products alone, where there are no eigenvectors: in ONNX graphs.

With residuals R [n, d] and A = I + κRᵀR, let M = I + κRRᵀ. As 1/√(1+λ) − 1 = −λ / (1+λ+√(1+λ)),

    A^{-1/2} = I − κRᵀ(M + M^{1/2})^{-1}R = I − DᵀD,    D = √κ (M + M^{1/2})^{-1/2} R

The roots are found by the coupled Newton-Schulz iteration (Higham, Functions of Matrices, 2008, Section 6.7).
The trace of κRRᵀ is the degrees of freedom of the scatter, so M's condition is at most one more than these.
In float64, which files that multiply in float16 leave as it is.
"""

import torch
from torch import Tensor

# An eigenvalue that is small beside the bound grows 2.25 times per step, and five more make it exact: enough
# for thousands of examples.
STEPS = 16


def directions_by_products(residuals: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Return D [..., n, d] and −1 for each of its rows [..., n]: what `TaskSpace` whitens with.

    residuals [..., n, d]; κ [...]
    """
    scaled = (residuals * kappa[..., None, None].sqrt()).double()
    products = scaled @ scaled.mT
    largest = 1 + scaled.square().sum((-2, -1))
    matrix = identity_like(products) + products  # M
    root, _ = square_roots(matrix, largest)
    _, inverse_root = square_roots(matrix + root, largest + largest.sqrt())
    directions = (inverse_root @ scaled).to(residuals.dtype)
    return directions, -torch.ones_like(directions[..., 0])


def square_roots(matrix: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return the root and the inverse root of symmetric matrices [..., n, n], eigenvalues in (0, largest]."""
    scale = largest[..., None, None]
    y, z = matrix / scale, identity_like(matrix)
    three = 3 * identity_like(matrix)
    for _ in range(STEPS):
        half_step = (three - z @ y) / 2
        y, z = y @ half_step, half_step @ z
    return y * scale.sqrt(), z / scale.sqrt()


def identity_like(matrix: Tensor) -> Tensor:
    """Return the identity [n, n]; `torch.eye` needs a size that is known."""
    index = torch.arange(matrix.shape[-1], device=matrix.device)
    return (index.unsqueeze(-1) == index).to(matrix.dtype)
