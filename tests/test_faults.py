"""Every call that changes a file fails in turn: the old files stay whole, and the next try succeeds."""

import contextlib

import numpy as np
import pytest
import torch

from gpldla.bulk.parts import remove_damaged, write_part
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel
from gpldla.data.store import cached_store, check_store, write_store
from gpldla.training import checkpoint
from gpldla.training import run as training
from gpldla.utils.errors import UserError
from tests.faults import failing_at
from tests.helpers import tiny_protocol, tiny_recipe, tiny_set

MOST = 300  # calls that an operation may make


def model(temperature):
    torch.manual_seed(0)
    return FewShotModel("pixels", "gpldla-auto", temperature=temperature)


def classifier(temperature):
    pictures = list(tiny_set((2, 2), size=8).images[:, 0])
    return model(temperature).adapt(pictures, ["a", "a", "b", "b"])


class Model:
    def write(self, folder, content):
        model(content).save(folder / "model")

    def read(self, folder):
        return FewShotModel.from_pretrained(folder / "model").temperature


class Classifier:
    def write(self, folder, content):
        classifier(content).save(folder / "c.safetensors")

    def read(self, folder):
        return FewShotClassifier.load(folder / "c.safetensors").model.temperature


def whole_part(part):
    """What a resumed run finds: the content of a whole part, or None."""
    remove_damaged([part] if part.exists() else [])
    return part.read_bytes() if part.exists() else None


@pytest.mark.parametrize("kind", [Model(), Classifier()], ids=lambda kind: type(kind).__name__)
def test_a_failed_save_leaves_the_old_one_or_the_new_one(tmp_path, kind):
    failed = 0
    for number in range(MOST):
        kind.write(tmp_path, 2.0)
        before = set(tmp_path.rglob("*"))
        with failing_at(number) as made, contextlib.suppress(OSError):
            kind.write(tmp_path, 3.0)
        assert kind.read(tmp_path) in (2.0, 3.0)
        assert set(tmp_path.rglob("*")) == before
        if len(made) <= number:
            break
        failed += 1
    assert failed >= 3
    assert kind.read(tmp_path) == 3.0


def test_a_part_that_could_not_be_written_is_missing_or_whole(tmp_path):
    part = tmp_path / "part-00000.parquet"
    for number in range(MOST):
        content = b"answers %d" % number
        with failing_at(number) as made, contextlib.suppress(OSError):
            write_part(part, content)
        assert whole_part(part) in (None, content)
        if len(made) <= number:
            break
    assert number >= 4
    assert whole_part(part) == content


def test_a_store_that_could_not_be_packed_is_packed_next_time(tmp_path):
    content, folder = tiny_set((2, 2), size=8), tmp_path / "store"

    def pack():
        write_store(folder, content, {})

    for number in range(MOST):
        with failing_at(number) as made, contextlib.suppress(UserError):
            cached_store(folder, pack)
        if len(made) <= number:
            break
        assert not folder.exists()
    assert number >= 6
    np.testing.assert_array_equal(check_store(folder).read(np.arange(4)), content.images)


@pytest.mark.long
def test_a_training_goes_on_after_each_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    recipe = tiny_recipe("gpldla", backbone="pixels", episodes=8)
    whole = training.train(recipe, tmp_path / "whole", accelerator="cpu", show_progress=False)
    for number in range(0, MOST, 3):
        folder = tmp_path / str(number)
        with failing_at(number) as made, contextlib.suppress(OSError, UserError):
            training.train(recipe, folder, accelerator="cpu", show_progress=False)
        if (folder / checkpoint.FILE).exists():
            checkpoint.TrainingState.read(folder)
        again = training.train(recipe, folder, accelerator="cpu", show_progress=False)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[name], tensor), (number, name)
        if len(made) <= number:
            break
    assert number >= 15
