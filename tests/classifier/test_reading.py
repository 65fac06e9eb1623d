"""How picture files are decoded is part of what was saved: the newest way for new things, the old for old."""

import pickle

import numpy as np
import pytest
from PIL import Image

from gpldla import FewShotClassifier, FewShotModel, ImageEmbedder
from gpldla.classifier.resolve import resolve_model

LABELS = ["a", "a", "b", "b"]


@pytest.fixture
def files(tmp_path):
    """Four noisy JPEGs so large that a network of 28 px needs an eighth of them."""
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.jpg" for number in range(4)]
    for number, path in enumerate(paths):
        levels = rng.integers(0, 100 + 50 * number, (300, 300, 3), dtype=np.uint8)
        Image.fromarray(levels).save(path, quality=95)
    return paths


def test_a_classifier_keeps_the_way_it_was_made_with(files, tmp_path):
    old, new = FewShotModel("pixels", "gpldla-auto"), resolve_model("pixels")
    assert (old.preprocessing.reading, new.preprocessing.reading) == (1, 2)
    for model in (old, new):
        classifier = model.adapt(files, LABELS)
        classifier.save(tmp_path / "one.safetensors")
        loaded = FewShotClassifier.load(tmp_path / "one.safetensors")
        assert loaded.model.preprocessing.reading == model.preprocessing.reading
        np.testing.assert_array_equal(loaded.predict_proba(files), classifier.predict_proba(files))
    assert not np.allclose(old.embed(files), new.embed(files), atol=1e-3)


def test_a_trained_model_that_is_named_decodes_in_the_newest_way(tmp_path):
    FewShotModel("conv4s").save(tmp_path)
    assert FewShotModel.from_pretrained(tmp_path).preprocessing.reading == 1
    assert resolve_model(tmp_path).preprocessing.reading == 2


def test_an_embedder_that_was_pickled_earlier_decodes_as_it_did(files):
    new = ImageEmbedder("pixels", cache=False)
    expected = new.transform(files)
    state = new.__getstate__()
    assert state.pop("_reading") == 2
    old = ImageEmbedder.__new__(ImageEmbedder)
    old.__setstate__(state)  # as an earlier version wrote it
    for _ in range(2):
        np.testing.assert_array_equal(old.transform(files), FewShotModel("pixels").embed(files).numpy())
        old = pickle.loads(pickle.dumps(old))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(new)).transform(files), expected)
    assert not np.allclose(old.transform(files), expected, atol=1e-3)
