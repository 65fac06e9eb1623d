"""Random changes to images of characters, batched, on whatever device they lie."""

import torch
import torch.nn.functional as F
from torch import Tensor


def augment_characters(images: Tensor) -> Tensor:
    """Slant, scale, shift and blur each image on its own: float [n, c, h, w] → the same.

    What handwriting has and print lacks. Paper (1) fills what comes in from outside.
    """
    n, device = len(images), images.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(n, device=device).uniform_(low, high)

    angle, shear = uniform(-0.26, 0.26), uniform(-0.3, 0.3)
    scale_x, scale_y = uniform(0.8, 1.25), uniform(0.8, 1.25)
    cos, sin = torch.cos(angle), torch.sin(angle)
    backward = torch.stack(
        [
            cos / scale_x,
            (shear - sin) / scale_y,
            uniform(-0.1, 0.1),
            sin / scale_x,
            cos / scale_y,
            uniform(-0.1, 0.1),
        ],
        dim=1,
    ).view(n, 2, 3)
    grid = F.affine_grid(backward, list(images.shape), align_corners=False)
    ink = F.grid_sample(1 - images, grid, mode="bilinear", align_corners=False)
    return 1 - blur(ink, uniform(0.0, 1.5))


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
