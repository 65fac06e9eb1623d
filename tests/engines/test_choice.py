"""ONNX Runtime in place of torch: where it pays, and only if it gives the same features."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gpldla.backbones import Backbone, create_backbone
from gpldla.backbones.foreign import ForeignNetwork
from gpldla.classifier.features import embed
from gpldla.data.preprocessing import Preprocessing
from gpldla.engines import choice
from gpldla.engines.choice import engine_for, prepare
from gpldla.engines.network_graph import example_pixels
from gpldla.engines.torch_engine import TorchEngine
from gpldla.utils.errors import UserError

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

FACTS = Preprocessing(16, 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


class Tiny(Backbone):
    """A convolution with BatchNorm, averaged, with statistics as after training."""

    preprocessing = FACTS
    feature_dim = 6
    map_shape = (6, 16, 16)

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.layers[1].running_mean.normal_()
        self.layers[1].running_var.uniform_(0.5, 2)
        self.eval()

    def maps(self, images):
        return self.layers(images)

    def forward(self, images):
        return self.maps(images).mean((2, 3))


class Branching(Tiny):
    """A decision that depends on the pixels cannot be traced."""

    def forward(self, images):
        return super().forward(images if images.mean() > 0 else images * 2)


class Noisy(Tiny):
    """Other features in every call, so those of a graph are never the same."""

    def forward(self, images):
        return super().forward(images) + torch.rand(())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPLDLA_ENGINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setenv("GPLDLA_ENGINE", "onnxruntime")


def graphs(cache):
    return sorted((cache / "graphs").iterdir()) if (cache / "graphs").exists() else []


def pictures(n, side=20):
    return list(np.random.default_rng(1).integers(0, 256, (n, side, side, 3), dtype=np.uint8))


def relative(features, expected):
    return float(np.abs(features - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", ["conv4", "conv4s", "resnet10"])
def test_features_of_real_networks_are_the_same(name):
    torch.manual_seed(0)
    network = create_backbone(name).eval()
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
    assert prepare(network)
    pixels = example_pixels(network, 7)
    assert relative(engine_for(network, 7).features(pixels), TorchEngine(network).features(pixels)) < 1e-5


def test_mirrored_features_and_other_crops_are_part_of_the_graph():
    network = Tiny()
    network.preprocessing = Preprocessing(16, 3, FACTS.mean, FACTS.std, zoom=1.5, mirrored=True)
    network.layers[0].weight.data[..., 0] *= 3  # else an image and its mirror image may give the same
    assert prepare(network)
    engine, pixels = engine_for(network, 3), example_pixels(network, 3)
    assert relative(engine.features(pixels), TorchEngine(network).features(pixels)) < 1e-5


def test_embedding_gives_the_same_in_any_engine(monkeypatch, at_once):
    network, items = Tiny(), pictures(50)
    fast = embed(network, items)
    assert engine_for(network, 1).parallel
    monkeypatch.setenv("GPLDLA_ENGINE", "torch")
    assert not engine_for(network, 1).parallel
    assert relative(fast.numpy(), embed(network, items).numpy()) < 1e-5
    assert fast.std() > 0.01


def test_many_threads_keep_the_order(monkeypatch, at_once):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    network, items = Tiny(), pictures(60)
    features = embed(network, items)
    one_by_one = torch.cat([embed(network, [item]) for item in items])
    assert relative(features.numpy(), one_by_one.numpy()) < 1e-5


def takes(monkeypatch, seconds):
    """Let torch seem to take so many seconds per picture."""
    monkeypatch.setattr(choice, "_timed", lambda engine, inputs: (engine.features(*inputs), seconds))


class TestWhenItPays:
    def test_a_few_pictures_are_not_worth_it(self, cache):
        network = Tiny()
        for _ in range(5):
            embed(network, pictures(3))
        assert graphs(cache) == []

    def test_much_work_is(self, cache, monkeypatch):
        takes(monkeypatch, 0.1)
        said = []
        network = Tiny()
        assert not engine_for(network, 29, say=said.append).parallel
        assert not engine_for(network, 29, say=said.append).parallel  # 5.8 s in all, but now only 2.9
        assert engine_for(network, 30, say=said.append).parallel
        assert len(graphs(cache)) == 1
        assert said == ["Preparing the network for ONNX Runtime, once."]

    def test_a_graph_that_is_there_is_loaded_sooner(self, cache, monkeypatch):
        prepare(Tiny())
        takes(monkeypatch, 0.01)
        monkeypatch.setattr(choice, "make_graph", pytest.fail)
        network = Tiny()
        assert not engine_for(network, 40).parallel
        assert engine_for(network, 10).parallel

    def test_never_where_the_user_says_so(self, cache, monkeypatch):
        monkeypatch.setenv("GPLDLA_ENGINE", "torch")
        assert not prepare(Tiny())
        assert graphs(cache) == []

    def test_a_wrong_word_is_named(self, monkeypatch):
        monkeypatch.setenv("GPLDLA_ENGINE", "onnx")
        with pytest.raises(UserError, match="GPLDLA_ENGINE must be auto, onnxruntime or torch, not 'onnx'"):
            embed(Tiny(), pictures(1))


class TestSafety:
    def test_changed_weights_are_noticed(self, at_once):
        network, items = Tiny(), pictures(4)
        first = embed(network, items)
        with torch.no_grad():
            network.layers[0].bias.add_(1)
        second = embed(network, items)
        assert not torch.allclose(first, second)
        assert relative(second.numpy(), TorchEngine(network).features(pixels_of(network, items))) < 1e-5
        network.load_state_dict(Tiny(seed=3).state_dict())
        torch.testing.assert_close(embed(network, items), embed(Tiny(seed=3), items))

    def test_every_network_has_its_own_graph(self, cache, at_once):
        for seed in (0, 1, 0):
            embed(Tiny(seed), pictures(1))
        assert len(graphs(cache)) == 2

    @pytest.mark.parametrize("content", [b"", b"not a graph " * 50])
    def test_a_damaged_file_is_made_again(self, cache, content):
        assert prepare(Tiny())
        (file,) = graphs(cache)
        good = len(file.read_bytes())
        file.write_bytes(content)
        assert prepare(Tiny())
        assert len(file.read_bytes()) == good

    def test_a_file_with_other_weights_is_not_used(self, cache):
        prepare(Tiny(seed=1))
        prepare(Tiny())
        own, other = sorted(graphs(cache), key=lambda file: Tiny().fingerprint() not in file.name)
        own.write_bytes(other.read_bytes())
        network, items = Tiny(), pictures(4)
        assert prepare(network)
        expected = TorchEngine(network).features(pixels_of(network, items))
        assert relative(embed(network, items).numpy(), expected) < 1e-5

    @pytest.mark.parametrize("kind", [Branching, Noisy])
    def test_what_cannot_be_traced_stays_with_torch(self, cache, kind):
        assert not prepare(kind())
        assert graphs(cache) == []

    def test_hooks_are_called(self, at_once):
        network, called = Tiny(), []
        network.layers[0].register_forward_hook(lambda *_: called.append(1))
        embed(network, pictures(2))
        assert called

    def test_other_precisions_and_networks_of_users_stay_with_torch(self, at_once):
        assert not prepare(Tiny().double())
        assert not prepare(ForeignNetwork(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), FACTS))

    def test_a_cache_that_cannot_be_written_to(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "file" / "cache"))
        assert prepare(Tiny())

    def test_networks_are_not_kept_alive(self, at_once):
        before = len(choice._choices)
        for seed in range(3):
            embed(Tiny(seed), pictures(1))
        assert len(choice._choices) <= before + 1

    def test_a_missing_package_means_torch(self, cache):
        without = (
            "import importlib.util as u; find = u.find_spec\n"
            "u.find_spec = lambda name, *a: None if name.startswith('onnx') else find(name, *a)\n"
            "import gpldla.engines.choice as c\n"
            "from gpldla.backbones import create_backbone\n"
            "assert not c.prepare(create_backbone('conv4s').eval())\n"
        )
        subprocess.run([sys.executable, "-c", without], check=True, cwd=Path(__file__).parents[2])
        assert graphs(cache) == []


def pixels_of(network, items):
    from gpldla.data.pictures import picture_pixels

    return np.stack([picture_pixels(item, network.preprocessing) for item in items])


AFTER_A_FORK = """
import os, sys
import numpy as np, torch
torch.set_num_threads(2)
from gpldla.backbones import create_backbone
from gpldla.classifier.features import embed
from gpldla.engines.choice import prepare
network = create_backbone("conv4s").eval()
assert prepare(network)
items = list(np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8))
expected = embed(network, items)
child = os.fork()
if child == 0:
    os._exit(0 if torch.allclose(embed(network, items), expected, rtol=1e-4, atol=1e-5) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork here")
def test_a_fork_computes_and_does_not_hang(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert subprocess.run([sys.executable, "-c", AFTER_A_FORK], timeout=60).returncode == 0


def test_tracing_leaves_nothing_behind_for_later_computations():
    """Constants that are cached while a network is traced are stand-ins without numbers."""
    program = """
import torch
from gpldla.backbones import create_backbone
from gpldla.engines.network_graph import example_pixels, make_graph
from gpldla.engines.torch_engine import TorchEngine
network = create_backbone("conv4s").eval()
pixels = example_pixels(network, 3)
make_graph(network)
preprocessing = network.preprocessing
mean, std = preprocessing.mean[0], preprocessing.std[0]
margin = (preprocessing.resized - preprocessing.size) // 2
crop = pixels[:, margin : margin + 28, margin : margin + 28] / 255
images = torch.from_numpy((crop - mean) / std).float().permute(0, 3, 1, 2)
with torch.no_grad():
    expected = network(images)
torch.testing.assert_close(torch.from_numpy(TorchEngine(network).features(pixels)), expected)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
