import numpy as np
import pytest

from gpldla.data.contact_sheet import BACKGROUND, GAP, LARGE_CELL, SMALL_CELL, Section, contact_sheet
from gpldla.data.store import ImageSet, image_set_from_classes

GREEN = (0, 255, 0)


def noise(channels=1, counts=(5, 2, 7), side=16):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (n, channels, side, side), dtype=np.uint8) for n in counts]
    return image_set_from_classes(
        "noise", [f"Georgian {chr(0x10D0 + i)}" for i in range(len(counts))], images
    )


def green(shapes, side=100):
    """Pictures of one colour, to find them again on the sheet."""
    images = np.zeros((len(shapes), 3, side, side), np.uint8)
    images[:, 1] = 255
    return ImageSet("green", images, ("a",), np.array([len(shapes)]), shapes=np.array(shapes, np.int32))


def whole(image_set, title=""):
    return Section(title, image_set, range(len(image_set.counts)))


def sheet(*image_sets, **options):
    return contact_sheet("noise", [whole(image_set) for image_set in image_sets], **options)


@pytest.mark.parametrize("channels", [1, 3])
def test_sheet_shows_images(channels):
    pixels = np.asarray(sheet(noise(channels), samples=4))
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    ink = (pixels != BACKGROUND).any(axis=2).sum()
    assert ink > (4 + 2 + 4) * SMALL_CELL**2  # the pictures, and the writing


def test_size_follows_rows_and_columns():
    image_set = noise(counts=(30,) * 20)
    small = sheet(image_set, classes=5, samples=20)
    wide = sheet(image_set, classes=5, samples=23)
    tall = sheet(image_set, classes=9, samples=20)
    assert wide.width - small.width == 3 * (SMALL_CELL + GAP)
    assert tall.height - small.height == 4 * (SMALL_CELL + GAP)
    assert wide.height == small.height


def test_class_with_few_images_leaves_the_row_empty():
    pixels = np.asarray(sheet(noise(counts=(1,)), samples=12))
    assert (pixels[:, pixels.shape[1] // 2 :] == BACKGROUND).mean() > 0.9


def test_seed_chooses_the_samples():
    image_set = noise(counts=(40, 40))
    assert sheet(image_set).tobytes() == sheet(image_set, seed=0).tobytes()
    assert sheet(image_set).tobytes() != sheet(image_set, seed=1).tobytes()


@pytest.mark.parametrize(("side", "cell"), [(8, SMALL_CELL), (500, LARGE_CELL)])
def test_pictures_of_any_size_fill_their_cells(side, cell):
    pixels = np.asarray(sheet(green([(side, side)], side=side)))
    assert (pixels == GREEN).all(axis=2).sum() == cell**2


@pytest.mark.parametrize(
    ("shape", "height", "width"),
    [
        ((300, 600), LARGE_CELL // 2, LARGE_CELL),
        ((60, 30), LARGE_CELL, LARGE_CELL // 2),
        ((1, 9999), 1, LARGE_CELL),
    ],
)
def test_pictures_have_the_shape_that_they_had_before_they_were_stored(shape, height, width):
    rows, columns = (np.asarray(sheet(green([shape]))) == GREEN).all(axis=2).nonzero()
    assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (height, width)


def test_sections_follow_each_other():
    one, other = noise(counts=(5, 5)), noise(counts=(3,) * 3, channels=3)
    both = sheet(one, other, classes=2)
    alone = sheet(one, classes=2)
    assert both.height > 1.8 * alone.height
    below = np.asarray(both)[alone.height :]
    assert (below[..., 0] != below[..., 1]).any(), "the colours of the second"


def test_a_section_shows_its_own_classes_only():
    images = [np.full((3, 1, 16, 16), shade, np.uint8) for shade in (0, 120, 200)]
    image_set = image_set_from_classes("shades", ["a", "b", "c"], images)
    pixels = np.asarray(contact_sheet("shades", [Section("novel", image_set, (1, 2))]))
    counts = [(pixels == shade).all(axis=2).sum() for shade in (0, 120, 200)]
    assert counts[0] == 0
    assert min(counts[1:]) >= 3 * SMALL_CELL**2


def test_a_section_counts_its_own_images():
    assert Section("base", noise(counts=(5, 2, 7000)), (0, 2)).facts == "2 classes, 7,005 images"


def test_a_long_class_name_is_shortened():
    images = [np.zeros((2, 1, 16, 16), np.uint8)]
    long, longer = (sheet(image_set_from_classes("s", ["n" * n], images)) for n in (100, 5000))
    assert long.size == longer.size
