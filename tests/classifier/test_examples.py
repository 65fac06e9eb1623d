"""Correcting a classifier: examples that are added, relabelled and removed, by index or by name."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla import FewShotClassifier, FewShotModel
from gpldla.classifier.examples import Examples
from gpldla.utils.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
LABELS = ["ant", "bee", "cow"] * 3


def pictures(n, seed=0):
    """Noise around one picture per class, three classes in turn."""
    whole = np.random.default_rng(1).integers(0, 256, (3, 28, 28))
    noise = np.random.default_rng(seed).integers(-90, 91, (n, 28, 28))
    return [np.clip(whole[i % 3] + noise[i], 0, 255).astype(np.uint8) for i in range(n)]


@pytest.fixture(scope="module")
def model():
    return FewShotModel("pixels", "gpldla-auto")


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{LABELS[i]}-{i}.png" for i in range(9)]
    for path, picture in zip(paths, pictures(9)):
        Image.fromarray(picture).save(path)
    return paths


def same(classifier, expected):
    assert classifier.classes.tolist() == expected.classes.tolist()
    queries = pictures(6, seed=5)
    np.testing.assert_allclose(
        classifier.predict_proba(queries), expected.predict_proba(queries), rtol=1e-5, atol=1e-6
    )


class TestRelabelling:
    def test_equals_adapting_to_the_right_labels(self, model):
        wrong = [*LABELS[:8], "ant"]
        classifier = model.adapt(pictures(9), wrong)
        same(classifier.relabel([8], ["cow"]), model.adapt(pictures(9), LABELS))
        assert classifier.labels.tolist() == wrong  # it is left as it was

    def test_a_new_class_takes_its_place_in_the_order(self, model):
        classifier = model.adapt(pictures(9), LABELS).relabel([0, 3], ["auk", "auk"])
        same(classifier, model.adapt(pictures(9), ["auk", "bee", "cow"] * 2 + LABELS[6:]))

    def test_a_class_whose_last_example_goes_is_gone(self, model):
        classifier = model.adapt(pictures(4), ["ant", "bee", "cow", "ant"]).relabel([2], ["bee"])
        assert classifier.classes.tolist() == ["ant", "bee"]

    def test_by_name(self, model, files):
        classifier = model.adapt(files, [*LABELS[:8], "ant"])
        assert classifier.names == tuple(map(str, files))
        same(classifier.relabel([files[8]], ["cow"]), model.adapt(files, LABELS))

    def test_one_label_per_example(self, model):
        with pytest.raises(UserError, match="There are 2 examples and 1 labels"):
            model.adapt(pictures(9), LABELS).relabel([0, 1], ["cow"])


class TestRemoving:
    @pytest.mark.parametrize("which", [[0, 4], [-9, 4], np.array([0, 4])], ids=str)
    def test_equals_adapting_to_the_others(self, model, which):
        kept = [i for i in range(9) if i not in (0, 4)]
        expected = model.adapt([pictures(9)[i] for i in kept], [LABELS[i] for i in kept])
        same(model.adapt(pictures(9), LABELS).remove(which), expected)

    def test_two_classes_must_be_left(self, model):
        classifier = model.adapt(pictures(3), LABELS[:3])
        with pytest.raises(UserError, match="examples of at least two classes"):
            classifier.remove([0, 1])
        with pytest.raises(UserError, match="No examples are left"):
            classifier.remove([0, 1, 2])

    @pytest.mark.parametrize(
        ("which", "message"),
        [
            ([9], "There is no example 9; there are 9, counted from 0."),
            (["ant-0.pgn"], "no example 'ant-0.pgn'; did you mean 'ant-0.png'"),
            (["twice"], "2 examples are called 'twice'; give the index of one: 7 \\(twice\\), 8 \\(twice\\)"),
            ("ant-0.png", "Give a list of examples, not a single one"),
            (3, "Give a list of examples, not a single one"),
        ],
    )
    def test_what_cannot_be_found_is_named(self, which, message, model):
        names = (*(f"{LABELS[i]}-{i}.png" for i in range(7)), "twice", "twice")
        rows = model.embed(pictures(9))
        classifier = FewShotClassifier.from_rows(model, rows, LABELS, names=names)
        with pytest.raises(UserError, match=message):
            classifier.remove(which)

    def test_names_are_asked_for_where_there_are_none(self, model):
        with pytest.raises(
            UserError, match=r"have no names, so 'ant-0\.png' cannot be found; give its index"
        ):
            model.adapt(pictures(9), LABELS).remove(["ant-0.png"])


class TestNames:
    def test_come_back_from_a_file(self, model, files, tmp_path):
        model.adapt(files, LABELS).save(tmp_path / "c.safetensors")
        loaded = FewShotClassifier.load(tmp_path / "c.safetensors")
        assert loaded.names == tuple(map(str, files))
        assert loaded.labels.tolist() == LABELS
        same(loaded.remove([files[8]]), model.adapt(files[:8], LABELS[:8]))

    def test_are_not_written_without_the_examples(self, model, files, tmp_path):
        model.adapt(files, LABELS).save(tmp_path / "c.safetensors", support=False)
        assert files[0].name.encode() not in (tmp_path / "c.safetensors").read_bytes()

    def test_may_be_left_out(self, model, files, tmp_path):
        model.adapt(files, LABELS).save(tmp_path / "c.safetensors", names=False)
        assert files[0].name.encode() not in (tmp_path / "c.safetensors").read_bytes()
        assert FewShotClassifier.load(tmp_path / "c.safetensors").names is None

    def test_added_examples_have_theirs(self, model, files):
        classifier = model.adapt(pictures(9), LABELS).add(files[:1], ["ant"])
        assert classifier.names == ("",) * 9 + (str(files[0]),)


class TestExamples:
    def test_weights_of_one_side_are_ones_on_the_other(self):
        plain = Examples(torch.zeros(2, 3), torch.tensor([0, 1]))
        weighted = Examples(torch.ones(1, 3), torch.tensor([1]), torch.tensor([2.0]))
        assert plain.add(weighted).weights.tolist() == [1, 1, 2]
        assert weighted.add(plain).weights.tolist() == [2, 1, 1]
        assert plain.add(plain).weights is None

    def test_changes_leave_the_examples_alone(self):
        examples = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([1.0, 2.0]), ("a", "b"))
        assert examples.relabel([0], torch.tensor([1])).labels.tolist() == [1, 1]
        left = examples.remove([0])
        assert (left.labels.tolist(), left.weights.tolist(), left.names) == ([1], [2.0], ("b",))
        assert examples.labels.tolist() == [0, 1]


class TestSaving:
    def test_fit_adapts_once_and_saving_adapts_nothing(self, model, monkeypatch, tmp_path):
        head, calls = model.head, []
        adapt, statistics = head.adapt, head.class_statistics
        monkeypatch.setattr(head, "adapt", lambda *a, **k: calls.append("adapt") or adapt(*a, **k))
        classifier = model.adapt(pictures(9), LABELS)
        classifier.leave_one_out()
        classifier.calibrate_novelty()
        assert calls == ["adapt"]
        monkeypatch.setattr(head, "class_statistics", lambda *a: calls.append("statistics") or statistics(*a))
        classifier.save(tmp_path / "c.safetensors")
        classifier.save(tmp_path / "c.safetensors", support=False)
        assert calls == ["adapt"]

    def test_a_file_of_an_earlier_version_answers_as_then(self):
        expected = json.loads((GOLDEN / "classifier-format-1.json").read_text("utf-8"))
        loaded = FewShotClassifier.load(GOLDEN / "classifier-format-1.safetensors")
        queries = pictures(6, seed=5)
        # to the accuracy of the predictive's integral, which is computed in another way now
        np.testing.assert_allclose(loaded.predict_proba(queries), expected["probabilities"], atol=2e-3)
        np.testing.assert_allclose(loaded.none_of_these(queries), expected["none_of_these"], atol=1e-6)

    def test_it_does_so_when_it_is_saved_again(self, tmp_path):
        expected = json.loads((GOLDEN / "classifier-format-1.json").read_text("utf-8"))["none_of_these"]
        FewShotClassifier.load(GOLDEN / "classifier-format-1.safetensors").save(tmp_path / "c.safetensors")
        again = FewShotClassifier.load(tmp_path / "c.safetensors")
        np.testing.assert_allclose(again.none_of_these(pictures(6, seed=5)), expected, atol=1e-6)
