"""A classifier that is corrected on the command line: add, relabel, remove, info and suggest."""

import csv
import io
import json

import numpy as np
import pytest

from gpldla.classifier.few_shot import FewShotClassifier
from tests.classifier.test_answers import write_pictures
from tests.cli.test_fit_predict_export import letters  # noqa: F401 (a fixture: the network of letters)

TEXTS = [("hello there", "greeting"), ("oh hello", "greeting"), ("six fix", "numbers"), ("sixty", "numbers")]


def same_answers(first, second, items):
    np.testing.assert_allclose(first.predict_proba(items), second.predict_proba(items), atol=1e-6)


@pytest.fixture
def photos(tmp_path):
    return write_pictures(tmp_path / "photos", count=4)


@pytest.fixture
def birds(run, photos, tmp_path):
    file = tmp_path / "birds.safetensors"
    assert run("fit", photos, "-o", file, "--model", "pixels")[0] == 0
    return file


@pytest.fixture
def topics(run, tmp_path):
    table, file = tmp_path / "texts.csv", tmp_path / "topics.safetensors"
    table.write_text("text,label\n" + "".join(f"{a},{b}\n" for a, b in TEXTS))
    columns = ["--text", "text", "--label", "label", "--model", "letters"]
    assert run("fit", table, "-o", file, *columns)[0] == 0
    return file


class TestAdd:
    def test_equals_one_fit_to_all(self, run, birds, photos, tmp_path):
        more, new = write_pictures(tmp_path / "more", ("cat", "emu"), seed=5), tmp_path / "new.safetensors"
        before = birds.read_bytes()
        code, _, err = run("add", birds, more, "-o", new)
        assert code == 0
        assert "Added 6 examples, with the new class emu." in err
        assert birds.read_bytes() == before
        added = FewShotClassifier.load(new)
        assert added.classes.tolist() == ["cat", "dog", "emu", "owl"]
        files = [*sorted(photos.rglob("*.png")), *sorted(more.rglob("*.png"))]
        whole = added.model.adapt(files, [file.parent.name for file in files])
        same_answers(added, whole, files[::3])

    def test_what_is_known_is_not_added_twice(self, run, birds, photos):
        before = birds.read_bytes()
        code, _, err = run("add", birds, photos)
        assert code == 0
        assert f"12 of the 12 examples are in {birds} already." in err
        assert f"Nothing has changed in {birds}." in err
        assert birds.read_bytes() == before

    def test_an_example_with_another_label_is_refused(self, refused, birds, photos):
        (photos / "owl" / "0.png").rename(photos / "owl" / "x.png")
        table = photos.parent / "next.csv"
        table.write_text(f"item,label\n{photos / 'cat' / '0.png'},dog\n")
        line = refused("add", birds, table)
        assert "is an example of the class cat already, not of dog" in line

    def test_texts_from_a_table_whose_labels_are_filled_in_part(self, run, topics, tmp_path):
        table = tmp_path / "next.csv"
        table.write_text("item,label\nwell hello,greeting\nwhat,\n")
        code, _, err = run("add", topics, table)
        assert code == 0
        assert "1 rows of" in err
        assert "have no label: left out." in err
        assert FewShotClassifier.load(topics).labels.tolist().count("greeting") == 3

    def test_a_file_without_names_stays_so(self, run, photos, tmp_path):
        file = tmp_path / "c.safetensors"
        assert run("fit", photos, "-o", file, "--model", "pixels", "--no-item-names")[0] == 0
        assert str(photos).encode() not in file.read_bytes()
        more = write_pictures(tmp_path / "more", seed=5)
        assert run("add", file, more)[0] == 0
        assert FewShotClassifier.load(file).names is None
        assert str(more).encode() not in file.read_bytes()

    def test_without_examples_nothing_can_be_added(self, refused, run, photos, tmp_path):
        file = tmp_path / "c.safetensors"
        assert run("fit", photos, "-o", file, "--model", "pixels", "--no-support")[0] == 0
        assert "was saved without its support examples" in refused("add", file, photos)


class TestRelabelAndRemove:
    def test_relabel_equals_a_fit_to_the_right_labels(self, run, birds, photos):
        code, _, err = run("relabel", birds, "cat/0.png", "dog")
        assert code == 0
        assert f"{photos / 'cat' / '0.png'}: cat → dog." in err
        changed = FewShotClassifier.load(birds)
        files = sorted(photos.rglob("*.png"))
        labels = ["dog" if file == photos / "cat" / "0.png" else file.parent.name for file in files]
        same_answers(changed, changed.model.adapt(files, labels), files)

    def test_a_new_class_must_be_asked_for(self, refused, run, birds):
        assert "There is no class 'dgo'; did you mean 'dog'?" in refused("relabel", birds, "cat/0.png", "dgo")
        assert run("relabel", birds, "#0", "emu", "--new-class")[0] == 0
        assert "emu" in FewShotClassifier.load(birds).classes

    def test_remove_by_name_and_number(self, run, birds, photos):
        code, _, err = run("remove", birds, "cat/1.png", "#0")
        assert code == 0
        assert err.count("Removed ") == 2
        changed = FewShotClassifier.load(birds)
        files = sorted(photos.rglob("*.png"))[2:]
        same_answers(changed, changed.model.adapt(files, [file.parent.name for file in files]), files)

    def test_the_last_example_of_a_class_removes_it(self, run, birds):
        code, _, err = run("remove", birds, *(f"owl/{i}.png" for i in range(4)))
        assert code == 0
        assert "No examples are left of owl: removed." in err
        assert FewShotClassifier.load(birds).classes.tolist() == ["cat", "dog"]

    def test_a_name_that_is_not_there(self, refused, birds):
        before = birds.read_bytes()
        assert "did you mean" in refused("remove", birds, "cat/0.pgn")
        assert "give the index of one" in refused("remove", birds, "0.png")
        assert birds.read_bytes() == before


class TestInfo:
    def test_says_what_is_there(self, run, birds):
        code, out, err = run("info", birds, "--items")
        assert (code, err) == (0, "")
        for part in (
            "pixels with the head gpldla-auto",
            "12, with names",
            "leave-one-out",
            "cat/0.png",
            "#11",
        ):
            assert part in out

    def test_as_json_and_in_python(self, run, birds):
        classifier = FewShotClassifier.load(birds)
        facts = json.loads(run("info", birds, "--json", "--items")[1])
        listed = facts.pop("items")
        assert [one["label"] for one in listed] == classifier.labels.tolist()
        assert [one["item"] for one in listed] == list(classifier.names)
        assert facts["bytes"] == birds.stat().st_size
        assert {name: facts[name] for name in classifier.info()} == classifier.info()
        assert facts["examples"] == {"cat": 4, "dog": 4, "owl": 4}
        assert "3 classes, 12 examples" in repr(classifier)

    def test_a_file_without_examples(self, run, photos, tmp_path):
        file = tmp_path / "c.safetensors"
        assert run("fit", photos, "-o", file, "--model", "pixels", "--no-support")[0] == 0
        code, out, _ = run("info", file)
        assert code == 0
        assert "not kept: nothing can be added" in out
        facts = json.loads(run("info", file, "--json")[1])
        assert facts["examples"] is facts["expected"] is None
        assert facts["classes"] == ["cat", "dog", "owl"]


class TestSuggest:
    def test_ranks_the_pool_as_python_does(self, run, birds, tmp_path):
        album = write_pictures(tmp_path / "album", ("a", "b"), count=4, seed=9)
        pool = sorted(album.rglob("*.png"))
        code, out, _ = run("suggest", birds, album, "-n", "3", "--json")
        assert code == 0
        wanted = FewShotClassifier.load(birds).suggest(pool, 3)
        assert [one["item"] for one in json.loads(out)] == [str(pool[i]) for i in wanted]
        assert "Label next" in run("suggest", birds, album)[1]

    def test_a_table_goes_round(self, run, birds, tmp_path):
        album = write_pictures(tmp_path / "album", ("a",), count=4, seed=9)
        rows = list(csv.DictReader(io.StringIO(run("suggest", birds, album, "-n", "2", "--csv")[1])))
        assert all(row["label"] == "" for row in rows)
        table = tmp_path / "next.csv"
        table.write_text("item,label\n" + "".join(f"{row['item']},owl\n" for row in rows))
        assert run("add", birds, table)[0] == 0
        assert FewShotClassifier.load(birds).labels.tolist().count("owl") == 6

    def test_examples_are_not_suggested(self, run, refused, topics, birds, photos):
        code, out, err = run("suggest", topics, "hello there", "fifty six", "--json")
        assert code == 0
        assert "1 of the 2 items are examples already" in err
        assert [one["item"] for one in json.loads(out)] == ["fifty six"]
        assert "leave out --text" in refused("suggest", birds, photos, "--text", "text")
