"""The LDA plugin alone: GPLDLA without the prior-norm adjustment, an ablation."""

import torch
from torch import Tensor

from gpldla.heads.base import register_head
from gpldla.heads.gp.rows import Rows
from gpldla.heads.gpldla import LDASurrogate


@register_head("lda")
class LDAPlugin(LDASurrogate):
    """GPLDLA with σ set to the median distance between two support features; everything else is the same.

    Ablation (ii) of Kim and Hospedales, 2021.
    """

    def class_variance(self, phi: Rows, mean_norm2: Tensor, beta: Tensor) -> Tensor:
        """Return the squared median of all pairwise distances, [..., 1]; 1 where it is zero or missing."""
        gram = phi.gram()
        if gram.shape[-1] < 2:
            return torch.ones_like(mean_norm2)
        n, norm2 = gram.shape[-1], gram.diagonal(dim1=-2, dim2=-1)
        first, second = torch.triu_indices(n, n, offset=1, device=gram.device)
        distance2 = norm2[..., first] + norm2[..., second] - 2 * gram[..., first, second]
        # The root is increasing, so squares can be sorted instead of distances. With an even number of pairs,
        # the median is the mean of the two roots in the middle.
        ordered = distance2.sort(-1).values
        pairs = ordered.shape[-1]
        middle = ordered[..., (pairs - 1) // 2 : pairs // 2 + 1]  # one or two values
        positive = middle > 0
        median = (middle.where(positive, 1).sqrt() * positive).mean(-1, keepdim=True)
        return median.where(median > 0, 1).square()
