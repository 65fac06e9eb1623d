"""The first answer of a process: from the graph in a classifier's file, without torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from gpldla import FewShotClassifier, FewShotModel
from gpldla.classifier.resolve import resolve_model
from gpldla.classifier.stored_graph import GRAPH, read_stored_graph
from gpldla.cli.quick import FEW, answered
from gpldla.export import graph_of
from gpldla.utils.errors import UserError
from tests.helpers import call

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


def write_pictures(folder):
    """Three bright and three dark pictures, as files in class folders."""
    rng = np.random.default_rng(0)
    for name, level in (("dark", 0), ("bright", 120)):
        for number in range(3):
            path = folder / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = rng.integers(level, level + 130, (300, 260, 3))
            Image.fromarray(levels.astype(np.uint8)).save(path, quality=95)
    return sorted(folder.rglob("*.jpg"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def classifier(files):
    return resolve_model("pixels").adapt(files, [path.parent.name for path in files])


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "with graph.safetensors"
    classifier.save(file, graph=graph_of(classifier))
    return file


class TestGraph:
    def test_it_answers_as_the_classifier(self, saved, classifier, files):
        loaded = FewShotClassifier.load(saved)
        proba, none = read_stored_graph(saved).predict(files, 0.1)
        assert proba.std() > 0.05
        np.testing.assert_allclose(proba, loaded.predict_proba(files), atol=1e-4)
        np.testing.assert_allclose(none, loaded.none_of_these(files, prevalence=0.1), atol=1e-3)
        np.testing.assert_allclose(proba, classifier.predict_proba(files), atol=1e-4)

    @pytest.mark.parametrize("support", [True, False])
    def test_with_rows_without_labels_and_without_support(self, files, tmp_path, support):
        model = FewShotModel("pixels", "gpldla-auto", zoom=1.0, mirrored=True)
        fitted = model.adapt(files[1:], [path.parent.name for path in files[1:]], unlabelled=files * 4)
        assert fitted.task.labelled_only is not None
        fitted.save(tmp_path / "a", graph=graph_of(fitted), support=support)
        proba, none = read_stored_graph(tmp_path / "a").predict(files, 0.3)
        np.testing.assert_allclose(proba, fitted.predict_proba(files), atol=1e-4)
        np.testing.assert_allclose(none, fitted.none_of_these(files, prevalence=0.3), atol=1e-3)

    def test_with_a_prior_of_the_tasks_own(self, files, tmp_path):
        labels = [path.parent.name for path in files]
        fitted = FewShotModel.from_pretrained("omniglot-emnist-conv4s-5shot").adapt(files, labels)
        fitted = FewShotClassifier(fitted.model, fitted.classes, fitted.task.with_own_prior(0.4))
        fitted.save(tmp_path / "a", graph=graph_of(fitted))
        proba, _ = read_stored_graph(tmp_path / "a").predict(files, 0.1)
        np.testing.assert_allclose(proba, fitted.predict_proba(files), atol=1e-4)
        assert np.abs(proba - fitted.with_temperature(fitted.temperature).predict_proba(files)).max() > 1e-3

    def test_a_head_that_cannot_tell_unknown_items(self, files, tmp_path):
        fitted = FewShotModel("pixels", "protonet").adapt(files, [1, 1, 1, 2, 2, 2])
        fitted.save(tmp_path / "a", graph=graph_of(fitted))
        graph = read_stored_graph(tmp_path / "a")
        proba, none = graph.predict(files, 0.1)
        assert none is None
        assert graph.classes.tolist() == [1, 2]
        np.testing.assert_allclose(proba, fitted.predict_proba(files), atol=1e-4)

    def test_others_have_none(self, classifier, files, tmp_path):
        classifier.save(tmp_path / "plain.safetensors")
        (tmp_path / "text").write_text("no classifier")
        for name in ("plain.safetensors", "text", "nowhere"):
            assert read_stored_graph(tmp_path / name) is None

    def test_a_changed_classifier_loses_it(self, saved, files, tmp_path):
        FewShotClassifier.load(saved).add(files[:1], ["dark"]).save(tmp_path / "a")
        with safe_open(tmp_path / "a", "np") as opened:
            assert GRAPH not in opened.keys()  # noqa: SIM118 (not a dict)
        assert read_stored_graph(tmp_path / "a") is None

    def test_every_changed_byte_is_noticed(self, saved, tmp_path):
        content = saved.read_bytes()
        for place in np.linspace(8, len(content) - 1, 40).astype(int):
            changed = bytearray(content)
            changed[place] ^= 1
            (tmp_path / "a").write_bytes(changed)
            assert read_stored_graph(tmp_path / "a") is None
            with pytest.raises(UserError):
                FewShotClassifier.load(tmp_path / "a")

    def test_a_user_may_want_torch(self, saved, monkeypatch):
        monkeypatch.setenv("GPLDLA_ENGINE", "torch")
        assert read_stored_graph(saved) is None

    def test_what_has_no_graph_says_so(self, files):
        relations = FewShotModel("conv4snp", "relationnet").adapt(files, [1, 1, 1, 2, 2, 2])
        with pytest.raises(UserError, match="leave the graph out"):
            graph_of(relations)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["typer"] = None  # to import them fails
from gpldla.cli import main
main()
"""


class TestCommand:
    def test_it_needs_no_torch_and_prints_the_same(self, saved, files, monkeypatch):
        arguments = ["predict", str(saved), *map(str, files[:4])]
        quick = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True, check=True
        )
        monkeypatch.setenv("GPLDLA_ENGINE", "torch")
        plain = subprocess.run(
            [sys.executable, "-m", "gpldla", *arguments], capture_output=True, text=True, check=True
        )
        assert quick.stdout == plain.stdout
        assert quick.stdout.count("bright") >= 3

    def test_options_give_the_same_numbers(self, saved, files, capsys, monkeypatch):
        given = ["predict", str(saved), str(files[0]), "--json", "--max-error", "0.01", "--prevalence", "0.5"]
        found = []
        for engine in ("auto", "torch"):
            monkeypatch.setenv("GPLDLA_ENGINE", engine)
            assert call(*given) == 0
            found.append(json.loads(capsys.readouterr().out)[0])
        quick, plain = found
        assert (quick["item"], quick["label"], quick["unsure"]) == (
            plain["item"],
            plain["label"],
            plain["unsure"],
        )
        assert quick["none_of_these"] == pytest.approx(plain["none_of_these"], abs=1e-3)
        assert quick["probabilities"] == pytest.approx(plain["probabilities"], abs=1e-4)

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["predict"],
            ["predict", "FILE"],
            ["predict", "FILE", "--help"],
            ["predict", "FILE", "PICTURE", "--json"],
            ["predict", "FILE", "nowhere.jpg"],
            ["predict", "nowhere", "PICTURE"],
            ["predict", "FILE", "FOLDER"],
            ["predict", "FILE", "FILE"],
            ["fit", "FILE", "PICTURE"],
            ["predict", "FILE", *["PICTURE"] * (FEW + 1)],
        ],
    )
    def test_all_else_is_left_to_the_command(self, saved, files, arguments, capsys):
        stands = {"FILE": str(saved), "PICTURE": str(files[0]), "FOLDER": str(files[0].parent)}
        assert not answered([stands.get(argument, argument) for argument in arguments])
        assert capsys.readouterr() == ("", "")

    def test_fit_stores_the_graph(self, files, tmp_path, capsys):
        output = tmp_path / "a.safetensors"
        photos = files[0].parent.parent
        assert call("fit", photos, "-o", output, "--model", "pixels", "--graph") == 0
        assert read_stored_graph(output) is not None
        capsys.readouterr()
        assert answered(["predict", str(output), str(files[0])])
        assert "bright" in capsys.readouterr().out
