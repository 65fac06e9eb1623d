"""The Fisher matrix of a network in Kronecker-factored form, and the logarithm of its determinant."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

FLOOR = 1e-8  # added to every diagonal: derivatives of sure predictions vanish


@dataclass
class LayerRecord:
    """Inputs and outputs of the layers that a forward pass went through.

    inputs: for each layer with a bias column [q, t, a], t being the positions of a convolution
    outputs: as the layers returned them
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def add(self, inputs: Tensor, outputs: Tensor) -> None:
        """Record a layer by its inputs [q, t, a] without the bias column."""
        self.inputs.append(F.pad(inputs, (0, 1), value=1.0))
        self.outputs.append(outputs)


@contextmanager
def recorded_layers(network: nn.Module | None) -> Iterator[LayerRecord]:
    """Record all convolutions and linear layers of a network, which must call them as modules."""
    record, handles = LayerRecord(), list[RemovableHandle]()

    def remember(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        (x,) = inputs
        if isinstance(layer, nn.Conv2d):
            padding = cast(tuple[int, ...], layer.padding)  # not a word such as "same"
            x = F.unfold(x, layer.kernel_size, layer.dilation, padding, layer.stride).mT
        record.add(x if x.ndim == 3 else x.unsqueeze(1), outputs)

    for layer in [] if network is None else network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            handles.append(layer.register_forward_hook(remember))
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def fisher_log_det(record: LayerRecord, log_prob: Tensor, damping: float) -> Tensor:
    """Return log det of the Fisher matrix of predictions [q, C], block-diagonal over the layers.

    The block of a layer is A ⊗ G, with A the second moments of its inputs, summed over positions, and G those
    of the derivatives of log p(y) in its outputs, averaged over positions, for labels y that are drawn from
    the predictions. A ⊗ G has the log-determinant g·log det A + a·log det G.

    damping: part of the mean of a factor's diagonal that is added to the diagonal
    """
    labels = torch.multinomial(log_prob.detach().exp(), 1)
    drawn = log_prob.gather(-1, labels).sum()
    slopes = torch.autograd.grad(drawn, record.outputs, create_graph=True)
    total = log_prob.new_zeros(())
    for inputs, slope in zip(record.inputs, slopes):
        g = slope.flatten(2).mT if slope.ndim > 2 else slope.unsqueeze(1)  # [q, t, outputs]
        count = len(inputs)
        A = torch.einsum("qta,qtb->ab", inputs, inputs) / count
        G = torch.einsum("qta,qtb->ab", g, g) / (count * g.shape[1])
        total = total + len(G) * _log_det(A, damping) + len(A) * _log_det(G, damping)
    return total


def _log_det(matrix: Tensor, damping: float) -> Tensor:
    """Return log det of a positive semi-definite matrix with damping."""
    diagonal = matrix.diagonal()
    added = damping * diagonal.mean() + FLOOR
    chol = torch.linalg.cholesky(
        matrix + added * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    )
    log_det: Tensor = 2 * chol.diagonal().log().sum()
    return log_det
