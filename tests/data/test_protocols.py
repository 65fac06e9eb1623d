import itertools

import numpy as np
import pytest

from gpldla.data import list_protocols, list_sets, load_protocol, load_set, protocols
from gpldla.data.protocols import PARTS, Protocol
from gpldla.data.store import image_set_from_classes
from gpldla.errors import UserError
from tests.helpers import whole


class SmallGlyphs:
    """Stands in for the module `glyphs`: two letters a script."""

    SETTINGS = {"of": "a test"}

    @staticmethod
    def make():
        scripts = ("Latin", "Greek", "Cyrillic", "Armenian", "Georgian", "Lao")
        names = [f"{script} {letter}" for script in scripts for letter in "xy"]
        images = [np.full((3, 1, 32, 32), number, np.uint8) for number in range(len(names))]
        return image_set_from_classes("glyphs", names, images)


@pytest.fixture(autouse=True)
def small_glyphs(monkeypatch, tmp_path):
    monkeypatch.setitem(protocols._SETS, "glyphs", SmallGlyphs)
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path))


def names_of(protocol):
    return {name: part.class_names for name, part in protocol.parts.items()}


def test_glyphs_are_split_by_script():
    assert names_of(load_protocol("glyphs")) == {
        "base": ["Latin x", "Latin y", "Greek x", "Greek y", "Cyrillic x", "Cyrillic y"],
        "validation": ["Armenian x", "Armenian y"],
        "novel": ["Georgian x", "Georgian y", "Lao x", "Lao y"],
    }


@pytest.mark.parametrize("name", list_protocols())
def test_no_class_is_in_two_parts(name):
    parts = load_protocol(name).parts
    assert set(parts) <= set(PARTS)
    for one, other in itertools.combinations(parts.values(), 2):
        assert not set(one.class_names) & set(other.class_names)


def test_digits_are_all_novel():
    assert names_of(load_protocol("digits")) == {"novel": [str(digit) for digit in range(10)]}


def test_glyphs_digits_learns_from_letters_and_tests_on_digits():
    letters, crossed = load_protocol("glyphs"), load_protocol("glyphs-digits")
    assert names_of(crossed) == names_of(letters) | names_of(load_protocol("digits"))
    assert list(crossed.parts) == ["base", "validation", "novel"]


def test_a_part_has_the_images_of_its_classes():
    validation = load_protocol("glyphs").part("validation")
    assert validation.images()[:, 0, 0, 0].tolist() == [6, 6, 6, 7, 7, 7]


def test_images_of_a_part_may_be_changed_without_touching_the_store():
    part = load_protocol("glyphs").part("novel")
    part.images().zero_()
    assert part.images().min() == 8


def test_a_missing_part_is_named_with_those_there_are():
    message = "Data set 'digits' has no base classes, only novel; choose another data set."
    with pytest.raises(UserError, match=message):
        load_protocol("digits").part("base")


def test_a_protocol_lists_all_the_parts_it_has(monkeypatch):
    part = whole(SmallGlyphs.make())
    with pytest.raises(UserError, match="only base and novel;"):
        Protocol("tiny", {"base": part, "novel": part}).part("validation")


@pytest.mark.parametrize("load", [load_protocol, load_set])
@pytest.mark.parametrize(("wrong", "nearest"), [("glyph", "glyphs"), ("digts", "digits")])
def test_an_unknown_name_suggests_the_nearest(load, wrong, nearest):
    with pytest.raises(UserError, match=f"There is no data set '{wrong}'; did you mean '{nearest}'?"):
        load(wrong)


def test_a_name_like_no_other_lists_what_there_is():
    with pytest.raises(UserError, match="known are digits, glyphs, glyphs-digits"):
        load_protocol("imagenet")


def test_every_data_set_is_a_protocol():
    assert set(list_sets()) <= set(list_protocols())


def test_preparing_is_announced_once(tmp_path):
    messages = []
    for _ in range(2):
        load_protocol("glyphs-digits", cache=tmp_path / "other", announce=messages.append)
    assert [message.split()[1] for message in messages] == ["glyphs", "digits"]
