import numpy as np
import pytest
import torch
from PIL import Image

from gpldla.data.resample import crop_and_resize


def noise(n=1, channels=3, height=60, width=80, seed=0):
    """Smooth noise, so that an error of half a pixel shows without drowning in detail."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (n, 12, 16, channels), dtype=np.uint8)
    large = [Image.fromarray(x).resize((width, height), Image.Resampling.BICUBIC) for x in small]
    return np.stack([np.asarray(x) for x in large])  # [n, h, w, c]


def as_tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


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
    difference = np.abs(ours.permute(1, 2, 0).numpy() * 255 - np.asarray(pillow, dtype=float))
    assert difference.mean() <= 0.6  # Pillow rounds to whole grey levels, twice
    assert difference.max() <= 2


def test_each_image_has_its_own_box():
    images, boxes = as_tensor(noise(len(BOXES))), torch.tensor(BOXES, dtype=torch.float32)
    together = crop_and_resize(images, boxes, 21)
    for i in range(len(BOXES)):
        alone = crop_and_resize(images[i : i + 1], boxes[i : i + 1], 21)
        torch.testing.assert_close(together[i : i + 1], alone)


def test_a_constant_stays_a_constant():
    images = torch.full((len(BOXES), 1, 60, 80), 0.3)
    resized = crop_and_resize(images, torch.tensor(BOXES, dtype=torch.float32), 84)
    torch.testing.assert_close(resized, torch.full_like(resized, 0.3))


def test_the_same_size_changes_nothing():
    images = as_tensor(noise(height=40, width=40))
    whole = torch.tensor([[0.0, 0.0, 40.0, 40.0]])
    torch.testing.assert_close(crop_and_resize(images, whole, 40), images)
