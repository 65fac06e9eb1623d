import numpy as np
import pytest

from gpldla.data.contact_sheet import BACKGROUND, GAP, contact_sheet
from gpldla.data.store import ImageSet, image_set_from_classes


def noise(channels: int, counts: tuple[int, ...] = (5, 2, 7), side: int = 16) -> ImageSet:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (n, channels, side, side), dtype=np.uint8) for n in counts]
    return image_set_from_classes(
        "noise", [f"Georgian {chr(0x10D0 + i)}" for i in range(len(counts))], images
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_sheet_shows_images(channels: int) -> None:
    pixels = np.asarray(contact_sheet(noise(channels), samples=4, scale=2))
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    ink = (pixels != BACKGROUND).any(axis=2).sum()
    assert ink > (4 + 2 + 4) * 32 * 32  # the pictures, and the writing


def test_size_follows_rows_columns_and_scale() -> None:
    image_set = noise(1, counts=(30,) * 20)
    small = contact_sheet(image_set, classes=5, samples=20, scale=2)
    wide = contact_sheet(image_set, classes=5, samples=23, scale=2)
    tall = contact_sheet(image_set, classes=9, samples=20, scale=2)
    assert wide.width - small.width == 3 * (32 + GAP)
    assert tall.height - small.height == 4 * (32 + GAP)
    assert wide.height == small.height


def test_class_with_few_images_leaves_the_row_empty() -> None:
    pixels = np.asarray(contact_sheet(noise(1, counts=(1,)), samples=12, scale=3))
    assert (pixels[:, pixels.shape[1] // 2 :] == BACKGROUND).mean() > 0.9


def test_seed_chooses_the_samples() -> None:
    image_set = noise(1, counts=(40, 40))
    assert contact_sheet(image_set).tobytes() == contact_sheet(image_set, seed=0).tobytes()
    assert contact_sheet(image_set).tobytes() != contact_sheet(image_set, seed=1).tobytes()


def test_small_images_are_enlarged_and_large_ones_are_not() -> None:
    assert contact_sheet(noise(3, side=8)).height > 3 * 48
    assert contact_sheet(noise(3, side=128)).height < 3 * 160 + 100
