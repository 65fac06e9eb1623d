import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from gpldla import ImageEmbedder
from gpldla.backbones import create_backbone
from gpldla.backbones.local_files import LocalModel
from gpldla.backbones.names import ModelName
from gpldla.utils.errors import UserError


class Pooled(nn.Module):
    """The mean of each channel, twice."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, images):
        means = images.mean((2, 3)) * self.scale
        return torch.cat([means, means], 1)


FACTS = {
    "input_size": (3, 16, 16),
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
    "crop_pct": 0.9,
    "crop_mode": "center",
}


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for shape in [(30, 40, 3), (41, 20, 3)]
    ]


class TestStandIn:
    """With a module that has the functions of timm that matter, as its documentation describes them."""

    @pytest.fixture
    def facts(self):
        return dict(FACTS)

    @pytest.fixture
    def calls(self, monkeypatch, tmp_path, facts):
        timm, data, models = (ModuleType(name) for name in ("timm", "timm.data", "timm.models"))
        calls = []

        def get_pretrained_cfg(name):
            if name not in ("pooled", "unpublished"):
                raise RuntimeError(f"Unknown model ({name})\nand a second line")
            return SimpleNamespace(hf_hub_id=f"timm/{name}" if name == "pooled" else None)

        def create_model(name, **options):
            calls.append((name, options))
            if "img_size" in options:
                raise TypeError("unexpected keyword argument 'img_size'")
            return Pooled()

        def find_locally(name):
            (tmp_path / "model.safetensors").touch()
            assert (name.prefix, name.name) == ("timm", "timm/pooled")
            return LocalModel(tmp_path, ModelName("timm", name.name, "c0ffee", name.size))

        timm.create_model, timm.data, timm.models = create_model, data, models
        models.get_pretrained_cfg = get_pretrained_cfg
        data.resolve_model_data_config = lambda network: facts
        for module in (timm, data, models):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr("gpldla.backbones.timm_networks.find_locally", find_locally)
        return calls

    def test_pictures_are_prepared_as_timm_says(self, calls, pictures):
        backbone = create_backbone("timm:pooled")
        assert backbone.name == "timm:pooled@c0ffee"
        ((name, options),) = calls
        assert (name, options["num_classes"], options["pretrained"]) == ("pooled", 0, True)
        assert options["pretrained_cfg_overlay"]["file"].endswith("model.safetensors")
        features = ImageEmbedder(backbone, cache=False).fit_transform(pictures)
        for picture, row in zip(pictures, features):
            shorter = 17  # the whole part of 16 / 0.9
            size = [int(shorter * length / min(picture.size)) for length in picture.size]
            pixels = np.asarray(picture.resize(size, Image.Resampling.BICUBIC)) / 255
            top, left = (pixels.shape[0] - 16) // 2, (pixels.shape[1] - 16) // 2
            means = pixels[top : top + 16, left : left + 16].mean((0, 1))
            np.testing.assert_allclose(row, np.tile((means - 0.5) / 0.25, 2), atol=1e-5)

    def test_another_size(self, calls, pictures):
        backbone = create_backbone("timm:pooled,size=32")
        assert (backbone.preprocessing.size, backbone.preprocessing.resized) == (32, 35)
        assert [options.get("img_size") for _, options in calls] == [32, None]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"crop_mode": "border"}, "cropped by border"),
            ({"interpolation": "lanczos"}, "resized by lanczos"),
        ],
    )
    def test_preprocessing_that_cannot_be_followed(self, calls, facts, change, message):
        facts.update(change)
        with pytest.raises(UserError, match=message):
            create_backbone("timm:pooled")

    def test_wrong_names(self, calls):
        with pytest.raises(UserError, match=r"^timm cannot make 'vit' \(Unknown model \(vit\)\)\.$"):
            create_backbone("timm:vit")
        with pytest.raises(
            UserError, match=r"^timm knows no weights of 'unpublished' on the hub; .*timm:/path"
        ):
            create_backbone("timm:unpublished")

    def test_without_timm_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "timm", None)
        with pytest.raises(UserError, match=r"^Model 'timm:vit' needs timm, .*; pip install timm\.$"):
            create_backbone("timm:vit")


class TestReal:
    """With timm itself, where it and torchvision are installed: networks with random weights in a folder."""

    @pytest.mark.parametrize(
        ("architecture", "layers"),
        [
            ("resnet10t", {"classifier": "fc", "first_conv": "conv1"}),
            ("vit_tiny_patch16_224", {"classifier": "head", "first_conv": "patch_embed.proj"}),
        ],
    )
    def test_features_are_those_of_timm(self, architecture, layers, pictures, tmp_path):
        timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
        network = timm.create_model(architecture, num_classes=5).eval()
        save_file(network.state_dict(), tmp_path / "model.safetensors")
        facts = {**FACTS, "input_size": (3, 224, 224), "num_classes": 5, **layers}
        (tmp_path / "config.json").write_text(
            json.dumps({"architecture": architecture, "num_classes": 5, "pretrained_cfg": facts})
        )
        transform = timm.data.create_transform(**timm.data.resolve_data_config({}, pretrained_cfg=facts))
        network.reset_classifier(0)
        with torch.no_grad():
            expected = network(torch.stack([transform(picture) for picture in pictures]))
        features = ImageEmbedder(f"timm:{tmp_path}", cache=False).fit_transform(pictures)
        np.testing.assert_allclose(features, expected.numpy(), rtol=1e-3, atol=1e-4)
        size = 256 if architecture == "vit_tiny_patch16_224" else 250
        assert create_backbone(f"timm:{tmp_path},size={size}").preprocessing.size == size
