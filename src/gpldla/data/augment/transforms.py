"""From stored uint8 images to the input of a network: batched tensor operations on any device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpldla.data.preprocessing import Preprocessing


def evaluation_images(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Resize, crop at the centre and standardise: uint8 [n, c, h, w] → float32 [n, c, size, size]."""
    return standardise_(centre_crop(resized_images(images, preprocessing), preprocessing), preprocessing)


def resized_images(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Scale uint8 [n, c, h, w] to float32 in [0, 1] of the size that comes before the crop."""
    side = (preprocessing.resized, preprocessing.resized)
    if images.shape[-2:] == side:
        return to_float(images, preprocessing.channels)
    # On a CPU bytes are resized eight times as fast as floats, and rounded as Pillow rounds them.
    source = images if images.device.type == "cpu" else images.float()
    mode = preprocessing.interpolation
    resized = F.interpolate(source, side, mode=mode, antialias=True, align_corners=False)
    if mode == "bicubic" and resized.is_floating_point():
        resized = resized.clamp_(0, 255)  # it overshoots at edges; for bytes, torch clamps
    return to_float(resized, preprocessing.channels)


def centre_crop(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Crop at the centre: [n, c, resized, resized] → [n, c, size, size]."""
    size, margin = preprocessing.size, preprocessing.margin
    return images[..., margin : margin + size, margin : margin + size]


def standardise_(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Subtract the mean and divide by the standard deviation of each channel, [n, c, h, w], in place."""
    mean, std = constant(preprocessing.mean, images.device), constant(preprocessing.std, images.device)
    return images.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))


_constants: dict[tuple[tuple[float, ...], torch.device], Tensor] = {}


def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return a few numbers as a cached tensor on the device: copying them each time would stall a GPU."""
    known = _constants.get((values, device))
    if known is None:
        known = torch.tensor(values, dtype=torch.float32, device=device)
        # The stand-ins of a trace hold no numbers, and would be found by computations after it.
        if type(known) is Tensor and not torch.compiler.is_compiling():
            _constants[values, device] = known
    return known


def to_float(images: Tensor, channels: int) -> Tensor:
    """Scale grey levels [n, c, h, w] to new float32 images in [0, 1] with the wanted number of channels."""
    floats = images.float() / 255
    if floats.shape[1] == channels:
        return floats
    return grey(floats) if channels == 1 else to_rgb(floats).contiguous()


def to_rgb(images: Tensor) -> Tensor:
    """Return images [n, 1 or 3, h, w] with three channels."""
    return images if images.shape[1] == 3 else images.expand(-1, 3, -1, -1)


def grey(images: Tensor) -> Tensor:
    """Return the luma of colour images, float [n, 3, h, w] → [n, 1, h, w]."""
    red, green, blue = torch.split(images, 1, dim=1)
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)
