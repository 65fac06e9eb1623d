import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from gpldla.data.augment.photographs import (
    N_BOX_UNIFORMS,
    N_PHOTOGRAPH_UNIFORMS,
    augment_photographs,
    brightness_,
    clamp_boxes,
    contrast_,
    random_boxes,
    sample_photograph_params,
    saturation_,
)
from tests.data.augment.test_resample import as_tensor, noise


def drawn(images, shapes=None, seed=0):
    uniforms = torch.rand(len(images), N_PHOTOGRAPH_UNIFORMS, generator=torch.Generator().manual_seed(seed))
    return sample_photograph_params(uniforms, shapes, tuple(images.shape[2:]))


def augmented(images, size, shapes=None, seed=0):
    return augment_photographs(images, drawn(images, shapes, seed), size)


def boxes_in(shapes, smallest_area):
    uniforms = torch.rand(len(shapes), N_BOX_UNIFORMS, generator=torch.Generator().manual_seed(0))
    return random_boxes(uniforms, shapes, smallest_area)


class TestColours:
    @pytest.mark.parametrize(
        ("change", "enhance"),
        [
            (brightness_, ImageEnhance.Brightness),
            (contrast_, ImageEnhance.Contrast),
            (saturation_, ImageEnhance.Color),
        ],
    )
    @pytest.mark.parametrize("factor", [0.6, 0.85, 1.0, 1.4])
    def test_changes_are_what_pillow_does(self, change, enhance, factor):
        image = noise()[0]
        pillow = np.asarray(enhance(Image.fromarray(image)).enhance(factor), dtype=float)
        ours = change(as_tensor(image[None]) / 255, torch.tensor([factor]))[0].permute(1, 2, 0).numpy() * 255
        assert np.abs(ours - pillow).mean() <= 1

    @pytest.mark.parametrize("change", [brightness_, contrast_, saturation_])
    def test_each_image_has_its_own_factor_and_is_changed_in_place(self, change):
        images, factors = as_tensor(noise(3)) / 255, torch.tensor([0.6, 1.0, 1.4])
        alone = [change(images[i : i + 1].clone(), factors[i : i + 1]) for i in range(3)]
        assert change(images, factors) is images
        torch.testing.assert_close(images, torch.cat(alone))


class TestBoxes:
    def test_lie_inside_and_have_the_promised_shapes(self):
        top, left, height, width = boxes_in(torch.tensor([[100, 150]]).expand(5000, 2), 0.08).T
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

    def test_each_image_has_those_of_its_own_shape(self):
        shapes = torch.tensor([[100.0, 150.0], [20.0, 30.0], [500.0, 40.0]]).repeat(300, 1)
        boxes = boxes_in(shapes, 0.08)
        assert (boxes[:, :2] + boxes[:, 2:] <= shapes).all()
        for i in range(3):
            reached = (boxes[:, :2] + boxes[:, 2:])[i::3].amax(0)
            assert (reached >= 0.95 * shapes[i]).all()

    @pytest.mark.parametrize(
        ("shape", "box"), [((10, 1000), (10, 13)), ((1000, 10), (13, 10)), ((1, 10_000), (1, 1))], ids=str
    )
    def test_where_none_fits_the_largest_one_of_a_good_ratio_is_taken(self, shape, box):
        """In a strip, boxes of nearly its area and a ratio near 1 do not fit."""
        shapes = torch.tensor([shape]).expand(50, 2)
        boxes = boxes_in(shapes, 0.9)
        assert torch.equal(boxes[:, 2:], torch.tensor([box]).float().expand(50, 2))
        assert (boxes[:, :2] + boxes[:, 2:] <= shapes).all()

    def test_those_smaller_than_a_pixel_are_enlarged_and_stay_inside(self):
        boxes = torch.tensor([[0, 31.9, 20, 0.1], [15.99, 3, 0.01, 5], [2.5, 3.5, 1, 1], [0, 0, 20, 32]])
        expected = torch.tensor([[0, 31, 20, 1], [15.99, 3, 1, 5], [2.5, 3.5, 1, 1], [0, 0, 20, 32]])
        assert torch.equal(clamp_boxes(boxes, 20, 32), expected)


class TestTrueShapes:
    """Pictures are stored as squares, whatever shape they had."""

    SHAPES = torch.tensor([100.0, 300.0])

    def test_boxes_have_a_good_ratio_in_the_picture_as_it_was(self):
        images = torch.zeros(2000, 3, 64, 64, dtype=torch.uint8)
        boxes = drawn(images, self.SHAPES.expand(2000, 2))[:, :4]
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= 64.001).all()
        height, width = (boxes[:, 2:] * self.SHAPES / 64).T
        ratio, area = width / height, width * height / 30_000
        assert 0.72 < ratio.min() < 0.78
        assert 1.28 < ratio.max() < 1.38
        assert 0.075 < area.min() < 0.1

    def test_without_them_the_stored_shape_is_the_true_one(self):
        images = torch.zeros(2000, 3, 40, 120, dtype=torch.uint8)
        height, width = drawn(images)[:, 2:4].T
        ratio = width / height
        assert 0.7 < ratio.min() < 0.8
        assert 1.25 < ratio.max() < 1.4

    @pytest.mark.parametrize("shape", [(1, 10_000), (10_000, 1), (1, 1), (3, 5000), (4000, 6000)], ids=str)
    def test_extreme_ones_give_pictures_too(self, shape):
        images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8).expand(200, -1, -1, -1)
        changed = augmented(images, 84, torch.tensor([shape]).float().expand(200, 2))
        assert changed.shape == (200, 3, 84, 84)
        assert torch.isfinite(changed).all()
        assert changed.min() >= 0
        assert changed.max() <= 1


class TestAugmenting:
    def test_each_image_is_changed_on_its_own_and_the_seed_fixes_how(self):
        images = as_tensor(noise()).expand(8, -1, -1, -1)
        first = augmented(images, 32)
        assert first.shape == (8, 3, 32, 32)
        assert first.dtype == torch.float32
        assert first.min() >= 0
        assert first.max() <= 1
        assert torch.equal(first, augmented(images, 32))
        assert not torch.equal(first, augmented(images, 32, seed=1))
        for i in range(8):
            for j in range(i):
                assert not torch.allclose(first[i], first[j], atol=0.05)

    def test_half_of_the_images_are_mirrored(self):
        """An image that is dark on the left and bright on the right tells which way it lies."""
        ramp = torch.linspace(25, 230, 64).to(torch.uint8).expand(400, 3, 64, 64)
        out = augmented(ramp, 16)
        mirrored = (out[..., :8].mean((1, 2, 3)) > out[..., 8:].mean((1, 2, 3))).float().mean()
        assert 0.4 < mirrored < 0.6

    def test_colours_change_by_factors_from_three_fifths_to_seven_fifths(self):
        images = torch.zeros(2000, 3, 8, 8, dtype=torch.uint8)
        factors = drawn(images)[:, 5:]
        assert factors.shape == (2000, 3)
        assert 0.6 <= factors.min() < 0.605
        assert 1.395 < factors.max() <= 1.4

    def test_a_number_just_below_one_stays_inside_the_image(self):
        most = torch.full((1, N_BOX_UNIFORMS), 1 - 2.0**-24)
        top, left, height, width = random_boxes(most, torch.tensor([[100_000.0, 100_000.0]]), 0.08)[0]
        assert top + height <= 100_000
        assert left + width <= 100_000
