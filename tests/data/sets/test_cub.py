import shutil

import numpy as np
import pytest

from gpldla.data import Access, DataPaths, load_protocol
from gpldla.data.sets import SETS
from gpldla.utils.errors import UserError
from tests.data.trees import pictures, save, write_cub, zip_up

CUB = SETS["cub"]


@pytest.fixture
def root(tmp_path):
    write_cub(tmp_path / "cub", classes_per_part=3, images_per_class=4)
    return tmp_path


@pytest.fixture
def access(root, tmp_path):
    return Access(DataPaths(root, tmp_path / "cache"))


class TestSplit:
    def test_the_lists_have_100_50_and_50_classes(self):
        lists = SETS["cub"].class_lists
        assert {part: len(names) for part, names in lists.items()} == {
            "base": 100,
            "validation": 50,
            "novel": 50,
        }

    def test_even_places_are_base_and_the_others_take_turns(self):
        lists = SETS["cub"].class_lists
        names = sorted(name for part in lists.values() for name in part)
        assert len(set(names)) == 200
        assert [name[:4] for name in names] == [f"{number:03}." for number in range(1, 201)]
        assert lists["base"] == tuple(names[0::2])
        assert lists["validation"] == tuple(names[1::4])
        assert lists["novel"] == tuple(names[3::4])

    def test_classes_are_told_by_their_number(self):
        found = CUB.parts(["001.Albatross", "002.other words", "003.x", "004.y", "201.no such class"])
        assert found == {"base": (0, 2), "validation": (1,), "novel": (3,)}


class TestLayouts:
    def test_the_parts_have_the_right_classes_and_images(self, access):
        parts = load_protocol("cub", access=access).parts
        assert {name: len(part.indices) for name, part in parts.items()} == {
            "base": 12,
            "validation": 12,
            "novel": 12,
        }
        assert parts["base"].class_names == [
            "001.Black_footed_Albatross",
            "003.Sooty_Albatross",
            "005.Crested_Auklet",
        ]
        assert [name[:3] for name in parts["validation"].class_names] == ["002", "006", "010"]
        assert [name[:3] for name in parts["novel"].class_names] == ["004", "008", "012"]

    def test_zips_and_folders_give_the_same(self, root, access):
        unpacked = load_protocol("cub", access=access)
        before = unpacked.parts["novel"].read(slice(None))
        zip_up(root / "cub", into=3)
        packed = load_protocol("cub", access=access)
        np.testing.assert_array_equal(packed.parts["novel"].read(slice(None)), before)
        assert packed.parts["novel"].class_names == unpacked.parts["novel"].class_names

    def test_the_pictures_are_stored_whole_with_their_shapes(self, access):
        image_set = load_protocol("cub", access=access).parts["base"].image_set
        assert image_set.images.shape == (36, 3, 20, 20)
        assert (image_set.shapes == [16, 20]).all()

    @pytest.mark.parametrize("name", ["CUB_200_2011", "CUB", "cub-200-2011"])
    def test_the_folder_may_have_other_names(self, root, access, name):
        (root / "cub").rename(root / name)
        assert len(load_protocol("cub", access=access).parts["base"].classes) == 3

    def test_the_class_folders_may_lie_at_the_top(self, root, access):
        (root / "cub" / "CUB_200_2011" / "images").rename(root / "images")
        (root / "cub" / "CUB_200_2011").rmdir()
        (root / "cub").rmdir()
        (root / "images").rename(root / "cub")
        assert len(load_protocol("cub", access=access).parts["base"].indices) == 12

    def test_an_image_that_lies_there_packed_and_unpacked_counts_once(self, root, access):
        name = "001.Black_footed_Albatross"
        folder = root / "cub" / "CUB_200_2011" / "images" / name
        contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        zip_up(root / "cub")
        for file, content in contents.items():
            (root / "cub" / name).mkdir(exist_ok=True)
            (root / "cub" / name / file).write_bytes(content)  # not where the zip has it
        assert load_protocol("cub", access=access).parts["base"].counts.tolist() == [4, 4, 4]

    def test_other_folders_and_files_are_passed_over(self, root, access):
        save(next(pictures("x", 1, 8, 8)), root / "cub" / "CUB_200_2011" / "logo.jpg")
        save(next(pictures("x", 1, 8, 8)), root / "cub" / "attributes" / "1.jpg")
        (root / "cub" / "CUB_200_2011" / "images.txt").write_text("1 001.Black_footed_Albatross/1.jpg")
        assert len(load_protocol("cub", access=access).parts["base"].image_set.images) == 36

    # The masks of the segmentations.tgz of the same page lie in class folders of the same names.

    def test_segmentations_are_no_photographs(self, root, access):
        name = "001.Black_footed_Albatross"
        save(next(pictures("x", 1, 8, 8)).convert("L"), root / "cub" / "segmentations" / name / "mask.png")
        assert load_protocol("cub", access=access).parts["base"].counts.tolist() == [4, 4, 4]


class TestFaults:
    def test_an_empty_class_is_named(self, root, access):
        (root / "cub" / "CUB_200_2011" / "images" / "007.Parakeet_Auklet").mkdir()
        with pytest.raises(UserError, match=r"007\.Parakeet_Auklet is a class without images"):
            load_protocol("cub", access=access)

    def test_a_folder_without_images_says_what_should_be_there(self, root, access):
        (root / "cub").rename(root / "elsewhere")
        (root / "cub").mkdir()
        (root / "cub" / "README").write_text("soon")
        with pytest.raises(UserError, match=r"has no images of cub; it should have CUB_200_2011/images/001"):
            load_protocol("cub", access=access)

    def test_an_archive_that_is_not_unpacked_is_named(self, root, access):
        (root / "cub").rename(root / "elsewhere")
        (root / "cub").mkdir()
        (root / "cub" / "CUB_200_2011.tgz").write_bytes(b"")
        with pytest.raises(UserError, match=r"CUB_200_2011\.tgz is not unpacked; unpack it there"):
            load_protocol("cub", access=access)

    def test_what_is_missing_is_said_with_where_to_get_it(self, tmp_path):
        access = Access(DataPaths(tmp_path / "nothing", tmp_path / "cache"))
        with pytest.raises(UserError) as error:
            load_protocol("cub", access=access)
        for words in (str(tmp_path / "nothing" / "cub"), "https://www.vision.caltech.edu", "--data-root"):
            assert words in str(error.value)


def test_an_empty_folder_does_not_hide_a_packed_store(root, access):
    before = load_protocol("cub", access=access).part("base").class_names
    shutil.rmtree(root / "cub")
    (root / "cub").mkdir()
    assert load_protocol("cub", access=access).part("base").class_names == before
