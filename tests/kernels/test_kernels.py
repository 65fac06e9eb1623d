"""The GPU kernels against plain operations in float64: values, gradients and running statistics.

With a GPU they run there. Without one Triton's interpreter runs them on the CPU, in a process of its own: it
has to be asked for before Triton is imported, which Lightning does, and changes Triton for good.
"""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gpldla import kernels
from gpldla.backbones import backbone_preprocessing
from gpldla.data.augment.photographs import (
    N_PHOTOGRAPH_UNIFORMS,
    augment_photographs,
    sample_photograph_params,
)
from gpldla.data.augment.transforms import standardise_, to_rgb
from gpldla.heads.gp import noisy_gumbel, predictive

GPU = torch.cuda.is_available()
INTERPRETED = not GPU and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if GPU else "cpu"
MOMENTUM, EPS = 0.1, 1e-5
FLOAT32, BFLOAT16 = (torch.float32, 3e-6), (torch.bfloat16, 1e-2)  # with their tolerances
PRECISIONS = [FLOAT32] + [BFLOAT16] * GPU  # the interpreter cannot multiply in bfloat16

RUNS_KERNELS = find_spec("triton") is not None and (GPU or INTERPRETED)  # in this process

needs_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA device")


@pytest.mark.skipif(GPU or INTERPRETED, reason="the kernels run in this process")
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize(
    "tests", [("TestNormalise",), ("TestFirstBlock", "TestMaxPool", "TestPhotographs", "TestQuadrature")]
)
def test_in_the_interpreter(tests, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--basetemp", str(tmp_path / "inner"), *(f"{__file__}::{name}" for name in tests)],
        env={**environment, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 30


@pytest.fixture(autouse=True, scope="module")
def surroundings():
    """Let kernels run on the CPU where they are interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED and find_spec("triton"):
            from triton.runtime import interpreter

            prepare = interpreter._patch_lang_tensor

            def prepare_for_new_numpy(tensor, *others):
                prepare(tensor, *others)
                # NumPy ≥ 2.4 does not take an array [1] for a number, as range(tensor) needs it.
                tensor.__index__ = lambda self: int(self.handle.data.item())

            patch.setattr(interpreter, "_patch_lang_tensor", prepare_for_new_numpy)
            patch.setattr(torch.cuda, "device", lambda device: nullcontext())
        yield


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def as_seen(tensor, dtype):
    """Round float64 numbers to what the kernel gets, so that it and the reference see the same."""
    return tensor.to(dtype).double()


def relative_error(ours, reference):
    assert ours.shape == reference.shape
    error = (ours.detach().cpu().double() - reference).norm()
    return (error / reference.norm().clamp_min(1e-12)).item() if reference.numel() else 0.0


def assert_agree(ours, reference, tolerance):
    """Compare dicts of tensors by name; a reference that is zero must be met to the tolerance itself."""
    assert ours.keys() == reference.keys()
    errors = {
        name: ours[name].detach().double().abs().max().item()
        if not reference[name].any()
        else relative_error(ours[name], reference[name])
        for name in reference
        if reference[name].numel()
    }
    assert {name: error for name, error in errors.items() if not error < tolerance} == {}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@dataclass
class Norm:
    """A BatchNorm of C channels in float64, with all that is special in its first channels."""

    C: int
    offset_given: bool = True
    weight: torch.Tensor = field(init=False)
    bias: torch.Tensor = field(init=False)
    offset: torch.Tensor | None = field(init=False)

    def __post_init__(self):
        self.weight, self.bias, self.mean, offset = (normal(self.C, seed=i) for i in range(4))
        self.var = normal(self.C, seed=4).square()
        self.offset = offset if self.offset_given else None
        self.weight[:3] = torch.tensor([0.0, -1.5, 0.0])
        self.bias[:3] = torch.tensor([0.7, 0.2, 0.0])

    def moved_towards(self, means, variances):
        """Return the running statistics after an update with these statistics of each episode, [E, C]."""
        offset = 0 if self.offset is None else self.offset
        return {
            "running mean": (1 - MOMENTUM) * self.mean + MOMENTUM * (means.mean(0) + offset),
            "running var": (1 - MOMENTUM) * self.var + MOMENTUM * variances.mean(0),
        }

    def on_device(self):
        """Return the arguments of a kernel, float32."""
        tensors = (self.weight, self.bias, self.mean, self.var)
        weight, bias, mean, var = (t.float().to(DEVICE) for t in tensors)
        offset = None if self.offset is None else self.offset.float().to(DEVICE)
        return (weight.requires_grad_(), bias.requires_grad_(), mean, var), offset


# ---- BatchNorm and what follows it


@dataclass
class NormaliseCase:
    """x [E · n, C, h, w] to be normalised, then perhaps added to, cut off and pooled, in both ways."""

    x: torch.Tensor
    episodes: int
    norm: Norm
    relu: bool = True
    pool: bool = False
    added: torch.Tensor | None = None
    dtype: torch.dtype = torch.float32

    def plain(self):
        x, weight, bias = (
            as_seen(t, kind).requires_grad_()
            for t, kind in (
                (self.x, self.dtype),
                (self.norm.weight, torch.float32),
                (self.norm.bias, torch.float32),
            )
        )
        added = None if self.added is None else as_seen(self.added, self.dtype).requires_grad_()
        parts = []
        for episode in x.chunk(self.episodes):
            mean, var = torch.zeros(2, self.norm.C, dtype=torch.float64)
            parts.append(F.batch_norm(episode, mean, var, weight, bias, True, 1.0, EPS))
        y = torch.cat(parts)
        y = y if added is None else y + added
        y = F.max_pool2d(y, 2) if self.pool else y
        y = y.relu() if self.relu else y
        y.backward(self.gradient(y))
        by_episode = x.detach().unflatten(0, (self.episodes, -1)).transpose(1, 2).flatten(2)  # [E, C, places]
        statistics = self.norm.moved_towards(by_episode.mean(-1), by_episode.var(-1))
        return self.named(y, x, weight, bias, added) | statistics

    def kernel(self):
        from gpldla.kernels.normalise import normalise

        (weight, bias, mean, var), offset = self.norm.on_device()
        x = self.x.to(self.dtype).to(DEVICE).requires_grad_()
        added = None if self.added is None else self.added.to(self.dtype).to(DEVICE).requires_grad_()
        options = {"offset": offset, "episodes": self.episodes, "momentum": MOMENTUM, "eps": EPS}
        y = normalise(x, weight, bias, mean, var, **options, added=added, relu=self.relu, pool=self.pool)
        assert y.dtype == self.dtype
        assert y.is_contiguous(memory_format=torch.channels_last)
        y.backward(self.gradient(y))
        return self.named(y, x, weight, bias, added) | {"running mean": mean, "running var": var}

    def gradient(self, y):
        return normal(*y.shape, seed=9).to(self.dtype).to(y)

    @staticmethod
    def named(y, x, weight, bias, added):
        tensors = {"y": y.detach(), "x": x.grad, "weight": weight.grad, "bias": bias.grad}
        return tensors if added is None else tensors | {"added": added.grad}


def activations(episodes, images, C, h, w):
    """Return x [E · n, C, h, w] with another mean in each channel and episode."""
    x = 2 * normal(episodes * images, C, h, w, seed=5)
    return x + normal(episodes, 1, C, 1, 1, seed=6).expand(-1, images, -1, -1, -1).flatten(0, 1) * 3


class TestNormalise:
    __test__ = RUNS_KERNELS

    @pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
    @pytest.mark.parametrize("pool", [False, True], ids=["", "pool"])
    @pytest.mark.parametrize(
        ("episodes", "images", "C", "h", "w"),
        [
            (1, 5, 64, 8, 8),
            (3, 4, 64, 7, 9),  # odd sides: the last row and column are in no window
            (2, 2, 16, 3, 2),
            (4, 3, 32, 2, 5),
            (1, 2, 128, 4, 6),
            (2, 2, 512, 2, 2),
        ],
    )
    def test_agrees_with_plain_operations(self, episodes, images, C, h, w, pool, dtype, tolerance):
        x = activations(episodes, images, C, h, w)
        case = NormaliseCase(x, episodes, Norm(C), pool=pool, dtype=dtype)
        assert_agree(case.kernel(), case.plain(), tolerance)

    @pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
    @pytest.mark.parametrize("relu", [False, True], ids=["", "relu"])
    @pytest.mark.parametrize("with_added", [False, True], ids=["", "added"])
    @pytest.mark.parametrize("C", [64, 128])
    def test_adds_and_cuts_off(self, C, with_added, relu, dtype, tolerance):
        x = activations(2, 3, C, 5, 3)
        added = normal(*x.shape, seed=7) if with_added else None
        norm = Norm(C, offset_given=False)
        case = NormaliseCase(x, 2, norm, relu=relu, added=added, dtype=dtype)
        assert_agree(case.kernel(), case.plain(), tolerance)

    @pytest.mark.parametrize("offset_given", [False, True])
    def test_the_offset_counts_for_the_running_mean_only(self, offset_given):
        x = activations(2, 3, 16, 4, 4)
        case = NormaliseCase(x, 2, Norm(16, offset_given), pool=True)
        assert_agree(case.kernel(), case.plain(), 3e-6)

    @pytest.mark.parametrize("pool", [False, True], ids=["", "pool"])
    @pytest.mark.parametrize("programs", [1, 2, 3])
    def test_programs_share_the_sums(self, programs, pool, monkeypatch):
        from gpldla.kernels import normalise as module

        monkeypatch.setattr(module, "PROGRAMS", programs)
        case = NormaliseCase(activations(2, 5, 16, 7, 6), 2, Norm(16), pool=pool)
        assert_agree(case.kernel(), case.plain(), 3e-6)

    def test_equals_send_their_gradient_to_the_first(self):
        x = normal(6, 16, 6, 6, seed=5).round()
        assert (x[..., ::2, :] == x[..., 1::2, :]).double().mean() > 0.2
        case = NormaliseCase(x, 2, Norm(16), pool=True)
        assert_agree(case.kernel(), case.plain(), 3e-6)

    @pytest.mark.parametrize("pool", [False, True], ids=["", "pool"])
    @pytest.mark.parametrize("value", [0.0, 2.0])
    def test_constant_channels(self, value, pool):
        x = activations(2, 3, 16, 4, 4)
        x[:, 4:9] = value
        norm = Norm(16)
        case = NormaliseCase(x, 2, norm, pool=pool)
        ours = case.kernel()
        assert_agree(ours, case.plain(), 1e-4)  # 1/σ is 316 there
        expected = norm.bias[4:9].relu().float().view(1, -1, 1, 1).expand_as(ours["y"][:, 4:9])
        torch.testing.assert_close(ours["y"][:, 4:9].cpu(), expected, atol=1e-3 * value, rtol=0)

    @pytest.mark.parametrize("pool", [False, True], ids=["", "pool"])
    def test_means_much_larger_than_deviations(self, pool):
        x = normal(6, 16, 6, 6, seed=5) + 100 * normal(16, 1, 1, seed=6).sign()
        case = NormaliseCase(x, 2, Norm(16), pool=pool)
        assert_agree(case.kernel(), case.plain(), 1e-4)

    def test_a_first_place_far_from_the_mean(self):
        """The sums are taken relative to it."""
        x = activations(2, 4, 16, 5, 5)
        x[::4, :, 0, 0] += 60
        case = NormaliseCase(x, 2, Norm(16))
        assert_agree(case.kernel(), case.plain(), 1e-4)

    def test_an_image_smaller_than_a_window_gives_nothing_and_gets_nothing(self):
        x = activations(2, 3, 16, 1, 5)
        case = NormaliseCase(x, 2, Norm(16), pool=True)
        ours = case.kernel()
        assert ours["y"].shape == (6, 16, 0, 2)
        assert not any(ours[name].any() for name in ("x", "weight", "bias"))
        without_pooling = NormaliseCase(x, 2, Norm(16)).plain()
        names = ("running mean", "running var")
        assert_agree(*({name: t[name] for name in names} for t in (ours, without_pooling)), 3e-6)

    def test_memory_in_another_order_gives_the_same(self):
        x = activations(2, 3, 32, 5, 4)
        case = NormaliseCase(x, 2, Norm(32), pool=True)
        before = case.kernel()
        case.x = x.contiguous(memory_format=torch.channels_last)
        assert_equal(before, case.kernel())

    def test_an_episode_does_not_see_the_others(self):
        x = activations(3, 2, 16, 4, 4)
        together = NormaliseCase(x, 3, Norm(16)).kernel()["y"]
        alone = [NormaliseCase(part, 1, Norm(16)).kernel()["y"] for part in x.chunk(3)]
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=1e-6)

    @pytest.mark.parametrize("pool", [False, True], ids=["", "pool"])
    def test_what_is_not_a_number_stays_so(self, pool):
        """Else a training that has diverged looks as if its network answered zero."""
        x = activations(2, 2, 16, 4, 4)
        x[1, 3] = torch.nan
        y = NormaliseCase(x, 2, Norm(16), pool=pool).kernel()["y"]
        assert y[:2, 3].isnan().all()
        assert not y[2:].isnan().any()

    def test_channels_are_a_multiple_of_16(self):
        with pytest.raises(ValueError, match="24 channels are not a multiple of 16"):
            NormaliseCase(activations(1, 2, 24, 2, 2), 1, Norm(24)).kernel()

    @needs_gpu
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("pool", [False, True], ids=["", "pool"])
    def test_gives_the_same_bits_every_time(self, dtype, pool):
        case = NormaliseCase(activations(4, 25, 64, 42, 42), 4, Norm(64), pool=pool, dtype=dtype)
        first = case.kernel()
        assert_equal(first, case.kernel())
        assert_agree(first, case.plain(), 1e-2 if dtype == torch.bfloat16 else 1e-5)


# ---- the first block


@dataclass
class FirstBlockCase:
    """A first block of C filters on images [E · n, c, h, w], by the kernels and by plain operations."""

    images: torch.Tensor
    episodes: int
    norm: Norm
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        kernel = 0.3 * normal(self.norm.C, self.images.shape[1], 3, 3, seed=7)
        # Numbers of bfloat16 have exact products in all precisions, those of tensor cores included.
        self.images, self.filters = (as_seen(t, torch.bfloat16) for t in (self.images, kernel))

    def plain(self):
        filters = self.filters.clone().requires_grad_()
        weight, bias = (
            as_seen(t, torch.float32).requires_grad_() for t in (self.norm.weight, self.norm.bias)
        )
        parts, means, variances = [], [], []
        for episode in self.images.chunk(self.episodes):
            x = F.conv2d(episode, filters, padding=1)
            by_channel = x.detach().transpose(0, 1).flatten(1)
            means.append(by_channel.mean(-1))
            variances.append(by_channel.var(-1))
            z = F.batch_norm(x, None, None, weight, bias, True, MOMENTUM, EPS)
            parts.append(F.max_pool2d(z, 2).relu())
        y = torch.cat(parts)
        y.backward(self.gradient(y))
        statistics = self.norm.moved_towards(torch.stack(means), torch.stack(variances))
        return self.named(y, filters, weight, bias) | statistics

    def kernel(self):
        from gpldla.kernels.first_block import convolve_normalise_relu_pool

        (weight, bias, mean, var), offset = self.norm.on_device()
        filters = self.filters.float().to(DEVICE).requires_grad_()
        y = convolve_normalise_relu_pool(
            self.images.float().to(DEVICE),
            filters,
            weight,
            bias,
            mean,
            var,
            offset=offset,
            episodes=self.episodes,
            momentum=MOMENTUM,
            eps=EPS,
            dtype=self.dtype,
        )
        assert y.dtype == self.dtype
        assert y.is_contiguous(memory_format=torch.channels_last)
        y.backward(self.gradient(y))
        return self.named(y, filters, weight, bias) | {"running mean": mean, "running var": var}

    @staticmethod
    def gradient(y):
        return normal(*y.shape, seed=9).bfloat16().to(y)

    @staticmethod
    def named(y, filters, weight, bias):
        return {"y": y.detach(), "filters": filters.grad, "weight": weight.grad, "bias": bias.grad}


def pictures(n, c, h, w):
    return 0.5 + normal(n, c, h, w, seed=5)


class TestFirstBlock:
    __test__ = RUNS_KERNELS

    @pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
    @pytest.mark.parametrize(
        ("episodes", "images", "c", "h", "w", "C"),
        [
            (1, 3, 3, 8, 8, 64),
            (2, 2, 3, 9, 7, 64),
            (3, 2, 1, 6, 6, 64),
            (1, 2, 2, 5, 4, 16),
            (2, 1, 3, 2, 2, 32),
            (2, 3, 1, 3, 3, 128),
        ],
    )
    def test_agrees_with_plain_operations(self, episodes, images, c, h, w, C, dtype, tolerance):
        case = FirstBlockCase(pictures(episodes * images, c, h, w), episodes, Norm(C), dtype)
        assert_agree(case.kernel(), case.plain(), tolerance)

    @pytest.mark.parametrize("programs", [1, 2, 3])
    def test_programs_share_the_sums(self, programs, monkeypatch):
        from gpldla.kernels import first_block as module

        monkeypatch.setattr(module, "PROGRAMS", programs)
        case = FirstBlockCase(pictures(6, 3, 11, 10), 2, Norm(16))
        assert_agree(case.kernel(), case.plain(), 3e-6)

    @pytest.mark.parametrize("offset_given", [False, True])
    def test_the_offset_counts_for_the_running_mean_only(self, offset_given):
        case = FirstBlockCase(pictures(4, 3, 4, 4), 2, Norm(16, offset_given))
        assert_agree(case.kernel(), case.plain(), 3e-6)

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_pictures_of_one_colour(self, value):
        """With 0 nothing varies, else the rim of zeros does. Of equal places the first counts."""
        case = FirstBlockCase(torch.full((4, 3, 6, 6), value, dtype=torch.float64), 2, Norm(16))
        assert_agree(case.kernel(), case.plain(), 1e-5)

    def test_characters_in_black_and_white(self):
        case = FirstBlockCase((normal(6, 1, 8, 8, seed=5) > 0.5).double(), 3, Norm(16))
        assert_agree(case.kernel(), case.plain(), 3e-6)

    def test_a_mean_larger_than_the_deviation(self):
        """Standardised photographs are nowhere near this."""
        case = FirstBlockCase(pictures(4, 3, 8, 8) + 10, 2, Norm(16))
        assert_agree(case.kernel(), case.plain(), 1e-3)

    def test_an_image_smaller_than_a_window_gives_nothing_and_gets_nothing(self):
        case = FirstBlockCase(pictures(4, 3, 1, 6), 2, Norm(16))
        ours = case.kernel()
        assert ours["y"].shape == (4, 16, 0, 3)
        assert not any(ours[name].any() for name in ("filters", "weight", "bias"))
        assert ours["running mean"].isfinite().all()

    def test_memory_in_another_order_gives_the_same(self):
        case = FirstBlockCase(pictures(4, 3, 5, 4), 2, Norm(16))
        before = case.kernel()
        case.images = case.images.contiguous(memory_format=torch.channels_last)
        assert_equal(before, case.kernel())

    def test_what_is_not_a_number_stays_so(self):
        images = pictures(4, 3, 4, 4)
        images[0, 0, 0, 0] = torch.nan
        case = FirstBlockCase(images, 2, Norm(16, offset_given=False))
        y = case.kernel()["y"]
        assert y[:2, 3:].isnan().all()
        assert not y[2:].isnan().any()

    @needs_gpu
    def test_float32_is_about_as_exact_as_a_convolution_on_tensor_cores(self):
        case = FirstBlockCase(pictures(20, 3, 42, 42), 2, Norm(64))
        case.images, case.filters = pictures(20, 3, 42, 42), 0.3 * normal(64, 3, 3, 3, seed=7)
        ours, plain = case.kernel(), case.plain()
        assert_agree({"y": ours["y"]}, {"y": plain["y"]}, 2e-3)
        names = ("running mean", "running var")
        assert_agree(*({name: t[name] for name in names} for t in (ours, plain)), 1e-3)

    @needs_gpu
    @pytest.mark.parametrize(
        ("dtype", "tensor_cores", "tolerance"),
        # Tensor cores cut digits off where they add up a million products, however exact those are.
        [(torch.float32, False, 1e-5), (torch.float32, True, 1e-3), (torch.bfloat16, True, 1e-2)],
    )
    def test_gives_the_same_bits_every_time(self, monkeypatch, dtype, tensor_cores, tolerance):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tensor_cores)
        case = FirstBlockCase(pictures(100, 3, 84, 84), 4, Norm(64), dtype)
        first = case.kernel()
        assert_equal(first, case.kernel())
        assert_agree(first, case.plain(), tolerance)


# ---- the 3×3 max-pool


def pooled(pool, x, seed=9):
    """Return what comes out and the gradient that goes back."""
    x = x.detach().requires_grad_()
    y = pool(x)
    y.backward(normal(*y.shape, seed=seed).to(torch.bfloat16).to(y))
    return {"y": y.detach(), "x": x.grad}


class TestMaxPool:
    __test__ = RUNS_KERNELS

    @pytest.mark.parametrize("dtype", [dtype for dtype, _ in PRECISIONS])
    @pytest.mark.parametrize("cut_off", [False, True], ids=["", "ties"])
    @pytest.mark.parametrize(
        "shape",
        [
            (2, 64, 8, 8),
            (1, 16, 7, 9),
            (3, 32, 1, 5),
            (2, 64, 6, 3),
            (1, 128, 2, 2),
            (2, 16, 1, 1),
            (1, 512, 3, 4),
        ],
    )
    def test_agrees_with_plain_operations(self, shape, cut_off, dtype):
        from gpldla.kernels.pool import max_pool_3x3

        x = normal(*shape, seed=5).to(dtype)
        x = x.relu() if cut_off else x
        ours = pooled(max_pool_3x3, x.to(DEVICE))
        assert ours["y"].dtype == ours["x"].dtype == dtype
        plain = pooled(lambda x: F.max_pool2d(x, 3, stride=2, padding=1), x.double())
        assert torch.equal(ours["y"].cpu().double(), plain["y"])
        assert_agree(ours, plain, 1e-6 if dtype == torch.float32 else 1e-2)

    def test_negative_numbers_beat_the_padding(self):
        from gpldla.kernels.pool import max_pool_3x3

        x = -1 - normal(2, 16, 5, 5, seed=5).abs()
        assert (max_pool_3x3(x.float().to(DEVICE)) < -0.9).all()

    def test_memory_in_another_order_gives_the_same(self):
        from gpldla.kernels.pool import max_pool_3x3

        x = normal(2, 32, 5, 6, seed=5).float().to(DEVICE)
        last = x.contiguous(memory_format=torch.channels_last)
        assert_equal(pooled(max_pool_3x3, x), pooled(max_pool_3x3, last))

    def test_what_is_not_a_number_stays_so(self):
        from gpldla.kernels.pool import max_pool_3x3

        x = normal(1, 16, 5, 5, seed=5).float()
        x[0, 2, 2, 2] = torch.nan
        ours = max_pool_3x3(x.to(DEVICE)).cpu()
        assert torch.equal(ours.isnan(), F.max_pool2d(x, 3, stride=2, padding=1).isnan())

    @needs_gpu
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_gives_the_same_bits_every_time(self, dtype):
        from gpldla.kernels.pool import max_pool_3x3

        x = normal(20, 64, 112, 112, seed=5).relu().to(dtype).to(DEVICE)
        first = pooled(max_pool_3x3, x)
        assert_equal(first, pooled(max_pool_3x3, x))
        assert_agree(first, pooled(lambda x: F.max_pool2d(x, 3, 2, 1), x.cpu().double()), 1e-2)


# ---- photographs

CONV4 = backbone_preprocessing("conv4")


def shares(start, length, size, stored):
    """Return what each target pixel takes of each source pixel, [size, stored], float64."""
    scale = length / size
    radius = max(scale, 1.0)
    centres = start - 0.5 + scale * (torch.arange(size, dtype=torch.float64) + 0.5)
    sources = torch.arange(stored, dtype=torch.float64)
    weights = (1 - (sources - centres.unsqueeze(1)).abs() / radius).clamp_min(0)
    weights *= (sources + 0.501 >= start) & (sources + 0.499 <= start + length)  # centres inside the box
    return weights / weights.sum(1, keepdim=True)


def changed_exactly(images, changes, size):
    """Do what `augment_photographs` does and standardise, in float64, an image at a time."""
    luma = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    results = []
    for image, change in zip(images.double() / 255, changes.double().tolist()):
        top, left, height, width, mirrored, brightness, contrast, saturation = change
        rows, columns = (
            shares(start, length, size, stored)
            for start, length, stored in ((top, height, image.shape[1]), (left, width, image.shape[2]))
        )
        x = rows @ image @ columns.T
        x = x.flip(2) if mirrored else x
        x = (x * brightness).clamp(0, 1)
        grey_level = (x.mean((1, 2)) @ luma).item()
        x = (x * contrast + grey_level * (1 - contrast)).clamp(0, 1)
        grey_image = torch.einsum("chw,c->hw", x, luma)
        x = (x * saturation + grey_image * (1 - saturation)).clamp(0, 1)
        mean, std = (torch.tensor(t, dtype=torch.float64).view(3, 1, 1) for t in (CONV4.mean, CONV4.std))
        results.append((x - mean) / std)
    return torch.stack(results)


def changed_by_kernels(images, changes, size):
    from gpldla.kernels.photographs import augment_photographs as by_kernels

    mean, std = (torch.tensor(t, device=DEVICE) for t in (CONV4.mean, CONV4.std))
    result = by_kernels(images.to(DEVICE), changes.to(DEVICE), size, mean, std)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)
    return result.cpu()


def stored_images(n, h, w, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, h, w), dtype=torch.uint8, generator=generator)


def drawn_changes(n, stored, shapes=None, seed=0):
    uniforms = torch.rand(n, N_PHOTOGRAPH_UNIFORMS, generator=torch.Generator().manual_seed(seed))
    return sample_photograph_params(uniforms, shapes, stored)


class TestPhotographs:
    __test__ = RUNS_KERNELS

    @pytest.mark.parametrize(
        ("h", "w", "size"), [(40, 56, 13), (21, 17, 16), (9, 9, 21), (64, 30, 3), (5, 5, 1)]
    )
    def test_drawn_changes(self, h, w, size):
        images, changes = stored_images(4, h, w), drawn_changes(4, (h, w))
        expected = changed_exactly(images, changes, size)
        assert expected.std() > 0.05
        ours = changed_by_kernels(images, changes, size)
        torch.testing.assert_close(ours, expected.float(), atol=2e-4, rtol=0)

    @pytest.mark.parametrize("mirrored", [0.0, 1.0])
    @pytest.mark.parametrize(
        "box",
        [
            (0.0, 0.0, 20.0, 24.0),  # the whole image
            (3.2, 4.1, 11.7, 9.3),
            (10.0, 11.0, 1.0, 1.0),
            (10.5, 11.5, 1.0, 1.0),  # on four pixels
            (19.0, 23.0, 1.0, 1.0),  # in the last corner
            (18.75, 0.0, 1.25, 24.0),
            (0.0, 2.0, 20.0, 7.0),
        ],
    )
    def test_boxes(self, box, mirrored):
        images, changes = stored_images(1, 20, 24), torch.tensor([[*box, mirrored, 0.8, 1.3, 0.7]])
        expected = changed_exactly(images, changes, 7)
        ours = changed_by_kernels(images, changes, 7)
        torch.testing.assert_close(ours, expected.float(), atol=2e-4, rtol=0)

    def test_boxes_of_pictures_that_were_larger_than_what_is_stored(self):
        """In their own pixels they are whole, here smaller than one and between two."""
        shapes = torch.tensor([[900.0, 40.0], [33.0, 700.0], [500.0, 500.0], [6.0, 7.0]])
        images, changes = stored_images(4, 5, 7), drawn_changes(4, (5, 7), shapes, seed=3)
        assert (changes[:, 2:4] != changes[:, 2:4].round()).any()
        expected = changed_exactly(images, changes, 11)
        torch.testing.assert_close(
            changed_by_kernels(images, changes, 11), expected.float(), atol=2e-4, rtol=0
        )

    def test_grey_images_in_three_channels(self):
        images, changes = to_rgb(stored_images(3, 20, 18, channels=1)), drawn_changes(3, (20, 18))
        assert images.stride(1) == 0
        expected = changed_exactly(images, changes, 9)
        torch.testing.assert_close(
            changed_by_kernels(images, changes, 9), expected.float(), atol=2e-4, rtol=0
        )

    @pytest.mark.parametrize("factor", [0.6, 1.4])
    @pytest.mark.parametrize("place", [5, 6, 7], ids=["brightness", "contrast", "saturation"])
    def test_colours(self, place, factor):
        images, changes = stored_images(2, 12, 12), torch.tensor([[0.0, 0, 12, 12, 0, 1, 1, 1]] * 2)
        changes[:, place] = factor
        images[0, :, :6] = 250  # some leave the range
        expected = changed_exactly(images, changes, 12)
        torch.testing.assert_close(
            changed_by_kernels(images, changes, 12), expected.float(), atol=2e-4, rtol=0
        )

    def test_the_plain_version_gives_the_same(self):
        images, changes = stored_images(4, 30, 26), drawn_changes(4, (30, 26))
        plain = standardise_(augment_photographs(images.to(DEVICE), changes.to(DEVICE), 12), CONV4).cpu()
        difference = (changed_by_kernels(images, changes, 12) - plain).abs()
        one_level = 1 / 255 / min(CONV4.std)
        assert difference.mean() < (1e-4 if GPU else one_level)  # on a CPU it works in bfloat16
        assert difference.max() < (1e-3 if GPU else 5 * one_level)

    @needs_gpu
    def test_gives_the_same_bits_every_time(self):
        images, changes = stored_images(100, 128, 128), drawn_changes(100, (128, 128))
        assert torch.equal(changed_by_kernels(images, changes, 84), changed_by_kernels(images, changes, 84))


# ---- when kernels are used


class OnGPU:
    """Stands in for a tensor on a GPU."""

    is_cuda = True


@pytest.fixture
def fresh(monkeypatch):
    """No failures yet, and Triton there."""
    monkeypatch.setattr(kernels, "USE", kernels.KernelUse())
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())


class TestServe:
    def test_tensors_on_a_gpu(self, fresh):
        assert kernels.usable_for(OnGPU())

    def test_not_tensors_on_a_cpu(self, fresh):
        assert not kernels.usable_for(torch.zeros(3))

    def test_not_without_triton(self, fresh, monkeypatch):
        monkeypatch.setattr(kernels, "find_spec", lambda name: None)
        assert not kernels.usable_for(OnGPU())

    def test_not_while_compiling(self, fresh, monkeypatch):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not kernels.usable_for(OnGPU())

    def test_what_works_is_returned(self, fresh):
        assert kernels.try_or_fall_back(lambda: 5) == 5
        assert kernels.usable_for(OnGPU())

    def test_one_failure_warns_and_turns_them_off(self, fresh):
        def broken():
            raise RuntimeError("no C compiler")

        with pytest.warns(UserWarning, match=r"Triton failed \(no C compiler\); slower plain operations"):
            assert kernels.try_or_fall_back(broken) is None
        assert not kernels.usable_for(OnGPU())

    def test_not_while_disabled(self, fresh):
        with kernels.USE.disabled():
            assert not kernels.usable_for(OnGPU())
            with kernels.USE.disabled():
                pass
            assert not kernels.usable_for(OnGPU())
        assert kernels.usable_for(OnGPU())

    def test_who_stops_the_program_stops_it(self, fresh):
        def stopped():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            kernels.try_or_fall_back(stopped)
        assert kernels.usable_for(OnGPU())


@pytest.mark.skipif(not RUNS_KERNELS, reason="needs a GPU, or Triton's interpreter")
class TestQuadrature:
    @pytest.mark.parametrize("C", [2, 5, 20, 64])
    def test_agrees_with_the_plain_operations(self, C):
        mean, var = 3 * normal(70, C).float(), normal(70, C, seed=1).float().square() * 4
        mean[3, 1], var[5] = -torch.inf, 0.0
        ours = self.integrated(mean, var)
        expected = predictive.quadrature(mean.double(), var.double())
        assert (ours.exp() - expected.exp()).abs().max() < 2e-5
        assert ours[3, 1] == -torch.inf

    @staticmethod
    def integrated(mean, var, **changed):
        from gpldla.kernels.quadrature import Rule, integrate

        table = noisy_gumbel.constants(torch.float32, torch.device(DEVICE)).table
        rule = Rule(**{**predictive._rule(), **changed})
        return integrate(mean.to(DEVICE), var.to(DEVICE), table, rule).cpu()

    def test_every_constant_of_the_rule_counts(self):
        """A rule with another constant gives other answers: none is left out on the way."""
        mean, var = 3 * normal(20, 5).float(), normal(20, 5, seed=1).float().square() * 4
        answers = self.integrated(mean, var)
        rule = predictive._rule()
        others = [{name: 0.5 * rule[name]} for name in ("variance", "below", "half", "reach", "middle")]
        others.append({"points": 5, "step": 9.0})
        for other in others:
            assert not torch.equal(self.integrated(mean, var, **other), answers), other
