"""All changes to training photographs in two GPU kernels: cropping to brightness, then contrast to the end.

The mathematics is that of `photographs` and `resample` in `gpldla.data.augment`. Plain operations write the
images to memory twenty times on the way.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpldla.kernels.typed import jit

PIXELS_PER_BLOCK = 128


def augment_photographs(images: Tensor, changes: Tensor, size: int, mean: Tensor, std: Tensor) -> Tensor:
    """Crop, resize, mirror, recolour and standardise uint8 images [n, 3, h, w] on a GPU.

    changes:   [n, 8], as `sample_photograph_params` returns them
    mean, std: [3], of the channels

    Returns float32 [n, 3, size, size], channels last.
    """
    n, channels, _, width = images.shape
    out = torch.empty((n, channels, size, size), device=images.device, memory_format=torch.channels_last)
    blocks = triton.cdiv(size * size, PIXELS_PER_BLOCK)
    greys = torch.empty((n, blocks), device=images.device)  # sums of the grey levels of each block
    changes = changes.contiguous()
    with torch.cuda.device(images.device):  # Triton launches on the current one
        _crop[(blocks, n)](
            images, changes, out, greys, *images.stride()[:2], width, size, blocks, PIXELS=PIXELS_PER_BLOCK
        )
        _recolour[(blocks, n)](
            changes, out, greys, mean, std, size, blocks,
            PIXELS=PIXELS_PER_BLOCK, BLOCKS=triton.next_power_of_2(blocks),
        )  # fmt: skip
    return out


@jit
def _stretch(target, start, length, size):  # type: ignore[no-untyped-def]
    """Return where target pixels lie in the source: centre, first pixel covered, last one, radius."""
    scale = length / size  # source pixels a target pixel
    radius = tl.maximum(scale, 1.0)
    centre = start - 0.5 + scale * (target + 0.5)
    # The tolerance keeps rounding from losing a pixel that lies just on the edge.
    lowest = tl.ceil(start - 0.501)
    highest = tl.floor(start + length - 0.499)
    return centre, tl.maximum(tl.ceil(centre - radius), lowest), highest, radius


@jit
def _grey(colours, channels):  # type: ignore[no-untyped-def]
    """Return the luma of pixels [PIXELS, 4], the fourth channel being nothing."""
    share = tl.where(
        channels == 0, 0.299, tl.where(channels == 1, 0.587, tl.where(channels == 2, 0.114, 0.0))
    )
    return tl.sum(colours * share[None, :], axis=1)


@jit
def _crop(  # type: ignore[no-untyped-def]
    images_ptr, changes_ptr, out_ptr, greys_ptr, image_stride, channel_stride, width, size, blocks,
    PIXELS: tl.constexpr,
):  # fmt: skip
    """Weight the source pixels of a block of target pixels, and change their brightness."""
    image = tl.program_id(1)
    pixels = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    valid = pixels < size * size
    change = changes_ptr + image * 8
    row, column = (pixels // size).to(tl.float32), (pixels % size).to(tl.float32)
    column = tl.where(tl.load(change + 4) > 0, size - 1 - column, column)
    centre_y, first_y, last_y, radius_y = _stretch(row, tl.load(change), tl.load(change + 2), size)
    centre_x, first_x, last_x, radius_x = _stretch(column, tl.load(change + 1), tl.load(change + 3), size)
    channels = tl.arange(0, 4)
    source = images_ptr + image.to(tl.int64) * image_stride + channels[None, :] * channel_stride
    stored = valid[:, None] & (channels < 3)[None, :]
    total = tl.zeros((PIXELS, 4), tl.float32)
    weights = tl.zeros((PIXELS,), tl.float32)
    for i in range(tl.ceil(2 * radius_y).to(tl.int32)):
        y = first_y + i
        weight_y = tl.maximum(1.0 - tl.abs(y - centre_y) / radius_y, 0.0) * (y <= last_y)
        in_row = tl.minimum(y, last_y).to(tl.int32) * width
        for j in range(tl.ceil(2 * radius_x).to(tl.int32)):
            x = first_x + j
            weight = weight_y * tl.maximum(1.0 - tl.abs(x - centre_x) / radius_x, 0.0) * (x <= last_x)
            address = in_row + tl.minimum(x, last_x).to(tl.int32)
            total += weight[:, None] * tl.load(source + address[:, None], mask=stored, other=0).to(tl.float32)
            weights += weight
    colours = total / tl.where(valid, 255.0 * weights, 1.0)[:, None]
    colours = tl.minimum(tl.maximum(colours * tl.load(change + 5), 0.0), 1.0)
    tl.store(
        greys_ptr + image * blocks + tl.program_id(0), tl.sum(tl.where(valid, _grey(colours, channels), 0.0))
    )
    out = (image * size * size + pixels).to(tl.int64)[:, None] * 3 + channels[None, :]
    tl.store(out_ptr + out, colours, mask=stored)


@jit
def _recolour(  # type: ignore[no-untyped-def]
    changes_ptr, out_ptr, greys_ptr, mean_ptr, std_at, size, blocks,
    PIXELS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Blend each pixel with the image's mean grey level, then with its own, and standardise it."""
    image = tl.program_id(1)
    pixels = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channels, numbers = tl.arange(0, 4), tl.arange(0, BLOCKS)
    stored = (pixels < size * size)[:, None] & (channels < 3)[None, :]
    contrast, saturation = tl.load(changes_ptr + image * 8 + 6), tl.load(changes_ptr + image * 8 + 7)
    greys = tl.load(greys_ptr + image * blocks + numbers, mask=numbers < blocks, other=0.0)
    mean_grey = tl.sum(greys) / (size * size)
    address = (image * size * size + pixels).to(tl.int64)[:, None] * 3 + channels[None, :]
    colours = tl.load(out_ptr + address, mask=stored, other=0.0)
    colours = tl.minimum(tl.maximum(colours * contrast + mean_grey * (1 - contrast), 0.0), 1.0)
    grey = _grey(colours, channels)[:, None]
    colours = tl.minimum(tl.maximum(colours * saturation + grey * (1 - saturation), 0.0), 1.0)
    mean = tl.load(mean_ptr + channels, mask=channels < 3, other=0.0)
    std = tl.load(std_at + channels, mask=channels < 3, other=1.0)
    tl.store(out_ptr + address, (colours - mean[None, :]) / std[None, :], mask=stored)
