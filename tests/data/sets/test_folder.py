import json
import os
import shutil
from pathlib import Path

import pytest

from gpldla.data import Access, DataPaths, load_protocol, load_set
from gpldla.data.catalog import find_set
from gpldla.data.sets.folder import FolderSet
from gpldla.utils.errors import UserError
from tests.data.trees import pictures, save, write_class, write_folder, zip_up

PARTS = ("base", "validation", "novel")


@pytest.fixture
def access(tmp_path):
    return Access(DataPaths(tmp_path / "root", tmp_path / "cache"))


@pytest.fixture
def pets(tmp_path):
    """Eight classes of three images."""
    return write_folder(tmp_path / "pets")


@pytest.fixture
def parts(access):
    """The classes of each part of `folder:` and what follows."""

    def of(rest):
        protocol = load_protocol(f"folder:{rest}", access=access)
        return {name: part.class_names for name, part in protocol.parts.items()}

    return of


@pytest.fixture
def fails(parts):
    def check(rest, match):
        with pytest.raises(UserError, match=match):
            parts(rest)

    return check


class TestName:
    def test_options_follow_the_path(self):
        found = find_set("folder:/data/pets,seed=3,split=novel")
        assert (str(found.path), found.seed, found.split) == ("/data/pets", 3, "novel")

    def test_the_path_may_hold_commas_spaces_and_equals_signs(self, tmp_path, parts):
        folder = write_folder(tmp_path / "cats, dogs = pets", n_classes=4)
        assert set(parts(folder)) == set(PARTS)
        assert parts(f"{folder},split=novel") == {"novel": [f"kind-0{i}" for i in range(4)]}

    def test_a_tilde_is_the_home_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert find_set("folder:~/pets").path == tmp_path / "pets"

    @pytest.mark.parametrize(
        ("name", "match"),
        [
            ("folder:", "names no folder"),
            ("folder:x,seed=", "has no value for seed"),
            ("folder:x,split=", "has no value for split"),
            ("folder:x,seed=one", "is not a whole number"),
            ("folder:x,seed=1.5", "is not a whole number"),
        ],
    )
    def test_a_name_with_a_fault_is_explained(self, name, match):
        with pytest.raises(UserError, match=f"{match}.*folder:PATH,seed=3"):
            find_set(name)

    def test_a_folder_that_is_not_there_is_named(self, fails, access):
        fails(
            "nowhere",
            f"There is no folder nowhere, neither in the current folder nor in {access.data_paths.root}",
        )

    def test_the_folder_may_lie_in_the_data_root(self, parts, access, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_folder(access.data_paths.root / "pets", n_classes=4)
        assert len(parts("pets,split=novel")["novel"]) == 4

    def test_the_split_file_may_hold_commas_too(self):
        assert find_set("folder:pets,split=a,b.csv").split == "a,b.csv"


class TestSeed:
    def test_half_is_base_and_a_quarter_each_validation_and_novel(self, pets, parts):
        found = parts(pets)
        assert {part: len(names) for part, names in found.items()} == {"base": 4, "validation": 2, "novel": 2}
        assert sorted(name for names in found.values() for name in names) == [f"kind-0{i}" for i in range(8)]

    @pytest.mark.parametrize("n_classes", range(3, 30))
    def test_every_class_is_in_one_part_and_no_part_is_empty(self, n_classes):
        drawn = FolderSet(Path("x")).parts([f"c{i}" for i in range(n_classes)])
        assert sorted(place for places in drawn.values() for place in places) == list(range(n_classes))
        assert all(drawn[part] for part in PARTS)
        assert len(drawn["validation"]) == len(drawn["novel"]) <= len(drawn["base"])

    def test_a_seed_fixes_the_split(self, pets, parts):
        assert parts(f"{pets},seed=5") == parts(f"{pets},seed=5")
        assert parts(pets) == parts(f"{pets},seed=0")

    def test_names_that_are_no_unicode_are_drawn_too(self, pets, parts):
        shutil.copytree(min(pets.iterdir()), pets / os.fsdecode(b"caf\xe9"))
        drawn = parts(pets)
        assert sum(os.fsdecode(b"caf\xe9") in names for names in drawn.values()) == 1

    def test_seeds_differ(self, pets, parts):
        assert len({json.dumps(parts(f"{pets},seed={seed}")) for seed in range(5)}) == 5

    def test_all_splits_share_one_store(self, pets, parts, access):
        parts(pets)
        parts(f"{pets},seed=5")
        parts(f"{pets},split=novel")
        assert len(list(access.data_paths.cache.iterdir())) == 1

    @pytest.mark.parametrize("n_classes", [1, 2])
    def test_fewer_than_three_classes_are_too_few(self, tmp_path, fails, n_classes):
        folder = write_folder(tmp_path / "few", n_classes=n_classes)
        fails(folder, rf"has {n_classes} classes, too few .*folder:{folder},split=novel")

    @pytest.mark.parametrize("part", PARTS)
    def test_one_part_may_have_them_all(self, tmp_path, parts, part):
        folder = write_folder(tmp_path / "few", n_classes=2)
        assert parts(f"{folder},split={part}") == {part: ["kind-00", "kind-01"]}

    def test_a_protocol_of_one_part_says_that_it_has_no_other(self, pets, access):
        protocol = load_protocol(f"folder:{pets},split=novel", access=access)
        with pytest.raises(UserError, match="has no base classes, only novel"):
            protocol.part("base")


EXPECTED = {"base": ["kind-01", "kind-02"], "validation": ["kind-07"], "novel": ["kind-00"]}


class TestSplitFile:
    @pytest.fixture
    def split(self, tmp_path, pets):
        """Write a split file; returns what follows `folder:`."""

        def write(name, content):
            file = tmp_path / name
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
            return f"{pets},split={file}"

        return write

    @pytest.mark.parametrize(
        "text",
        [
            "class,part\nkind-02,base\nkind-01,base\nkind-07,validation\nkind-00,novel\n",
            "part,note,class\ntrain,,kind-02\ntrain,,kind-01\nval,x,kind-07\ntest,,kind-00",
            "\ufeffclass,part\r\nkind-02,Base\r\nkind-01, base \r\nkind-07,valid\r\nkind-00,TEST\r\n",
            'class,part\n"kind-02",base\nkind-01,base\nkind-01,base\n\nkind-07,val\nkind-00,novel\n',
        ],
    )
    def test_csv(self, split, parts, text):
        assert parts(split("split.csv", text)) == EXPECTED

    @pytest.mark.parametrize(
        "lists",
        [
            {"base": ["kind-02", "kind-01"], "validation": ["kind-07"], "novel": ["kind-00"]},
            {"test": ["kind-00"], "val": ["kind-07"], "train": ["kind-02", "kind-01"]},
        ],
    )
    def test_json(self, split, parts, lists):
        assert parts(split("split.JSON", json.dumps(lists))) == EXPECTED

    def test_a_part_may_be_left_out(self, split, parts):
        assert parts(split("split.csv", "class,part\nkind-00,novel\n")) == {"novel": ["kind-00"]}

    @pytest.mark.parametrize(
        ("name", "content", "match"),
        [
            ("s.csv", "name,part\nkind-00,base\n", "is not a split; write CSV with the columns class,part"),
            ("s.csv", "class;part\nkind-00;base\n", "is not a split"),
            ("s.csv", b"class,part\nkind-\xff,base\n", "is not a split"),
            ("s.csv", "", "names no class"),
            ("s.csv", "class,part\n", "names no class"),
            ("s.csv", "class,part\nkind-00,best\n", "has the part 'best'; use base, validation and novel"),
            ("s.csv", "class,part\nkind-00\n", "is not a split"),
            ("s.csv", "class,part\nkind-99,base\n", "names the class 'kind-99', which .*pets does not have"),
            ("s.csv", "class,part\nkind-00,base\nkind-00,test\n", "puts the class 'kind-00' into two parts"),
            ("s.json", "{", "is not a split"),
            ("s.json", '["kind-00"]', "is not a split"),
            ("s.json", '{"base": 3}', "is not a split"),
            ("s.json", '{"base": null}', "is not a split"),
            ("s.json", '{"base": []}', "names no class"),
            ("s.json", '{"best": ["kind-00"]}', "has the part 'best'"),
            ("s.json", '{"base": ["kind-99"]}', "names the class 'kind-99'"),
            (
                "s.json",
                '{"base": ["kind-00"], "novel": ["kind-00"]}',
                "puts the class 'kind-00' into two parts",
            ),
        ],
    )
    def test_a_fault_is_named_with_the_file(self, split, fails, name, content, match):
        fails(split(name, content), rf"s\.(csv|json) {match}")

    def test_a_file_that_is_not_there_is_named(self, pets, fails):
        fails(f"{pets},split=nowhere.csv", r"nowhere\.csv cannot be read \(No such file or directory\)")

    def test_a_folder_is_no_split_file(self, pets, fails):
        fails(f"{pets},split={pets}", r"pets cannot be read \(Is a directory\)")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("s.json", '{"base": [["kind-00"]]}'),
            ("s.json", '{"base": [1, "kind-99"]}'),
            ("s.csv", "part,class\nbase\nnovel,kind-99\n"),
        ],
    )
    def test_a_class_name_that_is_no_text_is_a_fault_too(self, split, fails, name, content):
        fails(split(name, content), "s")

    def test_one_name_instead_of_a_list_is_a_fault_too(self, split, fails):
        fails(split("s.json", '{"base": "kind-00"}'), "is not a split")


class TestPartFolders:
    @pytest.mark.parametrize("words", [("train", "val", "test"), PARTS])
    def test_folders_around_the_classes_give_the_parts(self, tmp_path, parts, words):
        for word, classes in zip(words, (("a", "b"), ("c",), ("d",))):
            for name in classes:
                write_class(tmp_path / "set" / word / name)
        base, validation, novel = words
        assert parts(tmp_path / "set") == {
            "base": [f"{base}/a", f"{base}/b"],
            "validation": [f"{validation}/c"],
            "novel": [f"{novel}/d"],
        }

    def test_there_may_be_two_of_them(self, tmp_path, parts):
        write_class(tmp_path / "set" / "train" / "a")
        write_class(tmp_path / "set" / "test" / "b")
        assert parts(tmp_path / "set") == {"base": ["train/a"], "novel": ["test/b"]}

    def test_a_class_in_two_parts_is_named(self, tmp_path, fails):
        for word in ("train", "test"):
            write_class(tmp_path / "set" / word / "cat")
        fails(tmp_path / "set", "Class 'cat' of .*set lies in more than one of train, val and test")

    def test_one_of_the_folders_can_be_named_instead(self, tmp_path, parts):
        for word in ("train", "test"):
            write_folder(tmp_path / "set" / word, n_classes=2)
        assert parts(f"{tmp_path / 'set' / 'test'},split=novel") == {"novel": ["kind-00", "kind-01"]}

    def test_a_split_file_goes_before_the_folders(self, tmp_path, parts):
        write_class(tmp_path / "set" / "train" / "a")
        write_class(tmp_path / "set" / "test" / "b")
        (tmp_path / "s.csv").write_text("class,part\ntrain/a,novel\ntest/b,base\n")
        assert parts(f"{tmp_path / 'set'},split={tmp_path / 's.csv'}") == {
            "base": ["test/b"],
            "novel": ["train/a"],
        }

    def test_another_folder_beside_them_makes_them_classes(self, tmp_path, parts):
        for name in ("train/a", "test/b", "ship/c"):
            write_class(tmp_path / "set" / name)
        assert parts(f"{tmp_path / 'set'},split=novel") == {"novel": ["ship", "test", "train"]}


class TestLayouts:
    def names(self, folder, access):
        return list(load_set(f"folder:{folder}", access=access).class_names)

    def test_one_folder_a_class(self, pets, access):
        image_set = load_set(f"folder:{pets}", access=access)
        assert image_set.counts.tolist() == [3] * 8
        assert image_set.images.shape == (24, 3, 16, 16)

    def test_folders_inside_a_class_belong_to_it(self, tmp_path, access):
        for name in ("cat/indoors", "cat/outdoors", "dog"):
            write_class(tmp_path / "set" / name)
        image_set = load_set(f"folder:{tmp_path / 'set'}", access=access)
        assert (image_set.class_names, image_set.counts.tolist()) == (("cat", "dog"), [6, 3])

    def test_a_zip_may_be_the_folder(self, pets, access):
        (archive,) = zip_up(pets)
        assert self.names(archive, access) == [f"kind-0{i}" for i in range(8)]

    @pytest.mark.parametrize("wrap", ["wrap", "two/wraps"])
    def test_a_wrapping_folder_does_not_matter(self, tmp_path, access, wrap):
        write_folder(tmp_path / "set" / wrap, n_classes=3)
        (archive,) = zip_up(tmp_path / "set")
        assert self.names(archive, access) == ["kind-00", "kind-01", "kind-02"]

    def test_part_folders_may_be_wrapped_too(self, tmp_path, parts):
        write_class(tmp_path / "set" / "wrap" / "train" / "a")
        write_class(tmp_path / "set" / "wrap" / "test" / "b")
        (archive,) = zip_up(tmp_path / "set")
        assert parts(archive) == {"base": ["train/a"], "novel": ["test/b"]}

    def test_files_that_are_no_images_and_images_outside_of_classes_are_passed_over(self, pets, access):
        (pets / "kind-00" / "readme.txt").write_text("x")
        (pets / "labels.csv").write_text("x")
        save(next(pictures("x", 1, 8, 8)), pets / "logo.png")
        assert load_set(f"folder:{pets}", access=access).counts.tolist() == [3] * 8

    def test_two_folders_of_one_name_have_two_stores(self, tmp_path, access):
        for outer, n_classes in (("a", 3), ("b", 4)):
            write_folder(tmp_path / outer / "pets", n_classes=n_classes)
        assert len(self.names(tmp_path / "a" / "pets", access)) == 3
        assert len(self.names(tmp_path / "b" / "pets", access)) == 4

    def test_two_copies_of_one_zip_have_two_stores_too(self, pets, tmp_path, access):
        (archive,) = zip_up(pets)
        copy = tmp_path / "copy" / archive.name
        copy.parent.mkdir()
        shutil.copy2(archive, copy)
        for path in (archive, copy):
            assert load_set(f"folder:{path}", access=access).name == f"folder:{path}"

    def test_the_store_remains_when_the_folder_has_gone(self, pets, access):
        before = self.names(pets, access)
        shutil.rmtree(pets)
        assert self.names(pets, access) == before

    def test_a_path_that_ends_in_a_slash_is_the_same_folder(self, pets, access):
        self.names(pets, access)
        self.names(f"{pets}{os.sep}", access)
        assert len(list(access.data_paths.cache.iterdir())) == 1

    def test_names_with_brackets_and_stars(self, tmp_path, access):
        folder = write_folder(tmp_path / "pets [*?]", n_classes=3)
        self.names(folder, access)
        shutil.rmtree(folder)
        assert len(self.names(folder, access)) == 3

    def test_an_empty_class_is_named(self, pets, access):
        (pets / "kind-09").mkdir()
        with pytest.raises(UserError, match=r"pets/kind-09 is a class without images; add some or remove it"):
            self.names(pets, access)

    def test_a_folder_without_images_says_what_should_be_there(self, tmp_path, access):
        (tmp_path / "empty").mkdir()
        with pytest.raises(
            UserError, match=r"empty has no images .*it should have one folder of images per class"
        ):
            self.names(tmp_path / "empty", access)

    @pytest.mark.parametrize("name", ["x.zip", "x.txt"])
    def test_a_file_without_images_says_what_should_be_there(self, tmp_path, access, name):
        (tmp_path / "note").mkdir()
        (tmp_path / "note" / "x.txt").write_text("no image")
        zip_up(tmp_path / "note")[0].rename(tmp_path / "x.zip")
        (tmp_path / "x.txt").write_text("no image")
        with pytest.raises(UserError, match=r"has no images .*it should have one folder of images per class"):
            self.names(tmp_path / name, access)

    def test_a_folder_beside_the_wrapping_one_holds_no_classes(self, tmp_path, access):
        write_folder(tmp_path / "set" / "images", n_classes=3)
        (tmp_path / "set" / "annotations" / "boxes").mkdir(parents=True)
        assert self.names(tmp_path / "set", access) == ["kind-00", "kind-01", "kind-02"]

    def test_an_empty_class_in_a_wrapping_folder_is_named_by_its_path(self, tmp_path, access):
        write_folder(tmp_path / "set" / "wrap", n_classes=3)
        (tmp_path / "set" / "wrap" / "empty").mkdir()
        with pytest.raises(UserError, match=r"set/wrap/empty is a class without images"):
            self.names(tmp_path / "set", access)

    def test_a_picture_in_the_wrapping_folder_does_not_matter(self, tmp_path, access):
        write_folder(tmp_path / "set" / "wrap", n_classes=3)
        save(next(pictures("x", 1, 8, 8)), tmp_path / "set" / "wrap" / "logo.png")
        assert self.names(tmp_path / "set", access) == ["kind-00", "kind-01", "kind-02"]


def test_a_class_that_is_added_moves_hardly_any_other():
    before, names = FolderSet(Path("x")), [f"kind-{i:02}" for i in range(20)]
    part_of = {names[i]: part for part, places in before.parts(names).items() for i in places}
    more = sorted([*names, "another"])
    moved = [
        more[i]
        for part, places in before.parts(more).items()
        for i in places
        if more[i] != "another" and part_of[more[i]] != part
    ]
    assert len(moved) <= 2


@pytest.mark.parametrize(("word", "part"), [("novel", "novel"), ("test", "novel"), ("train", "base")])
def test_all_classes_may_go_to_one_part(word, part):
    assert FolderSet(Path("x"), split=word).parts(["a", "b"]) == {part: (0, 1)}
