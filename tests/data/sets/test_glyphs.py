import itertools
import unicodedata

import numpy as np
import pytest

from gpldla.data.sets import glyphs
from gpldla.data.store import ImageSet


@pytest.fixture(scope="module")
def glyph_set() -> ImageSet:
    return glyphs.make()


@pytest.fixture(scope="module")
def fonts() -> list[glyphs.Font]:
    families = enumerate(glyphs.FAMILIES.values())
    return [glyphs.Font(name, family) for family, names in families for name in names]


def letters(image_set: ImageSet) -> list[str]:
    return [name.split()[1] for name in image_set.class_names]


def test_size_of_the_set(glyph_set: ImageSet) -> None:
    assert len(glyph_set.class_names) >= 700
    assert len(set(glyph_set.class_names)) == len(glyph_set.class_names)
    assert glyph_set.images.shape[1:] == (1, 32, 32)
    assert glyph_set.counts.min() >= 24


def test_classes_are_letters_of_the_named_script(glyph_set: ImageSet) -> None:
    for name in glyph_set.class_names:
        script, letter = name.split()
        assert unicodedata.category(letter) in ("Lu", "Ll", "Lo")
        assert unicodedata.name(letter).startswith(script.upper())


def test_scripts_of_the_demo_are_drawn_in_dejavu_alone(glyph_set: ImageSet) -> None:
    # The README and the report of the demo say so.
    names = list(glyphs.FAMILIES)
    of_script = [name.startswith(("Armenian", "Georgian", "Lao")) for name in glyph_set.class_names]
    drawn = glyph_set.groups[np.array(of_script)[glyph_set.labels]]
    assert {names[family] for family in drawn} == {"DejaVu Sans", "DejaVu Sans Mono", "DejaVu Serif"}


def test_parts_split_the_classes_by_script(glyph_set: ImageSet) -> None:
    scripts = list(itertools.chain(*glyphs.SCRIPTS_OF_PART.values()))
    assert len(scripts) == len(set(scripts))
    parts = glyphs.Glyphs().parts(glyph_set.class_names)
    assert sorted(itertools.chain(*parts.values())) == list(range(len(glyph_set.class_names)))
    assert len(parts["base"]) >= 500
    assert len(parts["validation"]) >= 40
    assert len(parts["novel"]) >= 100


def test_every_class_can_be_tested_on_a_family_it_was_not_learnt_from(glyph_set: ImageSet) -> None:
    assert glyph_set.groups is not None
    for offset, count in zip(glyph_set.offsets, glyph_set.counts):
        of_family = np.bincount(glyph_set.groups[offset : offset + count])
        assert any(images >= 5 and count - images >= 15 for images in of_family)


def test_dark_ink_on_light_paper_that_a_centre_crop_to_28_keeps(glyph_set: ImageSet) -> None:
    images = glyph_set.images[:, 0]
    assert (images.min(axis=(1, 2)) < 150).all(), "an image without ink"
    assert (images.mean(axis=(1, 2)) > 128).all(), "an image with more ink than paper"
    rim = images.copy()
    rim[:, 2:-2, 2:-2] = 255
    assert rim.min() > 180


def test_letters_are_drawn_and_not_the_box_of_a_missing_one(
    glyph_set: ImageSet, fonts: list[glyphs.Font]
) -> None:
    for font in fonts:
        missing = np.asarray(font.ink("\uffff"))
        for letter in filter(font.has, letters(glyph_set)):
            assert not np.array_equal(np.asarray(font.ink(letter)), missing)


@pytest.mark.parametrize("name", glyphs.REFERENCE_FONTS)
def test_no_two_classes_have_one_shape(glyph_set: ImageSet, name: str) -> None:
    font = glyphs.Font(name, family=0)
    present = [letter for letter in letters(glyph_set) if font.has(letter)]
    distances = glyphs.shape_distances([font.ink(letter) for letter in present])
    np.fill_diagonal(distances, 1)
    first, second = np.unravel_index(distances.argmin(), distances.shape)
    assert distances.min() > glyphs.SETTINGS["same_shape"], (present[first], present[second])


def test_shape_distance_ignores_size_and_weight_but_not_a_hook() -> None:
    regular, bold = glyphs.Font("DejaVuSans", 0), glyphs.Font("DejaVuSans-Bold", 0)
    inks = [regular.ink("x"), regular.ink("X"), bold.ink("x"), regular.ink("o"), regular.ink("ọ")]
    distances = glyphs.shape_distances(inks)
    assert (distances == distances.T).all()
    assert distances[0, 1] <= glyphs.SETTINGS["same_shape"]
    assert distances[0, 2] < 0.1 < distances[0, 3]
    assert distances[3, 4] > glyphs.SETTINGS["same_shape"]


def test_one_seed_gives_the_same_bytes(glyph_set: ImageSet, fonts: list[glyphs.Font]) -> None:
    for index in (0, 100, len(glyph_set.counts) - 1):
        letter = letters(glyph_set)[index]
        again = glyphs._variants(letter, [font for font in fonts if font.has(letter)])
        offset = glyph_set.offsets[index]
        assert again.tobytes() == glyph_set.images[offset : offset + len(again)].tobytes()


def test_another_seed_gives_other_images(
    glyph_set: ImageSet, fonts: list[glyphs.Font], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(glyphs.SETTINGS, "seed", 1)
    other = glyphs._variants("A", [font for font in fonts if font.has("A")])
    assert not np.array_equal(other, glyph_set.images[: len(other)])
