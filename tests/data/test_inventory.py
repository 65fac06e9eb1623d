import json
import os
import shutil

import pytest

from gpldla.data import Access, DataPaths, list_protocols, list_sets, load_set
from gpldla.data.inventory import data_inventory, protocol_facts, set_status
from tests.data.trees import write_cub, write_emnist, write_folder, write_miniimagenet, write_root, zip_up

EMBEDDED = ("digits", "glyphs")
STORED = ("cub", "emnist", "miniimagenet", "omniglot", "tieredimagenet", "tinyimagenet-mini")
# Classes of base, validation and novel.
CLASSES = {
    "cub": (100, 50, 50),
    "digits": (None, None, 10),
    "glyphs": (545, 51, 139),
    "glyphs-digits": (545, 51, 10),
    "mini-cub": (100, 50, 50),
    "miniimagenet": (64, 16, 20),
    "omniglot-emnist": (1597, 31, 31),
    "tieredimagenet": (351, 97, 160),
    "tinyimagenet-cub": (100, 50, 50),
    "tinyimagenet-mini": (64, 16, 20),
}


@pytest.fixture
def access(tmp_path):
    """A data root that is not there yet, and a cache that has the embedded data."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in EMBEDDED:
        load_set(name)  # drawn once a session
        for store in DataPaths().cache.glob(f"{name}-*"):
            (cache / store.name).symlink_to(store)
    return Access(DataPaths(tmp_path / "root", cache))


@pytest.fixture
def root(access):
    return access.data_paths.root


class TestWithoutData:
    def test_every_protocol_tells_how_many_classes_it_asks_for(self, access):
        protocols = data_inventory(access)["protocols"]
        assert list(protocols) == list_protocols() == sorted(CLASSES)
        for name, counts in CLASSES.items():
            wanted = {part: n for part, n in zip(("base", "validation", "novel"), counts) if n is not None}
            assert {part: facts["classes"] for part, facts in protocols[name].items()} == wanted

    def test_stored_sets_are_missing_and_embedded_ones_are_there(self, access):
        sets = data_inventory(access)["sets"]
        assert list(sets) == list_sets() == sorted(EMBEDDED + STORED)
        assert {name for name, facts in sets.items() if facts["found"]} == set(EMBEDDED)
        for name in STORED:
            assert (sets[name]["place"], sets[name]["faults"], sets[name]["images"]) == (None, [], 0)
            assert "http" in sets[name]["get"]
            assert sets[name]["put"]
        for name in EMBEDDED:
            assert sets[name]["complete"]
            assert sets[name]["get"] is None

    def test_parts_of_missing_sets_have_nothing(self, access):
        for facts in data_inventory(access)["protocols"]["omniglot-emnist"].values():
            assert (facts["classes_found"], facts["images"]) == (0, 0)

    def test_it_is_json_and_names_the_places(self, access):
        stock = data_inventory(access)
        assert json.loads(json.dumps(stock)) == stock
        assert stock["data_root"] == str(access.data_paths.root)
        assert stock["cache"] == str(access.data_paths.cache)

    def test_looking_creates_nothing(self, access, root):
        before = sorted(access.data_paths.cache.iterdir())
        data_inventory(access)
        assert not root.exists()
        assert sorted(access.data_paths.cache.iterdir()) == before


class TestFound:
    def test_what_is_there_is_counted_without_being_packed(self, access, root):
        write_root(root, classes_per_part=2, images_per_class=3, side=8)
        sets = data_inventory(access)["sets"]
        found = {name: (sets[name]["classes"], sets[name]["images"]) for name in STORED}
        assert found == {
            "cub": (6, 18),
            "emnist": (4, 12),
            "miniimagenet": (6, 18),
            "omniglot": (4, 12),  # two of them Latin
            "tieredimagenet": (6, 18),
            "tinyimagenet-mini": (6, 18),
        }
        assert all(sets[name]["place"] == str(root / name) for name in STORED)
        assert all(sets[name]["packed"] == [] for name in STORED)

    def test_the_parts_of_protocols_are_counted(self, access, root):
        write_root(root, classes_per_part=2, images_per_class=3, side=8)
        protocols = data_inventory(access)["protocols"]
        assert protocols["mini-cub"]["base"] == {
            "set": "miniimagenet",
            "classes": 100,
            "classes_found": 6,
            "images": 18,
        }
        assert protocols["omniglot-emnist"]["base"] == {
            "set": "omniglot",
            "classes": 1597,
            "classes_found": 2,
            "images": 6,
        }

    def test_what_is_missing_is_said(self, access, root):
        write_cub(root / "cub", classes_per_part=20)
        status = set_status("cub", access)
        assert status.usable
        assert not status.complete
        assert status.faults == (
            "80 of 100 base classes are missing.",
            "30 of 50 validation classes are missing.",
            "30 of 50 novel classes are missing.",
            "There are 180 images instead of 11,788.",
        )

    def test_a_whole_set_is_complete(self, access, root, monkeypatch):
        write_cub(root / "cub", classes_per_part=100, images_per_class=1, side=4)
        monkeypatch.setattr("gpldla.data.sets.cub.CUB.n_images", 200)
        status = set_status("cub", access)
        assert status.complete
        assert status.as_json()["faults"] == []

    def test_zips_are_counted_too(self, access, root):
        zip_up(write_cub(root / "cub"), into=2)
        assert set_status("cub", access).as_json()["images"] == 18

    def test_a_folder_of_ones_own_has_a_status_too(self, access, root):
        name = f"folder:{write_folder(root / 'pets', n_classes=4)}"
        status = set_status(name, access)
        assert status.complete
        facts = protocol_facts(name, {name: status})
        assert {part: fact["classes"] for part, fact in facts.items()} == {
            "base": 2,
            "validation": 1,
            "novel": 1,
        }


class TestFaults:
    def test_an_archive_that_is_not_unpacked_is_named(self, access, root):
        (root / "cub").mkdir(parents=True)
        (root / "cub" / "CUB_200_2011.tgz").write_bytes(b"")
        status = set_status("cub", access)
        assert not status.usable
        assert status.faults == (f"{root / 'cub' / 'CUB_200_2011.tgz'} is not unpacked; unpack it there.",)

    def test_a_folder_without_images_says_what_should_be_there(self, access, root):
        (root / "omniglot").mkdir(parents=True)
        (root / "omniglot" / "README").write_text("soon")
        (fault,) = set_status("omniglot", access).faults
        assert fault.startswith(f"{root / 'omniglot'} has no images of omniglot; it should have images_back")

    def test_a_bad_zip_is_named(self, access, root):
        write_cub(root / "cub")
        (root / "cub" / "more.zip").write_bytes(b"half a download")
        status = set_status("cub", access)
        assert status.usable
        assert "more.zip cannot be read as a zip" in status.faults[-1]

    def test_a_missing_file_of_emnist_is_named(self, access, root):
        write_emnist(root / "emnist")
        next((root / "emnist").glob("*labels*")).unlink()
        status = set_status("emnist", access)
        assert not status.usable
        assert "but not emnist-byclass-test-labels-idx1-ubyte.gz" in status.faults[-1]

    def test_a_table_with_a_fault_is_named(self, access, root):
        write_miniimagenet(root / "miniimagenet")
        (root / "miniimagenet" / "val.csv").write_text("nothing")
        status = set_status("miniimagenet", access)
        assert len(status.counts) == 4
        assert "val.csv has no columns filename and label" in status.faults[-1]


class TestPacked:
    def test_the_store_is_named(self, access, root):
        write_cub(root / "cub")
        load_set("cub", access=access)
        (store,) = set_status("cub", access).stores
        assert (store / "manifest.json").exists()

    def test_without_the_data_root_the_store_counts(self, access, root):
        write_cub(root / "cub")
        load_set("cub", access=access)
        shutil.rmtree(root)
        status = set_status("cub", access)
        assert status.folder is None
        assert (len(status.counts), sum(status.counts.values())) == (6, 18)
        assert len(load_set("cub", access=access).images) == 18

    def test_what_was_left_out_is_a_fault(self, access, root):
        write_cub(root / "cub")
        bad = next((root / "cub").rglob("*.jpg"))
        bad.write_bytes(b"")
        assert not any(
            "cannot be read" in fault for fault in set_status("cub", access).faults
        )  # not yet decoded
        load_set("cub", access=Access(access.data_paths, skip_bad=True))
        status = set_status("cub", access)
        assert sum(status.counts.values()) == 17
        assert status.faults[-1].startswith(f"{bad} cannot be read")

    def test_a_store_of_other_files_does_not_count(self, access, root):
        write_cub(root / "cub")
        load_set("cub", access=access)
        write_cub(root / "cub", classes_per_part=3)
        assert len(set_status("cub", access).counts) == 9

    def test_the_latest_store_counts_when_the_data_root_has_gone(self, access, root):
        for classes_per_part in (3, 2):
            shutil.rmtree(root, ignore_errors=True)
            for store in set_status("cub", access).stores:
                os.utime(store / "manifest.json", (1e9, 1e9))  # long ago
            write_cub(root / "cub", classes_per_part=classes_per_part)
            load_set("cub", access=access)
        shutil.rmtree(root)
        assert len(set_status("cub", access).stores) == 2
        assert len(set_status("cub", access).counts) == 6
        assert len(load_set("cub", access=access).counts) == 6

    def test_a_damaged_store_does_not_count(self, access, root):
        write_cub(root / "cub")
        load_set("cub", access=access)
        (store,) = set_status("cub", access).stores
        (store / "manifest.json").write_text("{")
        status = set_status("cub", access)
        assert status.stores == ()
        assert len(status.counts) == 6

    def test_a_set_whose_name_begins_as_anothers_is_not_taken_for_it(self, access, root):
        folder = write_folder(root / "pets", n_classes=3)
        longer = write_folder(root / "pets-more", n_classes=4)
        load_set(f"folder:{longer}", access=access)
        assert set_status(f"folder:{folder}", access).stores == ()
