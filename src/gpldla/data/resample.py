"""Cutting a box out of each image and resizing it, for a whole batch at once."""

import torch
from torch import Tensor


def crop_and_resize(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Cut `boxes` out of float images [n, c, h, w] and resize each to [size, size], antialiased.

    boxes: float [n, 4], top, left, height and width in pixels, each inside its image.

    Bilinear resizing is linear in the pixels of a row and of a column, so it is two products with a matrix of
    weights for each image: no loop over images, and the same numbers as Pillow's `crop` and `resize`.
    """
    top, left, height, width = boxes.unbind(-1)
    rows = _weights(top, height, images.shape[-2], size).unsqueeze(1)  # [n, 1, size, h]
    columns = _weights(left, width, images.shape[-1], size).unsqueeze(1)  # [n, 1, size, w]
    return rows @ images @ columns.mT


def _weights(start: Tensor, length: Tensor, n_source: int, n_target: int) -> Tensor:
    """Return how much each source pixel counts in each target pixel, [n, n_target, n_source]; rows sum to 1.

    A triangle around the target pixel's centre, as wide as a target pixel when that covers several source
    pixels (so that none is skipped), else as wide as a source pixel.
    """
    scale = (length / n_target).view(-1, 1, 1)  # source pixels a target pixel
    targets = torch.arange(n_target, device=start.device, dtype=start.dtype).view(1, -1, 1)
    sources = torch.arange(n_source, device=start.device, dtype=start.dtype).view(1, 1, -1)
    begin, end = start.view(-1, 1, 1), (start + length).view(-1, 1, 1)
    centre = begin + (targets + 0.5) * scale
    distance = (sources + 0.5 - centre).abs() / scale.clamp_min(1)
    # Pixels beyond the box are not looked at, as if the image ended there.
    inside = (sources + 0.5 > begin) & (sources + 0.5 < end)
    weights = (1 - distance).clamp_min(0) * inside
    return weights / weights.sum(-1, keepdim=True)
