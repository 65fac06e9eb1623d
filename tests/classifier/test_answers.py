import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpldla.classifier.answer import answer, json_class_names
from gpldla.classifier.answers import (
    CONFUSIONS_SHOWN,
    SUSPECTS_SHOWN,
    FitSummary,
    Suspect,
    summarise,
)
from gpldla.classifier.expected_accuracy import ExpectedAccuracy
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.review import SUSPECT_THRESHOLD
from gpldla.data.user_files import (
    ignored_files,
    pictures_below,
    read_class_folders,
    readable_pictures,
)
from gpldla.utils.errors import UserError
from tests.classifier.test_file import LABELS, one_sentence, pictures


def touch(*files):
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def write_pictures(folder, names=("cat", "dog", "owl"), count=3, seed=0):
    """Class folders of small PNG files."""
    images = iter(pictures([count] * len(names), seed))
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(next(images)).save(folder / name / f"{number}.png")
    return folder


class TestPicturesBelow:
    def test_finds_them_in_folders_in_folders_in_order(self, tmp_path):
        files = [tmp_path / name for name in ("b/x/2.jpg", "a.png", "b/1.JPEG", "b/x/y/z/0.webp")]
        touch(*files)
        assert pictures_below(tmp_path) == sorted(files)

    def test_leaves_out_what_is_hidden_or_no_picture(self, tmp_path):
        kept = tmp_path / "a.b" / "kept.png"
        hidden = [".a.png", ".git/b.png", "x/.cache/y/c.png", "__MACOSX/._a.jpg"]
        others = ["notes.txt", "png", "a.png.bak", "table.csv", "Thumbs.db"]
        touch(kept, *(tmp_path / name for name in [*hidden, *others]))
        (tmp_path / "folder.png").mkdir()
        assert pictures_below(tmp_path) == [kept]

    def test_a_hidden_folder_above_does_not_matter(self, tmp_path):
        touch(tmp_path / ".data" / "photos" / "a.png")
        found = pictures_below(tmp_path / ".data" / "photos")
        assert found == [tmp_path / ".data" / "photos" / "a.png"]

    def test_there_may_be_none(self, tmp_path):
        assert pictures_below(tmp_path) == []


class TestClassFolders:
    def test_give_pictures_and_the_names_of_their_folders(self, tmp_path):
        files = ["dog/1.png", "cat/b.png", "cat/a.jpg", "ant/2/deep/er.png", "ant/1.png"]
        touch(*(tmp_path / name for name in files))
        found, labels = read_class_folders(tmp_path)
        names = [str(path.relative_to(tmp_path)) for path in found]
        assert names == ["ant/1.png", "ant/2/deep/er.png", "cat/a.jpg", "cat/b.png", "dog/1.png"]
        assert labels == ["ant", "ant", "cat", "cat", "dog"]

    def test_hidden_files_and_folders_and_loose_files_are_no_classes(self, tmp_path):
        kept = [tmp_path / "a" / "1.png", tmp_path / "b" / "2.png"]
        stray = [".DS_Store", "loose.png", "notes.txt", ".git/x.png", "a/.hidden.png", "b/.thumbs/3.png"]
        touch(*kept, *(tmp_path / name for name in stray))
        assert read_class_folders(tmp_path) == (kept, ["a", "b"])

    def test_names_of_any_kind(self, tmp_path):
        names = ["Ω ქ", "[b]red", "with space", "1"]
        touch(*(tmp_path / name / "x.png" for name in names))
        assert read_class_folders(tmp_path)[1] == sorted(names)

    @pytest.mark.parametrize("inside", [[], ["empty/notes.txt"], ["empty/.hidden.png"]], ids=str)
    def test_an_empty_one_is_named(self, tmp_path, inside):
        touch(tmp_path / "a" / "1.png", tmp_path / "z" / "1.png", *(tmp_path / name for name in inside))
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError) as error:
            read_class_folders(tmp_path)
        assert one_sentence(error) == (
            f"The class folder {tmp_path / 'empty'} holds no pictures; add some or remove it."
        )

    def test_a_single_one_is_refused(self, tmp_path):
        touch(tmp_path / "cat" / "1.png", tmp_path / ".git" / "1.png", tmp_path / "loose.png")
        with pytest.raises(UserError, match="holds only one folder, cat;") as error:
            read_class_folders(tmp_path)
        assert str(tmp_path) in one_sentence(error)

    def test_none_at_all_is_refused(self, tmp_path):
        touch(tmp_path / "1.png", tmp_path / "2.png")
        with pytest.raises(UserError, match=f"{tmp_path} holds no folders; give one folder") as error:
            read_class_folders(tmp_path)
        one_sentence(error)

    @pytest.mark.parametrize("name", ["none", "file.png"])
    def test_a_missing_folder_and_a_file_are_named(self, tmp_path, name):
        touch(tmp_path / "file.png")
        with pytest.raises(UserError, match=f"There is no folder {tmp_path / name};") as error:
            read_class_folders(tmp_path / name)
        one_sentence(error)


def test_readable_pictures_are_told_from_damaged_ones(tmp_path):
    folder = write_pictures(tmp_path, ("cat",))
    (folder / "cat" / "1.png").write_bytes(b"no picture")
    (folder / "cat" / "3.png").write_bytes((folder / "cat" / "0.png").read_bytes()[:60])
    files = pictures_below(folder)
    good, bad = readable_pictures(files, FewShotModel("pixels", "protonet").preprocessing)
    assert good == [0, 2]
    assert [str(files[place]) in sentence for place, sentence in zip((1, 3), bad)] == [True, True]
    assert len(bad) == 2


def summary_of(proba, numbers, classes=("a", "b", "c"), expected=None):
    """The summary of a classifier that says this of its examples."""
    stand_in = SimpleNamespace(
        leave_one_out=lambda: np.array(proba, np.float32),
        expected_accuracy=lambda: expected,
        labels=np.array(list(classes))[numbers],
        classes=np.array(list(classes)),
    )
    return summarise(stand_in, [f"item {place}" for place in range(len(numbers))])


class TestSummary:
    def test_by_hand(self):
        proba = [
            [0.8, 0.1, 0.1],  # right
            [0.1, 0.75, 0.15],  # a taken for b, surely
            [0.3, 0.6, 0.1],  # a taken for b, hardly
            [0.2, 0.5, 0.3],  # right
            [math.nan] * 3,  # the only one of its class
        ]
        summary = summary_of(proba, [0, 0, 0, 1, 2])
        assert summary.counts == {"a": 3, "b": 1, "c": 1}
        assert summary.tested == 4
        assert summary.accuracy == pytest.approx(50)
        assert summary.nll == pytest.approx(-np.log([0.8, 0.1, 0.3, 0.5]).mean(), rel=1e-6)
        assert summary.confused == [("a", "b", 2)]
        assert summary.suspects == [Suspect("item 1", "a", "b", pytest.approx(0.75))]

    def test_agrees_with_leave_one_out(self):
        classifier = FewShotModel("pixels", "gpldla-auto").adapt(pictures((4, 3, 2, 1)), list("aaaabbbccd"))
        summary = summarise(classifier, range(10))
        proba, own = classifier.leave_one_out(), np.array([0] * 4 + [1] * 3 + [2] * 2 + [3])
        assert np.isnan(proba[9]).all()
        assert summary.tested == 9
        assert summary.counts == {"a": 4, "b": 3, "c": 2, "d": 1}
        assert summary.accuracy == pytest.approx(100 * (proba[:9].argmax(1) == own[:9]).mean())
        assert summary.nll == pytest.approx(-np.log(proba[np.arange(9), own[:9]]).mean(), rel=1e-5)
        assert 0.01 < summary.nll < 2
        assert summary.expected == classifier.expected_accuracy()
        assert summary.expected.examples == 9

    def test_with_single_examples_nothing_is_tested(self):
        classifier = FewShotModel("pixels", "gpldla-auto").adapt(pictures((1, 1, 1)), ["a", "b", "c"])
        summary = summarise(classifier, ["x", "y", "z"])
        assert summary == FitSummary({"a": 1, "b": 1, "c": 1}, None, None, 0, [], [])

    def test_certainty_that_is_wrong_stays_a_number(self):
        summary = summary_of([[0, 1, 0], [0, 1, 0]], [0, 1])
        assert summary.nll == pytest.approx(-np.log(1e-30) / 2, rel=1e-4)

    def test_the_most_frequent_confusions_come_first_and_few_are_shown(self):
        classes = [f"c{i}" for i in range(CONFUSIONS_SHOWN + 3)]
        numbers, guesses = [], []
        for place in range(len(classes) - 1):
            for _ in range(place + 1):  # c0 is taken for c1 once, c1 for c2 twice ...
                numbers.append(place)
                guesses.append(place + 1)
        proba = np.full((len(numbers), len(classes)), 0.01)
        proba[np.arange(len(numbers)), guesses] = 0.5
        summary = summary_of(proba, numbers, classes)
        last = len(classes) - 1
        assert summary.confused == [
            (f"c{place - 1}", f"c{place}", place) for place in range(last, last - CONFUSIONS_SHOWN, -1)
        ]
        assert summary.suspects == []

    def test_the_surest_suspects_come_first_and_few_are_shown(self):
        chances = np.linspace(SUSPECT_THRESHOLD - 0.05, 0.99, SUSPECTS_SHOWN + 8)
        proba = np.stack([1 - chances, chances], 1)
        summary = summary_of(proba[np.random.default_rng(0).permutation(len(proba))], [0] * len(proba), "ab")
        said = [suspect.probability for suspect in summary.suspects]
        assert said == pytest.approx(sorted(chances, reverse=True)[:SUSPECTS_SHOWN], rel=1e-5)

    def test_only_what_the_others_speak_against_is_suspect(self):
        below, above = SUSPECT_THRESHOLD - 0.01, SUSPECT_THRESHOLD + 0.01
        proba = [[1 - below, below], [1 - above, above], [above, 1 - above]]
        summary = summary_of(proba, [0, 0, 0], "ab")
        assert [suspect.item for suspect in summary.suspects] == ["item 1"]

    @pytest.mark.parametrize("head", ["gpldla-auto", "gpldla"])
    def test_a_planted_wrong_label_is_found(self, tmp_path, head):
        generator = np.random.default_rng(0)
        wholes = generator.integers(0, 256, (3, 28, 28))
        images = [
            np.clip(wholes[c] + generator.integers(-30, 31, (28, 28)), 0, 255).astype(np.uint8)
            for c in range(3)
            for _ in range(6)
        ]
        labels = ["cat"] * 6 + ["dog"] * 6 + ["owl"] * 6
        labels[8] = "owl"  # a dog
        classifier = FewShotModel("pixels", head, head_options={"beta": 2.0}).adapt(images, labels)
        summary = summarise(classifier, [Path(f"{number}.png") for number in range(18)])
        assert [(one.item, one.label, one.rather) for one in summary.suspects] == [("8.png", "owl", "dog")]
        assert summary.suspects[0].probability >= SUSPECT_THRESHOLD
        assert summary.confused == [("owl", "dog", 1)]
        assert summary.accuracy == pytest.approx(100 * 17 / 18)
        assert summary.counts == {"cat": 6, "dog": 5, "owl": 7}

    def test_as_json(self):
        expected = ExpectedAccuracy(0.5, 0.25, 0.75, 2)
        summary = summary_of([[0.2, 0.8, 0], [0.1, 0.8, 0.1]], [0, 1], (1, 2, 3), expected)
        assert summary.as_json() == {
            "classes": {"1": 1, "2": 1, "3": 0},
            "leave_one_out": {
                "accuracy": pytest.approx(50),
                "nll": pytest.approx(-np.log([0.2, 0.8]).mean()),
                "examples": 2,
            },
            "expected": {"accuracy": 50, "low": 25, "high": 75, "confidence": 90},
            "confused": [{"label": 1, "taken_for": 2, "times": 1}],
            "suspects": [{"item": "item 0", "label": 1, "rather": 2, "probability": pytest.approx(0.8)}],
        }

    def test_a_classifier_without_its_examples_cannot_be_summarised(self, tmp_path):
        classifier = FewShotModel("pixels", "gpldla-auto").adapt(pictures(), LABELS)
        classifier.save(tmp_path / "c.safetensors", support=False)
        with pytest.raises(UserError, match="saved without its support examples"):
            summarise(classifier.load(tmp_path / "c.safetensors"), LABELS)


class TestAnswers:
    def test_say_the_most_probable_class(self):
        proba = np.array([[0.1, 0.9], [0.6, 0.4]], np.float32)
        first, second = answer(proba, None, [Path("x.png"), "y"], ["cat", "dog"], 0.25)
        assert (first.item, first.label, first.unsure) == ("x.png", "dog", False)
        assert (second.item, second.label, second.unsure) == ("y", "cat", True)
        assert first.probability == pytest.approx(0.9)
        assert first.none_of_these is None
        assert second.probabilities == {"cat": pytest.approx(0.6), "dog": pytest.approx(0.4)}

    def test_what_is_probably_none_of_them_is_unsure(self):
        proba = np.array([[0.95, 0.05]] * 3)
        said = answer(proba, np.array([0.0, 0.2, 0.9]), range(3), ["cat", "dog"], 0.25)
        assert [one.unsure for one in said] == [False, False, True]
        assert [one.none_of_these for one in said] == pytest.approx([0.0, 0.2, 0.9])
        assert [one.label for one in said] == ["cat"] * 3

    @given(
        p=st.floats(0.5, 1),
        none=st.none() | st.floats(0, 1),
        max_error=st.floats(0, 1),
    )
    def test_are_unsure_exactly_where_the_expected_error_is_larger(self, p, none, max_error):
        novel = None if none is None else np.array([none])
        (one,) = answer(np.array([[1 - p, p]]), novel, ["x"], ["a", "b"], max_error)
        assert one.unsure == (1 - p * (1 - (none or 0)) > max_error)

    @pytest.mark.parametrize(("max_error", "unsure"), [(0, True), (0.24, True), (0.25, False), (1, False)])
    def test_an_error_as_large_as_allowed_is_allowed(self, max_error, unsure):
        (one,) = answer(np.array([[0.25, 0.75]]), np.array([0.0]), ["x"], ["a", "b"], max_error)
        assert one.unsure == unsure

    def test_certainty_is_sure_whatever_is_asked(self):
        (one,) = answer(np.array([[0.0, 1.0]]), np.array([0.0]), ["x"], ["a", "b"], 0)
        assert not one.unsure

    def test_as_json(self):
        (one,) = answer(np.array([[0.25, 0.75]]), np.array([0.5]), ["x"], [1, 2], 0.1)
        assert one.as_json() == {
            "item": "x",
            "label": 2,
            "probability": 0.75,
            "none_of_these": 0.5,
            "unsure": True,
            "probabilities": {"1": 0.25, "2": 0.75},
        }


class TestNamesInAnswers:
    def test_are_text(self):
        assert json_class_names(np.array([1, 2])) == ["1", "2"]

    def test_that_look_alike_are_refused(self):
        with pytest.raises(UserError, match="The classes 1 and '1' are written alike"):
            json_class_names(np.array([1, "1"], dtype=object))

    def test_a_class_called_as_doubtful_answers_is_refused(self):
        with pytest.raises(UserError, match="A class is called 'unsure'"):
            json_class_names(np.array(["sure", "unsure"]))


class TestFilesBelow:
    @pytest.fixture
    def album(self, tmp_path):
        for place in ("album/birds", "elsewhere/more"):
            (tmp_path / place).mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / place / "1.png")
        return tmp_path / "album"

    def test_links_to_folders_are_followed(self, album):
        (album / "more").symlink_to("../elsewhere")
        assert [path.relative_to(album).as_posix() for path in pictures_below(album)] == [
            "birds/1.png",
            "more/more/1.png",
        ]

    def test_links_that_lead_back_are_not(self, album):
        (album / "birds" / "all").symlink_to("..")
        assert pictures_below(album) == [album / "birds" / "1.png"]

    def test_nor_those_that_lead_above(self, album):
        (album / "birds" / "all").symlink_to("..")
        assert pictures_below(album / "birds") == [album / "birds" / "1.png"]

    def test_two_links_to_one_folder_are_two(self, album):
        for name in ("more", "again"):
            (album / name).symlink_to("../elsewhere")
        assert len(pictures_below(album)) == 3

    def test_a_folder_that_cannot_be_read_is_named(self, album, monkeypatch):
        scandir = os.scandir

        def refusing(folder):
            if str(folder).endswith("birds"):
                raise PermissionError(13, "Permission denied", str(folder))
            return scandir(folder)

        monkeypatch.setattr(os, "scandir", refusing)
        with pytest.raises(UserError, match=r"birds cannot be read \(Permission denied\)"):
            pictures_below(album)

    def test_formats_that_are_not_read_are_told(self, album):
        assert ignored_files(album) == ""
        (album / "birds" / "2.PSD").touch()
        (album / "birds" / "notes.txt").touch()
        assert ignored_files(album).startswith("Ignored 1 files whose format is not read, such as ")


def test_what_is_no_number_is_an_error():
    with pytest.raises(UserError, match="of 1 of 1 items are not finite"):
        answer(np.array([[math.nan, math.nan]]), None, ["x"], ["a", "b"], 0.5)
