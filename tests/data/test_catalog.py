import importlib
import io
import itertools
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from gpldla.data import (
    Access,
    DataPaths,
    list_protocols,
    list_sets,
    load_protocol,
    load_set,
    register_dataset,
    register_protocol,
)
from gpldla.data.catalog import find_set, is_set_only, packed_stores, sources_of
from gpldla.data.protocols import ALL, PROTOCOLS
from gpldla.data.sets import SETS, BundledSet
from gpldla.data.sets.glyphs import Glyphs
from gpldla.data.splits import PARTS
from gpldla.data.store import image_set_from_classes
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter
from tests.data.trees import write_class, write_cub

# Classes of base, validation and novel.
CLASSES = {
    "cub": (100, 50, 50),
    "miniimagenet": (64, 16, 20),
    "tieredimagenet": (351, 97, 160),
    "tinyimagenet-mini": (64, 16, 20),
    "omniglot-emnist": (1597, 31, 31),
    "mini-cub": (100, 50, 50),
    "tinyimagenet-cub": (100, 50, 50),
}


class SmallGlyphs(Glyphs):
    """Stands in for the letters: two a script, three images each."""

    def settings(self, size, side=None):
        return {"of": "a test"}

    def make(self):
        scripts = ("Latin", "Greek", "Cyrillic", "Armenian", "Georgian", "Lao")
        names = [f"{script} {letter}" for script in scripts for letter in "xy"]
        images = [np.full((3, 1, 32, 32), number, np.uint8) for number in range(len(names))]
        return image_set_from_classes("glyphs", names, images)


@pytest.fixture(autouse=True)
def small_glyphs(monkeypatch, tmp_path):
    monkeypatch.setitem(SETS, "glyphs", SmallGlyphs())
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def log():
    """What a person is told."""
    return io.StringIO()


@pytest.fixture
def access(tmp_path, log):
    (tmp_path / "root").mkdir()
    places = DataPaths(tmp_path / "root", tmp_path / "cache")
    return Access(places, Reporter(Console(file=log, width=1000)))


def names_of(protocol):
    return {name: part.class_names for name, part in protocol.parts.items()}


def all_class_names(set_name):
    data_set = find_set(set_name)
    if isinstance(data_set, BundledSet):
        return load_set(set_name).class_names
    return [name for names in data_set.class_lists.values() for name in names]


class TestProtocols:
    def test_glyphs_are_split_by_script(self):
        assert names_of(load_protocol("glyphs")) == {
            "base": ["Latin x", "Latin y", "Greek x", "Greek y", "Cyrillic x", "Cyrillic y"],
            "validation": ["Armenian x", "Armenian y"],
            "novel": ["Georgian x", "Georgian y", "Lao x", "Lao y"],
        }

    def test_digits_are_all_novel(self):
        assert names_of(load_protocol("digits")) == {"novel": [str(digit) for digit in range(10)]}

    def test_glyphs_digits_learns_from_letters_and_tests_on_digits(self):
        letters, crossed = load_protocol("glyphs"), load_protocol("glyphs-digits")
        assert names_of(crossed) == names_of(letters) | names_of(load_protocol("digits"))
        assert list(crossed.parts) == ["base", "validation", "novel"]

    def test_a_part_has_the_images_of_its_classes(self):
        validation = load_protocol("glyphs").part("validation")
        assert validation.read(slice(None))[:, 0, 0, 0].tolist() == [6, 6, 6, 7, 7, 7]

    @pytest.mark.parametrize("name", list_protocols())
    def test_no_class_is_in_two_parts(self, name):
        classes = {}
        for part, (set_name, part_of_set) in sources_of(name).items():
            by_part = find_set(set_name).parts(all_class_names(set_name))
            wanted = list(by_part) if part_of_set == ALL else [part_of_set]
            classes[part] = {(set_name, place) for p in wanted for place in by_part[p]}
        assert set(classes) <= set(PARTS)
        assert all(classes.values())
        for one, other in itertools.combinations(classes.values(), 2):
            assert not one & other

    @pytest.mark.parametrize("name", CLASSES)
    def test_parts_have_the_promised_number_of_classes(self, name):
        counts = []
        for set_name, part_of_set in sources_of(name).values():
            lists = find_set(set_name).class_lists
            wanted = lists if part_of_set == ALL else [part_of_set]
            counts.append(sum(len(lists[part]) for part in wanted))
        assert tuple(counts) == CLASSES[name]

    def test_every_protocol_has_its_sets(self):
        used = {set_name for name in list_protocols() for set_name, _ in sources_of(name).values()}
        assert used == set(list_sets())


class TestRegistering:
    """A file of another package registers its data set, the class lists beside it, and protocols."""

    @pytest.fixture
    def shapes(self, tmp_path, monkeypatch):
        folder = tmp_path / "plugin"
        (folder / "splits").mkdir(parents=True)
        (folder / "splits" / "shapes-base.txt").write_text("circle\nsquare\n")
        (folder / "splits" / "shapes-novel.txt").write_text("star\n")
        (folder / "shapes_of_catalog.py").write_text(
            "import numpy as np\n"
            "from gpldla.data import register_dataset, register_protocol\n"
            "from gpldla.data.protocols import ALL\n"
            "from gpldla.data.sets import BundledSet\n"
            "from gpldla.data.store import image_set_from_classes\n"
            "@register_dataset\n"
            "class Shapes(BundledSet):\n"
            "    name, default_size, drawing = 'shapes', 28, {'version': 1}\n"
            "    protocol_parts = ('base', 'novel')\n"
            "    def make(self):\n"
            "        images = [np.full((3, 1, 28, 28), i, np.uint8) for i in range(3)]\n"
            "        return image_set_from_classes('shapes', ['circle', 'square', 'star'], images)\n"
            "register_protocol('glyphs-shapes', base=('glyphs', 'base'), novel=('shapes', ALL))\n"
        )
        monkeypatch.syspath_prepend(str(folder))
        for registry, names in ((SETS, ["shapes"]), (PROTOCOLS, ["shapes", "glyphs-shapes"])):
            for name in names:
                monkeypatch.setitem(registry, name, None)  # so that it is gone after the test
                del registry[name]
        monkeypatch.delitem(sys.modules, "shapes_of_catalog", raising=False)
        importlib.import_module("shapes_of_catalog")

    def test_a_set_is_a_protocol_of_its_name(self, shapes):
        protocol = load_protocol("shapes")
        assert protocol.part("base").class_names == ["circle", "square"]
        assert protocol.part("novel").class_names == ["star"]

    def test_a_protocol_may_join_sets(self, shapes):
        protocol = load_protocol("glyphs-shapes")
        assert len(protocol.part("base").classes) == 6
        assert protocol.part("novel").class_names == ["circle", "square", "star"]
        assert not is_set_only("glyphs-shapes")

    def test_a_taken_name_is_refused(self):
        with pytest.raises(UserError, match="There is a data set 'cub' already"):

            @register_dataset
            class Cub(SmallGlyphs):
                name = "cub"

        with pytest.raises(UserError, match="There is a protocol 'mini-cub' already"):
            register_protocol("mini-cub", base=("cub", "base"))

    @pytest.mark.parametrize("parts", [{"training": ("cub", "base")}, {"base": ("cub", "half")}])
    def test_a_wrong_part_is_named(self, parts):
        with pytest.raises(UserError, match=r"'half' has .* parts are base, validation, novel, and all"):
            register_protocol("half", **parts)


class TestNames:
    @pytest.mark.parametrize("load", [load_protocol, load_set])
    @pytest.mark.parametrize(
        ("wrong", "nearest"), [("glyph", "glyphs"), ("digts", "digits"), ("miniimagnet", "miniimagenet")]
    )
    def test_an_unknown_one_suggests_the_nearest(self, load, wrong, nearest):
        with pytest.raises(UserError, match=rf"There is no data set '{wrong}'; did you mean '{nearest}'\?"):
            load(wrong)

    @pytest.mark.parametrize(("load", "known"), [(load_protocol, list_protocols), (load_set, list_sets)])
    def test_one_like_no_other_lists_what_there_is(self, load, known):
        with pytest.raises(UserError, match=f"known are {', '.join(known())}"):
            load("xyz")


class TestOpening:
    def test_preparing_is_announced_once(self, access, log):
        for _ in range(2):
            load_protocol("glyphs-digits", access=access)
        assert [line.split()[:2] for line in log.getvalue().splitlines()] == [
            ["Preparing", "glyphs"],
            ["Preparing", "digits"],
        ]

    def test_two_parts_of_one_set_share_its_store(self):
        parts = load_protocol("glyphs").parts
        assert parts["base"].image_set is parts["novel"].image_set

    def test_what_is_missing_is_named_with_where_to_get_it_and_to_put_it(self, access):
        message = rf"'cub' is not in the data root {access.data_paths.root}: get it from .* into .*/cub, or"
        with pytest.raises(UserError, match=message):
            load_set("cub", access=access)

    def test_classes_that_are_missing_are_counted(self, access, log):
        """CUB's even numbers, counted from 0, are base classes."""
        for name in ("001.Black_footed_Albatross", "003.Sooty_Albatross"):
            write_class(access.data_paths.root / "cub" / name)
        protocol = load_protocol("cub", access=access)
        assert names_of(protocol) == {"base": ["001.Black_footed_Albatross", "003.Sooty_Albatross"]}
        told = log.getvalue()
        for part in ("2 of the 100 base", "0 of the 50 validation", "0 of the 50 novel"):
            assert f"cub is not complete: {part} classes of cub are there" in told

    def test_a_set_without_one_class_of_its_protocol_is_refused(self, access):
        write_class(access.data_paths.root / "cub" / "999.Dodo")
        with pytest.raises(UserError, match="None of the classes of 'cub' was found"):
            load_protocol("cub", access=access)


class TestFolders:
    @pytest.fixture
    def folder(self, tmp_path):
        for name in ("ant", "bee", "cat", "dog"):
            write_class(tmp_path / "animals" / name, images_per_class=2)
        return tmp_path / "animals"

    def test_are_sets_and_protocols(self, folder, access):
        image_set = load_set(f"folder:{folder}", access=access)
        assert image_set.class_names == ("ant", "bee", "cat", "dog")
        protocol = load_protocol(f"folder:{folder}", access=access)
        assert sorted(itertools.chain(*names_of(protocol).values())) == ["ant", "bee", "cat", "dog"]

    def test_are_packed_once_and_again_when_they_change(self, folder, access, log):
        def n_classes():
            return len(load_set(f"folder:{folder}", access=access).counts)

        assert [n_classes(), n_classes()] == [4, 4]
        assert log.getvalue().count("Preparing") == 1
        shutil.rmtree(folder / "bee")
        assert n_classes() == 3
        assert log.getvalue().count("Preparing") == 2

    def test_a_packed_copy_serves_where_the_images_have_gone(self, folder, access):
        name = f"folder:{folder}"
        load_set(name, access=access)
        shutil.rmtree(folder)
        assert load_set(name, access=access).class_names == ("ant", "bee", "cat", "dog")

    def test_a_packed_copy_for_another_backbone_does_not(self, folder, access):
        name = f"folder:{folder}"
        load_set(name, size=84, access=access)
        shutil.rmtree(folder)
        with pytest.raises(UserError, match=f"There is no folder {folder}"):
            load_set(name, size=224, access=access)

    def test_the_latest_packed_copy_serves(self, folder, access):
        name = f"folder:{folder}"
        load_set(name, access=access)
        (first,) = packed_stores(find_set(name), access.data_paths.cache)
        os.utime(first / "manifest.json", (0, 0))
        write_class(folder / "eel")
        load_set(name, access=access)
        assert len(packed_stores(find_set(name), access.data_paths.cache)) == 2
        shutil.rmtree(folder)
        assert load_set(name, access=access).class_names[-1] == "eel"

    def test_damaged_stores_do_not_count_as_packed_copies(self, folder, access):
        name = f"folder:{folder}"
        load_set(name, access=access)
        (store,) = packed_stores(find_set(name), access.data_paths.cache)
        (store / "manifest.json").write_text("{")
        assert packed_stores(find_set(name), access.data_paths.cache) == []

    def test_a_bad_image_is_left_out_only_where_that_is_wanted(self, folder, access):
        (folder / "cat" / "1.png").write_bytes(b"no image")
        with pytest.raises(UserError, match=rf"{folder / 'cat' / '1.png'} cannot be read"):
            load_set(f"folder:{folder}", access=access)
        skipping = Access(access.data_paths, skip_bad=True)
        assert load_set(f"folder:{folder}", access=skipping).counts.tolist() == [2, 2, 1, 2]


def test_the_side_of_stored_images_may_be_chosen(tmp_path):
    write_class(tmp_path / "pets" / "cat", side=40)
    access = Access(DataPaths(tmp_path, tmp_path / "cache"))
    sides = [
        load_set(f"folder:{tmp_path / 'pets'}", side=side, access=access).images.shape[-1]
        for side in (None, 24, 64)
    ]
    assert sides == [40, 24, 40]  # nothing is enlarged


class TestAgainAfterTrouble:
    """What a person meets when folders move, vanish or are mended."""

    def test_a_folder_of_the_same_name_elsewhere_is_not_taken(self, tmp_path, access, monkeypatch):
        write_class(tmp_path / "a" / "photos" / "cat")
        (tmp_path / "b").mkdir()
        monkeypatch.chdir(tmp_path / "a")
        load_set("folder:photos", access=access)
        monkeypatch.chdir(tmp_path / "b")
        with pytest.raises(UserError, match="There is no folder photos"):
            load_set("folder:photos", access=access)

    def test_a_store_without_its_folder_says_that_it_is_used(self, tmp_path, access, log):
        write_class(tmp_path / "photos" / "cat")
        load_set(f"folder:{tmp_path / 'photos'}", access=access)
        (tmp_path / "photos").rename(tmp_path / "moved")
        load_set(f"folder:{tmp_path / 'photos'}", access=access)
        assert f"is not in the data root; using {access.data_paths.cache}" in log.getvalue()

    def test_what_was_left_out_is_said_with_the_remedy(self, tmp_path, access, log):
        write_class(tmp_path / "photos" / "cat")
        (tmp_path / "photos" / "cat" / "bad.png").write_bytes(b"no image")
        for skip_bad in (True, False):
            load_set(f"folder:{tmp_path / 'photos'}", access=replace(access, skip_bad=skip_bad))
        assert "was packed without its faulty files (1 entries" in log.getvalue()
        assert "and it is packed again." in log.getvalue()

    def test_the_command_that_is_advised_works_for_every_backbone(self, tmp_path, access):
        write_class(tmp_path / "photos" / "cat", side=300)
        (tmp_path / "photos" / "cat" / "bad.png").write_bytes(b"no image")
        name = f"folder:{tmp_path / 'photos'}"
        with pytest.raises(UserError, match=r"--side 384 --skip-bad`"):
            load_set(name, size=224, access=access)
        load_set(name, side=384, access=replace(access, skip_bad=True))
        assert len(load_set(name, size=224, access=access).images) == 3

    def test_only_the_data_sets_of_the_wanted_parts_are_needed(self, tmp_path, access):
        write_cub(access.data_paths.root / "cub")
        protocol = load_protocol("mini-cub", parts=("validation", "novel"), access=access)
        assert list(protocol.parts) == ["validation", "novel"]


@pytest.mark.parametrize("name", ["emnist", "omniglot"])
def test_a_set_without_parts_of_its_own_is_no_protocol(name):
    with pytest.raises(UserError, match=rf"'{name}' has no base, .* protocols are .*omniglot-emnist"):
        sources_of(name)
