import numpy as np
import pytest

from gpldla.data.protocols import Part, Protocol
from gpldla.utils.errors import UserError
from tests.helpers import tiny_set, whole


@pytest.fixture
def image_set():
    groups = [np.arange(6) % 2, np.arange(7) % 3, np.arange(8) % 4]
    return tiny_set(counts=(6, 7, 8), groups=groups)


@pytest.fixture
def part(image_set):
    return Part(image_set, (2, 0))


def test_a_part_numbers_its_own_images(part):
    assert part.class_names == ["class 2", "class 0"]
    assert part.counts.tolist() == [8, 6]
    assert part.indices.tolist() == [*range(13, 21), *range(6)]
    assert part.groups.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("numbers", [np.array([9, 0, 9]), slice(6, 10), slice(12, 99)], ids=str)
def test_a_part_reads_images_by_its_own_numbers(part, image_set, numbers):
    expected = image_set.images[[*range(13, 21), *range(6)]][numbers]
    np.testing.assert_array_equal(part.read(numbers), expected)


def test_images_of_a_part_may_be_changed_without_touching_the_set(part, image_set):
    before = image_set.images.copy()
    part.read(slice(None))[:] = 0
    np.testing.assert_array_equal(image_set.images, before)


def test_a_part_of_a_set_without_groups_has_none():
    assert whole(tiny_set()).groups is None


def test_a_protocol_gives_its_parts_by_name(part):
    assert Protocol("tiny", {"novel": part}).part("novel") is part


def test_a_missing_part_is_named_with_those_there_are(part):
    message = "Data set 'tiny' has no validation classes, only base and novel; choose another data set."
    with pytest.raises(UserError, match=message):
        Protocol("tiny", {"base": part, "novel": part}).part("validation")
