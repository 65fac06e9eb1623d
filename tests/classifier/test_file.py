import contextlib
import copy
import json
import math
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from gpldla.backbones import TextBackbone
from gpldla.backbones.base import _BACKBONES, Backbone
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.file import FORMAT, FORMAT_WITH_OWN_PRIOR, KIND
from gpldla.classifier.model import FewShotModel
from gpldla.data.preprocessing import Preprocessing, TextPreprocessing
from gpldla.heads import list_heads
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors, write_tensors

LABELS = ["cat"] * 3 + ["dog"] * 3 + ["ant"] * 2
COUNTS = (3, 3, 2)
FULL = {"covariance": "full"}
# Heads whose posterior is a handful of tensors that a file can hold, and heads that need their examples.
WITHOUT_SUPPORT = [("gpldla-auto", {}), ("gpldla", {}), ("laplace", {}), ("lda", {})]
WITH_SUPPORT_ONLY = [("gpldla-auto", FULL), ("protonet", {}), ("matchingnet", {}), ("relationnet", {})]

FIXTURE = HealthCheck.function_scoped_fixture


class Blobs(Backbone):
    """Stands in for a pretrained network: its weights come with the program, many more than its features."""

    pretrained = True
    preprocessing = Preprocessing(8, 1, (0.5,), (0.25,))
    feature_dim = 64
    map_shape = (1, 8, 8)
    version = 0

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(self.version)
        self.weight = nn.Parameter(torch.randn(64, 4096, generator=generator), requires_grad=False)

    def maps(self, images):
        return images

    def forward(self, images):
        return images.flatten(1) @ self.weight[:, :64]


class Letters(TextBackbone):
    """Stands in for a pretrained network of texts: how often each letter occurs."""

    pretrained = True
    preprocessing = TextPreprocessing(100)
    feature_dim = 26

    def forward(self, texts):
        return torch.tensor([[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]).float()


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """Two small pretrained networks, known by name."""
    monkeypatch.setitem(_BACKBONES, "blobs", Blobs)
    monkeypatch.setitem(_BACKBONES, "letters", Letters)


def pictures(counts=COUNTS, seed=0):
    """Grey images [32, 32] of classes that differ less than their images do; the noise differs by seed."""
    generator = np.random.default_rng(7)
    common = generator.integers(60, 196, (32, 32))
    wholes = [common + 0.25 * generator.integers(-128, 128, (32, 32)) for _ in counts]
    noise = np.random.default_rng(seed)
    return [
        np.clip(wholes[c] + noise.integers(-60, 61, (32, 32)), 0, 255).astype(np.uint8)
        for c, count in enumerate(counts)
        for _ in range(count)
    ]


QUERIES = pictures((2, 2, 2), seed=1)


def model_of(head="gpldla-auto", options=None, backbone="pixels", **facts):
    torch.manual_seed(0)
    return FewShotModel(backbone, head, head_options=options, **facts).eval()


def fitted(head="gpldla-auto", options=None, backbone="pixels", **facts):
    return model_of(head, options, backbone, **facts).adapt(pictures(), LABELS)


def write_damaged(file, tensors, info):
    """Write other tensors or facts beside the checksum of those before, as no program of ours would."""
    save_file({name: t.contiguous() for name, t in tensors.items()}, file, {"info": json.dumps(info)})


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert "\\n" not in text
    assert text[-1] in ".?"
    assert 20 < len(text) < 500
    return text


def refused(file, *words):
    """Load a file that must be refused in one sentence, which names it."""
    with pytest.raises(UserError) as error:
        FewShotClassifier.load(file)
    text = one_sentence(error)
    assert str(file) in text
    for word in words:
        assert word in text
    return text


@pytest.fixture
def file(tmp_path):
    return tmp_path / "classifier.safetensors"


class TestRoundTrip:
    @pytest.mark.parametrize("backbone", ["conv4s", "pixels", "blobs"])
    @pytest.mark.parametrize("head", ["gpldla-auto", "gpldla", "protonet", "matchingnet"])
    def test_answers_come_back(self, file, backbone, head):
        classifier = fitted(head, backbone=backbone, temperature=1.5)
        classifier.save(file)
        loaded = FewShotClassifier.load(file)
        assert loaded.classes.tolist() == ["ant", "cat", "dog"]
        assert loaded.classes.dtype == classifier.classes.dtype
        np.testing.assert_array_equal(loaded.predict_proba(QUERIES), classifier.predict_proba(QUERIES))
        assert loaded.predict(QUERIES).tolist() == classifier.predict(QUERIES).tolist()
        np.testing.assert_allclose(loaded.leave_one_out(), classifier.leave_one_out(), atol=1e-6)

    def test_the_power_of_features_comes_back(self, file):
        classifier = fitted("gpldla", {"power": 0.5})
        classifier.save(file)
        answers = FewShotClassifier.load(file).predict_proba(QUERIES)
        np.testing.assert_array_equal(answers, classifier.predict_proba(QUERIES))
        assert not np.allclose(answers, fitted("gpldla").predict_proba(QUERIES))

    def test_answers_tell_the_classes_apart(self):
        """Else the comparisons here would compare nothing."""
        answers = fitted().predict_proba(QUERIES)
        assert answers.argmax(1).tolist() == [1, 1, 2, 2, 0, 0]
        assert 0.4 < answers.max() < 0.9999

    @pytest.mark.parametrize("head", sorted(set(list_heads()) - {"maml"}))
    def test_every_head_answers_alike_after_loading(self, file, head):
        classifier = fitted(head, backbone="conv4s-mixture" if head == "meta-mixture" else "conv4s")
        classifier.save(file)
        np.testing.assert_allclose(
            FewShotClassifier.load(file).predict_proba(QUERIES), classifier.predict_proba(QUERIES), atol=1e-6
        )

    @pytest.mark.parametrize(
        "options",
        [
            {**FULL, "beta": 0.3},  # with a larger one the classes hardly depend on each other
            {"map_steps": 2},
            {"beta": 2.0},
            {"center": False},
            {"whiten": False},
            {"center": False, "whiten": False},
            {"normalize": False},
            {"priors": "uniform"},
            {"predictive": "probit"},
        ],
        ids=str,
    )
    def test_options_of_the_head_come_back(self, file, options):
        classifier = fitted(options=options, backbone="conv4s")
        other = {"beta": options["beta"]} if len(options) > 1 and "beta" in options else {}
        without = fitted(options=other, backbone="conv4s").predict_proba(QUERIES)
        assert np.abs(classifier.predict_proba(QUERIES) - without).max() > 1e-3  # the option matters
        classifier.save(file)
        loaded = FewShotClassifier.load(file)
        assert loaded.model.head_options == options
        np.testing.assert_allclose(
            loaded.predict_proba(QUERIES), classifier.predict_proba(QUERIES), atol=1e-6
        )
        np.testing.assert_allclose(
            loaded.none_of_these(QUERIES), classifier.none_of_these(QUERIES), atol=1e-6
        )
        for one, other in zip(loaded.uncertainty(QUERIES), classifier.uncertainty(QUERIES)):
            np.testing.assert_allclose(one, other, atol=1e-5)

    @pytest.mark.parametrize(
        ("labels", "classes"),
        [
            (["cat", "dog", "ant"], ["ant", "cat", "dog"]),
            (["ქ", "Ω [b]", "a"], ["a", "Ω [b]", "ქ"]),
            ([30, 2, 10], [2, 10, 30]),
            ([10**30, 1, -5], [-5, 1, 10**30]),
            ([0.5, 1e-300, -2.0], [-2.0, 1e-300, 0.5]),
            (["b", 1, "a"], ["b", 1, "a"]),
        ],
        ids=["texts", "other letters", "numbers", "large numbers", "fractions", "mixed"],
    )
    @pytest.mark.parametrize("support", [True, False])
    def test_classes_keep_type_and_order(self, file, labels, classes, support):
        images = pictures((2, 2, 2))
        classifier = model_of().adapt(images, [label for label in labels for _ in range(2)])
        classifier.save(file, support=support)
        loaded = FewShotClassifier.load(file)
        assert loaded.classes.tolist() == classes
        assert [type(name) for name in loaded.classes.tolist()] == [type(name) for name in classes]
        assert loaded.predict(images[::2]).tolist() == labels
        np.testing.assert_array_equal(loaded.predict_proba(QUERIES), classifier.predict_proba(QUERIES))

    def test_classes_of_bool(self, file):
        model_of().adapt(pictures((2, 2)), [True, True, False, False]).save(file)
        loaded = FewShotClassifier.load(file)
        assert loaded.classes.dtype == bool
        assert loaded.predict(pictures((2, 2))).tolist() == [True, True, False, False]

    def test_what_is_known_about_the_model_comes_back(self, file):
        classifier = fitted(temperature=0.7, info={"note": "Ω", "recipe": {"ways": 3}})
        classifier.save(file)
        assert FewShotClassifier.load(file).model.config() == classifier.model.config()

    def test_notes_with_numbers_as_keys_come_back(self, file):
        fitted(info={2: "two", 10: "ten"}).save(file)
        assert FewShotClassifier.load(file).model.info == {"2": "two", "10": "ten"}

    def test_a_loaded_classifier_can_be_saved_again(self, file, tmp_path):
        for support in (True, False):
            fitted().save(file, support=support)
            FewShotClassifier.load(file).save(tmp_path / "again.safetensors")
            assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()

    @pytest.mark.parametrize("options", [{}, FULL], ids=["diag", "full"])
    def test_what_unlabelled_pictures_taught_comes_back(self, file, options):
        more = pictures((6, 6, 6), seed=2)
        classifier = model_of(options=options).adapt(pictures((1, 1, 1)), ["c", "d", "e"], unlabelled=more)
        classifier.save(file)
        loaded = FewShotClassifier.load(file)
        for ours, theirs in (
            (loaded, classifier),
            (loaded.add(QUERIES[:1], ["c"]), classifier.add(QUERIES[:1], ["c"])),
        ):
            np.testing.assert_array_equal(ours.predict_proba(QUERIES), theirs.predict_proba(QUERIES))
            np.testing.assert_array_equal(ours.none_of_these(QUERIES), theirs.none_of_these(QUERIES))
            np.testing.assert_array_equal(ours.leave_one_out(), theirs.leave_one_out())
        without = model_of(options=options).adapt(pictures((1, 1, 1)), ["c", "d", "e"])
        assert np.abs(without.predict_proba(QUERIES) - loaded.predict_proba(QUERIES)).max() > 0.001
        if not options:
            classifier.save(file, support=False)
            assert "unlabelled" not in read_tensors(file)[0]
            bare = FewShotClassifier.load(file)
            np.testing.assert_array_equal(bare.predict_proba(QUERIES), classifier.predict_proba(QUERIES))
            np.testing.assert_array_equal(bare.none_of_these(QUERIES), classifier.none_of_these(QUERIES))

    def test_other_heads_do_not_learn_from_unlabelled_pictures(self):
        with pytest.raises(UserError, match="does not learn from unlabelled items") as error:
            model_of("gpldla").adapt(pictures(), LABELS, unlabelled=pictures((6, 6, 6)))
        one_sentence(error)

    def test_a_string_names_the_file_too(self, file):
        fitted().save(str(file))
        assert FewShotClassifier.load(str(file)).classes.tolist() == ["ant", "cat", "dog"]

    def test_a_loaded_model_is_ready_for_evaluation(self, file):
        classifier = fitted(backbone="conv4s")
        classifier.model.train()
        classifier.save(file)
        assert not any(module.training for module in FewShotClassifier.load(file).model.modules())

    def test_texts(self, file):
        texts, labels = ["aaab", "aab", "zzy", "zzzy"], ["a", "a", "z", "z"]
        classifier = model_of(backbone="letters").adapt(texts, labels)
        classifier.save(file)
        loaded = FewShotClassifier.load(file)
        assert loaded.predict(["aa", "z"]).tolist() == ["a", "z"]
        np.testing.assert_array_equal(
            loaded.predict_proba(["ab", "yz", "b"]), classifier.predict_proba(["ab", "yz", "b"])
        )

    def test_another_process_reads_the_file(self, file, tmp_path):
        classifier = fitted(backbone="conv4s", temperature=1.3)
        classifier.save(file)
        np.save(tmp_path / "queries.npy", np.stack(QUERIES))
        code = (
            "import sys, json, numpy as np, torch; torch.set_num_threads(1)\n"
            "from gpldla import FewShotClassifier\n"
            "c = FewShotClassifier.load(sys.argv[1]); q = np.load(sys.argv[2])\n"
            "answers = c.classes, c.predict_proba(q), c.none_of_these(q)\n"
            "print(json.dumps([answer.tolist() for answer in answers]))"
        )
        command = [sys.executable, "-c", code, str(file), str(tmp_path / "queries.npy")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        classes, proba, novel = json.loads(done.stdout)
        assert classes == ["ant", "cat", "dog"]
        np.testing.assert_allclose(proba, classifier.predict_proba(QUERIES), atol=1e-6)
        np.testing.assert_allclose(novel, classifier.none_of_these(QUERIES), atol=1e-6)
        assert done.stderr == ""


class TestWithoutSupport:
    @pytest.mark.parametrize(("head", "options"), WITHOUT_SUPPORT, ids=str)
    def test_answers_come_back(self, file, head, options):
        classifier = fitted(head, options, temperature=1.5)
        classifier.save(file, support=False)
        loaded = FewShotClassifier.load(file)
        np.testing.assert_array_equal(loaded.predict_proba(QUERIES), classifier.predict_proba(QUERIES))

    @pytest.mark.parametrize("options", [{}, {"map_steps": 2}], ids=str)
    def test_novelty_and_uncertainty_come_back(self, file, options):
        classifier = fitted(options=options)
        classifier.save(file, support=False)
        loaded = FewShotClassifier.load(file)
        queries = [*QUERIES, np.eye(32)]
        for prevalence in (0.1, 0.5):
            given_ = loaded.none_of_these(queries, prevalence=prevalence)
            np.testing.assert_array_equal(given_, classifier.none_of_these(queries, prevalence=prevalence))
        assert given_.max() - given_.min() > 0.1
        for one, other in zip(loaded.uncertainty(queries), classifier.uncertainty(queries)):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize(
        "ask", [lambda c: c.add(QUERIES[:1], ["cat"]), lambda c: c.leave_one_out()], ids=["add", "leave out"]
    )
    def test_what_needs_the_examples_says_so(self, file, ask):
        fitted().save(file, support=False)
        loaded = FewShotClassifier.load(file)
        with pytest.raises(UserError, match="saved without its support examples") as error:
            ask(loaded)
        one_sentence(error)

    def test_the_examples_are_not_in_the_file(self, file, tmp_path):
        fitted().save(file, support=False)
        fitted().save(tmp_path / "with.safetensors")
        assert {"support", "numbers"}.isdisjoint(read_tensors(file)[0])
        tensors, _ = read_tensors(tmp_path / "with.safetensors")
        assert tensors["support"].shape == (8, 784)
        assert tensors["numbers"].tolist() == [1, 1, 1, 2, 2, 2, 0, 0]

    @pytest.mark.parametrize(("head", "options"), WITH_SUPPORT_ONLY, ids=str)
    def test_a_head_that_needs_its_examples_is_not_saved_without(self, file, head, options):
        file.write_bytes(b"old")
        with pytest.raises(
            UserError, match=f"The head '{head}' cannot predict without support examples"
        ) as error:
            fitted(head, options).save(file, support=False)
        one_sentence(error)
        assert file.read_bytes() == b"old"


class TestNetworks:
    def test_a_pretrained_one_is_named_and_not_stored(self, file):
        fitted(backbone="blobs").save(file, support=False)
        tensors, info = read_tensors(file)
        assert not any(name.startswith("model.backbone") for name in tensors)
        assert info["model"]["backbone"] == "blobs"
        assert file.stat().st_size < 20_000 < Blobs().weight.numel()

    def test_a_trained_one_is_stored_whole(self, file, tmp_path):
        model_of(backbone="conv4s", temperature=1.2).save(tmp_path / "model")
        classifier = FewShotModel.from_pretrained(tmp_path / "model").adapt(pictures(), LABELS)
        expected = classifier.predict_proba(QUERIES)
        classifier.save(file)
        shutil.rmtree(tmp_path / "model")
        torch.manual_seed(1)
        np.testing.assert_array_equal(FewShotClassifier.load(file).predict_proba(QUERIES), expected)

    @pytest.mark.parametrize("support", [True, False])
    def test_another_version_of_a_pretrained_one_is_refused(self, file, monkeypatch, support):
        fitted(backbone="blobs").save(file, support=support)
        FewShotClassifier.load(file)
        monkeypatch.setattr(Blobs, "version", 1)
        assert "fit it again" in refused(file, "was made with another version of blobs than is installed")

    def test_another_preprocessing_is_refused(self, file, monkeypatch):
        fitted(backbone="blobs").save(file)
        monkeypatch.setattr(Blobs, "preprocessing", Preprocessing(8, 1, (0.4,), (0.25,)))
        refused(file, "other preprocessing of blobs than is installed")

    def test_a_stored_one_that_changed_is_refused(self, file):
        fitted(backbone="conv4s").save(file)
        tensors, info = read_tensors(file)
        name = next(name for name in tensors if name.startswith("model.backbone") and "weight" in name)
        tensors[name].view(-1)[0] += 1
        write_damaged(file, tensors, info)
        refused(file, "is damaged: its checksum does not match")

    def test_one_that_is_not_installed_is_named(self, file, monkeypatch):
        fitted(backbone="blobs").save(file)
        monkeypatch.delitem(_BACKBONES, "blobs")
        refused(file, "There is no backbone 'blobs'")


class TestAdding:
    @pytest.mark.parametrize("head", ["gpldla-auto", "gpldla", "protonet", "matchingnet"])
    def test_shots_and_classes_added_to_a_loaded_one_equal_adapting_to_all(self, file, head):
        images, labels = pictures((3, 3, 2, 2)), [*LABELS, "owl", "owl"]
        model = model_of(head, backbone="conv4s")
        model.adapt(images[:6], labels[:6]).save(file)
        added = FewShotClassifier.load(file).add(images[6:8], labels[6:8]).add(images[8:], labels[8:])
        whole = model.adapt(images, labels)
        assert added.classes.tolist() == whole.classes.tolist() == ["ant", "cat", "dog", "owl"]
        np.testing.assert_allclose(added.predict_proba(QUERIES), whole.predict_proba(QUERIES), atol=1e-6)
        np.testing.assert_allclose(added.leave_one_out(), whole.leave_one_out(), atol=1e-6)

    def test_another_shot_of_a_known_class(self, file):
        images = pictures((3, 3, 3))
        model_of().adapt(images[:8], LABELS).save(file)
        added = FewShotClassifier.load(file).add(images[8:], ["ant"])
        whole = model_of().adapt(images, [*LABELS, "ant"])
        np.testing.assert_allclose(added.predict_proba(QUERIES), whole.predict_proba(QUERIES), atol=1e-6)
        np.testing.assert_allclose(added.none_of_these(QUERIES), whole.none_of_these(QUERIES), atol=1e-5)

    def test_leaves_the_loaded_one_as_it_was(self, file):
        fitted().save(file)
        loaded = FewShotClassifier.load(file)
        before = loaded.predict_proba(QUERIES)
        loaded.add(QUERIES[:1], ["owl"])
        assert loaded.classes.tolist() == ["ant", "cat", "dog"]
        np.testing.assert_array_equal(loaded.predict_proba(QUERIES), before)


@pytest.mark.parametrize("head", ["gpldla-auto", "gpldla", "protonet", "matchingnet"])
def test_moving_to_the_device_it_is_on_changes_nothing(file, head):
    classifier = fitted(head, backbone="conv4s")
    expected = classifier.predict_proba(QUERIES)
    assert classifier.to("cpu") is classifier
    np.testing.assert_array_equal(classifier.predict_proba(QUERIES), expected)
    classifier.to(torch.device("cpu")).save(file)
    np.testing.assert_array_equal(FewShotClassifier.load(file).to("cpu").predict_proba(QUERIES), expected)


class TestFailedSaves:
    @pytest.mark.parametrize(
        "labels",
        [
            [("a", 1), ("a", 2), ("b", 1)],
            [1.0, math.inf, 2.0],
            [b"a", b"b", b"c"],
            [1j, 2j, 3j],
        ],
        ids=["tuples", "infinite", "bytes", "complex"],
    )
    def test_class_names_that_json_cannot_hold_are_named(self, file, labels):
        file.write_bytes(b"old")
        classifier = model_of().adapt(pictures((1, 1, 1)), labels)
        with pytest.raises(UserError, match="so it cannot be saved") as error:
            classifier.save(file)
        assert any(repr(label) in one_sentence(error) for label in labels)
        assert file.read_bytes() == b"old"

    @pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
    def test_a_full_disk_leaves_the_old_file(self, file, monkeypatch, failing):
        fitted("protonet").save(file)
        before = file.read_bytes()

        def fail(*args):
            raise OSError("disk full")

        monkeypatch.setattr(failing, fail)
        with pytest.raises(OSError, match="disk full"):
            fitted().save(file)
        monkeypatch.undo()
        assert file.read_bytes() == before
        assert list(file.parent.iterdir()) == [file]

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(UserError, match="is a folder; name a file, such as") as error:
            fitted().save(tmp_path)
        one_sentence(error)
        assert list(tmp_path.iterdir()) == []

    def test_options_that_json_cannot_hold_are_named(self, file):
        file.write_bytes(b"old")
        classifier = fitted("gpldla", {"priors": range(1, 4)})
        with pytest.raises(UserError) as error:
            classifier.save(file)
        one_sentence(error)
        assert file.read_bytes() == b"old"


class TestForeignFiles:
    def test_a_missing_file_and_a_folder_are_named(self, file, tmp_path):
        refused(file, "There is no file")
        refused(tmp_path, "There is no file")

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"text",
            bytes(64),
            b"\xff" * 64,
            b'{"kind": "gpldla classifier"}',
            b"\x08" + bytes(7) + b"{}      ",
        ],
        ids=["empty", "text", "zeros", "ones", "json", "no tensors"],
    )
    def test_what_is_no_safetensors_file_is_refused(self, file, content):
        file.write_bytes(content)
        refused(file)

    def test_safetensors_of_other_programs_are_refused(self, file):
        save_file({"weight": torch.ones(3)}, file)
        refused(file, "is not a classifier; make one with `gpldla fit`")
        save_file({"weight": torch.ones(3)}, file, {"format": "pt"})
        refused(file, "is not a classifier; make one with `gpldla fit`")

    def test_the_weights_of_a_model_are_no_classifier(self, tmp_path):
        model_of(backbone="conv4s").save(tmp_path)
        refused(tmp_path / "model.safetensors", "is not a classifier")

    @pytest.mark.parametrize(
        "info", [None, [], "text", 3, {"kind": "gpldla checkpoint"}, {"kind": [KIND]}], ids=str
    )
    def test_other_facts_are_refused(self, file, info):
        save_file({"weight": torch.ones(3)}, file, {"info": json.dumps(info)})
        refused(file, "is not a classifier")

    @pytest.mark.parametrize("info", ["{", "", "nothing", "\u0001"])
    def test_facts_that_are_no_json_are_refused(self, file, info):
        save_file({"weight": torch.ones(3)}, file, {"info": info})
        refused(file)

    def test_facts_nested_too_deeply_are_refused(self, file):
        save_file({"weight": torch.ones(3)}, file, {"info": "[" * 100_000})
        refused(file)

    @pytest.mark.parametrize("number", [FORMAT_WITH_OWN_PRIOR + 1, 0, None, "1", [FORMAT], 1.5], ids=str)
    def test_another_format_is_refused(self, file, number):
        fitted().save(file)
        tensors, info = read_tensors(file)
        write_tensors(file, tensors, {**info, "format": number})
        refused(
            file,
            f"has format {number!r}, this version of gpldla reads {FORMAT} and {FORMAT_WITH_OWN_PRIOR};",
            "update gpldla",
        )

    @pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.999])
    def test_a_truncated_file_is_refused(self, file, share):
        fitted().save(file)
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        refused(file)

    def test_nothing_is_unpickled(self, file, tmp_path, monkeypatch):
        marker = tmp_path / "marker"

        class Harmful:
            def __reduce__(self):
                return Path.touch, (marker,)

        for write in (
            lambda: file.write_bytes(pickle.dumps(Harmful())),
            lambda: torch.save({"weight": torch.ones(1), "harm": Harmful()}, file),
        ):
            write()
            refused(file, "is not a readable safetensors file")
            assert not marker.exists()

        def fail(*args, **options):
            raise AssertionError("something is unpickled")

        fitted("protonet", backbone="conv4s").save(file)
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(pickle, name, fail)
        monkeypatch.setattr(torch, "load", fail)
        FewShotClassifier.load(file)


class Whole:
    """A saved classifier to be damaged, and what it answered."""

    def __init__(self, folder, head="gpldla-auto", options=None, backbone="pixels", *, support=True):
        classifier = fitted(head, options, backbone)
        if classifier.has_novelty:
            classifier.calibrate_novelty()
        self.file = folder / "classifier.safetensors"
        classifier.save(self.file, support=support)
        self.content = self.file.read_bytes()
        self.tensors, self.info = read_tensors(self.file)
        self.answers = classifier.predict_proba(QUERIES)
        self.has_novelty = head == "gpldla-auto"

    def check(self, name=None, tensor=None, info=None):
        """Write the file with another tensor, or without, or other facts: no wrong answer may come of it."""
        tensors = dict(self.tensors)
        if name is not None:
            del tensors[name]
        if tensor is not None:
            tensors[name] = tensor
        write_damaged(self.file, tensors, self.info if info is None else info)
        return self.check_file()

    def check_file(self):
        """Load: either a sentence, or a classifier that answers as before in all that it does."""
        try:
            loaded = FewShotClassifier.load(self.file)
        except UserError:
            refused(self.file)
            return "refused"
        np.testing.assert_allclose(loaded.predict_proba(QUERIES), self.answers, atol=1e-6)
        if self.has_novelty:
            loaded.none_of_these(QUERIES)
            loaded.uncertainty(QUERIES)
        if loaded.support is not None:
            loaded.leave_one_out()
            loaded.add(QUERIES[:1], ["cat"])
        return "loaded"


def other_sizes(tensor):
    """Some of the same numbers in other shapes."""
    others = [tensor.new_empty(0), tensor.unsqueeze(0)]
    if tensor.ndim:
        others += [tensor.new_ones(()), torch.cat([tensor, tensor]), tensor[:-1], tensor[:1], tensor[..., :1]]
        others += [tensor.flatten()[: tensor.numel() // 2]]
    return [other for other in others if other.shape != tensor.shape]


MOMENTS = ["posterior.weight_mean", "posterior.bias_mean", "posterior.weight_var", "posterior.bias_var"]
OF_SPACE = ["posterior.beta", "space.center", "space.directions", "space.shrink"]
OF_SUPPORT = ["support", "numbers"]
OF_NOVELTY = ["novelty.means", "novelty.shrink", "novelty.spread"]
OF_SCALE = ["scale.spread", "scale.log_pi"]
EVERY_ONE = [*MOMENTS, *OF_SPACE, *OF_SCALE, *OF_NOVELTY, *OF_SUPPORT]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """Files with and without examples, and of heads that adapt anew when they are loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_BACKBONES, "blobs", Blobs)
        make = tmp_path_factory.mktemp
        return {
            "with examples": Whole(make("with")),
            "without examples": Whole(make("without"), support=False),
            "full covariance": Whole(make("full"), options=FULL),
            "gpldla": Whole(make("gpldla"), "gpldla"),
            "protonet": Whole(make("protonet"), "protonet"),
        }


def problems_of(attempts):
    """Call each attempt; return those in which something else than a sentence or right answers came."""
    problems = []
    for name, attempt in attempts:
        try:
            attempt()
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}")
        except pytest.fail.Exception as error:
            problems.append(f"{name}: {error}")
    return problems


class TestDamagedTensors:
    def test_what_is_saved_is_what_is_damaged_here(self, wholes):
        names = set(wholes["with examples"].tensors)
        assert {name for name in names if not name.startswith("model.")} - {"posterior.sigma2"} == set(
            EVERY_ONE
        )
        for whole in wholes.values():
            whole.file.write_bytes(whole.content)
            assert whole.check_file() == "loaded"

    def test_without_weights_or_variances_it_is_refused(self, wholes):
        for name in MOMENTS:
            assert wholes["without examples"].check(name) == "refused"
        for name in OF_SUPPORT:
            assert wholes["protonet"].check(name) == "refused"

    def test_weights_and_examples_of_another_size_are_refused(self, wholes):
        for name in ("posterior.weight_mean", *OF_SUPPORT):
            whole = wholes["with examples"]
            for tensor in other_sizes(whole.tensors[name]):
                assert whole.check(name, tensor) == "refused", (name, tensor.shape)

    def test_what_none_of_these_compares_with_is_refused_in_another_size(self, wholes):
        for name in OF_NOVELTY:
            whole = wholes["without examples"]
            for tensor in other_sizes(whole.tensors[name]):
                assert whole.check(name, tensor) == "refused", (name, tensor.shape)
            assert whole.check(name) == "refused"

    def test_a_missing_one_gives_no_wrong_answers(self, wholes):
        attempts = [
            (f"{kind}, {name}", partial(whole.check, name))
            for kind, whole in wholes.items()
            for name in EVERY_ONE
            if name in whole.tensors
        ]
        assert problems_of(attempts) == []

    def test_another_size_gives_no_wrong_answers(self, wholes):
        attempts = [
            (f"{kind}, {name} {list(tensor.shape)}", partial(whole.check, name, tensor))
            for kind, whole in wholes.items()
            for name in EVERY_ONE
            if name in whole.tensors
            for tensor in other_sizes(whole.tensors[name])
        ]
        assert problems_of(attempts) == []

    @pytest.mark.filterwarnings("ignore:Casting complex values")
    @pytest.mark.parametrize("kind", [torch.float16, torch.float64, torch.int32, torch.complex64], ids=str)
    def test_another_type_gives_no_wrong_answers(self, wholes, kind):
        attempts = [
            (f"{which}, {name}", partial(whole.check, name, whole.tensors[name].to(kind)))
            for which, whole in wholes.items()
            for name in EVERY_ONE
            if name in whole.tensors
        ]
        assert problems_of(attempts) == []

    @pytest.mark.parametrize("number", [-1, 3, 10**9])
    def test_a_number_of_no_class_is_refused_and_the_file_named(self, wholes, number):
        for name in ("with examples", "gpldla", "protonet"):
            numbers = wholes[name].tensors["numbers"].clone()
            numbers[2] = number
            assert wholes[name].check("numbers", numbers) == "refused"

    @pytest.mark.parametrize("name", [*MOMENTS, *OF_SPACE, *OF_NOVELTY, "support"])
    def test_a_flipped_bit_is_noticed(self, wholes, name):
        whole = wholes["with examples"]
        tensor = whole.tensors[name].clone()
        words = tensor.view(-1)[:1].view(torch.int32)
        words ^= 1 << 28  # of the exponent
        assert whole.check(name, tensor) == "refused"

    def test_weights_that_do_not_fit_are_refused_in_a_sentence(self, tmp_path):
        whole = Whole(tmp_path, "relationnet", backbone="conv4s")
        for part in ("model.backbone.", "model.head."):
            name = next(name for name in whole.tensors if name.startswith(part) and name.endswith("weight"))
            assert whole.check(name) == "refused"
            assert whole.check(name, whole.tensors[name][:1]) == "refused"


def paths_of(value, path=()):
    """All places in a nest of dicts and lists."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(part, (dict, list)):
            yield from paths_of(part, (*path, key))


def changed(info, path, value=None, *, remove=False):
    """The same facts with one of them changed or removed."""
    info = copy.deepcopy(info)
    place = info
    for key in path[:-1]:
        place = place[key]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return info


class TestAbsurdFacts:
    @pytest.fixture
    def whole(self, wholes):
        return wholes["with examples"]

    @pytest.mark.parametrize(
        "key", ["kind", "format", "classes", "model", "backbone_fingerprint"], ids=lambda key: key
    )
    def test_a_missing_one_is_refused(self, whole, key):
        assert whole.check(info=changed(whole.info, [key], remove=True)) == "refused"

    @pytest.mark.parametrize(
        "key", ["format", "backbone", "head", "head_options", "preprocessing", "temperature", "info"]
    )
    def test_a_missing_one_of_the_model_is_refused(self, whole, key):
        assert whole.check(info=changed(whole.info, ["model", key], remove=True)) == "refused"

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (["classes"], None),
            (["classes"], "abc"),
            (["classes"], 3),
            (["classes"], {"a": 1, "b": 2, "c": 3}),
            (["classes"], []),
            (["classes"], ["a", "b"]),
            (["classes"], ["a", "b", "c", "d"]),
            (["model"], []),
            (["model"], None),
            (["model", "backbone"], "pixel"),
            (["model", "backbone"], ["pixels"]),
            (["model", "backbone"], {}),
            (["model", "head"], "gpldla-aut"),
            (["model", "head"], 7),
            (["model", "head_options"], {"betta": 1}),
            (["model", "head_options"], {"beta": -1}),
            (["model", "head_options"], {"metric": [[1]]}),
            (["model", "head_options"], [1]),
            (["model", "temperature"], 0),
            (["model", "temperature"], float("nan")),
            (["model", "temperature"], [1]),
            (["model", "temperature"], "warm"),
            (["model", "info"], 3),
            (["model", "preprocessing"], None),
            (["model", "preprocessing", "mean"], [0.1]),
            (["backbone_fingerprint"], None),
            (["backbone_fingerprint"], 0),
            (["novelty_of_fit"], None),
            (["novelty_of_fit"], []),
            (["novelty_of_fit"], [1]),
            (["novelty_of_fit"], [1, 2, 3]),
            (["novelty_of_fit"], ["a", "b"]),
            (["novelty_of_fit"], [[], {}]),
            (["novelty_of_fit"], {"slope": 1, "offset": 2}),
        ],
        ids=str,
    )
    def test_a_wrong_one_is_refused(self, whole, path, value):
        assert whole.check(info=changed(whole.info, path, value)) == "refused"

    @pytest.mark.parametrize(
        "value",
        [["a", "a", "b"], [["a"], ["b"], ["c"]], [{}, {}, {}], [None, None, None], ["a", "b", None]],
        ids=str,
    )
    def test_what_is_no_list_of_class_names_is_refused(self, whole, value):
        assert whole.check(info=changed(whole.info, ["classes"], value)) == "refused"

    @pytest.mark.parametrize(
        "path", [["model", "temperature"], ["novelty_of_fit", 0], ["novelty_of_fit", 1]], ids=str
    )
    def test_numbers_too_large_for_a_float_are_refused(self, whole, path):
        assert whole.check(info=changed(whole.info, path, 10**400)) == "refused"

    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[FIXTURE])
    @given(data=st.data())
    def test_anything_anywhere_raises_nothing_but_a_sentence(self, whole, data):
        scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
        anything = st.recursive(
            scalars,
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
            ),
            max_leaves=5,
        )
        path = data.draw(st.sampled_from(sorted(paths_of(whole.info), key=str)))
        value = data.draw(anything)
        write_damaged(whole.file, whole.tensors, changed(whole.info, path, value))
        try:
            loaded = FewShotClassifier.load(whole.file)
        except UserError:
            return
        assert loaded.predict_proba(QUERIES).shape == (6, 3)

    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[FIXTURE])
    @given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
    def test_other_bytes_in_the_header_raise_nothing_but_a_sentence(self, whole, places):
        content = bytearray(whole.content)
        length = 8 + int.from_bytes(content[:8], "little")
        for place, byte in places:
            content[int(place * (length - 1))] = byte
        whole.file.write_bytes(content)
        with contextlib.suppress(UserError):
            FewShotClassifier.load(whole.file)


def test_a_pretrained_network_that_was_trained_on_is_in_the_file(file, tmp_path):
    """Else the installed weights would stand in for the trained ones, or the file would be refused."""
    model = FewShotModel("blobs", "gpldla-auto")
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.mul_(1.5)
    model.save(tmp_path / "trained")
    trained = FewShotModel.from_pretrained(tmp_path / "trained")
    classifier = trained.adapt(pictures(), LABELS)
    classifier.save(file)
    loaded = FewShotClassifier.load(file)
    assert loaded.model.backbone.fingerprint() == model.backbone.fingerprint()
    np.testing.assert_array_equal(loaded.predict_proba(QUERIES), classifier.predict_proba(QUERIES))
    assert any(name.startswith("model.backbone.") for name in read_tensors(file)[0])
