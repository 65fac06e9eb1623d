"""MetaQDA: quadratic discriminant analysis with a learned normal-inverse-Wishart prior."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gpldla.heads.base import Head, Posterior, check_episode, register_head, require_dim, unit_length
from gpldla.utils.errors import UserError, require_flag


@register_head("metaqda")
class MetaQDA(Head):
    """Each class is a Gaussian whose mean and covariance have a prior that all classes share.

    Zhang, Meng, Gouk and Hospedales, "Shallow Bayesian Meta Learning for Real-World Few-Shot Recognition",
    2021 (arXiv 2101.02833). The network is trained on the base classes first and is then frozen; its
    features are centred on the base classes and scaled to unit length. Episodes train the prior (m, κ, ν, L).

    estimate:     "bayes" integrates over mean and covariance, "map" takes the most probable ones
    mix_identity: as in the published code of "map": average the inverse covariance with the identity, and
                  leave out the log-determinant
    """

    base_stage = "linear"
    needs_base_mean = True

    def __init__(
        self,
        feature_dim: int | None = None,
        *,
        estimate: Literal["bayes", "map"] = "bayes",
        mix_identity: bool = False,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        if estimate not in ("bayes", "map"):
            raise UserError(f"estimate must be 'bayes' or 'map', not {estimate!r}.")
        require_flag(mix_identity=mix_identity, normalize=normalize)
        if mix_identity and estimate != "map":
            raise UserError("mix_identity belongs to estimate='map'.")
        self.estimate, self.mix_identity, self.normalize = estimate, mix_identity, normalize
        d = require_dim("metaqda", feature_dim)
        self.base_mean: Tensor
        self.register_buffer("base_mean", torch.zeros(d))
        self.m = nn.Parameter(torch.zeros(d))
        self.log_kappa = nn.Parameter(torch.zeros(()))
        self.log_excess = nn.Parameter(torch.zeros(()))  # of ν over d − 1
        self.log_diagonal = nn.Parameter(torch.zeros(d))  # of L
        self.below_diagonal = nn.Parameter(torch.zeros(d, d))  # of L; other entries are not used
        self._cached_inverse: tuple[tuple[object, ...], Tensor] | None = None

    def adapt(
        self, support: Tensor, labels: Tensor, n_way: int, *, backbone: nn.Module | None = None
    ) -> "MetaQDAPosterior":
        """Update the prior with the shots of each class.

        S_j = LLᵀ + UᵀU, where U [N, d] = (I − c·11ᵀ)(x_i − m) contains both terms that the shots add: with
        c = (1 − √(κ/(κ+N)))/N, UᵀU = Σ(x−x̄)(x−x̄)ᵀ + κN/(κ+N)·(x̄−m)(x̄−m)ᵀ. Whitened by L, S_j is I plus
        a matrix of rank N, so inverse and determinant come from the N×N matrix I + UUᵀ.
        """
        check_episode(support, labels, n_way)
        kappa = self.log_kappa.exp().to(support.dtype)
        white = self.whitened(self.phi(support))  # L⁻¹(x − m), [..., n, d]
        slots, filled = padded_class_indices(labels, n_way)  # [..., C, N]
        counts = filled.sum(-1).to(white.dtype)  # N_j, [..., C]
        shots = _take(white, slots) * filled.unsqueeze(-1)  # [..., C, N, d]
        total = shots.sum(-2)  # [..., C, d]
        c = (1 - (kappa / (kappa + counts)).sqrt()) / counts.clamp_min(1)
        U = shots - (c.unsqueeze(-1) * filled).unsqueeze(-1) * total.unsqueeze(-2)
        identity = torch.eye(slots.shape[-1], dtype=U.dtype, device=U.device)
        chol = torch.linalg.cholesky_ex(identity + U @ U.mT).L  # [..., C, N, N]
        mean = total / (kappa + counts).unsqueeze(-1)  # whitened: (κm + Nx̄)/(κ+N) − m, [..., C, d]
        return MetaQDAPosterior(
            head=self,
            mean=mean,
            U=U,
            chol=chol,
            counts=counts,
            projected_mean=(U @ mean.unsqueeze(-1)).squeeze(-1),
            phi_mean=self._unwhitened(mean) if self.mix_identity else None,
        )

    def log_normaliser(self, counts: Tensor) -> Tensor:
        """Return the part of log p(x | class) that depends on the number of shots [..., C] alone.

        Terms that are the same for all classes are left out. In float64: large terms nearly cancel.
        """
        d, n = len(self.m), counts.double()
        kappa, nu = self.log_kappa.double().exp(), self.nu()
        if self.estimate == "map":
            constant = 0.5 * d * (nu + n + d + 2).log()
        else:
            constant = (
                torch.lgamma((nu + n + 1) / 2)
                - torch.lgamma((nu + n + 1 - d) / 2)
                - 0.5 * d * ((kappa + n + 1) / (kappa + n)).log()
            )
        return constant.to(counts.dtype)

    def train(self, mode: bool = True) -> "MetaQDA":
        """Switch between training and evaluation, and clear the cached L⁻¹."""
        self._cached_inverse = None
        return super().train(mode)

    def nu(self) -> Tensor:
        """Return ν > d − 1, float64."""
        return len(self.m) - 1 + self.log_excess.double().exp()

    def scalars(self) -> dict[str, float]:
        """Return κ and ν."""
        return {"kappa": self.log_kappa.exp().item(), "nu": self.nu().item()}

    def phi(self, features: Tensor) -> Tensor:
        """Centre features [..., n, d] on the base classes, scale them to unit length, subtract m."""
        centred = features - self.base_mean.to(features.dtype)
        return (unit_length(centred) if self.normalize else centred) - self.m.to(features.dtype)

    def whitened(self, phi: Tensor) -> Tensor:
        """Return L⁻¹φ for all rows [..., n, d] at once: O(d²) per row, as L is the same for every task."""
        rows = phi.reshape(-1, phi.shape[-1])
        if torch.is_grad_enabled():
            white = torch.linalg.solve_triangular(self._lower(phi.dtype).mT, rows, upper=True, left=False)
        else:
            white = rows @ self._inverse_lower(phi.dtype).mT
        whitened: Tensor = white.view_as(phi)
        return whitened

    def _unwhitened(self, white: Tensor) -> Tensor:
        return white @ self._lower(white.dtype).mT

    def _lower(self, dtype: torch.dtype) -> Tensor:
        return (self.below_diagonal.tril(-1) + self.log_diagonal.exp().diag()).to(dtype)

    def _inverse_lower(self, dtype: torch.dtype) -> Tensor:
        """Return L⁻¹, cached until a parameter changes: multiplying by it is faster than solving each time.

        Fused optimisers and CUDA graphs change parameters without increasing `_version`; `train` and `eval`
        clear the cache for these.
        """
        parameters = (self.below_diagonal, self.log_diagonal)
        versions = (None if p.is_inference() else p._version for p in parameters)
        state = (dtype, *versions, *(p.data_ptr() for p in parameters))
        if self._cached_inverse is None or self._cached_inverse[0] != state:
            identity = torch.eye(len(self.m), dtype=dtype, device=self.m.device)
            lower = self._lower(dtype)
            self._cached_inverse = (state, torch.linalg.solve_triangular(lower, identity, upper=False))
        return self._cached_inverse[1]


def padded_class_indices(labels: Tensor, n_way: int) -> tuple[Tensor, Tensor]:
    """Return the indices of each class's examples, padded to equal length, and which slots are filled.

    labels [..., n] → [..., C, N] twice, N being the size of the largest class.
    """
    flat = labels.reshape(-1, labels.shape[-1]).long()
    tasks, n = flat.shape
    ordered, order = flat.sort(stable=True, dim=-1)
    counts = torch.zeros(tasks, n_way, dtype=torch.int64, device=labels.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    most = int(counts.max()) if tasks else 1
    slot = torch.arange(n, device=labels.device) - (counts.cumsum(1) - counts).gather(1, ordered)
    slots = torch.zeros(tasks, n_way * most, dtype=torch.int64, device=labels.device)
    slots.scatter_(1, ordered * most + slot, order)
    filled = torch.arange(most, device=labels.device) < counts.unsqueeze(-1)
    shape = (*labels.shape[:-1], n_way, most)
    return slots.view(shape), filled.view(shape)


@dataclass
class MetaQDAPosterior(Posterior):
    """The updated prior of each class, whitened by L.

    mean [..., C, d], minus m; U [..., C, N, d] with S_j = I + UᵀU; chol [..., C, N, N], factor of I + UUᵀ;
    counts [..., C]; projected_mean = U·mean [..., C, N]; phi_mean [..., C, d], the mean before whitening.
    """

    head: MetaQDA
    mean: Tensor
    U: Tensor
    chol: Tensor
    counts: Tensor
    projected_mean: Tensor
    phi_mean: Tensor | None

    def log_prob(self, query: Tensor) -> Tensor:
        """Return log p(y | x, S) under equal class priors, [..., q, d] → [..., q, C]."""
        phi = self.head.phi(query)
        scores = self._log_density(self.head.whitened(phi), phi)
        return scores.masked_fill((self.counts == 0).unsqueeze(-2), -math.inf).log_softmax(-1)

    def _log_density(self, white: Tensor, phi: Tensor) -> Tensor:
        """Return log p(x | class j) up to a term that all classes share, [..., q, C]."""
        head, counts = self.head, self.counts.unsqueeze(-2)
        kappa, nu = (t.to(white.dtype) for t in (head.log_kappa.exp(), head.nu()))
        distance2 = self._distance2(white)
        if self.phi_mean is not None:  # Σ⁻¹ averaged with I, no determinant
            mahalanobis2 = (nu + counts + len(head.m) + 2) * distance2
            return -0.25 * (mahalanobis2 + _pairwise_distance2(phi, self.phi_mean))
        log_det = 2 * self.chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # of S_j, minus that of LLᵀ
        constant = (head.log_normaliser(self.counts) - 0.5 * log_det).unsqueeze(-2)
        if head.estimate == "map":  # N(x; mean, S/(ν+N+d+2))
            return constant - 0.5 * (nu + counts + len(head.m) + 2) * distance2
        # Student-t with ν+N+1−d degrees of freedom and scale S(κ+N+1)/((κ+N)·dof)
        return (
            constant - 0.5 * (nu + counts + 1) * (distance2 * (kappa + counts) / (kappa + counts + 1)).log1p()
        )

    def _distance2(self, white: Tensor) -> Tensor:
        """Return δᵀS⁻¹δ = ‖δ‖² − ‖chol⁻¹Uδ‖² for δ = x − mean, all whitened (Woodbury), [..., q, C]."""
        *batch, C, N, d = self.U.shape
        through_U = (white @ self.U.reshape(*batch, C * N, d).mT).unflatten(-1, (C, N))  # [..., q, C, N]
        difference = through_U.movedim(-3, -1) - self.projected_mean.unsqueeze(-1)  # [..., C, N, q]
        explained = torch.linalg.solve_triangular(self.chol, difference, upper=False).square().sum(-2)
        distance2: Tensor = (_pairwise_distance2(white, self.mean) - explained.mT).clamp_min(0)
        return distance2


def _pairwise_distance2(x: Tensor, centre: Tensor) -> Tensor:
    """Return ‖x − centre‖², [..., q, d] and [..., C, d] → [..., q, C]."""
    norms = x.square().sum(-1, keepdim=True) + centre.square().sum(-1).unsqueeze(-2)
    return norms - 2 * x @ centre.mT


def _take(rows: Tensor, indices: Tensor) -> Tensor:
    """Return the rows [..., n, d] at indices [..., C, N] as [..., C, N, d]."""
    flat = indices.flatten(-2).unsqueeze(-1).expand(*indices.shape[:-2], -1, rows.shape[-1])
    taken: Tensor = rows.gather(-2, flat).unflatten(-2, indices.shape[-2:])
    return taken
