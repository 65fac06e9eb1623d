import os
import zipfile
from zipfile import ZipFile, ZipInfo

import numpy as np
import pytest

from gpldla.data import source_files
from gpldla.data.source_files import SourceFile, is_image, read_tree, stamp
from gpldla.utils.errors import UserError


def write(path, content=b"content"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(path, members):
    """Write a zip of names and contents; a name that ends in / is a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(ZipInfo(name), content)
    return path


def made_long_ago(root):
    """Turn back the clocks of all folders: a change in the same instant as the last one would not show."""
    for folder in [root, *root.rglob("*/")]:
        os.utime(folder, (1e9, 1e9))


def changed(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


class TestTree:
    def test_files_are_listed_by_relative_path_and_sorted(self, tmp_path):
        for name in ("b/2.jpg", "b/10.jpg", "a/x/1.png", "note.txt"):
            write(tmp_path / name)
        assert list(read_tree(tmp_path).files) == ["a/x/1.png", "b/10.jpg", "b/2.jpg", "note.txt"]

    def test_a_zip_counts_as_unpacked_where_it_lies(self, tmp_path):
        zipped(tmp_path / "birds" / "all.zip", {"images/wren/1.jpg": b"wren"})
        tree = read_tree(tmp_path)
        assert list(tree.files) == ["birds/images/wren/1.jpg"]
        assert tree.files["birds/images/wren/1.jpg"].read() == b"wren"
        assert tree.folders == {"birds", "birds/images", "birds/images/wren"}

    def test_several_zips_and_folders_join(self, tmp_path):
        zipped(tmp_path / "1.zip", {"a/1.jpg": b"a1", "b/1.jpg": b"b1"})
        zipped(tmp_path / "2.ZIP", {"b/2.jpg": b"b2"})
        write(tmp_path / "b" / "3.jpg", b"b3")
        contents = {path: file.read() for path, file in read_tree(tmp_path).files.items()}
        assert contents == {"a/1.jpg": b"a1", "b/1.jpg": b"b1", "b/2.jpg": b"b2", "b/3.jpg": b"b3"}

    def test_an_unpacked_file_wins_over_a_packed_one(self, tmp_path):
        zipped(tmp_path / "0.zip", {"a/1.jpg": b"packed"})
        write(tmp_path / "a" / "1.jpg", b"unpacked")
        assert read_tree(tmp_path).files["a/1.jpg"].read() == b"unpacked"

    def test_of_two_zips_the_first_by_name_wins(self, tmp_path):
        zipped(tmp_path / "b.zip", {"1.jpg": b"second"})
        zipped(tmp_path / "a.zip", {"1.jpg": b"first"})
        assert read_tree(tmp_path).files["1.jpg"].read() == b"first"

    def test_a_zip_may_be_the_root_itself(self, tmp_path):
        archive = zipped(tmp_path / "all.zip", {"a/1.jpg": b"one"})
        write(tmp_path / "beside.jpg")
        tree = read_tree(archive)
        assert list(tree.files) == ["a/1.jpg"]
        assert tree.files["a/1.jpg"].read() == b"one"

    def test_hidden_files_are_ignored(self, tmp_path):
        for name in (".DS_Store", "a/._1.jpg", ".git/1.jpg", "__MACOSX/a/1.jpg"):
            write(tmp_path / name)
        zipped(tmp_path / "x.zip", {"__MACOSX/a/._1.jpg": b"", "a/.DS_Store": b"", "a/1.jpg": b""})
        write(tmp_path / ".hidden.zip", b"not a zip")
        tree = read_tree(tmp_path)
        assert list(tree.files) == ["a/1.jpg"]
        assert tree.folders == {"a"}
        assert tree.bad == ()

    def test_a_hidden_folder_above_the_root_hides_nothing(self, tmp_path):
        write(tmp_path / ".data" / "a" / "1.jpg")
        assert list(read_tree(tmp_path / ".data").files) == ["a/1.jpg"]

    def test_empty_folders_are_told_also_in_zips(self, tmp_path):
        (tmp_path / "a").mkdir()
        zipped(tmp_path / "x.zip", {"b/c/": b""})
        assert {"a", "b/c"} <= read_tree(tmp_path).folders

    def test_a_folder_may_be_named_as_a_zip(self, tmp_path):
        write(tmp_path / "birds.zip" / "1.jpg")
        assert list(read_tree(tmp_path).files) == ["birds.zip/1.jpg"]

    def test_symlinked_folders_files_and_zips_are_followed(self, tmp_path):
        write(tmp_path / "far" / "1.jpg", b"one")
        zipped(tmp_path / "far.zip", {"c/2.jpg": b"two"})
        root = tmp_path / "root"
        root.mkdir()
        (root / "a").symlink_to(tmp_path / "far")
        (root / "3.jpg").symlink_to(tmp_path / "far" / "1.jpg")
        (root / "b.zip").symlink_to(tmp_path / "far.zip")
        contents = {path: file.read() for path, file in read_tree(root).files.items()}
        assert contents == {"3.jpg": b"one", "a/1.jpg": b"one", "c/2.jpg": b"two"}

    def test_a_symlink_to_nothing_is_a_file_that_cannot_be_read(self, tmp_path):
        (tmp_path / "1.jpg").symlink_to(tmp_path / "gone")
        with pytest.raises(UserError, match=r"1\.jpg cannot be read"):
            read_tree(tmp_path).files["1.jpg"].read()

    def test_a_bad_zip_is_named_and_the_others_are_read(self, tmp_path):
        write(tmp_path / "bad.zip", b"this is no zip")
        whole = zipped(tmp_path / "good.zip", {"a/1.jpg": b"one"})
        write(tmp_path / "cut.zip", whole.read_bytes()[:40])
        tree = read_tree(tmp_path)
        assert list(tree.files) == ["a/1.jpg"]
        assert [sentence.split(" cannot be read as a zip")[0] for sentence in tree.bad] == [
            str(tmp_path / "bad.zip"),
            str(tmp_path / "cut.zip"),
        ]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
    def test_a_folder_without_permission_is_named(self, tmp_path):
        (tmp_path / "a").mkdir(mode=0)
        with pytest.raises(UserError, match=r"a cannot be read \(Permission denied\)"):
            read_tree(tmp_path)

    def test_names_of_any_script(self, tmp_path):
        zipped(tmp_path / "x.zip", {"vögel/größe 1, ü.jpg": b"one"})
        write(tmp_path / "птицы" / "2.jpg", b"two")
        assert {f.read() for f in read_tree(tmp_path).images.values()} == {b"one", b"two"}

    def test_links_in_a_circle_end(self, tmp_path):
        write(tmp_path / "a" / "1.jpg")
        (tmp_path / "a" / "up").symlink_to(tmp_path)
        assert list(read_tree(tmp_path).files) == ["a/1.jpg"]

    def test_members_may_begin_with_a_dot_and_a_slash(self, tmp_path):
        zipped(tmp_path / "x.zip", {"./a/1.jpg": b"one"})
        assert list(read_tree(tmp_path).files) == ["a/1.jpg"]


class TestImageTypes:
    @pytest.mark.parametrize(
        "name",
        [
            "a.jpg",
            "a.JPEG",
            "a.jfif",
            "a.Png",
            "a.webp",
            "b/a.bmp",
            "a.gif",
            "a.tif",
            "a.TIFF",
            "a.ppm",
            "a.b.pgm",
        ],
    )
    def test_endings_of_images(self, name):
        assert is_image(name)

    @pytest.mark.parametrize("name", ["a.txt", "jpg", "a.jpg.zip", "a.jpg/b", "a", "a.csv", "a.npy"])
    def test_endings_of_other_files(self, name):
        assert not is_image(name)

    def test_the_tree_tells_images_from_other_files(self, tmp_path):
        for name in ("a/1.jpg", "a/readme.txt", "labels.csv"):
            write(tmp_path / name)
        assert list(read_tree(tmp_path).images) == ["a/1.jpg"]


class TestReading:
    def read(self, folder):
        """Read the only file of a tree."""
        (file,) = read_tree(folder).files.values()
        return file.read()

    def test_a_file_tells_its_place(self, tmp_path):
        assert str(SourceFile(tmp_path / "1.jpg")) == str(tmp_path / "1.jpg")
        member = SourceFile(tmp_path / "x.zip", "a/1.jpg")
        assert str(member) == f"{tmp_path / 'x.zip'}/a/1.jpg"
        assert member.name == "1.jpg"

    def test_a_file_that_has_gone_is_named(self, tmp_path):
        with pytest.raises(UserError, match=r"gone\.jpg cannot be read \(.*No such file"):
            SourceFile(tmp_path / "gone.jpg").read()

    def test_a_zip_that_has_gone_is_named(self, tmp_path):
        with pytest.raises(UserError, match=r"gone\.zip/1\.jpg cannot be read \(.*No such file"):
            SourceFile(tmp_path / "gone.zip", "1.jpg").read()

    def test_a_damaged_member_is_named(self, tmp_path):
        changed(zipped(tmp_path / "x.zip", {"a/1.jpg": b"12345678"}), b"12345678", b"12345679")
        with pytest.raises(UserError, match=r"x\.zip/a/1\.jpg cannot be read \(Bad CRC-32"):
            self.read(tmp_path)

    def test_a_truncated_member_is_named(self, tmp_path):
        path = tmp_path / "x.zip"
        with ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("1.jpg", os.urandom(1000))
        content = path.read_bytes()
        directory = content.index(b"PK\x01\x02")
        # The directory at the end is whole, but half of the member is not there.
        path.write_bytes(content[: directory - 500] + b"\0" * 500 + content[directory:])
        with pytest.raises(UserError, match=r"x\.zip/1\.jpg cannot be read"):
            self.read(tmp_path)

    def test_an_encrypted_member_is_named(self, tmp_path):
        path = zipped(tmp_path / "x.zip", {"1.jpg": b"secret"})
        content = bytearray(path.read_bytes())
        content[6] |= 1  # the flag in the member's own header
        content[content.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"x\.zip/1\.jpg cannot be read \(.*encrypted"):
            self.read(tmp_path)

    def test_a_member_packed_by_an_unknown_method_is_named(self, tmp_path):
        path = zipped(tmp_path / "x.zip", {"1.jpg": b"content"})
        content = bytearray(path.read_bytes())
        content[8] = 97
        content[content.index(b"PK\x01\x02") + 10] = 97
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"x\.zip/1\.jpg cannot be read \(That compression method"):
            self.read(tmp_path)

    def test_a_member_too_large_for_an_image_is_not_unpacked(self, tmp_path, monkeypatch):
        zipped(tmp_path / "x.zip", {"1.jpg": b"x" * 101})
        monkeypatch.setattr(source_files, "LARGEST_FILE", 100)
        with pytest.raises(UserError, match=r"x\.zip/1\.jpg is larger than any image"):
            self.read(tmp_path)

    def test_a_zip_that_was_replaced_is_read_anew(self, tmp_path):
        path = zipped(tmp_path / "x.zip", {"1.jpg": b"old"})
        assert self.read(tmp_path) == b"old"
        zipped(path, {"1.jpg": b"newer"})
        assert self.read(tmp_path) == b"newer"


class TestStamp:
    @pytest.fixture
    def root(self, tmp_path):
        """A zip at the top and class folders two levels below."""
        root = tmp_path / "root"
        zipped(root / "x.zip", {"c/1.jpg": b"one"})
        write(root / "images" / "a" / "1.jpg")
        write(root / "images" / "b" / "1.jpg")
        made_long_ago(root)
        return root

    def test_it_stays_when_nothing_changes(self, root):
        before = stamp(root)
        read_tree(root).files["images/a/1.jpg"].read()
        assert stamp(root) == before

    def test_it_changes_when_a_zip_is_replaced(self, root):
        before = stamp(root)
        zipped(root / "x.zip", {"c/1.jpg": b"two"})  # as large as before
        assert stamp(root) != before

    def test_it_stays_when_a_zip_is_written_again_as_it_was(self, root):
        before = stamp(root)
        content = (root / "x.zip").read_bytes()
        (root / "x.zip").unlink()
        write(root / "x.zip", content)
        assert stamp(root) == before

    @pytest.mark.parametrize("name", ["y.zip", "images/a/2.jpg", "images/c/1.jpg"])
    def test_it_changes_when_something_comes(self, root, name):
        before = stamp(root)
        write(root / name, zipped(root.parent / "other.zip", {}).read_bytes())
        assert stamp(root) != before

    @pytest.mark.parametrize("name", ["x.zip", "images/a/1.jpg"])
    def test_it_changes_when_something_goes(self, root, name):
        before = stamp(root)
        (root / name).unlink()
        assert stamp(root) != before

    def test_it_changes_when_a_folder_is_renamed(self, root):
        before = stamp(root)
        (root / "images" / "a").rename(root / "images" / "z")
        assert stamp(root) != before

    def test_it_changes_when_a_linked_folder_does(self, tmp_path, root):
        write(tmp_path / "far" / "1.jpg")
        (root / "images" / "linked").symlink_to(tmp_path / "far")
        made_long_ago(tmp_path)
        before = stamp(root)
        write(tmp_path / "far" / "2.jpg")
        assert stamp(root) != before

    def test_hidden_files_at_the_top_do_not_count(self, root):
        before = stamp(root)
        write(root / ".DS_Store")
        assert stamp(root) == before

    def test_a_zip_has_one_too(self, root):
        before = stamp(root / "x.zip")
        assert stamp(root / "x.zip") == before
        zipped(root / "x.zip", {"c/1.jpg": b"two"})
        assert stamp(root / "x.zip") != before

    def test_two_roots_of_different_content_have_two(self, tmp_path):
        for name in ("a", "b"):
            zipped(tmp_path / name / "x.zip", {"1.jpg": name.encode()})
        assert stamp(tmp_path / "a") != stamp(tmp_path / "b")

    def test_what_cannot_be_read_is_named(self, tmp_path):
        with pytest.raises(UserError, match="gone cannot be read"):
            stamp(tmp_path / "gone")

    def test_it_changes_when_a_zip_in_a_folder_below_is_rewritten(self, root):
        archive = zipped(root / "zips" / "y.zip", {"c/1.jpg": b"one"})
        before = stamp(root)
        zipped(archive, {"c/1.jpg": b"another"})
        assert stamp(root) != before


def test_members_with_backslashes_lie_in_folders_too(tmp_path):
    zipped(tmp_path / "x.zip", {"cat\\1.jpg": b"one"})
    tree = read_tree(tmp_path)
    assert list(tree.files) == ["cat/1.jpg"]
    assert tree.files["cat/1.jpg"].read() == b"one"


@pytest.mark.parametrize("seed", range(30))
def test_a_zip_with_flipped_bytes_is_read_or_named_but_never_ends_in_a_traceback(tmp_path, seed):
    archive = zipped(tmp_path / "x.zip", {f"cat/{i}.jpg": bytes(50) for i in range(20)})
    content = bytearray(archive.read_bytes())
    rng = np.random.default_rng(seed)
    for place in rng.integers(0, len(content), 20):
        content[place] = rng.integers(256)
    archive.write_bytes(content)
    tree = read_tree(tmp_path)
    sentences = list(tree.bad)
    for file in tree.files.values():
        try:
            file.read()
        except UserError as error:
            sentences.append(str(error))
    assert all(str(archive) in sentence for sentence in sentences)
