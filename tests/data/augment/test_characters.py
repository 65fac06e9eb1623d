import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, grey_dilation

from gpldla.data.augment.characters import (
    N_CHARACTER_UNIFORMS,
    N_STROKE_UNIFORMS,
    THICKEST,
    augment_characters,
    augment_strokes,
    blur,
    sample_character_params,
    sample_stroke_params,
    thicken,
)


@pytest.fixture
def letters():
    """The same cross, dark on light, eight times: float [8, 1, 32, 32]."""
    images = torch.ones(8, 1, 32, 32)
    images[:, :, 8:24, 14:18] = 0
    images[:, :, 14:18, 8:24] = 0
    return images


def changed(images, seed=0):
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(len(images), N_CHARACTER_UNIFORMS, generator=generator)
    return augment_characters(images, sample_character_params(uniforms))


class TestAugmenting:
    @pytest.mark.parametrize("shape", [(1, 1, 32, 32), (5, 1, 20, 30), (3, 3, 32, 32)], ids=str)
    def test_keeps_the_shape(self, shape):
        assert changed(torch.rand(shape)).shape == shape

    def test_stays_between_ink_and_paper(self):
        images = changed(torch.rand(200, 1, 32, 32))
        assert images.min() > -1e-6
        assert images.max() < 1 + 1e-6

    def test_one_seed_gives_the_same_images(self, letters):
        assert torch.equal(changed(letters), changed(letters))

    def test_another_seed_gives_others(self, letters):
        assert not torch.equal(changed(letters), changed(letters, seed=1))

    def test_every_image_is_changed_in_its_own_way(self, letters):
        images = changed(letters).flatten(1)
        distances = torch.cdist(images, images) + torch.eye(len(images)) * 99
        assert distances.min() > 0.5

    def test_channels_of_an_image_are_changed_alike(self, letters):
        images = changed(letters.expand(-1, 3, -1, -1))
        assert torch.equal(images[:, 0], images[:, 1])
        assert torch.equal(images[:, 0], images[:, 2])

    def test_blank_paper_stays_blank(self):
        assert torch.equal(changed(torch.ones(8, 1, 32, 32)), torch.ones(8, 1, 32, 32))

    def test_paper_comes_in_from_outside(self):
        """An image full of ink shows what fills the corners: shrunk, it has a rim of paper."""
        images = changed(torch.zeros(200, 1, 32, 32))
        assert images[:, 0, 0, 0].max() > 0.99

    def test_the_ink_stays_in_the_image(self, letters):
        ink_before, ink_after = (1 - letters).sum((1, 2, 3)), (1 - changed(letters)).sum((1, 2, 3))
        assert (ink_after > 0.5 * ink_before).all()
        assert (ink_after < 1.7 * ink_before).all()

    def test_the_input_is_left_alone(self, letters):
        before = letters.clone()
        changed(letters)
        assert torch.equal(letters, before)


class TestBlur:
    @pytest.mark.parametrize("sigma", [0.0, 1e-4])
    def test_no_width_changes_nothing(self, sigma):
        images = torch.rand(4, 1, 20, 20)
        torch.testing.assert_close(blur(images, torch.full((4,), sigma)), images)

    @pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5])
    def test_is_the_gaussian_of_scipy(self, sigma):
        images = torch.rand(3, 1, 24, 18, dtype=torch.float64)
        ours = blur(images, torch.full((3,), sigma, dtype=torch.float64), radius=3)
        theirs = gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode="constant", radius=(0, 0, 3, 3))
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-12)

    def test_ink_away_from_the_rim_is_kept(self):
        images = torch.zeros(5, 1, 32, 32)
        images[..., 10:22, 10:22] = torch.rand(5, 1, 12, 12)
        blurred = blur(images, torch.linspace(0.1, 1.5, 5))
        torch.testing.assert_close(blurred.sum((1, 2, 3)), images.sum((1, 2, 3)))

    def test_each_image_has_its_own_width(self):
        images, widths = torch.rand(1, 1, 16, 16).expand(3, -1, -1, -1), torch.tensor([0.4, 0.8, 1.2])
        together = blur(images, widths)
        alone = torch.cat([blur(images[:1], width.view(1)) for width in widths])
        torch.testing.assert_close(together, alone)
        assert (together[0] - together[1]).abs().max() > 0.01

    def test_each_channel_is_blurred_by_itself(self):
        images, widths = torch.rand(2, 3, 16, 16), torch.tensor([0.5, 1.2])
        by_channel = torch.cat([blur(images[:, c : c + 1], widths) for c in range(3)], dim=1)
        torch.testing.assert_close(blur(images, widths), by_channel)


class TestThickening:
    @pytest.mark.parametrize("pixels", [0, 1, 2])
    def test_is_a_dilation(self, letters, pixels):
        ink = 1 - letters[:1]
        expected = grey_dilation(ink[0, 0].numpy(), size=(2 * pixels + 1,) * 2)
        assert np.array_equal(thicken(ink, torch.tensor([float(pixels)]))[0, 0].numpy(), expected)

    def test_half_a_pixel_is_half_as_dark(self, letters):
        ink = 1 - letters
        for pixels in (0.5, 1.5):
            low, middle, high = (
                thicken(ink, torch.full((8,), float(p))) for p in (pixels - 0.5, pixels, pixels + 0.5)
            )
            torch.testing.assert_close(middle, (low + high) / 2)

    def test_each_image_has_its_own(self, letters):
        pixels = torch.linspace(0, THICKEST, 8)
        together = thicken(1 - letters, pixels)
        alone = torch.cat([thicken(1 - letters[:1], p.view(1)) for p in pixels])
        assert torch.equal(together, alone)
        assert (together.sum((1, 2, 3)).diff() > 0).all()

    def test_strokes_are_characters_with_more_ink(self, letters):
        uniforms = torch.rand(8, N_STROKE_UNIFORMS, generator=torch.Generator().manual_seed(0))
        uniforms[:, -1] = 0
        thin = augment_strokes(letters, sample_stroke_params(uniforms))
        as_characters = sample_character_params(uniforms[:, :N_CHARACTER_UNIFORMS])
        as_characters[:, 6] /= 2
        torch.testing.assert_close(thin, augment_characters(letters, as_characters))
        uniforms[:, -1] = 0.9
        thick = augment_strokes(letters, sample_stroke_params(uniforms))
        assert ((1 - thick).sum((1, 2, 3)) > 1.5 * (1 - thin).sum((1, 2, 3))).all()
