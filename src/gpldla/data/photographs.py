"""Random changes to training photographs: crop, flip and colour, as the few-shot literature does it.

Batched tensor operations, random for each image, on whatever device the images lie.
"""

import math

import torch
from torch import Tensor

from gpldla.data.resample import crop_and_resize
from gpldla.data.transforms import constant, grey

CROP_ATTEMPTS = 10
STRENGTH = 0.4  # of the colour jitter: factors from 0.6 to 1.4


def augment_photographs(
    images: Tensor, size: int, *, shapes: Tensor | None = None, smallest_area: float = 0.08
) -> Tensor:
    """Crop, resize, mirror half of the images and change colours at random.

    images: uint8 [n, 3, h, w]
    shapes: [n, 2], height and width that the images had before they were made h × w; None: h and w

    Returns float32 [n, 3, size, size] in [0, 1].
    """
    n, device = len(images), images.device
    stored = constant(tuple(images.shape[-2:]), device)
    true = stored.expand(n, 2) if shapes is None else shapes
    # Boxes are drawn in the picture as it was, so that their ratio is that of what they show.
    boxes = random_boxes(true, smallest_area) * (stored / true).repeat(1, 2)
    mirrored = torch.rand(n, device=device) < 0.5
    cropped = crop_and_resize(images, at_least_a_pixel(boxes, *images.shape[-2:]), size, mirrored)
    for change in (brightness_, contrast_, saturation_):
        factors = torch.empty(n, device=device).uniform_(1 - STRENGTH, 1 + STRENGTH)
        change(cropped, factors)
    return cropped


def random_boxes(shapes: Tensor, smallest_area: float) -> Tensor:
    """Draw whole-pixel boxes [n, 4] (top, left, height, width) in images of these heights and widths [n, 2].

    Their area is from smallest_area to 1 of the image, their ratio of width to height from 3/4 to 4/3. Each
    image takes the first of ten attempts that fits, and the largest box of such a ratio if none does.
    """
    device, attempts = shapes.device, (len(shapes), CROP_ATTEMPTS)
    height, width = shapes.float().unsqueeze(-1).unbind(1)  # [n, 1] each
    area = height * width * torch.empty(attempts, device=device).uniform_(smallest_area, 1)
    ratio = torch.empty(attempts, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    box_height, box_width = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (box_height >= 1) & (box_height <= height) & (box_width >= 1) & (box_width <= width)
    first, any_fits = fits.int().argmax(1, keepdim=True), fits.any(1, keepdim=True)
    box_height = box_height.gather(1, first).where(any_fits, height.minimum((width * 4 / 3).round()))
    box_width = box_width.gather(1, first).where(any_fits, width.minimum((height * 4 / 3).round()))
    room = torch.cat([height - box_height, width - box_width], dim=1) + 1
    corner = (torch.rand(len(shapes), 2, device=device) * room).floor()
    return torch.cat([corner, box_height, box_width], dim=1)


def at_least_a_pixel(boxes: Tensor, height: int, width: int) -> Tensor:
    """Enlarge boxes [n, 4] smaller than a pixel of an image [height, width], and keep them inside it."""
    limits = constant((height, width), boxes.device)
    extent = boxes[:, 2:].clamp_min(1)
    return torch.cat([boxes[:, :2].minimum(limits - extent), extent], dim=1)


# Changes of colour work in place: a batch of images is larger than a CPU's caches, so copies cost most.


def brightness_(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image [n, 3, h, w] with black; factors [n], 1 changes nothing."""
    return images.mul_(factors.view(-1, 1, 1, 1)).clamp_(0, 1)


def contrast_(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image [n, 3, h, w] with the mean of its grey levels."""
    return _blend_(images, grey(images.mean((2, 3), keepdim=True)), factors)


def saturation_(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image [n, 3, h, w] with its grey version."""
    return _blend_(images, grey(images), factors)


def _blend_(images: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    factors = factors.view(-1, 1, 1, 1)
    return images.mul_(factors).add_(other.mul_(1 - factors)).clamp_(0, 1)
