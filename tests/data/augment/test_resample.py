import math

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla.data.augment.resample import crop_and_resize

LARGEST_ERROR = 2.5  # grey levels; the mean is far below


def noise(n=1, channels=3, height=60, width=80, seed=0):
    """Smooth noise, so that an error of half a pixel shows without drowning in detail: uint8 [n, h, w, c]."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (n, 12, 16, channels), dtype=np.uint8)
    large = [Image.fromarray(x).resize((width, height), Image.Resampling.BICUBIC) for x in small]
    return np.stack([np.asarray(x) for x in large])


def as_tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def in_levels(image):
    """Turn float [c, h, w] in 0..1 to grey levels [h, w, c]."""
    return image.permute(1, 2, 0).numpy() * 255


# top, left, height, width
BOXES = [(0, 0, 60, 80), (10, 20, 40, 40), (3, 7, 13, 17), (0, 0, 60, 20), (25, 50, 30, 30)]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("size", [8, 28, 84])
def test_it_is_what_pillow_does(box, size):
    image = noise()[0]
    top, left, height, width = box
    cropped = Image.fromarray(image).crop((left, top, left + width, top + height))
    pillow = cropped.resize((size, size), Image.Resampling.BILINEAR)
    ours = crop_and_resize(as_tensor(image[None]), torch.tensor([box], dtype=torch.float32), size)[0]
    difference = np.abs(in_levels(ours) - np.asarray(pillow, dtype=float))
    assert difference.mean() <= 0.6  # Pillow rounds to whole grey levels, twice
    assert difference.max() <= LARGEST_ERROR


@pytest.mark.parametrize("box", [(3.4, 7.7, 13.3, 17.9), (0.5, 10.25, 59.5, 40.5), (20.9, 0, 20.3, 80)])
@pytest.mark.parametrize("size", [8, 28, 84])
def test_boxes_may_begin_and_end_within_pixels(box, size):
    """Pillow looks beyond a box that is given to `resize`, so the rim differs."""
    image = noise()[0]
    top, left, height, width = box
    pillow = Image.fromarray(image).resize(
        (size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
    )
    ours = crop_and_resize(as_tensor(image[None]), torch.tensor([box]), size)[0]
    rim = math.ceil(max(1, size / min(height, width))) + 1
    inner = slice(rim, size - rim)
    difference = np.abs(in_levels(ours) - np.asarray(pillow, dtype=float))[inner, inner]
    assert difference.mean() <= 0.6
    assert difference.max() <= LARGEST_ERROR


def test_each_image_has_its_own_box():
    images, boxes = as_tensor(noise(len(BOXES))), torch.tensor(BOXES, dtype=torch.float32)
    together = crop_and_resize(images, boxes, 21)
    for i in range(len(BOXES)):
        alone = crop_and_resize(images[i : i + 1], boxes[i : i + 1], 21)
        torch.testing.assert_close(together[i : i + 1], alone)


def test_chosen_images_are_mirrored():
    images, boxes = as_tensor(noise(len(BOXES))), torch.tensor(BOXES, dtype=torch.float32)
    mirrored = torch.tensor([True, False, True, True, False])
    plain = crop_and_resize(images, boxes, 21)
    expected = plain.flip(3).where(mirrored.view(-1, 1, 1, 1), plain)
    got = crop_and_resize(images, boxes, 21, mirrored)
    assert (got - expected).abs().max() <= 1 / 255
    assert (got - plain)[mirrored].abs().amax((1, 2, 3)).min() > 0.1


@pytest.mark.parametrize("level", [0, 77, 255])
def test_a_constant_stays_a_constant_in_any_box(level):
    """Also in boxes of a single pixel, wherever they begin."""
    torch.manual_seed(0)
    extent = torch.tensor([60.0, 80.0])
    lengths = 1 + torch.rand(500, 2) ** 8 * (extent - 1)
    boxes = torch.cat([torch.rand(500, 2) * (extent - lengths), lengths], 1)
    images = torch.full((500, 1, 60, 80), level, dtype=torch.uint8)
    resized = crop_and_resize(images, boxes, 21)
    assert (resized - level / 255).abs().max() <= LARGEST_ERROR / 255
    assert resized.max() <= 1


def test_pixels_outside_the_box_do_not_matter():
    images = torch.full((1, 1, 60, 80), 255, dtype=torch.uint8)
    images[..., 10:20, 30:45] = 0
    assert crop_and_resize(images, torch.tensor([[10.0, 30.0, 10.0, 15.0]]), 28).max() == 0


def test_the_same_size_changes_nothing():
    images = as_tensor(noise(height=40, width=40))
    whole = torch.tensor([[0.0, 0.0, 40.0, 40.0]])
    resized = crop_and_resize(images, whole, 40)
    assert resized.dtype == torch.float32
    assert (resized - images / 255).abs().mean() <= 0.6 / 255
    assert (resized - images / 255).abs().max() <= LARGEST_ERROR / 255
