"""From stored uint8 images to what a network sees: batched tensor operations, on whatever device they lie."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpldla.backbones.base import Preprocessing


def evaluation_images(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Resize, crop at the centre and standardise: uint8 [n, c, h, w] → float32 [n, c, size, size]."""
    return standardise(centre_crop(resized_images(images, preprocessing), preprocessing), preprocessing)


def resized_images(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Scale uint8 [n, c, h, w] to float32 in [0, 1] of the size that comes before the crop."""
    floats = to_float(images, preprocessing.channels)
    side = preprocessing.resized
    if floats.shape[-2:] == (side, side):
        return floats
    return F.interpolate(floats, (side, side), mode="bilinear", antialias=True, align_corners=False)


def centre_crop(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Crop at the centre: [n, c, resized, resized] → [n, c, size, size]."""
    size, margin = preprocessing.size, (preprocessing.resized - preprocessing.size) // 2
    return images[..., margin : margin + size, margin : margin + size]


def standardise(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Subtract the mean and divide by the standard deviation of each channel, [n, c, h, w]."""
    mean = torch.tensor(preprocessing.mean, device=images.device).view(-1, 1, 1)
    std = torch.tensor(preprocessing.std, device=images.device).view(-1, 1, 1)
    return (images - mean) / std


def to_float(images: Tensor, channels: int) -> Tensor:
    """Scale uint8 [n, c, h, w] to float32 in [0, 1] with the wanted number of channels."""
    floats = images.float() / 255
    if floats.shape[1] == channels:
        return floats
    return grey(floats) if channels == 1 else floats.expand(-1, channels, -1, -1)


def grey(images: Tensor) -> Tensor:
    """Return the luma of colour images, float [n, 3, h, w] → [n, 1, h, w]."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)
