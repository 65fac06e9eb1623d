"""Names of classes as a prior of classifiers of pictures and texts, with tiny networks."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla import FewShotClassifier, FewShotModel
from gpldla.classifier.class_names import ClassNames, in_words
from gpldla.classifier.resolve import resolve_model
from gpldla.utils.errors import UserError
from tests.backbones.hub_models import save_sentence_encoder, save_tiny

pytest.importorskip("transformers")
LABELS = ["black_wren", "robin", "black_wren", "robin"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip") / "clip"
    save_tiny("clip", folder)
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(4)]


@pytest.fixture
def classifier(clip, pictures):
    model = resolve_model(clip)
    names = ClassNames.embed(model, ["black_wren", "robin", "tit"])
    return model.adapt(pictures, LABELS, class_names=names)


def test_prompts_are_averaged(clip):
    model = resolve_model(clip)
    prompts = ["a photo of {}", "{} in a tree"]
    names = ClassNames.embed(model, {"w": ["wren", "troglodytes"], "r": "robin"}, prompts)
    with torch.no_grad():
        texts = [prompt.replace("{}", word) for word in ("wren", "troglodytes") for prompt in prompts]
        features = model.backbone.text_features(texts)
    expected = (features / features.norm(dim=1, keepdim=True)).mean(0)
    torch.testing.assert_close(names.vectors["w"], expected)
    assert set(names.vectors) == {"w", "r"}


def test_a_class_may_have_a_name_only(classifier, pictures):
    assert classifier.classes.tolist() == ["black_wren", "robin", "tit"]
    proba = classifier.predict_proba(pictures)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)
    assert (proba[:, 2] > 0).all()
    assert not classifier.has_novelty
    with pytest.raises(UserError, match="needs an example of every class"):
        classifier.none_of_these(pictures)
    assert len(set(classifier.suggest(pictures, 3).tolist())) == 3


def test_the_names_are_used(classifier, clip, pictures):
    plain = resolve_model(clip).adapt(pictures, LABELS)
    assert np.abs(classifier.predict_proba(pictures)[:, :2] - plain.predict_proba(pictures)).max() > 1e-3
    head = classifier.task.head
    assert torch.allclose(head.prior_mean[0], classifier.class_names.vectors["black_wren"])


def test_saved_and_loaded(classifier, pictures, tmp_path):
    for support in (True, False):
        classifier.save(tmp_path / "c.safetensors", support=support)
        loaded = FewShotClassifier.load(tmp_path / "c.safetensors")
        np.testing.assert_allclose(
            loaded.predict_proba(pictures), classifier.predict_proba(pictures), atol=1e-6
        )
        assert set(loaded.class_names.vectors) == {"black_wren", "robin", "tit"}


def test_a_loaded_classifier_keeps_the_names_when_it_changes(classifier, pictures, tmp_path):
    classifier.save(tmp_path / "c.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "c.safetensors")
    for changed, same in (
        (loaded.add(pictures[:1], ["tit"]), classifier.add(pictures[:1], ["tit"])),
        (loaded.add(pictures[:1], ["jay"]), classifier.add(pictures[:1], ["jay"])),
        (loaded.relabel([0], ["robin"]), classifier.relabel([0], ["robin"])),
        (loaded.remove([3]), classifier.remove([3])),
    ):
        assert changed.class_names is not None
        np.testing.assert_allclose(changed.predict_proba(pictures), same.predict_proba(pictures), atol=1e-5)
    assert "jay" in loaded.add(pictures[:1], ["jay"]).classes
    assert not loaded.add(pictures[:1], ["jay"]).task.head.prior_mean[1].any()  # of the jay


def test_exported(classifier, pictures, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from gpldla.data.pictures import picture_pixels
    from gpldla.export.classifiers import export_fitted

    export_fitted(classifier, tmp_path / "c.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    pixels = np.stack([picture_pixels(picture, classifier.model.preprocessing) for picture in pictures])
    answers = session.run(None, {"images": pixels})[0]
    np.testing.assert_allclose(answers, classifier.predict_proba(pictures), atol=1e-4)


@pytest.mark.parametrize(
    ("names", "prompts", "message"),
    [
        (["a", "b"], ["a photo"], "prompt 'a photo' has no {}"),
        (["a", "b"], [], "There are no prompts"),
        ({"a": "", "b": "x"}, None, "class 'a' has no name in words"),
        ({"a": [], "b": "x"}, None, "class 'a' has no name in words"),
    ],
)
def test_wrong_names(clip, names, prompts, message):
    with pytest.raises(UserError, match=message):
        ClassNames.embed(resolve_model(clip), names, prompts)


def test_networks_and_heads_without_names():
    with pytest.raises(UserError, match="no encoder of texts"):
        ClassNames.embed(resolve_model("pixels"), ["a", "b"])
    with pytest.raises(UserError, match="need the head 'gpldla-auto', not 'protonet'"):
        ClassNames.embed(FewShotModel("pixels", "protonet"), ["a", "b"])


def test_labels_in_words():
    assert in_words("black_footed-albatross") == "black footed albatross"
    assert in_words(7) == "7"


class TestCommand:
    @pytest.fixture
    def run(self, monkeypatch, tmp_path, capsys):
        from gpldla.cli import main

        monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "cache"))

        def call(*arguments):
            monkeypatch.setattr("sys.argv", ["gpldla", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
            return ended.value.code or 0, *capsys.readouterr()

        return call

    def test_pictures(self, run, clip, pictures, tmp_path):
        for index, (label, picture) in enumerate(zip(LABELS, pictures)):
            (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
            picture.save(tmp_path / "photos" / label / f"{index}.png")
        file = tmp_path / "c.safetensors"
        prompt = ("--prompt", "a photo of a {}, a bird.")
        code, out, err = run("fit", tmp_path / "photos", "--names", *prompt, "--model", clip, "-o", file)
        assert code == 0, err
        assert "uses what the names of the classes mean" in out
        loaded = FewShotClassifier.load(file)
        with torch.no_grad():
            text = loaded.model.backbone.text_features(["a photo of a black wren, a bird."])[0]
        torch.testing.assert_close(loaded.class_names.vectors["black_wren"], text / text.norm())
        assert run("predict", file, tmp_path / "photos")[0] == 0
        code, _, err = run("fit", tmp_path / "photos", "--names", "--model", "pixels", "-o", file)
        assert (code, "no encoder of texts" in err) == (2, True)
        code, _, err = run("fit", tmp_path / "photos", *prompt, "--model", clip, "-o", file)
        assert (code, "--prompt is for --names" in err) == (2, True)

    def test_info_of_a_class_that_has_a_name_only(self, run, classifier, tmp_path):
        classifier.save(tmp_path / "c.safetensors")
        code, out, err = run("info", tmp_path / "c.safetensors")
        assert code == 0, err
        assert "class names" in out
        assert "tit" in out
        code, out, _ = run("info", tmp_path / "c.safetensors", "--json")
        facts = json.loads(out)
        assert facts["names_as_prior"]
        assert facts["examples"] == {"black_wren": 2, "robin": 2, "tit": 0}

    def test_texts(self, run, tmp_path):
        pytest.importorskip("sentence_transformers")
        save_sentence_encoder(tmp_path / "encoder")
        table = tmp_path / "t.csv"
        table.write_text(
            "text,topic\nmy parcel is late,delivery\nI want my money,refund\nwhere is it,delivery\n"
        )
        options = ("--text", "text", "--label", "topic", "--model", f"st:{tmp_path / 'encoder'}", "--names")
        code, _, err = run("fit", table, *options, "-o", tmp_path / "t.safetensors")
        assert code == 0, err
        code, out, _ = run("predict", tmp_path / "t.safetensors", "a late parcel", "--json")
        assert code == 0
        assert "delivery" in out
