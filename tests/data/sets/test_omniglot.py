import shutil

import numpy as np
import pytest
from PIL import Image

from gpldla.data import Access, DataPaths, load_protocol, load_set
from gpldla.data.sets import SETS
from gpldla.utils.errors import UserError
from tests.data.trees import LATIN, write_emnist, write_omniglot, zip_up


@pytest.fixture
def root(tmp_path):
    write_omniglot(tmp_path / "omniglot", classes_per_part=4)
    write_emnist(tmp_path / "emnist")
    return tmp_path


@pytest.fixture
def access(root, tmp_path):
    return Access(DataPaths(root, tmp_path / "cache"))


def names(root):
    return list(SETS["omniglot"].survey(root / "omniglot").counts)


class TestSplit:
    def test_the_list_has_1597_characters_and_none_is_latin(self):
        (base,) = SETS["omniglot"].class_lists.values()
        assert len(base) == len(set(base)) == 1597
        assert not any(name.startswith("Latin/") for name in base)
        assert len({name.split("/")[0] for name in base}) == 49

    def test_latin_characters_are_in_no_part(self, root):
        found = names(root)
        assert set(LATIN) <= set(found)
        parts = SETS["omniglot"].parts(found)
        assert list(parts) == ["base"]
        assert [found[place] for place in parts["base"]] == [n for n in found if n not in LATIN]

    def test_the_protocol_learns_on_omniglot_and_tests_on_emnist(self, access):
        parts = load_protocol("omniglot-emnist", access=access).parts
        assert {name: (part.image_set.name, len(part.classes)) for name, part in parts.items()} == {
            "base": ("omniglot", 4),
            "validation": ("emnist", 2),
            "novel": ("emnist", 2),
        }


class TestLayouts:
    def test_both_halves_join(self, root):
        assert names(root) == [
            "Alphabet_of_the_Magi/character01",
            "Alphabet_of_the_Magi/character02",
            "Angelic/character01",
            "Angelic/character02",
            *LATIN,
        ]

    def test_zips_and_folders_give_the_same(self, root, access):
        unpacked = load_set("omniglot", access=access)
        before = unpacked.images[:].copy()
        for half in ("images_background", "images_evaluation"):
            shutil.make_archive(str(root / "omniglot" / half), "zip", root / "omniglot", half)
            shutil.rmtree(root / "omniglot" / half)
        packed = load_set("omniglot", access=access)
        np.testing.assert_array_equal(packed.images, before)
        assert packed.class_names == unpacked.class_names

    def test_the_halves_may_lie_below_other_folders(self, root):
        expected = names(root)
        (root / "moved" / "python").mkdir(parents=True)
        (root / "omniglot").rename(root / "moved" / "python" / "all")
        (root / "moved").rename(root / "omniglot")
        assert names(root) == expected

    def test_a_half_that_lies_there_packed_and_unpacked_counts_once(self, root):
        before = SETS["omniglot"].survey(root / "omniglot").counts
        shutil.copytree(root / "omniglot", root / "copy")
        (archive,) = zip_up(root / "copy")
        (root / "omniglot" / "python").mkdir()
        archive.rename(root / "omniglot" / "python" / "all.zip")
        assert SETS["omniglot"].survey(root / "omniglot").counts == before

    def test_strokes_and_other_files_are_passed_over(self, root):
        expected = names(root)
        strokes = root / "omniglot" / "strokes_background" / "Korean" / "character01"
        strokes.mkdir(parents=True)
        (strokes / "0001_01.txt").write_text("START")
        Image.new("L", (8, 8)).save(strokes / "0001_01.png")
        assert names(root) == expected


class TestImages:
    def test_dark_ink_lies_on_light_paper(self, access):
        image_set = load_set("omniglot", access=access)
        assert image_set.images.shape == (18, 1, 32, 32)
        assert image_set.images.min() < 64
        assert np.median(image_set.images) == 255
        assert (image_set.shapes == 105).all()

    def test_another_backbone_gets_another_size(self, access):
        assert load_set("omniglot", size=84, access=access).images.shape[1:] == (1, 96, 96)


def test_a_character_without_drawings_is_named(root, access):
    (root / "omniglot" / "images_background" / "Korean" / "character01").mkdir(parents=True)
    with pytest.raises(UserError, match=r"Korean/character01 is a character without drawings"):
        load_set("omniglot", access=access)
