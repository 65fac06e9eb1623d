"""Random changes to images of characters, batched, on any device."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

N_CHARACTER_UNIFORMS = 7  # random numbers per character
N_STROKE_UNIFORMS = N_CHARACTER_UNIFORMS + 1
THICKEST = 2.0  # pixels, the maximal gain of a stroke on each side


def sample_character_params(uniforms: Tensor) -> Tensor:
    """Draw the changes of each character from random numbers of [0, 1), [n, 7].

    Returns [n, 7]: the matrix [2, 3] from positions in the new image to those in the old, and the width of
    the blur in pixels.
    """
    columns = uniforms.unbind(1)

    def between(number: Tensor, low: float, high: float) -> Tensor:
        return low + (high - low) * number

    angle, shear = between(columns[0], -0.26, 0.26), between(columns[1], -0.3, 0.3)
    scale_x, scale_y = between(columns[2], 0.8, 1.25), between(columns[3], 0.8, 1.25)
    shift_x, shift_y = between(columns[4], -0.1, 0.1), between(columns[5], -0.1, 0.1)
    cos, sin = torch.cos(angle), torch.sin(angle)
    width = between(columns[6], 0.0, 1.5)
    return torch.stack(
        [cos / scale_x, (shear - sin) / scale_y, shift_x, sin / scale_x, cos / scale_y, shift_y, width], dim=1
    )


def sample_stroke_params(uniforms: Tensor) -> Tensor:
    """Draw the same with half the blur, and how much thicker strokes become: [n, 8] → [n, 8]."""
    changes = sample_character_params(uniforms[:, :N_CHARACTER_UNIFORMS])
    changes[:, 6] /= 2
    return torch.cat([changes, THICKEST * uniforms[:, N_CHARACTER_UNIFORMS:]], dim=1)


def augment_characters(images: Tensor, changes: Tensor) -> Tensor:
    """Slant, scale, shift and blur each image on its own: float [n, c, h, w], changes [n, 7] → the same.

    These are variations of handwriting that print lacks. Pixels from outside the image are paper (1).
    """
    return 1 - blur(_moved_ink(images, changes), changes[:, 6])


def augment_strokes(images: Tensor, changes: Tensor) -> Tensor:
    """Do the same with thicker strokes, changes [n, 8]: what another pen, or another scanner, would do."""
    return 1 - blur(thicken(_moved_ink(images, changes), changes[:, 7]), changes[:, 6])


def _moved_ink(images: Tensor, changes: Tensor) -> Tensor:
    """Return where the ink (1) is after slanting, scaling and shifting."""
    grid = F.affine_grid(changes[:, :6].view(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(1 - images, grid, mode="bilinear", align_corners=False)


def thicken(ink: Tensor, pixels: Tensor) -> Tensor:
    """Let images [n, c, h, w] gain [n] pixels of ink on all sides; a part of a pixel counts in part."""
    left = pixels.view(-1, 1, 1, 1)
    for _ in range(math.ceil(THICKEST)):
        ink = torch.lerp(ink, F.max_pool2d(ink, 3, stride=1, padding=1), left.clamp(0, 1))
        left = left - 1
    return ink


def blur(images: Tensor, sigma: Tensor, radius: int = 3) -> Tensor:
    """Blur each image [n, c, h, w] with a Gaussian of its own width [n], in pixels."""
    n, channels, height, width = images.shape
    distance = torch.arange(-radius, radius + 1, device=images.device)
    kernel = torch.exp(-0.5 * (distance / sigma.clamp_min(1e-3).unsqueeze(1)) ** 2)
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(channels, 0)  # [n * c, 2 * radius + 1]
    planes = n * channels
    as_channels = images.reshape(1, planes, height, width)
    rows = F.conv2d(as_channels, kernel.view(planes, 1, -1, 1), padding=(radius, 0), groups=planes)
    return F.conv2d(rows, kernel.view(planes, 1, 1, -1), padding=(0, radius), groups=planes).view_as(images)
