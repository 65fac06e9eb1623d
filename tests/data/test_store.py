import contextlib
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gpldla.data import store, store_checksums, store_manifest
from gpldla.data.store import (
    ABANDONED_AFTER,
    ImageSet,
    cached_store,
    check_store,
    new_store,
    open_store,
    store_folder,
    write_store,
)
from gpldla.utils.errors import UserError
from tests.helpers import tiny_set

GROUPS = [np.repeat([0, 1], [2, 4]), np.repeat([3, 1], [3, 4])]
SHAPES = np.stack([np.arange(13) + 50, np.arange(13) * 7 + 1], axis=1).astype(np.int32)
MEGABYTE = 1 << 20


def shaped_set():
    """Thirteen images with groups and shapes."""
    image_set = tiny_set((6, 7), groups=GROUPS)
    return ImageSet(
        "tiny", image_set.images, image_set.class_names, image_set.counts, image_set.groups, SHAPES
    )


@pytest.fixture
def folder(tmp_path):
    """A whole store."""
    write_store(tmp_path / "tiny", shaped_set(), {"seed": 1})
    return tmp_path / "tiny"


def manifest_with(folder, **changes):
    """Change the manifest, which gets the checksum that it would have."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8")) | changes
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "checksum": store_manifest.manifest_checksum(manifest)}), "utf-8"
    )


def without_checksums(folder):
    """Make the store one of an earlier version."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    for key in ("checksum", "files"):
        manifest.pop(key)
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    (folder / "images.sha256").unlink()


def sparse_store(folder, megabytes):
    """A store of zeros, a megabyte an image, that takes no room on the disk."""
    with new_store(folder, (1, 1024, 1024)) as writer:
        writer.finish("zeros", ["zero"], [megabytes], {})
        os.truncate(next(folder.parent.glob(".*/images.u8")), megabytes * MEGABYTE)
        manifest_with(next(folder.parent.glob(".*/")), shape=[megabytes, 1, 1024, 1024], files={})
    return folder


def resident_memory():
    """Bytes of this process in memory, mapped files among them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


class TestRoundTrip:
    def test_everything_comes_back(self, folder):
        written, opened = shaped_set(), open_store(folder)
        assert opened.name == written.name
        assert opened.class_names == written.class_names
        np.testing.assert_array_equal(opened.images, written.images)
        np.testing.assert_array_equal(opened.counts, written.counts)
        np.testing.assert_array_equal(opened.groups, written.groups)
        np.testing.assert_array_equal(opened.shapes, written.shapes)

    def test_a_set_without_groups_and_shapes_has_none(self, tmp_path):
        write_store(tmp_path / "tiny", tiny_set(), {})
        opened = open_store(tmp_path / "tiny")
        assert opened.groups is None
        assert opened.shapes is None

    def test_images_may_come_in_pieces(self, tmp_path):
        images = shaped_set().images
        with new_store(tmp_path / "s", images.shape[1:]) as writer:
            for piece in (images[:5], images[5:5], images[5:12], images[12:]):
                writer.add(piece)
            writer.finish("s", ["a", "b"], [6, 7], {})
        np.testing.assert_array_equal(open_store(tmp_path / "s").images, images)

    def test_a_store_without_images_comes_back(self, tmp_path):
        write_store(tmp_path / "s", ImageSet("s", np.empty((0, 3, 4, 5), np.uint8), (), np.array([])), {})
        opened = open_store(tmp_path / "s")
        assert opened.images.shape == (0, 3, 4, 5)
        assert opened.read(np.array([], dtype=np.int64)).shape == (0, 3, 4, 5)

    def test_other_users_may_read_a_shared_cache(self, folder):
        assert folder.stat().st_mode & 0o777 == 0o755

    def test_class_names_of_any_script(self, tmp_path):
        images = np.zeros((2, 1, 4, 4), np.uint8)
        write_store(tmp_path / "s", ImageSet("s", images, ("Greek Ω", 'a"b\n'), np.array([1, 1])), {})
        assert open_store(tmp_path / "s").class_names == ("Greek Ω", 'a"b\n')

    def test_the_manifest_says_where_the_images_come_from(self, folder):
        assert json.loads((folder / "manifest.json").read_text("utf-8"))["source"] == {"seed": 1}

    def test_the_manifest_has_the_hash_of_the_images(self, folder, tmp_path):
        write_store(tmp_path / "again", shaped_set(), {})
        write_store(tmp_path / "other", tiny_set((6, 7), seed=1), {})
        hashes = [
            store_manifest.read_manifest(tmp_path / name)["sha256"] for name in ("tiny", "again", "other")
        ]
        assert hashes[0] == hashes[1] != hashes[2]

    def test_images_that_are_not_contiguous_come_back(self, tmp_path):
        images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3).transpose(0, 3, 1, 2)
        write_store(tmp_path / "s", ImageSet("s", images, ("a",), np.array([2])), {})
        np.testing.assert_array_equal(open_store(tmp_path / "s").images, images)


class TestOpening:
    @on_linux
    def test_never_reads_the_images(self, tmp_path):
        sparse_store(tmp_path / "zeros", 100)
        before = resident_memory()
        opened = open_store(tmp_path / "zeros")
        assert resident_memory() - before < 10 * MEGABYTE
        assert opened.images.nbytes == 100 * MEGABYTE

    def test_images_cannot_be_changed_by_accident(self, folder):
        images = open_store(folder).images
        with pytest.raises(ValueError, match="read-only"):
            images[0] = 0

    def test_a_store_that_nobody_may_write_to_opens(self, folder):
        for path in (*folder.iterdir(), folder):
            path.chmod(0o444 if path.is_file() else 0o555)
        try:
            assert len(open_store(folder).images) == 13
        finally:
            folder.chmod(0o755)

    @pytest.mark.parametrize(
        "content",
        ["", "{", "[]", "null", '"text"', "{}", '{"format": 2}', "\udcff"],
        ids=repr,
    )
    def test_a_damaged_manifest_is_named(self, folder, content):
        (folder / "manifest.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(UserError, match=rf"{folder} is not a readable store .*; delete it"):
            open_store(folder)

    @pytest.mark.parametrize("number", [1, 99])
    def test_another_format_is_named(self, folder, number):
        manifest_with(folder, format=number)
        with pytest.raises(UserError, match=rf"{folder} .*format {number}, not 2.*delete it"):
            open_store(folder)

    @pytest.mark.parametrize("name", ["images.u8", "groups.npy", "shapes.npy"])
    @pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
    def test_a_truncated_file_is_named(self, folder, name, share):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)

    @pytest.mark.parametrize("size", [0, 13 * 1024 - 1, 13 * 1024 + 1])
    def test_images_of_another_size_are_named_with_it(self, folder, size):
        os.truncate(folder / "images.u8", size)
        with pytest.raises(UserError, match=rf"{folder} .*images\.u8 has {size} bytes, not 13312"):
            open_store(folder)

    def test_missing_images_are_named(self, folder):
        (folder / "images.u8").unlink()
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)

    @pytest.mark.parametrize("shape", [None, "13", [13, 1024], [13, 1, 32, "32"], [-13, 1, 32, -32]])
    def test_a_shape_that_is_none_is_named(self, folder, shape):
        manifest_with(folder, shape=shape)
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)

    def test_counts_that_do_not_add_up_are_named(self, folder):
        manifest_with(folder, classes=[{"name": "a", "images": 3}])
        with pytest.raises(UserError, match=rf"{folder} .*do not add up to its 13 images"):
            open_store(folder)

    @pytest.mark.parametrize(("name", "shape"), [("groups", (5,)), ("shapes", (13,)), ("shapes", (5, 2))])
    def test_arrays_of_another_set_are_named(self, folder, name, shape):
        without_checksums(folder)
        np.save(folder / f"{name}.npy", np.zeros(shape, np.int64))
        with pytest.raises(UserError, match=rf"{folder} .*one {name[:-1]} for each of its 13 images"):
            open_store(folder)

    @pytest.mark.parametrize("name", ["groups", "shapes"])
    def test_pickles_are_never_loaded(self, folder, name):
        without_checksums(folder)
        np.save(folder / f"{name}.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        with pytest.raises(UserError, match=f"{folder} is not a readable store .*pickle"):
            open_store(folder)

    @pytest.mark.parametrize(
        "changes",
        [
            {"shape": [2**61, 8, 1, 1]},  # 0 in 64 bits
            {"shape": [10**400, 1, 32, 32]},
            {"classes": [{"name": "a", "images": 10**400}]},
            {"classes": [{"name": "a", "images": -5}, {"name": "b", "images": 18}]},
            {"classes": [{"name": ["a"], "images": 13}]},
            {"classes": {"a": 13}},
            {"source": ["a"]},
            {"source": {"left_out": 3}},
            {"name": None},
            {"files": ["images.u8"]},
            {"files": {"images.sha256": 1}},
        ],
        ids=lambda changes: str(changes)[:60],
    )
    def test_a_manifest_that_no_packer_wrote_is_named(self, folder, changes):
        manifest_with(folder, **changes)
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)

    def test_brackets_without_end_are_named(self, folder):
        (folder / "manifest.json").write_text("[" * 100_000)
        with pytest.raises(UserError, match=f"{folder} is not a readable store .*nested too deeply"):
            open_store(folder)

    @pytest.mark.parametrize(
        "header", ["{'descr': '<i8', 'fortran_order': False, 'shape': (", "(" * 5000, "{" + "\0" * 9, "1 +"]
    )
    def test_a_header_of_numpy_that_cannot_be_read_is_named(self, folder, header):
        without_checksums(folder)
        content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        (folder / "groups.npy").write_bytes(content)
        with pytest.raises(UserError, match=rf"{folder} is not a readable store \(groups.npy is no array"):
            open_store(folder)


class TestChecksums:
    def test_no_flipped_bit_of_any_file_goes_unnoticed(self, folder):
        """What a flip leaves readable, such as an escape in JSON, says the same."""
        unnoticed, flips = [], 0
        for file in sorted(folder.iterdir()):
            whole = file.read_bytes()
            for place in range(0, len(whole), max(1, len(whole) // 97)):
                file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
                flips += 1
                with contextlib.suppress(UserError):
                    check_store(folder)
                    unnoticed.append((file.name, place, chr(whole[place])))
            file.write_bytes(whole)
        assert flips > 400
        assert unnoticed == []

    def test_only_what_is_read_is_verified_and_once(self, tmp_path, monkeypatch):
        images = np.random.default_rng(0).integers(0, 256, (9, 1, 600, 1000), np.uint8)  # 1.7 a chunk
        write_store(tmp_path / "s", ImageSet("s", images, ("a",), np.array([9])), {})
        with (tmp_path / "s" / "images.u8").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([images[-1, -1, -1, -1] ^ 1]))
        opened = open_store(tmp_path / "s")
        np.testing.assert_array_equal(opened.read(np.array([0, 3, 2])), images[[0, 3, 2]])
        np.testing.assert_array_equal(opened.read(np.array([-9])), images[:1])
        for last in (8, -1):
            with pytest.raises(UserError, match=rf"{tmp_path / 's'} is damaged: .*; delete it"):
                opened.read(np.array([1, last]))
        monkeypatch.setattr(store_checksums, "hashlib", None)
        np.testing.assert_array_equal(opened.read(np.array([0, 2])), images[[0, 2]])

    def test_chunks_do_not_depend_on_the_pieces_that_were_added(self):
        content = np.random.default_rng(0).integers(0, 256, 3 * store_checksums.CHUNK + 5, np.uint8)
        whole, pieces = store_checksums.ChunkHasher(), store_checksums.ChunkHasher()
        whole.update(content.data)
        for piece in np.array_split(content, 7):
            pieces.update(piece.data)
        assert whole.digests() == pieces.digests()

    def test_a_store_from_before_is_read_and_can_be_checked(self, folder):
        without_checksums(folder)
        np.testing.assert_array_equal(check_store(folder).read(np.arange(13)), shaped_set().images)
        with (folder / "images.u8").open("r+b") as file:
            file.write(b"other")
        open_store(folder).read(np.arange(13))
        with pytest.raises(UserError, match=f"{folder} is damaged"):
            check_store(folder)


class TestInterruptedWriting:
    @pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
    @pytest.mark.parametrize("pieces", [0, 1, 2])
    def test_leaves_nothing_behind(self, tmp_path, pieces, error):
        def write():
            with new_store(tmp_path / "tiny", (1, 32, 32)) as writer:
                for _ in range(pieces):
                    writer.add(tiny_set().images)
                raise error

        with pytest.raises(type(error)):
            write()
        assert list(tmp_path.iterdir()) == []

    def test_also_not_when_it_is_almost_done(self, tmp_path, monkeypatch):
        monkeypatch.setattr(np, "save", lambda file, array: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_store(tmp_path / "tiny", shaped_set(), {})
        assert list(tmp_path.iterdir()) == []

    def test_leaves_a_store_that_was_there(self, folder, monkeypatch):
        monkeypatch.setattr(np, "save", lambda file, array: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_store(folder, shaped_set(), {})
        assert open_store(folder).counts.tolist() == [6, 7]

    def test_nothing_is_there_before_the_end(self, tmp_path):
        with new_store(tmp_path / "s", (1, 32, 32)) as writer:
            writer.add(tiny_set().images)
            writer.finish("s", ["a"], [30], {})
            assert not (tmp_path / "s").exists()
        assert (tmp_path / "s").exists()


class TestAbandonedStores:
    """What a killed process leaves."""

    @pytest.fixture
    def unfinished(self, folder):
        path = folder.with_name(".other-1a2b-k3j4")
        path.mkdir()
        (path / "images.u8").write_bytes(b"some")
        return path

    def age(self, *paths, seconds):
        for path in paths:
            os.utime(path, (time.time() - seconds,) * 2)

    def test_old_ones_are_removed_by_the_next_writer(self, unfinished):
        self.age(unfinished / "images.u8", unfinished, seconds=ABANDONED_AFTER + 60)
        write_store(unfinished.with_name("other-1a2b"), tiny_set(), {})
        assert not unfinished.exists()

    def test_those_still_written_to_are_kept(self, unfinished):
        self.age(unfinished, seconds=10 * ABANDONED_AFTER)
        self.age(unfinished / "images.u8", seconds=ABANDONED_AFTER - 60)
        write_store(unfinished.with_name("other-1a2b"), tiny_set(), {})
        assert (unfinished / "images.u8").read_bytes() == b"some"

    def test_those_of_other_stores_are_kept(self, unfinished):
        self.age(unfinished / "images.u8", unfinished, seconds=10 * ABANDONED_AFTER)
        for name in ("another-1a2b", "other-1a2c"):
            write_store(unfinished.with_name(name), tiny_set(), {})
        assert unfinished.exists()


class TestCache:
    def test_a_store_is_made_once(self, tmp_path):
        made = []

        def make():
            made.append(True)
            write_store(tmp_path / "tiny", tiny_set(), {})

        for _ in range(2):
            opened = cached_store(tmp_path / "tiny", make)
            np.testing.assert_array_equal(opened.images, tiny_set().images)
        assert made == [True]

    def test_other_settings_give_another_folder(self, tmp_path):
        settings = ({"seed": 0}, {"seed": 1}, {"seed": 0, "size": 3}, {})
        folders = {store_folder(tmp_path, "tiny", one) for one in settings}
        assert len(folders) == 4
        for folder in folders:
            assert folder.parent == tmp_path
            assert folder.name.startswith("tiny-")

    def test_the_order_of_settings_does_not_matter(self, tmp_path):
        assert store_folder(tmp_path, "tiny", {"a": 0, "b": 1}) == store_folder(
            tmp_path, "tiny", {"b": 1, "a": 0}
        )

    def test_another_format_gives_another_folder(self, tmp_path, monkeypatch):
        before = store_folder(tmp_path, "tiny", {})
        monkeypatch.setattr(store, "FORMAT", 3)
        assert store_folder(tmp_path, "tiny", {}) != before

    def test_a_store_that_appears_between_two_looks_is_whole(self, tmp_path, monkeypatch):
        folder, plain = tmp_path / "tiny", Path.exists

        def exists(path):
            there = plain(path)
            if not there and path in (folder, folder / "manifest.json") and not plain(folder):
                write_store(folder, tiny_set(), {})  # by another process, just now
            return there

        monkeypatch.setattr(Path, "exists", exists)
        opened = cached_store(folder, lambda: None)
        np.testing.assert_array_equal(opened.images, tiny_set().images)

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path):
        (tmp_path / "file").write_text("here already")
        folder = tmp_path / "file" / "tiny"
        with pytest.raises(UserError, match=rf"{folder} cannot be written.*cache folder"):
            cached_store(folder, lambda: write_store(folder, tiny_set(), {}))
        assert (tmp_path / "file").read_text() == "here already"

    def test_writers_at_the_same_time_leave_one_whole_store(self, tmp_path):
        all_ready = threading.Barrier(4)
        opened = []

        def make():
            all_ready.wait(timeout=20)  # nobody has written yet
            write_store(tmp_path / "tiny", tiny_set(), {})

        threads = [
            threading.Thread(target=lambda: opened.append(cached_store(tmp_path / "tiny", make)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(opened) == 4
        for image_set in opened:
            np.testing.assert_array_equal(image_set.images, tiny_set().images)
        assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


class TestReading:
    def test_gives_the_images_asked_for_in_that_order(self, folder):
        indices = np.array([12, 0, 5, 0])
        np.testing.assert_array_equal(open_store(folder).read(indices), shaped_set().images[indices])

    @pytest.mark.parametrize("opened", [True, False])
    def test_gives_copies(self, folder, opened):
        image_set = open_store(folder) if opened else shaped_set()
        image_set.read(np.arange(13))[:] = 0
        np.testing.assert_array_equal(image_set.images, shaped_set().images)

    def test_images_are_the_same_after_their_pages_were_given_back(self, folder, monkeypatch):
        monkeypatch.setattr(store, "RELEASE_EVERY", 1)
        opened, indices = open_store(folder), np.arange(13)[::-1]
        for _ in range(3):
            np.testing.assert_array_equal(opened.read(indices), shaped_set().images[indices])

    @on_linux
    def test_a_large_store_does_not_fill_the_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr(store, "RELEASE_EVERY", 8 * MEGABYTE)
        opened = open_store(sparse_store(tmp_path / "zeros", 160))
        opened.read(np.arange(4))
        before, peak = resident_memory(), 0
        for first in range(0, 160, 4):
            opened.read(np.arange(first, first + 4))
            peak = max(peak, resident_memory())
        assert peak - before < 32 * MEGABYTE


class TestImageSet:
    def test_offsets_and_labels_follow_from_the_counts(self):
        image_set = tiny_set((2, 3, 1))
        assert image_set.offsets.tolist() == [0, 2, 5]
        assert image_set.labels.tolist() == [0, 0, 1, 1, 1, 2]

    @pytest.mark.parametrize("images", [np.zeros((2, 1, 4, 4)), np.zeros((2, 4, 4), np.uint8)])
    def test_images_of_another_kind_are_refused(self, images):
        with pytest.raises(UserError, match="Images of 'odd' must be uint8"):
            ImageSet("odd", images, ("a",), np.array([2]))
