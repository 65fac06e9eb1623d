import numpy as np
import pytest
import torch

from gpldla.data import part_images
from gpldla.data.part_images import PartImages
from gpldla.data.protocols import Part
from gpldla.data.store import ImageSet
from tests.helpers import tiny_set

SHAPES = np.stack([np.arange(21) + 100, np.arange(21) + 500], axis=1).astype(np.int32)
ORDER = [*range(13, 21), *range(6)]  # of the part's images in the set


@pytest.fixture
def part():
    tiny = tiny_set(counts=(6, 7, 8))
    return Part(ImageSet("tiny", tiny.images, tiny.class_names, tiny.counts, shapes=SHAPES), (2, 0))


@pytest.fixture(params=["stored", "resident"])
def images(request, part, monkeypatch):
    """The images as they are read from the store, and as a GPU keeps them, a few copied at once."""
    if request.param == "resident":
        monkeypatch.setattr(PartImages, "_fits", lambda self: True)
        monkeypatch.setattr(part_images, "COPY_CHUNK_BYTES", 3000)
    return PartImages(part, "cpu")


@pytest.mark.parametrize("numbers", [[9, 0, 9], [], list(range(14))], ids=str)
def test_images_and_shapes_come_by_their_numbers_in_the_part(images, part, numbers):
    wanted = torch.tensor(numbers, dtype=torch.int64)
    pixels, shapes = images[wanted], images.original_shapes(wanted)
    chosen = [ORDER[number] for number in numbers]
    assert pixels.dtype == torch.uint8
    np.testing.assert_array_equal(pixels.numpy(), part.image_set.images[chosen])
    assert shapes.dtype == torch.float32
    np.testing.assert_array_equal(shapes.numpy(), SHAPES[chosen])


def test_there_are_as_many_as_the_part_has(images):
    assert len(images) == 14


def test_images_may_be_changed(images, part):
    numbers, before = torch.arange(14), part.image_set.images.copy()
    images[numbers].zero_()
    np.testing.assert_array_equal(part.image_set.images, before)
    np.testing.assert_array_equal(images[numbers].numpy(), before[ORDER])


def test_a_set_without_shapes_has_none():
    assert PartImages(Part(tiny_set(), (0,)), "cpu").original_shapes(torch.tensor([1])) is None


def test_images_are_put_where_they_are_wanted(images):
    numbers, place = torch.tensor([9, 0, 9]), torch.zeros(3, 1, 32, 32, dtype=torch.uint8)
    images.copy_to(place, numbers)
    assert torch.equal(place, images[numbers])


def test_the_stored_shape_is_height_and_width():
    images = np.zeros((4, 3, 20, 30), np.uint8)
    part = Part(ImageSet("wide", images, ("a",), np.array([4])), (0,))
    assert PartImages(part, "cpu").stored_shape == (20, 30)
