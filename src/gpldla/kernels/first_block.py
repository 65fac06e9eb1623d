"""The first block of a small network in three passes: 3×3 convolution, BatchNorm, ReLU and max-pool.

With a few input channels the convolution's output is twenty times its input, so computing it again is faster
than writing and reading it. And as it is linear in the image patches p, its statistics
follow from their second moments: with G = Σ p pᵀ over an episode, the mean of w·p is w·Σp/R and its variance
wᵀ G w/R minus the mean's square. The gradient needs one more sum, A = Σ g pᵀ over the pixels that the pooling
chose: both Σ g x̂ and the gradient of the weights follow from A, G and w. Patches carry a constant 1 as one
more entry, so that G and A have the plain sums in them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpldla.kernels.typed import apply_function, jit

PROGRAMS = 1056  # that share a pass: eight per multiprocessor of an H200
POSITIONS = 128  # that a program processes together
WINDOWS = 32  # of four pixels each
LAUNCH = {"num_warps": 2, "num_stages": 1}  # measured: more of either is slower


def convolve_normalise_relu_pool(
    images: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor,
    running_mean: Tensor, running_var: Tensor, *,
    offset: Tensor | None, episodes: int, momentum: float, eps: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Take images [episodes · n, c, h, w] of c ≤ 3 channels through the block; images get no gradient.

    kernel:       [C, c, 3, 3], of a convolution with stride and padding 1
    weight, bias: [C], of BatchNorm; its running statistics [C] move towards the mean over the episodes
    offset:       [C], the convolution's bias: normalisation cancels it, so that it counts for the running
                  mean only. Its gradient is zero.
    dtype:        of the products and of the result

    Returns [episodes · n, C, h // 2, w // 2], channels last.
    """
    return apply_function(
        _FirstBlock, images, kernel, weight, bias, running_mean, running_var, offset, episodes, momentum,
        eps, dtype,
    )  # fmt: skip


class _FirstBlock(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, images, kernel, weight, bias, running_mean, running_var, offset, episodes, momentum, eps, dtype
    ):
        n, c, h, w = images.shape
        # A border of zeros, as the convolution pads, so that no patch needs a bounds check.
        padded = torch.zeros(n, h + 2, w + 2, c, dtype=dtype, device=images.device)
        padded[:, 1:-1, 1:-1] = images.permute(0, 2, 3, 1)
        C, images_each = len(kernel), n // episodes
        entries = 9 * c  # of a patch, then a one, then nothing
        K = max(16, triton.next_power_of_2(entries + 1))
        pixels, windows = images_each * h * w, images_each * (h // 2) * (w // 2)
        filters = torch.zeros(C, K, device=images.device)
        filters[:, :entries] = kernel.permute(0, 2, 3, 1).reshape(C, entries)
        programs = _programs(pixels, episodes)
        gram = images.new_empty(episodes, programs, K, K, dtype=torch.float32)
        mean, rstd = images.new_empty(2, episodes, C, dtype=torch.float32)
        shape = (n, C, h // 2, w // 2)
        y = torch.empty(shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)
        sizes = {"K": K, "CHANNELS": c, "FILTERS": C}
        with torch.cuda.device(images.device):  # Triton launches on the current one
            _second_moments[(programs, episodes)](
                padded, gram, pixels, h, w, programs, LOOP=_loop(pixels, programs, POSITIONS),
                POSITIONS=POSITIONS, K=K, CHANNELS=c, DTYPE=_triton(dtype), PRECISION=_precision(), **LAUNCH,
            )  # fmt: skip
            gram = gram.sum(1)
            _statistics[(1,)](
                gram, filters, mean, rstd, running_mean, running_var, offset, pixels, momentum, eps,
                EPISODES=episodes, OFFSET=offset is not None, DTYPE=_triton(dtype), **sizes,
            )  # fmt: skip
            _apply[(triton.cdiv(windows, WINDOWS), episodes)](
                padded, filters, mean, rstd, weight, bias, y, windows, images_each, h, w,
                WINDOWS=WINDOWS, DTYPE=_triton(dtype), PRECISION=_precision(), **sizes, **LAUNCH,
            )  # fmt: skip
        ctx.save_for_backward(padded, filters, gram, mean, rstd, weight, bias)
        ctx.episodes = episodes
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        padded, filters, gram, mean, rstd, weight, bias = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        (n, high, wide, c), (C, K), episodes = padded.shape, filters.shape, ctx.episodes
        h, w = high - 2, wide - 2
        images_each = n // episodes
        windows = images_each * (h // 2) * (w // 2)
        programs = _programs(windows * 4, episodes)
        chosen = filters.new_empty(episodes, programs, C, K)
        dfilters = torch.empty_like(filters)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        sizes = {"K": K, "CHANNELS": c, "FILTERS": C, "DTYPE": _triton(padded.dtype)}
        with torch.cuda.device(padded.device):
            _chosen_sums[(programs, episodes)](
                padded, filters, mean, rstd, weight, bias, dy, chosen, windows, images_each, h, w, programs,
                LOOP=_loop(windows, programs, WINDOWS), WINDOWS=WINDOWS, PRECISION=_precision(),
                **sizes, **LAUNCH,
            )  # fmt: skip
            _gradients[(1,)](
                chosen.sum(1), gram, filters, mean, rstd, weight, dfilters, dweight, dbias,
                images_each * h * w, EPISODES=episodes, **sizes,
            )  # fmt: skip
        dkernel = dfilters[:, : 9 * c].view(C, 3, 3, c).permute(0, 3, 1, 2)
        return None, dkernel, dweight, dbias, None, None, None, None, None, None, None


def _triton(dtype: torch.dtype) -> tl.dtype:
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}[dtype]


def _precision() -> str:
    """Return the precision of float32 products, the same as in other convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _programs(pixels: int, episodes: int) -> int:
    """Return how many programs share an episode's pixels."""
    return max(1, min(int(triton.cdiv(pixels, POSITIONS)), PROGRAMS // episodes))


def _loop(rows: int, programs: int, at_once: int) -> int:
    return int(triton.cdiv(triton.cdiv(rows, programs), at_once))


@jit
def _patches(image_ptr, address, valid, w, K: tl.constexpr, CHANNELS: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the patches of padded images that start at pixels, [pixels, K]: row by row, a one, nothing."""
    entry = tl.arange(0, K)
    offset = (entry // (3 * CHANNELS)) * (w + 2) * CHANNELS + entry % (3 * CHANNELS)
    wanted = valid[:, None] & (entry < 9 * CHANNELS)[None, :]
    patches = tl.load(image_ptr + (address * CHANNELS)[:, None] + offset[None, :], mask=wanted, other=0.0)
    one = valid[:, None] & (entry == 9 * CHANNELS)[None, :]
    return tl.where(one, 1.0, patches.to(tl.float32)).to(DTYPE)


@jit
def _filters(filters_ptr, K: tl.constexpr, FILTERS: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the filters as the products see them, [FILTERS, K]."""
    address = tl.arange(0, FILTERS)[:, None] * K + tl.arange(0, K)[None, :]
    return tl.load(filters_ptr + address).to(DTYPE)


@jit
def _second_moments(  # type: ignore[no-untyped-def]
    images_ptr, gram_ptr, pixels, h, w, programs,
    LOOP: tl.constexpr, POSITIONS: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum p pᵀ over a share of an episode's pixels."""
    program, episode = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((K, K), tl.float32)
    images_ptr += episode.to(tl.int64) * (pixels // (h * w)) * (h + 2) * (w + 2) * CHANNELS
    for i in range(LOOP):
        index = (program * LOOP + i) * POSITIONS + tl.arange(0, POSITIONS)
        row = index // w  # counted over all images
        address = (row + 2 * (row // h)) * (w + 2) + index % w
        patches = _patches(images_ptr, address, index < pixels, w, K, CHANNELS, DTYPE)
        total = tl.dot(tl.trans(patches), patches, total, input_precision=PRECISION)
    entry = tl.arange(0, K)
    at = gram_ptr + (episode * programs + program) * K * K
    tl.store(at + entry[:, None] * K + entry[None, :], total)


@jit
def _column(matrix, index, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return one column of a matrix [rows, K]."""
    return tl.sum(tl.where((tl.arange(0, K) == index)[None, :], matrix, 0.0), axis=1)


@jit
def _statistics(  # type: ignore[no-untyped-def]
    gram_ptr, filters_ptr, mean_ptr, rstd_ptr, running_mean_ptr, running_var_ptr, offset_ptr, pixels,
    momentum, eps,
    EPISODES: tl.constexpr, OFFSET: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Turn second moments of patches to mean and 1/σ of the filters' outputs, and move the running ones."""
    entry, filter_ = tl.arange(0, K), tl.arange(0, FILTERS)
    filters = _filters(filters_ptr, K, FILTERS, DTYPE).to(tl.float32)
    mean_of_all = tl.zeros((FILTERS,), tl.float32)
    var_of_all = tl.zeros((FILTERS,), tl.float32)
    for episode in range(EPISODES):
        gram = tl.load(gram_ptr + episode * K * K + entry[:, None] * K + entry[None, :]) / pixels
        mean_patch = _column(gram, 9 * CHANNELS, K)  # [K]
        covariance = gram - mean_patch[:, None] * mean_patch[None, :]
        mean = tl.sum(filters * mean_patch[None, :], axis=1)
        products = tl.dot(filters, covariance, input_precision="ieee")
        var = tl.maximum(tl.sum(products * filters, axis=1), 0.0)
        tl.store(mean_ptr + episode * FILTERS + filter_, mean)
        tl.store(rstd_ptr + episode * FILTERS + filter_, tl.rsqrt(var + eps))
        mean_of_all += mean / EPISODES
        var_of_all += var / EPISODES
    var_of_all = var_of_all * (pixels / tl.maximum(pixels - 1, 1))  # unbiased, as BatchNorm does
    if OFFSET:
        mean_of_all += tl.load(offset_ptr + filter_).to(tl.float32)
    before_mean, before_var = tl.load(running_mean_ptr + filter_), tl.load(running_var_ptr + filter_)
    tl.store(running_mean_ptr + filter_, before_mean + momentum * (mean_of_all - before_mean))
    tl.store(running_var_ptr + filter_, before_var + momentum * (var_of_all - before_var))


@jit
def _scale_and_shift(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, episode, FILTERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return what turns a filter's output to the normalised one: x · scale + shift."""
    filter_ = tl.arange(0, FILTERS)
    mean = tl.load(mean_ptr + episode * FILTERS + filter_)
    scale = tl.load(rstd_ptr + episode * FILTERS + filter_) * tl.load(weight_ptr + filter_).to(tl.float32)
    return scale, tl.load(bias_ptr + filter_).to(tl.float32) - mean * scale


@jit
def _corner(window, h, w):  # type: ignore[no-untyped-def]
    """Return where in padded images the first patch of each window starts."""
    high, wide = h // 2, w // 2
    row = window // wide  # counted over all images
    return ((row // high) * (h + 2) + 2 * (row % high)) * (w + 2) + 2 * (window % wide)


@jit
def _apply(  # type: ignore[no-untyped-def]
    images_ptr, filters_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, y_ptr, windows, images, h, w,
    WINDOWS: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Convolve, normalise, take the largest of each window, and nothing below zero."""
    episode = tl.program_id(1)
    scale, shift = _scale_and_shift(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, episode, FILTERS)
    filters = tl.trans(_filters(filters_ptr, K, FILTERS, DTYPE))
    window = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS)
    valid = window < windows
    images_ptr += episode.to(tl.int64) * images * (h + 2) * (w + 2) * CHANNELS
    corner = _corner(window, h, w)
    largest = tl.zeros((WINDOWS, FILTERS), tl.float32)
    for k in tl.static_range(4):
        address = corner + (k // 2) * (w + 2) + k % 2
        patches = _patches(images_ptr, address, valid, w, K, CHANNELS, DTYPE)
        z = tl.dot(patches, filters, input_precision=PRECISION) * scale[None, :] + shift[None, :]
        largest = tl.maximum(largest, z, propagate_nan=tl.PropagateNan.ALL)
    address = (episode * windows + window).to(tl.int64)[:, None] * FILTERS + tl.arange(0, FILTERS)[None, :]
    tl.store(y_ptr + address, largest, mask=valid[:, None])


@jit
def _larger(patches, filters, scale, shift, k, largest, chosen, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Take position k of each window where its output is larger than those before."""
    z = tl.dot(patches, filters, input_precision=PRECISION) * scale[None, :] + shift[None, :]
    return tl.maximum(largest, z), tl.where(z > largest, k, chosen)


@jit
def _added(total, dy, chosen, k, patches, DTYPE: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add g pᵀ for position k of each window."""
    g = tl.where(chosen == k, dy, 0.0).to(DTYPE)
    return tl.dot(tl.trans(g), patches, total, input_precision=PRECISION)


@jit
def _chosen_sums(  # type: ignore[no-untyped-def]
    images_ptr, filters_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, dy_ptr, chosen_ptr,
    windows, images, h, w, programs,
    LOOP: tl.constexpr, WINDOWS: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum A = g pᵀ over a share of an episode's windows; g is dy at the maximum of a window."""
    program, episode = tl.program_id(0), tl.program_id(1)
    scale, shift = _scale_and_shift(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, episode, FILTERS)
    filters = tl.trans(_filters(filters_ptr, K, FILTERS, DTYPE))
    images_ptr += episode.to(tl.int64) * images * (h + 2) * (w + 2) * CHANNELS
    filter_, entry = tl.arange(0, FILTERS), tl.arange(0, K)
    total = tl.zeros((FILTERS, K), tl.float32)
    for i in range(LOOP):
        window = (program * LOOP + i) * WINDOWS + tl.arange(0, WINDOWS)
        valid = window < windows
        corner = _corner(window, h, w)
        below = corner + w + 2
        p0 = _patches(images_ptr, corner, valid, w, K, CHANNELS, DTYPE)
        p1 = _patches(images_ptr, corner + 1, valid, w, K, CHANNELS, DTYPE)
        p2 = _patches(images_ptr, below, valid, w, K, CHANNELS, DTYPE)
        p3 = _patches(images_ptr, below + 1, valid, w, K, CHANNELS, DTYPE)
        largest = tl.zeros((WINDOWS, FILTERS), tl.float32)
        chosen = tl.full((WINDOWS, FILTERS), -1, tl.int32)  # none where all are below zero
        largest, chosen = _larger(p0, filters, scale, shift, 0, largest, chosen, PRECISION)
        largest, chosen = _larger(p1, filters, scale, shift, 1, largest, chosen, PRECISION)
        largest, chosen = _larger(p2, filters, scale, shift, 2, largest, chosen, PRECISION)
        largest, chosen = _larger(p3, filters, scale, shift, 3, largest, chosen, PRECISION)
        address = (episode * windows + window).to(tl.int64)[:, None] * FILTERS + filter_[None, :]
        dy = tl.load(dy_ptr + address, mask=valid[:, None], other=0.0).to(tl.float32)
        total = _added(total, dy, chosen, 0, p0, DTYPE, PRECISION)
        total = _added(total, dy, chosen, 1, p1, DTYPE, PRECISION)
        total = _added(total, dy, chosen, 2, p2, DTYPE, PRECISION)
        total = _added(total, dy, chosen, 3, p3, DTYPE, PRECISION)
    at = chosen_ptr + (episode * programs + program) * FILTERS * K
    tl.store(at + filter_[:, None] * K + entry[None, :], total)


@jit
def _gradients(  # type: ignore[no-untyped-def]
    chosen_ptr, gram_ptr, filters_ptr, mean_ptr, rstd_ptr, weight_ptr, dfilters_ptr, dweight_ptr, dbias_ptr,
    pixels,
    EPISODES: tl.constexpr, K: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Turn A and G to gradients: dw = scale · (A − mean(g) Σp − mean(g x̂) Σ x̂ p), summed over episodes."""
    entry, filter_ = tl.arange(0, K), tl.arange(0, FILTERS)
    matrix = filter_[:, None] * K + entry[None, :]
    filters = _filters(filters_ptr, K, FILTERS, DTYPE).to(tl.float32)
    weight = tl.load(weight_ptr + filter_).to(tl.float32)
    dfilters = tl.zeros((FILTERS, K), tl.float32)
    dweight = tl.zeros((FILTERS,), tl.float32)
    dbias = tl.zeros((FILTERS,), tl.float32)
    for episode in range(EPISODES):
        A = tl.load(chosen_ptr + episode * FILTERS * K + matrix)
        gram = tl.load(gram_ptr + episode * K * K + entry[:, None] * K + entry[None, :])
        mean = tl.load(mean_ptr + episode * FILTERS + filter_)
        rstd = tl.load(rstd_ptr + episode * FILTERS + filter_)
        sum_patch = _column(gram, 9 * CHANNELS, K)
        sum_g = _column(A, 9 * CHANNELS, K)
        sum_gx = rstd * (tl.sum(A * filters, axis=1) - mean * sum_g)  # Σ g x̂
        x_patch = tl.dot(filters, gram, input_precision="ieee") - mean[:, None] * sum_patch[None, :]
        x_patch = x_patch * rstd[:, None]  # Σ x̂ p
        mean_g, mean_gx = sum_g / pixels, sum_gx / pixels
        dfilters += (weight * rstd)[:, None] * (
            A - mean_g[:, None] * sum_patch[None, :] - mean_gx[:, None] * x_patch
        )
        dweight += sum_gx
        dbias += sum_g
    tl.store(dfilters_ptr + matrix, dfilters)
    tl.store(dweight_ptr + filter_, dweight)
    tl.store(dbias_ptr + filter_, dbias)
