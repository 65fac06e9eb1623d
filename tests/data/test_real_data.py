"""The real images, where they are: GPLDLA_DATA, else the folder shared/data beside the repository."""

import os
import time
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from gpldla.data import Access, DataPaths, load_protocol, load_set
from gpldla.data.inventory import set_status
from tests.data.trees import REAL_ROOT

SETS_OF_PROTOCOL = {
    "cub": ("cub",),
    "omniglot-emnist": ("omniglot", "emnist"),
    "tinyimagenet-mini": ("tinyimagenet-mini",),
    "tinyimagenet-cub": ("tinyimagenet-mini", "cub"),
}
SIZE = 28  # inputs of this size keep the stores small; what is counted here does not depend on it


def access():
    """Stores lie apart from those of other tests, which shall find nothing packed where they expect that."""
    return Access(DataPaths(REAL_ROOT, Path(os.environ["GPLDLA_CACHE"]) / "real"))


def need(*sets):
    for name in sets:
        if not (REAL_ROOT / name).is_dir():
            pytest.skip(f"the real data is not here: there is no folder {REAL_ROOT / name}; set GPLDLA_DATA")


def parts_of(protocol):
    need(*SETS_OF_PROTOCOL[protocol])
    return load_protocol(protocol, size=SIZE, access=access()).parts


def classes(parts):
    return {name: len(part.classes) for name, part in parts.items()}


@pytest.mark.parametrize(
    ("protocol", "base", "validation", "novel"),
    [
        ("cub", 100, 50, 50),
        ("omniglot-emnist", 1597, 31, 31),
        ("tinyimagenet-mini", 64, 16, 20),
        ("tinyimagenet-cub", 100, 50, 50),
    ],
)
def test_the_parts_have_all_their_classes(protocol, base, validation, novel):
    assert classes(parts_of(protocol)) == {"base": base, "validation": validation, "novel": novel}


@pytest.mark.parametrize("name", ["cub", "omniglot", "emnist", "tinyimagenet-mini"])
def test_the_sets_are_complete(name):
    need(name)
    status = set_status(name, access())
    assert status.faults == ()
    assert status.complete


@pytest.mark.parametrize("name", ["cub", "omniglot", "emnist", "tinyimagenet-mini"])
def test_a_packed_store_opens_at_once(name):
    need(name)
    load_set(name, size=SIZE, access=access())
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        load_set(name, size=SIZE, access=access())
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05


class TestCUB:
    def test_the_first_classes_of_each_part(self):
        parts = parts_of("cub")
        assert {name: part.class_names[:3] for name, part in parts.items()} == {
            "base": ["001.Black_footed_Albatross", "003.Sooty_Albatross", "005.Crested_Auklet"],
            "validation": ["002.Laysan_Albatross", "006.Least_Auklet", "010.Red_winged_Blackbird"],
            "novel": ["004.Groove_billed_Ani", "008.Rhinoceros_Auklet", "012.Yellow_headed_Blackbird"],
        }

    def test_all_images_are_in_one_part(self):
        parts = parts_of("cub")
        indices = np.concatenate([part.indices for part in parts.values()])
        assert len(indices) == len(np.unique(indices)) == len(parts["base"].image_set.images) == 11_788

    def test_shapes_are_those_of_photographs(self):
        shapes = parts_of("cub")["base"].image_set.shapes
        assert shapes.min() > 50
        assert 1.2 < np.median(shapes[:, 1] / shapes[:, 0]) < 1.5  # most are wider than high


class TestOmniglot:
    def test_every_character_was_drawn_twenty_times(self):
        base = parts_of("omniglot-emnist")["base"]
        assert (base.counts == 20).all()
        assert len(base.image_set.images) == 32_460  # with Latin

    def test_dark_ink_lies_on_light_paper(self):
        images = parts_of("omniglot-emnist")["base"].read(np.arange(0, 31_940, 500))
        assert np.median(images) == 255
        assert (images.min((1, 2, 3)) < 100).all()


# Print and handwriting agree on these, and none is its own mirror image.
LETTERS = "FGLPR27dkq"
WRONG_WAYS = {
    "transposed": lambda glyph: glyph.T,
    "transposed and turned": lambda glyph: np.rot90(glyph, 2).T,
    "mirrored": lambda glyph: glyph[:, ::-1],
    "upside down": lambda glyph: glyph[::-1],
    "turned left": np.rot90,
    "turned right": lambda glyph: np.rot90(glyph, 3),
    "turned over": lambda glyph: np.rot90(glyph, 2),
}


def printed(letter):
    """The letter in DejaVu Sans, as large as EMNIST's and as blurred as a mean of many hands."""
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 80)
    page = Image.new("L", (160, 160))
    ImageDraw.Draw(page).text((40, 20), letter, fill=255, font=font)
    ink = page.crop(page.getbbox())
    ink.thumbnail((20, 20))
    image = Image.new("L", (28, 28))
    image.paste(ink, ((28 - ink.width) // 2, (28 - ink.height) // 2))
    return 255.0 - np.asarray(image.filter(ImageFilter.GaussianBlur(2.5)))


def alike(one, other):
    return np.corrcoef(one.ravel(), other.ravel())[0, 1]


@pytest.fixture(scope="module")
def means():
    """The mean image of each letter."""
    need("emnist")
    image_set = load_set("emnist", access=access())
    found = {}
    for letter in LETTERS:
        place = image_set.class_names.index(letter)
        first, count = image_set.offsets[place], image_set.counts[place]
        found[letter] = image_set.images[first : first + count, 0].mean(0)
    return found


class TestEMNIST:
    @pytest.mark.parametrize("letter", LETTERS)
    def test_letters_stand_upright(self, means, letter):
        upright = alike(means[letter], printed(letter))
        assert upright > 0.75  # and not dark for light
        for way, turned in WRONG_WAYS.items():
            assert upright > alike(means[letter], turned(printed(letter))), way

    @pytest.mark.parametrize("letter", LETTERS)
    def test_letters_are_what_their_labels_say(self, means, letter):
        assert max(LETTERS, key=lambda other: alike(means[letter], printed(other))) == letter

    def test_every_class_has_the_images_of_the_official_test_split(self):
        parts = parts_of("omniglot-emnist")
        counts = [part.counts for name, part in parts.items() if name != "base"]
        assert np.concatenate(counts).sum() == 116_323
        assert min(c.min() for c in counts) >= 317


def test_the_stand_in_has_550_images_a_class():
    parts = parts_of("tinyimagenet-mini")
    assert all((part.counts == 550).all() for part in parts.values())
    assert parts_of("tinyimagenet-cub")["base"].image_set.name == "tinyimagenet-mini"
