"""Random few-shot episodes."""

from collections.abc import Sequence

import torch
from torch import Tensor


def random_episode(
    shots: int | Sequence[int],
    ways: int,
    queries: int,
    d: int,
    *,
    batch: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    nonnegative: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw features of normally distributed classes around random centres; the seed determines them.

    shots:       support examples per class, or a list with one number per class
    queries:     queries per class
    batch:       leading axes, for a batch of episodes
    nonnegative: whether features are positive, as after a ReLU

    Returns support [*batch, n, d], labels [*batch, n], query [*batch, q, d], query labels [*batch, q].
    """
    generator = torch.Generator().manual_seed(seed)
    shots_per_class = [shots] * ways if isinstance(shots, int) else list(shots)
    centres = torch.randn(*batch, ways, d, generator=generator, dtype=torch.float64)
    labels = torch.repeat_interleave(torch.arange(ways), torch.tensor(shots_per_class))
    query_labels = torch.arange(ways).repeat_interleave(queries)

    def features(classes: Tensor) -> Tensor:
        noise = torch.randn(*batch, len(classes), d, generator=generator, dtype=torch.float64)
        x = centres[..., classes, :] + 1.5 * noise
        return (x.relu() + 1e-3 if nonnegative else x).to(dtype)

    return (
        features(labels),
        labels.expand(*batch, -1),
        features(query_labels),
        query_labels.expand(*batch, -1),
    )
