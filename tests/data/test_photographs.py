import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from gpldla.data.photographs import (
    augment_photographs,
    brightness,
    contrast,
    random_boxes,
    saturation,
)

from .test_resample import as_tensor, noise


@pytest.mark.parametrize(
    ("change", "enhance"),
    [
        (brightness, ImageEnhance.Brightness),
        (contrast, ImageEnhance.Contrast),
        (saturation, ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("factor", [0.6, 0.85, 1.0, 1.4])
def test_colour_changes_are_what_pillow_does(change, enhance, factor):
    image = noise()[0]
    pillow = np.asarray(enhance(Image.fromarray(image)).enhance(factor), dtype=float)
    ours = change(as_tensor(image[None]), torch.tensor([factor]))[0].permute(1, 2, 0).numpy() * 255
    assert np.abs(ours - pillow).mean() <= 1


def test_boxes_lie_inside_and_have_the_promised_shapes():
    torch.manual_seed(0)
    top, left, height, width = random_boxes(5000, 100, 150, 0.08).T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 100).all()
    assert (left + width <= 150).all()
    area, ratio = height * width / 15_000, width / height
    assert area.min() > 0.075
    assert area.min() < 0.1
    assert area.max() > 0.85
    assert 0.72 < ratio.min() < 0.78
    assert 1.28 < ratio.max() < 1.38
    # All places are reached.
    assert top.min() == 0
    assert (top + height).max() == 100
    for values in (top, left, height, width):
        assert torch.equal(values, values.round())


def test_where_no_box_fits_the_largest_one_of_a_good_ratio_is_taken():
    """In a strip, boxes of nearly its area and a ratio near 1 do not fit."""
    boxes = random_boxes(50, 10, 1000, 0.9)
    assert torch.equal(boxes[:, 2:], torch.tensor([[10.0, 13.0]]).expand(50, 2))
    assert (boxes[:, 1] + 13 <= 1000).all()


def test_each_image_is_changed_on_its_own_and_the_seed_fixes_how():
    images = as_tensor(noise()).expand(8, -1, -1, -1)

    def augmented(seed):
        torch.manual_seed(seed)
        return augment_photographs(images, 32)

    first = augmented(0)
    assert first.shape == (8, 3, 32, 32)
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, augmented(0))
    assert not torch.equal(first, augmented(1))
    for i in range(8):
        for j in range(i):
            assert not torch.allclose(first[i], first[j], atol=0.05)


def test_half_of_the_images_are_mirrored():
    """An image that is dark on the left and bright on the right tells which way it lies."""
    torch.manual_seed(0)
    ramp = torch.linspace(0.1, 0.9, 64).expand(400, 3, 64, 64)
    out = augment_photographs(ramp, 16)
    mirrored = (out[..., :8].mean((1, 2, 3)) > out[..., 8:].mean((1, 2, 3))).float().mean()
    assert 0.4 < mirrored < 0.6
