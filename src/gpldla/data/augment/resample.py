"""Cutting a box out of each image and resizing it, for a whole batch at once."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_resize(images: Tensor, boxes: Tensor, size: int, mirrored: Tensor | None = None) -> Tensor:
    """Cut `boxes` out of images [n, c, h, w] and resize each to [size, size], antialiased.

    images:   uint8
    boxes:    float [n, 4], top, left, height and width in pixels, each inside its image
    mirrored: bool [n], which images to turn left to right

    Bilinear resizing weights a few source rows for each target row, then a few columns for each target
    column. A weighted sum of a few rows of a table is what an embedding bag computes, so two of them do the
    work for all images, whatever their boxes. The result, float32 [n, c, size, size] in [0, 1], is that of
    Pillow's `crop` and `resize`.
    """
    n, channels, height, width = images.shape
    starts, lengths = boxes[:, :2].T.flatten(), boxes[:, 2:].T.flatten()  # all rows, then all columns
    backwards = torch.zeros(2 * n, dtype=torch.bool, device=boxes.device)
    if mirrored is not None:
        backwards[n:] = mirrored
    widest = math.ceil(2 * max(1.0, height / size, width / size))
    sources, weights = _taps(starts, lengths, backwards, widest, size)
    # Every grey level is a bfloat16, and half the bytes are twice the speed where memory is the limit.
    # Rounded weights make an error of a third of a level on average, as Pillow's own rounding does.
    dtype = torch.bfloat16 if images.device.type == "cpu" else torch.float32
    weights[:n] /= 255
    weights = weights.to(dtype).repeat_interleave(channels, 0)  # the channels of an image have the same box
    sources = sources.repeat_interleave(channels, 0)
    planes = images.flatten(0, 1).to(dtype)  # [n * c, h, w]
    rows = _weighted_sums(planes, sources[: len(planes)], weights[: len(planes)])  # [n * c, size, w]
    by_column = rows.transpose(1, 2).contiguous()
    columns = _weighted_sums(by_column, sources[len(planes) :], weights[len(planes) :])  # [n * c, size, size]
    return columns.float().view(n, channels, size, size).transpose(2, 3)


def _weighted_sums(tables: Tensor, sources: Tensor, weights: Tensor) -> Tensor:
    """Sum a few rows of each table [n, rows, d] for each target: sources, weights [n, targets, taps].

    Returns [n, targets, d].
    """
    n, n_rows, d = tables.shape
    first = torch.arange(0, n * n_rows, n_rows, device=tables.device, dtype=sources.dtype).view(-1, 1, 1)
    bags = (sources + first).flatten(0, 1)
    sums = F.embedding_bag(bags, tables.reshape(-1, d), mode="sum", per_sample_weights=weights.flatten(0, 1))
    return sums.view(n, -1, d)


def _taps(
    starts: Tensor, lengths: Tensor, backwards: Tensor, widest: int, n_targets: int
) -> tuple[Tensor, Tensor]:
    """Return the source pixels of each target pixel, int32 [n, n_targets, widest], and their weights.

    starts, lengths: [n], the stretch of an axis to resize, at least a pixel long
    backwards:       [n], whether the target pixels run against the source pixels
    widest:          source pixels that a target pixel covers at most

    A triangle around the target pixel's centre, as wide as a target pixel when that covers several source
    pixels (so that none is skipped), else as wide as a source pixel. Pixels beyond the stretch are not
    used, as if the image ended there; weights sum to 1.
    """
    starts, lengths = starts.view(-1, 1, 1), lengths.view(-1, 1, 1)
    positions = torch.arange(0.5, n_targets, device=starts.device).view(1, -1, 1)
    positions = positions.flip(1).where(backwards.view(-1, 1, 1), positions)
    scale = lengths / n_targets  # source pixels per target pixel
    radius = scale.clamp_min(1)
    centres = starts - 0.5 + scale * positions
    # The tolerance keeps rounding from losing a pixel that lies just on the edge.
    lowest, highest = (starts - 0.501).ceil(), (starts + lengths - 0.499).floor()
    first = (centres - radius).ceil().maximum(lowest)
    sources = first + torch.arange(widest, device=starts.device)  # beyond these, weights are 0
    weights = (sources - centres).abs_().div_(-radius).add_(1).clamp_min_(0).mul_(sources <= highest)
    weights.div_(weights.sum(-1, keepdim=True))
    return sources.minimum(highest).int(), weights
