"""The loss of a head as a few GPU kernels instead of some hundreds, made by torch.compile."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from gpldla.heads import Head

LossFunction = Callable[..., Tensor]  # called as `Head.loss` is


def compile_loss(
    head: Head, labels: Tensor, query_labels: Tensor, n_way: int, shape: tuple[int, ...]
) -> LossFunction:
    """Return the loss of a head as compiled code, or `head.loss` itself where that fails.

    It is tried on random numbers first. The head stays unchanged: whoever trains passes the function on.

    labels [..., n], query_labels [..., q]: of the episodes to come; shape: of what the head sees per image
    """
    plain: LossFunction = head.loss
    batch, device = labels.shape[:-1], labels.device
    counts = [y.shape[-1] for y in (labels, query_labels)]
    represented = torch.rand(*batch, sum(counts), *shape, device=device, requires_grad=True)
    support, query = torch.split(represented, counts, dim=len(batch))  # as `FewShotModel.forward` cuts it
    try:
        compiled: LossFunction = torch.compile(plain, dynamic=False)
        torch.autograd.backward(compiled(support, labels, query, query_labels, n_way, backbone=None))
    except Exception as error:  # whatever the compiler ran into, the plain loss is right
        warnings.warn(
            f"The head's loss could not be compiled ({error}); it runs without compilation.", stacklevel=2
        )
        return plain
    finally:
        head.zero_grad()
    return compiled
