"""Random changes to training photographs: crop, flip and colour, as the few-shot literature does it.

Batched tensor operations on float images in [0, 1], random for each image, on whatever device they lie.
"""

import math

import torch
from torch import Tensor

from gpldla.data.resample import crop_and_resize
from gpldla.data.transforms import grey

CROP_ATTEMPTS = 10
STRENGTH = 0.4  # of the colour jitter: factors from 0.6 to 1.4


def augment_photographs(images: Tensor, size: int, *, smallest_area: float = 0.08) -> Tensor:
    """Crop, resize, change colours and mirror half at random: [n, 3, h, w] → [n, 3, size, size]."""
    n, device = len(images), images.device
    height, width = images.shape[-2:]
    cropped = crop_and_resize(images, random_boxes(n, height, width, smallest_area, device), size)
    for change in (brightness, contrast, saturation):
        factors = torch.empty(n, device=device).uniform_(1 - STRENGTH, 1 + STRENGTH)
        cropped = change(cropped, factors)
    mirrored = torch.rand(n, device=device) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), cropped.flip(-1), cropped)


def random_boxes(
    n: int, height: int, width: int, smallest_area: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw whole-pixel boxes [n, 4] (top, left, height, width): an area from smallest_area to 1 of the image,
    a ratio of width to height from 3/4 to 4/3.

    Each image takes the first of ten attempts that fits, and the largest box of such a ratio if none does.
    """
    shape = (n, CROP_ATTEMPTS)
    area = height * width * torch.empty(shape, device=device).uniform_(smallest_area, 1)
    ratio = torch.empty(shape, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    box_height, box_width = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (box_height >= 1) & (box_height <= height) & (box_width >= 1) & (box_width <= width)
    first = fits.int().argmax(1, keepdim=True)
    any_fits = fits.any(1)
    box_height = box_height.gather(1, first).squeeze(1).where(any_fits, min(height, round(width * 4 / 3)))
    box_width = box_width.gather(1, first).squeeze(1).where(any_fits, min(width, round(height * 4 / 3)))
    top = (torch.rand(n, device=device) * (height - box_height + 1)).floor()
    left = (torch.rand(n, device=device) * (width - box_width + 1)).floor()
    return torch.stack([top, left, box_height, box_width], dim=1)


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image [n, 3, h, w] with black; factors [n], 1 changes nothing."""
    return _blend(images, torch.zeros_like(images[:, :1]), factors)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image [n, 3, h, w] with the mean of its grey levels."""
    return _blend(images, grey(images).mean((2, 3), keepdim=True), factors)


def saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image [n, 3, h, w] with its grey version."""
    return _blend(images, grey(images), factors)


def _blend(images: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    return torch.lerp(other.expand_as(images), images, factors.view(-1, 1, 1, 1)).clamp(0, 1)
