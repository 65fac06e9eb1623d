from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla.data.augment.transforms import (
    centre_crop,
    evaluation_images,
    resized_images,
    standardise_,
    to_float,
)
from gpldla.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, INTERPOLATIONS, Preprocessing

GREY = Preprocessing(28, 1, IMAGENET_MEAN[:1], IMAGENET_STD[:1])
COLOUR = Preprocessing(84, 3, IMAGENET_MEAN, IMAGENET_STD)


def smooth_noise(n, channels, height, width):
    """Noise with structure of several pixels, as pictures have it: uint8 [n, channels, height, width]."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (n, channels, 9, 9), dtype=np.uint8)
    large = [Image.fromarray(plane).resize((width, height)) for plane in coarse.reshape(-1, 9, 9)]
    return torch.from_numpy(np.stack([np.asarray(plane) for plane in large])).view(n, channels, height, width)


def by_pillow(image, preprocessing):
    """Resize and crop one uint8 [c, h, w] with Pillow: float [c, size, size] in 0..1."""
    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if len(image) == 1 else array)
    resampling = Image.Resampling[preprocessing.interpolation.upper()]
    picture = picture.resize((preprocessing.resized,) * 2, resampling)
    margin = (preprocessing.resized - preprocessing.size) // 2
    picture = picture.crop((margin, margin, margin + preprocessing.size, margin + preprocessing.size))
    return (
        torch.from_numpy(np.array(picture)).view(preprocessing.size, preprocessing.size, -1).permute(2, 0, 1)
        / 255
    )


def unstandardised(images, preprocessing):
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (preprocessing.mean, preprocessing.std))
    return images * std + mean


@pytest.mark.parametrize("preprocessing", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("shape", [(50, 71), (200, 150), (20, 20), (105, 105)], ids=str)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_resizing_and_cropping_agree_with_pillow(preprocessing, shape, interpolation):
    preprocessing = replace(preprocessing, interpolation=interpolation)
    images = smooth_noise(3, preprocessing.channels, *shape)
    ours = unstandardised(evaluation_images(images, preprocessing), preprocessing)
    theirs = torch.stack([by_pillow(image, preprocessing) for image in images])
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1.01 / 255


def test_reducing_fine_stripes_gives_grey_and_not_stripes():
    """What antialiasing is for: every second row is white, so every reduced pixel is half white."""
    images = torch.zeros(1, 1, 128, 128, dtype=torch.uint8)
    images[:, :, ::2] = 255
    reduced = resized_images(images, GREY)
    assert (reduced[..., 2:-2, :] - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("preprocessing", [GREY, COLOUR], ids=["grey", "colour"])
def test_images_of_the_right_size_are_only_cropped(preprocessing):
    side, size = preprocessing.resized, preprocessing.size
    images = smooth_noise(2, preprocessing.channels, side, side)
    margin = (side - size) // 2
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (preprocessing.mean, preprocessing.std))
    middle = images[:, :, margin : margin + size, margin : margin + size].float() / 255
    assert torch.equal(evaluation_images(images, preprocessing), (middle - mean) / std)


def test_the_middle_of_the_crop_is_the_middle_of_the_image():
    images = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    images[..., 15:17, 15:17] = 255
    where = (evaluation_images(images, GREY)[0, 0] > 0).nonzero()
    assert where.double().mean(0).tolist() == [13.5, 13.5]


def test_sizes_of_the_literature():
    assert (GREY.resized, COLOUR.resized) == (32, 96)


def test_each_channel_is_standardised_by_its_own_numbers():
    images = torch.full((1, 3, 96, 96), 255, dtype=torch.uint8)
    prepared = evaluation_images(images, COLOUR)
    expected = [(1 - mean) / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD)]
    assert prepared.amax((0, 2, 3)).tolist() == pytest.approx(expected)
    assert prepared.amin((0, 2, 3)).tolist() == pytest.approx(expected)


def test_standardising_noise_with_its_own_numbers_gives_mean_0_and_deviation_1():
    images = torch.rand(20, 1, 32, 32)
    middle = images[..., 2:30, 2:30]
    numbers = Preprocessing(28, 1, (middle.mean().item(),), (middle.std().item(),))
    prepared = standardise_(centre_crop(images, numbers), numbers)
    assert prepared.mean().item() == pytest.approx(0, abs=1e-5)
    assert prepared.std().item() == pytest.approx(1, abs=1e-5)


def test_standardising_happens_in_place():
    images = torch.rand(2, 3, 8, 8)
    assert standardise_(images, COLOUR) is images


def test_colour_becomes_grey_as_pillow_does_it():
    images = smooth_noise(2, 3, 32, 32)
    grey = [Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L") for image in images]
    theirs = torch.from_numpy(np.stack([np.asarray(picture) for picture in grey]))[:, None] / 255
    assert (to_float(images, 1) - theirs).abs().max() <= 1.01 / 255


def test_grey_becomes_three_equal_channels():
    images = smooth_noise(2, 1, 32, 32)
    colour = to_float(images, 3)
    assert colour.shape == (2, 3, 32, 32)
    for channel in range(3):
        assert torch.equal(colour[:, channel], images[:, 0].float() / 255)


@pytest.mark.parametrize("side", [32, COLOUR.resized])
def test_grey_images_reach_a_colour_network(side):
    prepared = evaluation_images(smooth_noise(2, 1, side, side), COLOUR)
    assert prepared.shape == (2, 3, 84, 84)
    channels = unstandardised(prepared, COLOUR)
    assert channels.std() > 0.1
    for channel in (1, 2):
        torch.testing.assert_close(channels[:, channel], channels[:, 0])


@pytest.mark.parametrize("side", [150, COLOUR.resized])
def test_colour_images_reach_a_grey_network(side):
    assert evaluation_images(smooth_noise(2, 3, side, side), GREY).shape == (2, 1, 28, 28)
