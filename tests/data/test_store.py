import json
import threading

import numpy as np
import pytest

from gpldla.data import store
from gpldla.data.store import ImageSet, cache_folder, cached_store, open_store, write_store
from gpldla.errors import UserError
from tests.helpers import tiny_set

GROUPS = [np.repeat([0, 1], [2, 4]), np.repeat([3, 1], [3, 4])]


@pytest.fixture
def folder(tmp_path):
    """A whole store with groups."""
    write_store(tmp_path / "tiny", tiny_set((6, 7), groups=GROUPS), {"seed": 1})
    return tmp_path / "tiny"


def manifest_with(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}), "utf-8")


class TestRoundTrip:
    def test_everything_comes_back(self, folder):
        written, opened = tiny_set((6, 7), groups=GROUPS), open_store(folder)
        assert opened.name == written.name
        assert opened.class_names == written.class_names
        np.testing.assert_array_equal(opened.images, written.images)
        np.testing.assert_array_equal(opened.counts, written.counts)
        np.testing.assert_array_equal(opened.groups, written.groups)

    def test_a_set_without_groups_has_none(self, tmp_path):
        write_store(tmp_path / "tiny", tiny_set(), {})
        assert open_store(tmp_path / "tiny").groups is None

    def test_other_users_may_read_a_shared_cache(self, folder):
        assert folder.stat().st_mode & 0o777 == 0o755

    def test_class_names_of_any_script(self, tmp_path):
        images = np.zeros((2, 1, 4, 4), np.uint8)
        write_store(tmp_path / "s", ImageSet("s", images, ("Greek Ω", 'a"b\n'), np.array([1, 1])), {})
        assert open_store(tmp_path / "s").class_names == ("Greek Ω", 'a"b\n')

    def test_the_manifest_says_where_the_images_come_from(self, folder):
        assert json.loads((folder / "manifest.json").read_text("utf-8"))["source"] == {"seed": 1}

    def test_images_that_are_not_contiguous_come_back(self, tmp_path):
        images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3).transpose(0, 3, 1, 2)
        write_store(tmp_path / "s", ImageSet("s", images, ("a",), np.array([2])), {})
        np.testing.assert_array_equal(open_store(tmp_path / "s").images, images)


class TestOpening:
    def test_images_stay_on_disk(self, folder):
        assert isinstance(open_store(folder).images, np.memmap)

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
        "content", ["", "{", "[]", "null", '"text"', "{}", '{"format": 1}', "\udcff"], ids=repr
    )
    def test_a_damaged_manifest_is_named(self, folder, content):
        (folder / "manifest.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(UserError, match=rf"{folder} is not a readable store .*; delete it"):
            open_store(folder)

    def test_another_format_is_named(self, folder):
        manifest_with(folder, format=99)
        with pytest.raises(UserError, match=rf"{folder} .*format 99.*delete it"):
            open_store(folder)

    @pytest.mark.parametrize("name", ["images.npy", "groups.npy"])
    @pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
    def test_a_truncated_file_is_named(self, folder, name, share):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)

    @pytest.mark.parametrize("content", [b"PK\x05\x06" + bytes(18), b"\x80\x04N."], ids=["zip", "pickle"])
    def test_a_foreign_file_is_named(self, folder, content):
        (folder / "images.npy").write_bytes(content)
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)

    def test_missing_images_are_named(self, folder):
        (folder / "images.npy").unlink()
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)

    def test_counts_that_do_not_add_up_are_named(self, folder):
        manifest_with(folder, classes=[{"name": "a", "images": 3}])
        with pytest.raises(UserError, match=rf"{folder} .*do not add up to its 13 images"):
            open_store(folder)

    def test_groups_of_another_set_are_named(self, folder):
        np.save(folder / "groups.npy", np.zeros(5, np.int64))
        with pytest.raises(UserError, match=rf"{folder} .*one group for each of its 13 images"):
            open_store(folder)

    def test_pickled_images_are_never_loaded(self, folder):
        np.save(folder / "images.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        with pytest.raises(UserError, match=f"{folder} is not a readable store"):
            open_store(folder)


class TestInterruptedWriting:
    @pytest.mark.parametrize("failing_call", [1, 2], ids=["images", "groups"])
    @pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
    def test_leaves_nothing_behind(self, tmp_path, monkeypatch, failing_call, error):
        calls, save = [], np.save

        def failing_save(file, array):
            calls.append(file)
            save(file, array[:1])
            if len(calls) == failing_call:
                raise error

        monkeypatch.setattr(np, "save", failing_save)
        with pytest.raises(type(error)):
            write_store(tmp_path / "tiny", tiny_set((6, 7), groups=GROUPS), {})
        assert list(tmp_path.iterdir()) == []

    def test_leaves_a_store_that_was_there(self, folder, monkeypatch):
        monkeypatch.setattr(np, "save", lambda file, array: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_store(folder, tiny_set((2, 2)), {})
        assert open_store(folder).counts.tolist() == [6, 7]


class TestCache:
    def test_is_made_once(self, tmp_path):
        made, messages = [], []

        def make():
            made.append(True)
            return tiny_set()

        for _ in range(2):
            opened = cached_store("tiny", {"seed": 0}, make, cache=tmp_path, announce=messages.append)
            np.testing.assert_array_equal(opened.images, tiny_set().images)
        assert made == [True]
        assert len(messages) == 1
        assert str(tmp_path) in messages[0]

    def test_other_settings_give_another_folder(self, tmp_path):
        for settings in ({"seed": 0}, {"seed": 1}, {"seed": 0, "size": 3}):
            cached_store("tiny", settings, tiny_set, cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == 3

    def test_the_order_of_settings_does_not_matter(self, tmp_path):
        for settings in ({"a": 0, "b": 1}, {"b": 1, "a": 0}):
            cached_store("tiny", settings, tiny_set, cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == 1

    def test_another_format_gives_another_folder(self, tmp_path, monkeypatch):
        cached_store("tiny", {}, tiny_set, cache=tmp_path)
        monkeypatch.setattr(store, "FORMAT", 2)
        cached_store("tiny", {}, tiny_set, cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path):
        (tmp_path / "file").write_text("here already")
        with pytest.raises(UserError, match=rf"{tmp_path / 'file'}.*cannot be written.*cache folder"):
            cached_store("tiny", {}, tiny_set, cache=tmp_path / "file")
        assert (tmp_path / "file").read_text() == "here already"

    def test_writers_at_the_same_time_leave_one_whole_store(self, tmp_path):
        all_ready = threading.Barrier(4)
        opened = []

        def make():
            all_ready.wait(timeout=20)  # nobody has written yet
            return tiny_set()

        def work():
            opened.append(cached_store("tiny", {}, make, cache=tmp_path))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(opened) == 4
        for image_set in opened:
            np.testing.assert_array_equal(image_set.images, tiny_set().images)
        assert len(list(tmp_path.iterdir())) == 1


class TestCacheFolder:
    @pytest.fixture(autouse=True)
    def linux(self, monkeypatch, tmp_path):
        monkeypatch.setattr(store.sys, "platform", "linux")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        for name in ("GPLDLA_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)

    def test_the_argument_comes_first(self, monkeypatch, tmp_path):
        monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "variable"))
        assert cache_folder(tmp_path / "argument") == tmp_path / "argument"

    def test_then_the_variable(self, monkeypatch, tmp_path):
        monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "variable"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_folder() == tmp_path / "variable"

    def test_then_the_xdg_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_folder() == tmp_path / "xdg" / "gpldla"

    def test_then_the_home_folder(self, tmp_path):
        assert cache_folder() == tmp_path / "home" / ".cache" / "gpldla"

    def test_empty_words_do_not_count(self, monkeypatch, tmp_path):
        monkeypatch.setenv("GPLDLA_CACHE", "")
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        assert cache_folder("") == tmp_path / "home" / ".cache" / "gpldla"

    def test_a_tilde_is_the_home_folder(self, tmp_path):
        assert cache_folder("~/packed") == tmp_path / "home" / "packed"

    def test_macos(self, monkeypatch, tmp_path):
        monkeypatch.setattr(store.sys, "platform", "darwin")
        assert cache_folder() == tmp_path / "home" / "Library" / "Caches" / "gpldla"

    def test_windows(self, monkeypatch, tmp_path):
        monkeypatch.setattr(store.sys, "platform", "win32")
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
        assert cache_folder() == tmp_path / "local" / "gpldla"


class TestImageSet:
    def test_offsets_and_labels_follow_from_the_counts(self):
        image_set = tiny_set((2, 3, 1))
        assert image_set.offsets.tolist() == [0, 2, 5]
        assert image_set.labels.tolist() == [0, 0, 1, 1, 1, 2]

    @pytest.mark.parametrize("images", [np.zeros((2, 1, 4, 4)), np.zeros((2, 4, 4), np.uint8)])
    def test_images_of_another_kind_are_refused(self, images):
        with pytest.raises(UserError, match="Images of 'odd' must be uint8"):
            ImageSet("odd", images, ("a",), np.array([2]))
