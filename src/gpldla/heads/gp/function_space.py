"""The Laplace approximation in function space: Newton's step, and the blocks of the covariance.

Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, Algorithms 3.3 and 3.4: all classes
share one kernel matrix K [..., n, n], and the Hessian of −log p(y | f) is D − ΠΠᵀ with D = diag(π).
"""

import torch
from torch import Tensor


def curvature_blocks(K: Tensor, curvature: Tensor) -> Tensor:
    """Return E_c = D_c^{1/2} (I + D_c^{1/2} K D_c^{1/2})⁻¹ D_c^{1/2} for every class, [..., C, n, n].

    curvature [..., n, C]: the diagonals D_c
    """
    tiny = torch.finfo(curvature.dtype).tiny  # the root of 0 has no derivative
    root = curvature.mT.unsqueeze(-1).clamp_min(tiny).sqrt()  # D_c^{1/2}, [..., C, n, 1]
    identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return root * _inverse(cholesky(identity + root * K.unsqueeze(-3) * root.mT)) * root.mT


def newton_step(K: Tensor, f: Tensor, y: Tensor, absent: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return a with K a the next f: [..., n, n], [..., n, C] → [..., n, C].

    y: one-hot labels; absent [..., 1, C]: classes without examples, which have probability 0
    weights [..., n, 1]: how often each example counts; None: once each
    """
    pi = f.masked_fill(absent, -torch.inf).softmax(-1)
    gradient = y - pi
    hessian_f = pi * (f - (pi * f).sum(-1, keepdim=True))  # (D − ΠΠᵀ)f
    if weights is not None:
        pi, gradient, hessian_f = pi * weights, gradient * weights, hessian_f * weights
    E = curvature_blocks(K, pi)
    M = cholesky(E.sum(-3))  # [..., n, n]
    b = hessian_f + gradient
    c = (E @ (K @ b).mT.unsqueeze(-1)).squeeze(-1).mT  # EKb, [..., n, C]
    solution = _solve(c.sum(-1, keepdim=True), M)  # M⁻ᵀM⁻¹Rᵀc, [..., n, 1]
    return b - c + (E @ solution.unsqueeze(-3)).squeeze(-1).mT


def cholesky(matrix: Tensor) -> Tensor:
    """Return the lower factor, without a check for success, which would wait for a GPU."""
    factor: Tensor = torch.linalg.cholesky_ex(matrix).L
    return factor


# On a GPU, cholesky_inverse and cholesky_solve cannot be recorded in a CUDA graph. Triangular solves can, but
# take three times as long on a CPU.


def _inverse(factor: Tensor) -> Tensor:
    """Return (LLᵀ)⁻¹ for lower factors L [..., n, n]."""
    if not factor.is_cuda:
        return torch.cholesky_inverse(factor)
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    half = torch.linalg.solve_triangular(factor, identity, upper=False)
    inverse: Tensor = half.mT @ half
    return inverse


def _solve(rhs: Tensor, factor: Tensor) -> Tensor:
    """Return (LLᵀ)⁻¹ rhs for lower factors L [..., n, n] and right-hand sides [..., n, k]."""
    if not factor.is_cuda:
        return torch.cholesky_solve(rhs, factor)
    half = torch.linalg.solve_triangular(factor, rhs, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solution
