import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from gpldla.data import Access, DataPaths, load_protocol
from gpldla.data.sets import SETS
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter
from tests.data.trees import (
    REAL_ROOT,
    first_classes,
    pictures,
    save,
    write_class,
    write_cub,
    write_miniimagenet,
    write_miniimagenet_folders,
    write_table,
    write_tieredimagenet,
    write_tinyimagenet_mini,
    zip_up,
)

SIZES = {
    "miniimagenet": (64, 16, 20),
    "tieredimagenet": (351, 97, 160),
    "tinyimagenet-mini": (64, 16, 20),
}
WRITERS = {
    "miniimagenet": write_miniimagenet,
    "tieredimagenet": write_tieredimagenet,
    "tinyimagenet-mini": write_tinyimagenet_mini,
}
PUBLISHED = REAL_ROOT / "splits"


@pytest.fixture
def access(tmp_path):
    return Access(DataPaths(tmp_path, tmp_path / "cache"))


@pytest.fixture
def mini(tmp_path):
    return write_miniimagenet(tmp_path / "miniimagenet")


def survey(folder, name="miniimagenet"):
    return SETS[name].survey(folder)


class TestSplits:
    @pytest.mark.parametrize("name", SIZES)
    def test_the_lists_have_the_published_sizes_and_share_no_class(self, name):
        lists = SETS[name].class_lists
        assert tuple(lists) == ("base", "validation", "novel")
        assert tuple(len(names) for names in lists.values()) == SIZES[name]
        together = [label for names in lists.values() for label in names]
        assert len(set(together)) == sum(SIZES[name])
        assert all(re.fullmatch(r"n\d{8}", label) for label in together)

    def test_the_stand_in_keeps_the_roles_that_miniimagenet_gives(self):
        mini, stand_in = SETS["miniimagenet"].class_lists, SETS["tinyimagenet-mini"].class_lists
        in_mini = {label: part for part, labels in mini.items() for label in labels}
        shared = {label: part for part, labels in stand_in.items() for label in labels if label in in_mini}
        assert len(shared) == 25
        assert all(in_mini[label] == part for label, part in shared.items())

    @pytest.mark.parametrize("name", ["miniimagenet", "tieredimagenet"])
    @pytest.mark.parametrize(("part", "word"), [("base", "train"), ("validation", "val"), ("novel", "test")])
    def test_the_lists_are_the_published_ones(self, name, part, word):
        file = PUBLISHED / f"{name}-{word}.txt"
        if not file.exists():
            pytest.skip(f"{file} is not there to compare with")
        assert sorted(SETS[name].class_lists[part]) == sorted(file.read_text("utf-8").split())

    @pytest.mark.parametrize("name", WRITERS)
    def test_each_part_gets_its_classes(self, tmp_path, access, name):
        WRITERS[name](tmp_path / name, classes_per_part=3, images_per_class=2)
        parts = load_protocol(name, access=access).parts
        for part, labels in SETS[name].class_lists.items():
            assert sorted(parts[part].class_names) == sorted(labels[:3])
            assert parts[part].counts.tolist() == [2, 2, 2]

    @pytest.mark.parametrize(
        ("protocol", "base"), [("mini-cub", "miniimagenet"), ("tinyimagenet-cub", "tinyimagenet-mini")]
    )
    def test_across_domains_all_classes_are_base_and_the_rest_is_cub(self, tmp_path, access, protocol, base):
        WRITERS[base](tmp_path / base)
        write_cub(tmp_path / "cub")
        parts = load_protocol(protocol, access=access).parts
        assert sorted(parts["base"].class_names) == sorted(first_classes(base, 2))
        assert parts["validation"].class_names == ["002.Laysan_Albatross", "006.Least_Auklet"]
        assert parts["novel"].class_names == ["004.Groove_billed_Ani", "008.Rhinoceros_Auklet"]


class TestLayouts:
    def test_tables_and_class_folders_give_the_same_classes(self, tmp_path, mini):
        folders = write_miniimagenet_folders(tmp_path / "folders")
        assert survey(folders).counts == survey(mini).counts
        assert survey(mini).counts == dict.fromkeys(sorted(first_classes("miniimagenet", 2)), 3)

    @pytest.mark.parametrize("name", WRITERS)
    def test_zips_and_folders_give_the_same(self, tmp_path, access, name):
        WRITERS[name](tmp_path / name)
        before = load_protocol(name, access=access).parts["novel"].read(slice(None))
        zip_up(tmp_path / name, into=2)
        packed = load_protocol(name, access=access)
        np.testing.assert_array_equal(packed.parts["novel"].read(slice(None)), before)

    def test_each_image_goes_to_the_class_of_its_line(self, tmp_path, access, mini):
        first, second = SETS["miniimagenet"].class_lists["base"][:2]
        lines = [(f"{first}00000001.jpg", second), (f"{second}00000001.jpg", first)]
        write_table(mini / "train.csv", lines)
        before = load_protocol("miniimagenet", access=access).parts["base"].read(slice(None))
        write_table(mini / "train.csv", [(lines[0][0], first), (lines[1][0], second)])
        after = load_protocol("miniimagenet", access=access).parts["base"].read(slice(None))
        np.testing.assert_array_equal(after, before[::-1])

    def test_a_table_may_begin_with_a_mark_and_end_lines_as_windows_does(self, mini):
        text = (mini / "train.csv").read_text("utf-8")
        (mini / "train.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(text.splitlines()).encode())
        assert len(survey(mini).counts) == 6

    def test_a_table_may_name_folders_and_have_more_columns(self, mini):
        label = SETS["miniimagenet"].class_lists["base"][0]
        write_table(
            mini / "train.csv", [("0", label, f"images/{label}00000002.jpg")], ("", "label", "filename")
        )
        assert survey(mini).counts[label] == 1

    def test_a_line_that_is_there_twice_counts_once(self, mini):
        label = SETS["miniimagenet"].class_lists["base"][0]
        write_table(mini / "train.csv", [(f"{label}00000002.jpg", label)] * 2)
        assert survey(mini).counts[label] == 1

    def test_images_that_no_table_names_are_passed_over(self, mini):
        save(next(pictures("x", 1, 8, 8)), mini / "images" / "n0000000000000001.jpg")
        assert sum(survey(mini).counts.values()) == 18

    @pytest.mark.parametrize("name", ["miniimagenet", "tieredimagenet"])
    def test_classes_of_no_part_are_passed_over(self, tmp_path, name):
        folder = tmp_path / name
        (write_tieredimagenet if name == "tieredimagenet" else write_miniimagenet_folders)(folder)
        save(next(pictures("x", 1, 8, 8)), folder / "train" / "n00000001" / "1.JPEG")
        assert len(survey(folder, name).counts) == 6

    def test_tiny_imagenet_as_it_is_distributed_works_as_far_as_it_is_labelled(self, tmp_path, access):
        label = SETS["tinyimagenet-mini"].class_lists["base"][0]
        folder = tmp_path / "tiny-imagenet-200"
        for number in range(3):
            picture = next(pictures(label, 1, 8, 8))
            save(picture, folder / "train" / label / "images" / f"{label}_{number}.JPEG")
            save(picture, folder / "val" / "images" / f"val_{number}.JPEG")
        base = load_protocol("tinyimagenet-mini", access=access).parts["base"]
        assert (base.class_names, base.counts.tolist()) == ([label], [3])


class TestFaults:
    def fails(self, access, match, name="miniimagenet"):
        with pytest.raises(UserError, match=match):
            load_protocol(name, access=access)

    def test_a_table_names_a_missing_file(self, access, mini):
        label = SETS["miniimagenet"].class_lists["base"][0]
        (mini / "images" / f"{label}00000002.jpg").unlink()
        self.fails(access, rf"train\.csv names {label}00000002\.jpg, which is not there.*--skip-bad")
        counts = survey(mini).counts
        assert (counts[label], sum(counts.values())) == (2, 17)

    def test_a_table_names_a_class_without_any_file(self, mini):
        label = SETS["miniimagenet"].class_lists["novel"][0]
        for file in (mini / "images").glob(f"{label}*"):
            file.unlink()
        found = survey(mini)
        assert label not in found.counts
        (sentence,) = found.bad  # and not one a file
        assert re.search(
            rf"test\.csv names {label}00000001\.jpg, which is not there.* 3 files of {label}", sentence
        )

    @pytest.mark.parametrize("header", [("file", "label"), ("filename",), ("filename;label",)])
    def test_a_table_has_no_such_columns(self, access, mini, header):
        write_table(mini / "val.csv", [("n0185567200000001.jpg", "n01855672")], header)
        self.fails(access, r"val\.csv has no columns filename and label")

    def test_a_table_is_empty(self, access, mini):
        (mini / "val.csv").write_bytes(b"")
        self.fails(access, r"val\.csv has no columns filename and label")

    def test_a_table_has_a_line_cut_short(self, access, mini):
        text = (mini / "val.csv").read_text("utf-8")
        (mini / "val.csv").write_text(text + "n0185567200000009.jpg\n", "utf-8")
        self.fails(access, r"val\.csv has a line without filename or label")

    def test_a_table_is_no_text(self, access, mini):
        (mini / "val.csv").write_bytes(b"\xff\xfe\x00\x81")
        self.fails(access, r"val\.csv is not a table of text")

    def test_the_other_parts_can_be_used_without_it(self, tmp_path, mini):
        (mini / "val.csv").write_bytes(b"")
        access = Access(DataPaths(tmp_path, tmp_path / "cache"), skip_bad=True)
        parts = load_protocol("miniimagenet", access=access).parts
        assert set(parts) == {"base", "novel"}

    def test_a_class_folder_is_empty(self, tmp_path, access):
        write_tieredimagenet(tmp_path / "tieredimagenet")
        label = SETS["tieredimagenet"].class_lists["base"][7]
        (tmp_path / "tieredimagenet" / "train" / label).mkdir()
        self.fails(access, f"train/{label} is a class without images", "tieredimagenet")

    def test_an_incomplete_set_is_said_to_be_so(self, tmp_path, mini):
        said = StringIO()
        report = Reporter(Console(file=said, width=1000))
        load_protocol("miniimagenet", access=Access(DataPaths(tmp_path, tmp_path / "cache"), report))
        for words in ("2 of the 64 base", "2 of the 16 validation", "2 of the 20 novel"):
            assert f"miniimagenet is not complete: {words} classes" in said.getvalue()

    @pytest.mark.parametrize("name", SIZES)
    def test_what_is_missing_is_said_with_where_to_get_it(self, access, name):
        self.fails(access, rf"{name}.*is not in the data root.*get it from http.*and put .*--data-root", name)

    # What is in no part does not matter.

    def test_an_empty_folder_of_a_class_in_no_part_does_not_matter(self, tmp_path, access):
        write_tieredimagenet(tmp_path / "tieredimagenet")
        (tmp_path / "tieredimagenet" / "train" / "n00000001").mkdir()
        assert len(load_protocol("tieredimagenet", access=access).parts["base"].classes) == 2


def test_the_original_of_the_stand_in_is_read_with_its_validation_images(tmp_path, access):
    label = SETS["tinyimagenet-mini"].class_lists["base"][0]
    original = tmp_path / "tinyimagenet-mini" / "tiny-imagenet-200"
    write_class(original / "train" / label / "images", images_per_class=3, ending=".JPEG")
    write_class(original / "train" / "n99999999" / "images", images_per_class=3, ending=".JPEG")
    write_class(original / "val" / "images", images_per_class=2, ending=".JPEG")
    write_class(original / "test" / "images", images_per_class=2, ending=".JPEG")
    notes = f"0.JPEG\t{label}\t0\t0\t9\t9\n1.JPEG\tn99999999\t0\t0\t9\t9\nbroken\n"
    (original / "val" / "val_annotations.txt").write_text(notes)
    part = load_protocol("tinyimagenet-mini", access=access).part("base")
    assert (part.class_names, part.counts.tolist()) == ([label], [4])
