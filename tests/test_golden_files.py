"""Files of every release are read for ever, and say what they said; see tests/golden/make.py."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpldla.data.store import check_store
from gpldla.training import run as training
from gpldla.training.checkpoint import TrainingState
from gpldla.training.recipe import read_recipe
from tests.golden import make
from tests.helpers import tiny_protocol, tiny_recipe

VERSIONS = sorted(path for path in make.HERE.iterdir() if (path / "answers.json").exists())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def golden(request) -> Path:
    return request.param


def test_there_are_some():
    assert "0.2" in {path.name for path in VERSIONS}


def test_models_and_classifiers_answer_as_they_did(golden):
    said = json.loads((golden / "answers.json").read_text())
    now = make.answers_of(golden)
    assert said.keys() == now.keys()
    for name in said:
        np.testing.assert_allclose(now[name], said[name], atol=1e-5, err_msg=name)


def test_stores_hold_what_was_packed(golden):
    opened, written = check_store(golden / "store"), make.store_content()
    np.testing.assert_array_equal(opened.read(np.arange(5)), written.images)
    np.testing.assert_array_equal(opened.groups, written.groups)
    assert opened.class_names == written.class_names


def test_recipes_are_understood(golden):
    recipe = read_recipe(golden / "recipe.toml")
    assert recipe.head.options == {"power": 0.7, "beta": 2.0}
    assert (recipe.base.classifier, recipe.validation.every, recipe.ema) == ("cosine", 500, 0.99)


def test_trainings_go_on(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    shutil.copy(golden / "training-state.safetensors", tmp_path)
    assert TrainingState.read(tmp_path).values["done"] == make.SETTINGS["episodes"]
    result = training.train(
        tiny_recipe("gpldla", **make.SETTINGS), tmp_path, accelerator="cpu", show_progress=False
    )
    assert result.finished
    said = json.loads((golden / "answers.json").read_text())["temperature"]
    assert result.model.temperature == pytest.approx(said)
