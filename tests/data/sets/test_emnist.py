import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from gpldla.data import Access, DataPaths, load_protocol, load_set
from gpldla.data.sets import SETS
from gpldla.data.sets.emnist import CHARACTERS, IMAGES, LABELS
from gpldla.utils.errors import UserError
from tests.data.trees import drawings, write_emnist, write_idx, write_omniglot, zip_up


@pytest.fixture
def folder(tmp_path):
    """Two classes a part of three images: 0, 1, 2 and 3."""
    return write_emnist(tmp_path / "emnist")


@pytest.fixture
def access(tmp_path):
    return Access(DataPaths(tmp_path, tmp_path / "cache"))


def images_file(folder):
    return folder / f"{IMAGES}.gz"


def labels_file(folder):
    return folder / f"{LABELS}.gz"


class TestSplit:
    def test_the_lists_take_turns_in_the_order_of_the_labels(self):
        lists = SETS["emnist"].class_lists
        assert len(CHARACTERS) == len(set(CHARACTERS)) == 62
        assert lists == {"validation": tuple(CHARACTERS[0::2]), "novel": tuple(CHARACTERS[1::2])}
        assert {part: len(names) for part, names in lists.items()} == {"validation": 31, "novel": 31}

    def test_the_parts_have_their_classes(self, tmp_path, folder, access):
        write_omniglot(tmp_path / "omniglot")
        parts = load_protocol("omniglot-emnist", access=access).parts
        assert parts["validation"].class_names == ["0", "2"]
        assert parts["novel"].class_names == ["1", "3"]


class TestImages:
    def test_they_stand_upright_dark_on_light_and_sorted(self, folder, access):
        image_set = load_set("emnist", access=access)
        assert image_set.class_names == ("0", "1", "2", "3")
        assert image_set.counts.tolist() == [3, 3, 3, 3]
        for place, name in enumerate(image_set.class_names):
            drawn = {drawing.tobytes() for drawing in drawings(name, 3, 28)}
            assert {image.tobytes() for image in image_set.images[3 * place : 3 * place + 3]} == drawn

    def test_every_backbone_has_the_same_store(self, folder, access):
        assert load_set("emnist", size=84, access=access).images.shape == (12, 1, 28, 28)
        load_set("emnist", size=28, access=access)
        assert len(list(access.data_paths.cache.iterdir())) == 1

    def test_images_of_one_class_keep_the_order_of_the_file(self, tmp_path, access):
        labels = np.random.default_rng(0).choice([61, 10], 200)
        write_idx(
            tmp_path / "emnist" / f"{IMAGES}.gz", np.full((28, 28, 200), np.arange(200)).transpose(2, 0, 1)
        )
        write_idx(tmp_path / "emnist" / f"{LABELS}.gz", labels)
        image_set = load_set("emnist", access=access)
        assert image_set.class_names == ("A", "z")
        numbers = 255 - image_set.images[:, 0, 0, 0].astype(int)
        assert numbers.tolist() == [*np.flatnonzero(labels == 10), *np.flatnonzero(labels == 61)]


class TestLayouts:
    def counts(self, folder):
        return SETS["emnist"].survey(folder).counts

    def test_the_survey_counts_labels(self, folder):
        assert self.counts(folder) == {"0": 3, "1": 3, "2": 3, "3": 3}

    def test_the_files_may_be_in_a_zip(self, folder, access):
        before = load_set("emnist", access=access).images[:].copy()
        zip_up(folder)
        np.testing.assert_array_equal(load_set("emnist", access=access).images, before)

    def test_the_files_may_be_unpacked_and_in_a_folder(self, folder, access):
        (folder / "gzip").mkdir()
        for file in folder.glob("*.gz"):
            (folder / "gzip" / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
            file.unlink()
        assert load_set("emnist", access=access).counts.tolist() == [3, 3, 3, 3]

    def test_other_files_of_the_distribution_are_passed_over(self, folder):
        write_idx(folder / "emnist-byclass-train-labels-idx1-ubyte.gz", np.zeros(5))
        write_idx(folder / "emnist-letters-test-labels-idx1-ubyte.gz", np.zeros(5))
        assert self.counts(folder) == {"0": 3, "1": 3, "2": 3, "3": 3}


def rewrite(file, change):
    file.write_bytes(gzip.compress(change(gzip.decompress(file.read_bytes()))))


class TestFaults:
    def fails(self, access, match):
        with pytest.raises(UserError, match=match):
            load_set("emnist", access=access)
        assert not access.data_paths.cache.exists() or list(access.data_paths.cache.iterdir()) == []

    @pytest.mark.parametrize("gone", [IMAGES, LABELS])
    def test_one_of_two_files_is_missing(self, folder, access, gone):
        (folder / f"{gone}.gz").unlink()
        self.fails(access, f"but not {gone}.gz; get it and put it there")
        assert gone in SETS["emnist"].survey(folder).bad[0]

    def test_a_bad_zip_beside_them_is_named(self, folder, access):
        (folder / "gzip.zip").write_bytes(b"half a download")
        self.fails(access, r"gzip\.zip cannot be read as a zip .* `gpldla data prepare emnist --skip-bad`")

    def test_both_are_missing(self, folder, access):
        images_file(folder).unlink()
        labels_file(folder).rename(folder / "labels")
        self.fails(access, "has no images of emnist; it should have emnist-byclass-test-images")

    @pytest.mark.parametrize("file_of", [images_file, labels_file])
    def test_a_file_is_truncated(self, folder, access, file_of):
        file = file_of(folder)
        file.write_bytes(file.read_bytes()[:-8])
        self.fails(access, f"{file.name} is not a whole gzip file")

    @pytest.mark.parametrize("file_of", [images_file, labels_file])
    def test_a_file_is_no_gzip(self, folder, access, file_of):
        file_of(folder).write_bytes(b"<html>404 Not Found</html>")
        self.fails(access, "is not a whole gzip file")

    @pytest.mark.parametrize(
        "header", [b"", b"\0\0", b"\0\0\x08", b"\0\0\x0d\x03", b"\x01\0\x08\x03", b"\0\0\x08\x03\0\0"]
    )
    def test_the_images_do_not_begin_as_an_idx_file(self, folder, access, header):
        images_file(folder).write_bytes(gzip.compress(header))
        self.fails(access, "images-idx3-ubyte.gz does not begin as an IDX file with 3 dimensions")

    def test_the_files_are_swapped(self, folder, access):
        images, labels = images_file(folder).read_bytes(), labels_file(folder).read_bytes()
        images_file(folder).write_bytes(labels)
        labels_file(folder).write_bytes(images)
        self.fails(access, "labels-idx1-ubyte.gz does not begin as an IDX file with 1 dimensions")

    @pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"\0"])
    def test_the_content_is_shorter_or_longer_than_announced(self, folder, access, change):
        rewrite(images_file(folder), change)
        self.fails(access, "announces 12 × 28 × 28 values and has 940[79]")

    def test_sizes_that_no_file_has_are_not_believed(self, folder, access):
        rewrite(images_file(folder), lambda content: content[:4] + struct.pack(">3I", 1 << 31, 28, 28))
        self.fails(access, "announces 2147483648 × 28 × 28 values and has 0")

    def test_there_are_more_images_than_labels(self, folder, access):
        write_idx(labels_file(folder), np.zeros(11))
        self.fails(access, r"holds images of shape \[12, 28, 28\], not \[11, 28, 28\]")

    def test_the_images_have_another_size(self, folder, access):
        write_idx(images_file(folder), np.zeros((12, 32, 32)))
        self.fails(access, r"holds images of shape \[12, 32, 32\]")

    @pytest.mark.parametrize("labels", [[0, 62, 1], []])
    def test_a_label_is_out_of_range_or_there_is_none(self, folder, access, labels):
        write_idx(labels_file(folder), np.array(labels))
        self.fails(access, "does not hold labels from 0 to 61")

    def test_the_survey_says_it_too(self, folder):
        write_idx(labels_file(folder), np.array([62]))
        survey = SETS["emnist"].survey(folder)
        assert survey.counts == {}
        assert "does not hold labels from 0 to 61" in survey.bad[0]

    def test_a_bad_zip_that_should_have_the_files(self, folder, access):
        for file in folder.iterdir():
            file.unlink()
        (folder / "gzip.zip").write_bytes(b"half a download")
        self.fails(access, r"gzip\.zip cannot be read as a zip")


def test_a_small_gzip_that_promises_gigabytes_is_refused_in_little_memory(folder, access):
    with gzip.open(folder / f"{IMAGES}.gz", "wb", compresslevel=1) as bomb:
        for _ in range(40):
            bomb.write(bytes(16 << 20))
    assert (folder / f"{IMAGES}.gz").stat().st_size < 4 << 20
    tracemalloc.start()
    with pytest.raises(UserError, match="more than 128 MiB"):
        load_set("emnist", access=access)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 << 20  # of 640 MiB
