"""Sharing on the Hugging Face Hub, against a stand-in: uploads land where the hub's own library looks."""

import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from gpldla import FewShotClassifier, FewShotModel
from gpldla.utils.errors import UserError
from tests.classifier.test_file import LABELS, pictures

huggingface_hub = pytest.importorskip("huggingface_hub")
COMMITS = iter(f"{number:040x}" for number in range(1, 100))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """What huggingface_hub finds in its cache is what was uploaded; there is no network."""
    cache = tmp_path / "hub"
    api = mock.create_autospec(huggingface_hub.HfApi, instance=True)  # refuses arguments that do not exist
    api.repos = {}

    def create(name, *, private, exist_ok):
        api.repos.setdefault(name, private)
        return f"https://huggingface.co/{name}"

    def upload(*, repo_id, folder_path, commit_message):
        assert repo_id in api.repos
        root, commit = cache / f"models--{repo_id.replace('/', '--')}", next(COMMITS)
        before = root / "refs" / "main"
        if before.exists():  # a commit keeps the files that it does not replace
            shutil.copytree(root / "snapshots" / before.read_text(), root / "snapshots" / commit)
        shutil.copytree(folder_path, root / "snapshots" / commit, dirs_exist_ok=True)
        before.parent.mkdir(exist_ok=True)
        before.write_text(commit)

    api.create_repo.side_effect, api.upload_folder.side_effect = create, upload
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda token=None: api)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return api


@pytest.fixture
def classifier(tmp_path):
    """A classifier of picture files, whose names are private."""
    from PIL import Image

    files = [tmp_path / f"secret-{number}.png" for number in range(len(LABELS))]
    for file, pixels in zip(files, pictures()):
        Image.fromarray(pixels).save(file)
    return FewShotModel("pixels", "gpldla-auto").adapt(files, LABELS)


def uploaded(cache: Path) -> dict[str, Path]:
    return {file.name: file for file in cache.rglob("*") if file.is_file() and "refs" not in file.parts}


class TestClassifier:
    def test_comes_back_with_the_same_answers(self, hub, classifier, tmp_path):
        page = classifier.push_to_hub("somebody/birds", license="mit")
        assert page == "https://huggingface.co/somebody/birds"
        loaded = FewShotClassifier.from_pretrained("somebody/birds")
        np.testing.assert_array_equal(loaded.predict_proba(pictures()), classifier.predict_proba(pictures()))
        assert len(loaded.labels) == len(LABELS)

    def test_is_private_and_without_the_names_of_files_unless_asked(self, hub, classifier, tmp_path):
        classifier.push_to_hub("somebody/birds")
        classifier.push_to_hub("somebody/open", private=False, names=True)
        assert hub.repos == {"somebody/birds": True, "somebody/open": False}
        assert FewShotClassifier.from_pretrained("somebody/birds").names is None
        assert FewShotClassifier.from_pretrained("somebody/open").names == classifier.names
        for file in uploaded(tmp_path / "hub" / "models--somebody--birds").values():
            assert b"secret" not in file.read_bytes()

    def test_the_files_are_data_and_a_card(self, hub, classifier, tmp_path):
        classifier.push_to_hub("somebody/birds", license="mit")
        files = uploaded(tmp_path / "hub")
        assert sorted(files) == ["README.md", "classifier.safetensors"]
        card = huggingface_hub.ModelCard.load(files["README.md"])
        assert card.data.library_name == "gpldla"
        assert card.data.pipeline_tag == "image-classification"
        assert card.data.license == "mit"
        assert 'FewShotClassifier.from_pretrained("somebody/birds")' in card.text
        for name, count in classifier.info()["examples"].items():
            assert f"| {name} | {count} |" in card.text
        assert f"accuracy {classifier.info()['leave_one_out']['accuracy']:.1f} %" in card.text

    def test_a_revision_is_chosen(self, hub, classifier):
        classifier.push_to_hub("somebody/birds")
        [first] = [path.name for path in Path(huggingface_hub.constants.HF_HUB_CACHE).glob("*/snapshots/*")]
        classifier.remove([0]).push_to_hub("somebody/birds")
        latest = FewShotClassifier.from_pretrained("somebody/birds")
        before = FewShotClassifier.from_pretrained("somebody/birds", revision=first)
        assert (len(before.labels), len(latest.labels)) == (len(LABELS), len(LABELS) - 1)


def test_a_folder_is_shared_without_the_hub(classifier, tmp_path, monkeypatch):
    classifier.save_pretrained(tmp_path / "shared")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    loaded = FewShotClassifier.from_pretrained(tmp_path / "shared")
    assert loaded.classes.tolist() == classifier.classes.tolist()
    with pytest.raises(UserError, match=r"no folder some/body, and .* pip install 'gpldla\[hf\]'"):
        FewShotClassifier.from_pretrained("some/body")


def test_a_trained_network(hub, tmp_path):
    info = {"recipe": {"dataset": "folder:/home/me/secret/photos"}, "validation_accuracy": 81.25}
    model = FewShotModel("conv4s", "gpldla", info=info)
    model.push_to_hub("somebody/network")
    loaded = FewShotModel.from_pretrained("somebody/network")
    assert loaded.backbone.fingerprint() == model.backbone.fingerprint()
    files = uploaded(tmp_path / "hub")
    assert sorted(files) == ["README.md", "config.json", "model.safetensors"]
    card = huggingface_hub.ModelCard.load(files["README.md"]).text
    assert "Meta-trained on `photos`" in card
    assert "81.25 %" in card
    assert "secret" not in card


def test_folders_come_first_and_paths_are_never_names(hub, classifier, tmp_path, monkeypatch):
    classifier.push_to_hub("somebody/birds")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"There is no file somebody/birds/classifier\.safetensors"):
        FewShotClassifier.from_pretrained(Path("somebody/birds"))
    classifier.remove([0]).save_pretrained("somebody/birds")
    assert len(FewShotClassifier.from_pretrained("somebody/birds").labels) == len(LABELS) - 1
    with pytest.raises(UserError, match="revision is for names of the Hugging Face Hub"):
        FewShotClassifier.from_pretrained("somebody/birds", revision="main")


def test_what_cannot_be_reached_is_said_in_a_sentence(hub, classifier):
    with pytest.raises(
        UserError, match=r"no folder runs/nothing, and it could not be loaded from the Hugging"
    ):
        FewShotModel.from_pretrained("runs/nothing")
    with pytest.raises(UserError, match="'birds' is no name for the Hugging Face Hub; write USER/NAME"):
        classifier.push_to_hub("birds")
    for error in (huggingface_hub.errors.LocalTokenNotFoundError("No token"), Exception("No token")):
        hub.create_repo.side_effect = (
            error  # the second as of its HTTP library, whose errors have no common kind
        )
        with pytest.raises(UserError, match=r"could not be uploaded .*No token.*`hf auth login`"):
            classifier.push_to_hub("somebody/birds")
