"""Random changes to training photographs: crop, flip and colour, as the few-shot literature does it.

First what happens to each image is drawn from random numbers, then it is done: batched tensor operations, on
whatever device the images lie.
"""

import math

import torch
from torch import Tensor

from gpldla.data.augment.resample import crop_and_resize
from gpldla.data.augment.transforms import constant, grey

CROP_ATTEMPTS = 10
N_BOX_UNIFORMS = 2 * CROP_ATTEMPTS + 2  # random numbers that draw a box
N_PHOTOGRAPH_UNIFORMS = N_BOX_UNIFORMS + 4  # and all changes to a photograph
STRENGTH = 0.4  # of the colour jitter: factors from 0.6 to 1.4
SMALLEST_AREA = 0.08  # of a box


def sample_photograph_params(
    uniforms: Tensor,
    shapes: Tensor | None,
    stored: tuple[int, int],
    *,
    smallest_area: float = SMALLEST_AREA,
    strength: float = STRENGTH,
) -> Tensor:
    """Draw what happens to each photograph.

    uniforms: [n, N_PHOTOGRAPH_UNIFORMS], random numbers from [0, 1)
    shapes:   [n, 2], height and width that the images had before they were stored; None: the stored ones
    stored:   height and width of the images
    smallest_area, strength: of the boxes, as a part of the picture, and of the changes of colour

    Returns [n, 8]: top, left, height and width of a box in stored pixels, whether to mirror it (0 or 1), and
    the factors of brightness, contrast and saturation.
    """
    of_boxes, of_sides, of_colours = torch.split(uniforms, [N_BOX_UNIFORMS, 1, 3], dim=1)
    sides = constant(stored, uniforms.device)
    true = sides.expand(len(uniforms), 2) if shapes is None else shapes
    # Boxes are drawn in the original shape of the picture, so that they have the ratio that was drawn.
    boxes = random_boxes(of_boxes, true, smallest_area) * (sides / true).repeat(1, 2)
    mirrored = (of_sides < 0.5).float()
    factors = 1 + strength * (2 * of_colours - 1)
    return torch.cat([clamp_boxes(boxes, *stored), mirrored, factors], dim=1)


def augment_photographs(images: Tensor, changes: Tensor, size: int) -> Tensor:
    """Crop, resize, mirror and recolour images, uint8 [n, 3, h, w].

    changes: [n, 8], as `sample_photograph_params` returns them

    Returns float32 [n, 3, size, size] in [0, 1].
    """
    boxes, mirrored, factors = torch.split(changes, [4, 1, 3], dim=1)
    cropped = crop_and_resize(images, boxes, size, mirrored.squeeze(1) > 0)
    for change, factor in zip((brightness_, contrast_, saturation_), factors.unbind(1)):
        change(cropped, factor)
    return cropped


def random_boxes(uniforms: Tensor, shapes: Tensor, smallest_area: float) -> Tensor:
    """Draw whole-pixel boxes [n, 4] (top, left, height, width) in images of these heights and widths [n, 2].

    uniforms: [n, N_BOX_UNIFORMS], random numbers from [0, 1)

    Their area is from smallest_area to 1 of the image, their ratio of width to height from 3/4 to 4/3. Each
    image takes the first of ten attempts that fits, and the largest box of such a ratio if none does.
    """
    of_areas, of_ratios, of_corners = torch.split(uniforms, [CROP_ATTEMPTS, CROP_ATTEMPTS, 2], dim=1)
    height, width = shapes.float().unsqueeze(-1).unbind(1)  # [n, 1] each
    area = height * width * (smallest_area + (1 - smallest_area) * of_areas)
    ratio = ((2 * of_ratios - 1) * math.log(4 / 3)).exp()
    box_height, box_width = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (box_height >= 1) & (box_height <= height) & (box_width >= 1) & (box_width <= width)
    first, any_fits = fits.int().argmax(1, keepdim=True), fits.any(1, keepdim=True)
    box_height = box_height.gather(1, first).where(any_fits, height.minimum((width * 4 / 3).round()))
    box_width = box_width.gather(1, first).where(any_fits, width.minimum((height * 4 / 3).round()))
    room = torch.cat([height - box_height, width - box_width], dim=1) + 1
    # A number just below 1 times a large room may round up to it.
    corner = (of_corners * room).floor().minimum(room - 1)
    return torch.cat([corner, box_height, box_width], dim=1)


def clamp_boxes(boxes: Tensor, height: int, width: int) -> Tensor:
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
