import json
import math
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla import FewShotClassifier, FewShotModel, ImageEmbedder
from gpldla.backbones import create_backbone
from gpldla.classifier.resolve import resolve_model
from gpldla.data.pictures import picture_tensor
from gpldla.utils.errors import UserError
from tests.backbones.hub_models import PROCESSORS, STANDARD, save_tiny

pytest.importorskip("transformers")
FAMILIES = list(PROCESSORS)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A folder with one folder per family, and the networks as they were saved."""
    root = tmp_path_factory.mktemp("hub")
    return root, {family: save_tiny(family, root / family) for family in FAMILIES}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Any attempt to reach the network fails the test."""

    def refuse(*args, **kwargs):
        raise AssertionError("it asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def pictures():
    """Smooth pictures of several shapes, among them wide, tall and odd ones."""
    rng = np.random.default_rng(0)
    shapes = [(45, 70), (71, 40), (33, 33), (40, 41)]
    return [
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).resize(shape[::-1])
        for shape in shapes
    ]


def prepare(picture, family, size=32):
    """Compute what a network sees, with Pillow and NumPy alone, from what the model cards say."""
    filters = {2: Image.Resampling.BILINEAR, 3: Image.Resampling.BICUBIC}
    resample = filters[PROCESSORS[family]["resample"]]
    if family in ("dinov3_vit", "siglip", "vit"):
        cropped = picture.resize((size, size), resample)
    else:
        shorter = {"dinov2": 37, "clip": 32, "convnext": math.floor(32 / 0.875)}[family] * size // 32
        width, height = picture.size
        scale = shorter / min(width, height)
        large = picture.resize(
            (math.floor(width * scale + 1e-9), math.floor(height * scale + 1e-9)), resample
        )
        left, top = (large.width - size) // 2, (large.height - size) // 2
        cropped = large.crop((left, top, left + size, top + size))
    mean, std = np.array(STANDARD["image_mean"]), np.array(STANDARD["image_std"])
    return ((np.asarray(cropped) / 255 - mean) / std).transpose(2, 0, 1).astype(np.float32)


def forward(network, family, pixels):
    """Return the features as transformers computes them."""
    with torch.no_grad():
        if family in ("clip", "siglip"):
            return network.get_image_features(pixel_values=pixels).pooler_output
        if family == "vit":
            return network.vit(pixel_values=pixels).last_hidden_state[:, 0]
        if family == "convnext":
            return network(pixel_values=pixels).pooler_output
        return network(pixel_values=pixels).last_hidden_state[:, 0]  # the class token


class TestFeatures:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_are_those_of_the_library_on_pixels_prepared_elsewhere(self, hub, pictures, family):
        root, networks = hub
        features = ImageEmbedder(f"hf:{root / family}", cache=False).fit_transform(pictures)
        pixels = torch.from_numpy(np.stack([prepare(picture, family) for picture in pictures]))
        expected = forward(networks[family], family, pixels).numpy()
        np.testing.assert_allclose(features, expected, rtol=1e-4, atol=2e-5)
        assert np.ptp(features, axis=0).max() > 1e-3  # not the same for all pictures

    @pytest.mark.parametrize("family", ["dinov2", "clip", "siglip", "convnext", "vit"])
    def test_the_preprocessing_is_that_of_the_library(self, hub, pictures, family):
        import transformers as hf

        kind = {"dinov2": "Bit", "clip": "CLIP", "siglip": "Siglip", "convnext": "ConvNext", "vit": "ViT"}[
            family
        ]
        processor = getattr(hf, f"{kind}ImageProcessorPil").from_pretrained(hub[0] / family)
        preprocessing = create_backbone(f"hf:{hub[0] / family}").preprocessing
        margin, size = preprocessing.margin, preprocessing.size
        for picture in pictures:
            seen = picture_tensor(picture, preprocessing)[:, margin : margin + size, margin : margin + size]
            (theirs,) = processor(picture)["pixel_values"]
            mean, std = (np.array(STANDARD[name])[:, None, None] for name in ("image_mean", "image_std"))
            np.testing.assert_allclose((seen.numpy() / 255 - mean) / std, theirs, atol=1e-5)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_another_size(self, hub, pictures, family):
        root, networks = hub
        features = ImageEmbedder(f"hf:{root / family}", size=64, cache=False).fit_transform(pictures)
        backbone = create_backbone(f"hf:{root / family},size=64")
        assert (backbone.preprocessing.size, backbone.name) == (64, f"hf:{root / family},size=64")
        images = torch.from_numpy(np.stack([prepare(picture, family, 64) for picture in pictures]))
        network = networks[family]
        with torch.no_grad():
            if family in ("clip", "siglip"):
                expected = network.get_image_features(pixel_values=images, interpolate_pos_encoding=True)
                expected = expected.pooler_output
            elif family == "vit":
                expected = network.vit(pixel_values=images, interpolate_pos_encoding=True).last_hidden_state[
                    :, 0
                ]
            else:
                expected = forward(network, family, images)
        np.testing.assert_allclose(features, expected.numpy(), rtol=1e-4, atol=5e-5)

    def test_a_size_that_is_no_multiple_of_the_patches(self, hub):
        with pytest.raises(UserError, match=r"patches of 8 pixels, .* into 50; choose 48 or 56\.$"):
            create_backbone(f"hf:{hub[0] / 'dinov2'},size=50")

    def test_reading_the_network_prints_nothing(self, hub):
        code = f"from gpldla.backbones import create_backbone as c; c('hf:{hub[0] / 'vit'}')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class TestTexts:
    @pytest.mark.parametrize("family", ["clip", "siglip"])
    def test_are_in_the_space_of_the_pictures(self, hub, family):
        root, networks = hub
        backbone = create_backbone(f"hf:{root / family}")
        texts = ["a wren", "a robin", "z"]
        with torch.no_grad():
            features = backbone.text_features(texts)
        assert features.shape == (3, backbone.feature_dim)
        letters = [[1, *[4 + ord(c) - ord("a") if c.isalpha() else 2 for c in text], 3] for text in texts]
        for text_ids, row in zip(letters, features):
            padded = text_ids + [0] * (24 - len(text_ids)) if family == "siglip" else text_ids
            with torch.no_grad():
                expected = networks[family].get_text_features(input_ids=torch.tensor([padded])).pooler_output
            np.testing.assert_allclose(row.numpy(), expected[0].numpy(), atol=1e-5)

    def test_a_long_text_is_cut(self, hub):
        with torch.no_grad():
            assert create_backbone(f"hf:{hub[0] / 'clip'}").text_features(["wren " * 50]).isfinite().all()

    def test_other_networks_have_none(self, hub):
        with pytest.raises(UserError, match=r"no encoder of texts, .* CLIP or SigLIP"):
            create_backbone(f"hf:{hub[0] / 'dinov2'}").text_features(["a wren"])


class TestFiles:
    @pytest.fixture
    def fitted(self, hub, pictures, tmp_path):
        model = resolve_model(f"hf:{hub[0] / 'dinov2'}")
        classifier = model.adapt(pictures, ["a", "b", "a", "b"])
        classifier.save(tmp_path / "c.safetensors")
        return classifier, tmp_path / "c.safetensors"

    def test_a_classifier_is_small_and_finds_its_network_again(self, fitted, pictures):
        classifier, file = fitted
        loaded = FewShotClassifier.load(file)
        np.testing.assert_allclose(
            loaded.predict_proba(pictures), classifier.predict_proba(pictures), atol=1e-5
        )
        assert file.stat().st_size < 40_000

    def test_other_weights_are_refused(self, hub, pictures, tmp_path):
        folder, file = tmp_path / "net", tmp_path / "c.safetensors"
        save_tiny("dinov2", folder)
        resolve_model(f"hf:{folder}").adapt(pictures, ["a", "b", "a", "b"]).save(file)
        save_tiny("dinov2", folder, seed=1)
        with pytest.raises(UserError, match="another version of hf:"):
            FewShotClassifier.load(file)

    @pytest.mark.parametrize("change", [{"layer_norm_eps": 0.1}, {"hidden_act": "relu"}])
    def test_another_architecture_with_the_same_weights_is_refused(self, hub, pictures, tmp_path, change):
        folder, file = tmp_path / "net", tmp_path / "c.safetensors"
        save_tiny("dinov2", folder)
        resolve_model(f"hf:{folder}").adapt(pictures, ["a", "b", "a", "b"]).save(file)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match="another version of hf:"):
            FewShotClassifier.load(file)

    @pytest.mark.parametrize("change", [{"image_mean": [0.1] * 3}, {"size": {"shortest_edge": 40}}])
    def test_other_preprocessing_is_refused(self, pictures, tmp_path, change):
        folder, file = tmp_path / "net", tmp_path / "c.safetensors"
        save_tiny("dinov2", folder)
        resolve_model(f"hf:{folder}").adapt(pictures, ["a", "b", "a", "b"]).save(file)
        save_tiny("dinov2", folder, **change)
        with pytest.raises(UserError, match="other preprocessing"):
            FewShotClassifier.load(file)

    def test_a_folder_that_has_moved_is_given_in_its_place(self, pictures, tmp_path):
        folder, file = tmp_path / "net", tmp_path / "c.safetensors"
        save_tiny("vit", folder)
        before = resolve_model(f"hf:{folder}").adapt(pictures, ["a", "b", "a", "b"])
        before.save(file)
        folder.rename(tmp_path / "moved")
        with pytest.raises(UserError, match=r"there is no folder .*net; copy"):
            FewShotClassifier.load(file)
        after = FewShotClassifier.load(file, backbone=f"hf:{tmp_path / 'moved'}")
        np.testing.assert_allclose(after.predict_proba(pictures), before.predict_proba(pictures), atol=1e-5)

    def test_a_model_is_saved_by_name_and_size(self, hub, pictures, tmp_path):
        model = FewShotModel(f"hf:{hub[0] / 'clip'},size=64", "gpldla")
        model.save(tmp_path / "model")
        loaded = FewShotModel.from_pretrained(tmp_path / "model")
        assert loaded.preprocessing == model.preprocessing
        assert torch.equal(loaded.embed(pictures), model.embed(pictures))


class TestNames:
    @pytest.fixture
    def cached(self, tmp_path, monkeypatch):
        """The hub's cache on this machine, with two revisions of one model; `main` is the second."""
        cache = tmp_path / "cache"
        root = cache / "models--birds--dino"
        for seed, commit in enumerate(("a" * 40, "b" * 40)):
            save_tiny("dinov2", root / "snapshots" / commit, seed=seed)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text("b" * 40)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        return root / "snapshots"

    def test_a_name_is_found_in_the_cache_with_its_revision(self, cached, pictures, tmp_path):
        model = resolve_model("hf:birds/dino")
        assert model.backbone_name == f"hf:birds/dino@{'b' * 40}"
        there = resolve_model(f"hf:{cached / ('b' * 40)}").backbone
        assert model.backbone.fingerprint() == there.fingerprint()
        model.adapt(pictures, ["a", "b", "a", "b"]).save(tmp_path / "c.safetensors")
        (cached.parent / "refs" / "main").write_text("a" * 40)  # the model's author has uploaded others
        loaded = FewShotClassifier.load(tmp_path / "c.safetensors")
        assert loaded.model.backbone.fingerprint() == there.fingerprint()

    def test_a_revision_is_chosen(self, cached):
        first, second = (create_backbone(f"hf:birds/dino{end}") for end in ("@" + "a" * 40, ""))
        assert first.fingerprint() != second.fingerprint()

    @pytest.mark.parametrize("name", ["hf:birds/other", "hf:birds/dino@v2"])
    def test_what_is_not_there_is_not_downloaded(self, cached, name):
        with pytest.raises(
            UserError, match=r"not on this machine, .*`hf download birds/.*hf:/path/to/folder"
        ):
            create_backbone(name)

    def test_nonsense(self, cached, tmp_path):
        for name, expected in {
            "hf:a/b/c": "no name of the hub",
            "hf:": "no name of the hub",
            f"hf:{tmp_path / 'nowhere'}": "there is no folder",
            f"hf:{tmp_path}": "has no config.json",
            "hf:birds/dino,size=0": "whole number of pixels",
            "hf:birds/dino,size=big": "whole number of pixels",
            "pixels,size=56": "one size of pictures only",
        }.items():
            with pytest.raises(UserError, match=expected):
                resolve_model(name)


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path):
        save_tiny("vit", tmp_path / "net")
        return tmp_path / "net"

    def test_missing_weights_are_not_drawn_at_random(self, folder):
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        del weights["vit.layernorm.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=r"no weights for layernorm.weight"):
            create_backbone(f"hf:{folder}")

    @pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors"])
    def test_a_file_is_missing_or_damaged(self, folder, name):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match=r"download .* again"):
            create_backbone(f"hf:{folder}")
        (folder / name).unlink()
        with pytest.raises(UserError, match=r"download .* again"):
            create_backbone(f"hf:{folder}")

    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            ({"resample": 1}, "Pillow's filter 1"),
            ({"size": {"height": 32, "width": 48}}, "not square"),
            ({"size": {"shortest_edge": 32}}, "different shapes"),
            ({"size": {"longest_edge": 32}}, "no height"),
            ({"do_resize": False}, "does not resize"),
            ({"image_mean": [0.5]}, "1 values for 3"),
            ({"size": 24, "do_center_crop": True, "crop_size": 32}, "crops 32 pixels of 24"),
        ],
    )
    def test_preprocessing_that_cannot_be_followed(self, folder, facts, reason):
        file = folder / "preprocessor_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | facts))
        with pytest.raises(UserError, match=reason):
            create_backbone(f"hf:{folder}")

    def test_another_scale_of_the_pixels(self, folder, pictures):
        """SigLIP-like files say 1/127.5 and no deviation."""
        save_tiny("vit", folder, image_mean=[0.5] * 3, image_std=[0.5] * 3)
        expected = resolve_model(f"hf:{folder}").embed(pictures)
        save_tiny("vit", folder, rescale_factor=1 / 127.5, image_mean=[1.0] * 3, image_std=[1.0] * 3)
        torch.testing.assert_close(resolve_model(f"hf:{folder}").embed(pictures), expected)

    def test_code_in_the_folder_is_not_run(self, folder):
        (folder / "evil.py").write_text("raise SystemExit('run')")
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match="of type 'evil', which is not known"):
            create_backbone(f"hf:{folder}")

    def test_without_transformers(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(UserError, match=r"needs transformers, .*pip install 'gpldla\[hf\]'"):
            create_backbone(f"hf:{folder}")
