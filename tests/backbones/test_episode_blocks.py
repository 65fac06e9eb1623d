"""Networks that train on several episodes at once; plain operations stand in for the kernels."""

import copy
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpldla import kernels
from gpldla.backbones import create_backbone
from gpldla.backbones.episode_blocks import EpisodeBatches, EpisodeBlock

EPISODES, IMAGES = 3, 4
SIDES = {"conv4": 32, "conv4s": 32, "conv4np": 22, "conv4snp": 22, "resnet10": 40, "resnet18-84": 16}


def images_for(network, side, n=EPISODES * IMAGES, seed=0):
    """Return images whose episodes differ in brightness and contrast."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, network.preprocessing.channels, side, side, generator=generator)
    number = torch.arange(n).div(IMAGES, rounding_mode="floor").view(-1, 1, 1, 1)
    return images * (1 + number) + number


def made(name, seed=0):
    """Return a network with BatchNorms that are not as they start."""
    torch.manual_seed(seed)
    network = create_backbone(name)
    for norm in norms(network):
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            nn.init.normal_(tensor)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return network


def norms(network):
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def blocks_of(network):
    return [module for module in network.modules() if isinstance(module, EpisodeBlock)]


class StandIns:
    """What the kernels promise, in plain operations; counts its calls."""

    def __init__(self):
        self.calls, self.dtypes = [], []

    def normalise(
        self, x, weight, bias, running_mean, running_var, *,
        offset, episodes, momentum, eps, added=None, relu=True, pool=False,
    ):  # fmt: skip
        self.calls.append("normalise")
        means, variances, parts = [], [], []
        for episode in x.chunk(episodes):
            mean, var = torch.zeros_like(running_mean), torch.zeros_like(running_var)
            parts.append(F.batch_norm(episode, mean, var, weight, bias, True, 1.0, eps))
            means.append(mean if offset is None else mean + offset.detach())
            variances.append(var)
        running_mean.lerp_(torch.stack(means).mean(0), momentum)
        running_var.lerp_(torch.stack(variances).mean(0), momentum)
        y = torch.cat(parts)
        y = y if added is None else y + added
        y = F.max_pool2d(y, 2) if pool else y
        return y.relu() if relu else y

    def convolve_normalise_relu_pool(self, images, kernel, *norm, dtype, **others):
        self.dtypes.append(dtype)
        y = self.normalise(F.conv2d(images, kernel, padding=1), *norm, **others, pool=True)
        self.calls[-1] = "first block"
        return y

    def max_pool_3x3(self, x):
        self.calls.append("max-pool")
        return F.max_pool2d(x, 3, stride=2, padding=1)


@pytest.fixture
def stand_ins(monkeypatch):
    """Let kernels serve, each replaced by plain operations."""
    stand_ins = StandIns()
    for module, function in (
        ("normalise", "normalise"),
        ("first_block", "convolve_normalise_relu_pool"),
        ("pool", "max_pool_3x3"),
    ):
        replaced = types.ModuleType(f"gpldla.kernels.{module}")
        setattr(replaced, function, getattr(stand_ins, function))
        monkeypatch.setitem(sys.modules, replaced.__name__, replaced)
    monkeypatch.setattr(kernels, "usable_for", lambda tensor: True)
    return stand_ins


# ---- without kernels everything is as before


def plain_conv4(name):
    """Conv-4 of PyTorch's own parts alone, with the names of its weights."""
    padding, pools = ((0, 0, 1, 1), (1, 1, 0, 0)) if name.endswith("np") else ((1,) * 4, (1,) * 4)
    blocks, channels = [], 1 if name.startswith("conv4s") else 3
    for pad, pool in zip(padding, pools):
        layers = [nn.Conv2d(channels, 64, 3, padding=pad), nn.BatchNorm2d(64)]
        blocks.append(nn.Sequential(*layers, *[nn.MaxPool2d(2)] * pool, nn.ReLU()))
        channels = 64
    network = nn.Module()
    network.blocks = nn.Sequential(*blocks)
    network.forward = lambda images: network.blocks(images).flatten(1)
    return network


class PlainBasicBlock(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        if channels != width:
            down = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(down, nn.BatchNorm2d(width))

    def forward(self, x):
        return F.relu(self.residual(x) + (self.shortcut(x) if hasattr(self, "shortcut") else x))


def plain_resnet(name):
    small, a_stage = name == "resnet18-84", 1 if name == "resnet10" else 2
    stem = nn.Conv2d(3, 64, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
    network = nn.Module()
    pool = [] if small else [nn.MaxPool2d(3, stride=2, padding=1)]
    network.stem = nn.Sequential(stem, nn.BatchNorm2d(64), nn.ReLU(), *pool)
    blocks, channels = [], 64
    for width in (64, 128, 256, 512):
        for place in range(a_stage):
            blocks.append(PlainBasicBlock(channels, width, 2 if width > 64 and place == 0 else 1))
            channels = width
    network.blocks = nn.Sequential(*blocks)
    network.forward = lambda images: network.blocks(network.stem(images)).mean((2, 3))
    return network


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_on_a_cpu_a_network_is_its_plain_layers(name, training):
    network = made(name)
    plain = plain_conv4(name) if name.startswith("conv4") else plain_resnet(name)
    assert list(plain.state_dict()) == list(network.state_dict())
    plain.load_state_dict(network.state_dict())
    assert not EpisodeBatches(network).possible
    images = images_for(network, SIDES[name])
    assert torch.equal(network.train(training)(images), plain.train(training)(images))
    for ours, theirs in zip(network.state_dict().values(), plain.state_dict().values()):
        assert torch.equal(ours, theirs)


class TestTrainOnEpisodes:
    def test_a_cpu_cannot(self):
        network = create_backbone("conv4s")
        assert not EpisodeBatches(network).possible
        assert [block.episodes for block in blocks_of(network)] == [0] * 4
        assert not any(block.by_kernels for block in blocks_of(network.train()))

    @pytest.mark.parametrize(("name", "count"), [("conv4", 4), ("resnet10", 5), ("resnet18-84", 9)])
    def test_all_blocks_are_told(self, name, count, stand_ins):
        network = create_backbone(name)
        with EpisodeBatches(network).of(5):
            assert [block.episodes for block in blocks_of(network)] == [5] * count
        assert [block.episodes for block in blocks_of(network)] == [0] * count

    def test_a_batchnorm_outside_of_blocks_is_refused(self, stand_ins):
        conv4s = create_backbone("conv4s")
        assert EpisodeBatches(conv4s).possible
        batches = EpisodeBatches(nn.Sequential(conv4s, nn.BatchNorm1d(64)))
        assert not batches.possible
        with pytest.raises(AssertionError), batches.of(EPISODES):
            pass
        assert [block.episodes for block in blocks_of(conv4s)] == [0] * 4

    def test_blocks_are_ordinary_again_after_an_error(self, stand_ins):
        network = create_backbone("conv4s")
        with pytest.raises(ZeroDivisionError), EpisodeBatches(network).of(5):
            raise ZeroDivisionError
        assert [block.episodes for block in blocks_of(network)] == [0] * 4

    def test_a_network_without_blocks_is_refused(self, stand_ins):
        assert not EpisodeBatches(create_backbone("pixels")).possible
        assert not EpisodeBatches(nn.Linear(3, 4)).possible

    def test_float64_is_refused(self, stand_ins):
        network = create_backbone("conv4s").double()
        assert not EpisodeBatches(network).possible
        network(images_for(network, 32).double())
        assert stand_ins.calls == []

    def test_evaluation_goes_layer_by_layer(self, stand_ins):
        network, images = made("conv4s").eval(), images_for(create_backbone("conv4s"), 32)
        before = network(images)
        with EpisodeBatches(network).of(EPISODES):
            assert torch.equal(network(images), before)
        assert stand_ins.calls == []


# ---- with kernels


def learned(network, images):
    """Go forward and back; return the features and the gradients by name."""
    network.zero_grad()
    features = network(images)
    generator = torch.Generator().manual_seed(9)
    gradient = torch.randn(features.shape[1], generator=generator)  # other images, other features
    (features * gradient).square().mean(1).sum().backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    return features.detach(), gradients


def one_by_one(network, images):
    """Take each episode through a copy of the network; add gradients, average running statistics."""
    copies = [copy.deepcopy(network) for _ in range(EPISODES)]
    results = [learned(own, part) for own, part in zip(copies, images.chunk(EPISODES))]
    gradients = {name: sum(of[name] for _, of in results) for name in results[0][1]}
    states = [own.state_dict() for own in copies]
    statistics = {
        name: torch.stack([state[name] for state in states]).mean(0)
        for name in states[0]
        if "running" in name
    }
    return torch.cat([features for features, _ in results]), gradients, statistics


def is_before_a_batchnorm(network, name):
    """Say whether this is the bias of a convolution, which BatchNorm takes away again."""
    return name.endswith(".bias") and isinstance(network.get_submodule(name.removesuffix(".bias")), nn.Conv2d)


def assert_close_in_norm(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    assert (ours - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.parametrize("name", ["conv4", "conv4np", "conv4s", "resnet10", "resnet18-84"])
def test_together_episodes_give_what_each_gives_by_itself(name, stand_ins):
    network = made(name).train()
    images = images_for(network, SIDES[name])
    features, gradients, statistics = one_by_one(network, images)
    assert stand_ins.calls == []
    with EpisodeBatches(network).of(EPISODES):
        together, gradients_together = learned(network, images)
    assert len(stand_ins.calls) >= len(norms(network))
    assert_close_in_norm(together, features, 1e-5)
    for parameter, gradient in gradients.items():
        if is_before_a_batchnorm(network, parameter):
            ours = gradients_together.get(parameter, torch.zeros(()))
            assert ours.abs().max() <= gradient.abs().max() <= 1e-2  # rounding alone
        else:
            assert_close_in_norm(gradients_together[parameter], gradient, 1e-3)
    state = network.state_dict()
    assert len(statistics) == 2 * len(norms(network))
    for buffer, value in statistics.items():
        torch.testing.assert_close(state[buffer], value, rtol=1e-4, atol=1e-5)


def test_batches_are_counted(stand_ins):
    network = made("conv4s").train()
    with EpisodeBatches(network).of(EPISODES):
        network(images_for(network, 32))
    assert [int(norm.num_batches_tracked) for norm in norms(network)] == [EPISODES] * 4


def test_episodes_are_told_apart(stand_ins):
    """With the statistics of the whole batch the answers would be others."""
    network = made("conv4s").train()
    images = images_for(network, 32)
    batches = EpisodeBatches(network)
    with batches.of(EPISODES):
        apart = network(images)
    with batches.of(1):
        assert (network(images) - apart).norm() > 0.1 * apart.norm()


class TestWhichKernels:
    @pytest.mark.parametrize(
        ("name", "calls"),
        [
            ("conv4", ["first block", *["normalise"] * 3]),
            ("conv4s", ["first block", *["normalise"] * 3]),
            ("conv4np", ["normalise"] * 4),  # its first block does not pad
            ("resnet10", ["normalise", "max-pool", *["normalise"] * (4 * 2 + 3)]),
            ("resnet18-84", ["normalise"] * (1 + 8 * 2 + 3)),
        ],
    )
    def test_each_network_has_its_own(self, name, calls, stand_ins):
        network = made(name).train()
        with EpisodeBatches(network).of(EPISODES):
            network(images_for(network, SIDES[name]))
        assert stand_ins.calls == calls

    def test_images_that_want_a_gradient_get_one(self, stand_ins):
        network = made("conv4s").train()
        images = images_for(network, 32).requires_grad_()
        with EpisodeBatches(network).of(EPISODES):
            network(images).square().sum().backward()
        assert stand_ins.calls == ["normalise"] * 4
        assert images.grad.any()

    @pytest.mark.parametrize(("autocast", "dtype"), [(False, torch.float32), (True, torch.bfloat16)])
    def test_the_first_block_works_in_the_precision_of_autocast(self, autocast, dtype, stand_ins):
        network = made("conv4s").train()
        before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        try:
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            torch.set_autocast_enabled("cuda", autocast)
            with EpisodeBatches(network).of(EPISODES):
                network(images_for(network, 32))
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
        assert stand_ins.dtypes == [dtype]
