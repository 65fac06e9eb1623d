"""BatchNorm with the operations that follow it in one pass, and their gradient in two.

Plain operations read and write the largest tensors of a network eight times for this, which is most of a
training step. Statistics are computed per episode, for any number of episodes in one batch.

The channels of a pixel are a row of memory (channels last), so images are read as rows [pixels, C].
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpldla.kernels.typed import apply_function, jit

PROGRAMS = 1024  # that share the reductions: a few per multiprocessor of a GPU
ROWS = 32  # pixels, or windows of them, that a program processes together


def normalise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    offset: Tensor | None,
    episodes: int,
    momentum: float,
    eps: float,
    added: Tensor | None = None,
    relu: bool = True,
    pool: bool = False,
) -> Tensor:
    """Normalise x [episodes · n, C, h, w] by the statistics of each episode, then add, ReLU and max-pool.

    weight, bias: [C]; the running statistics [C] move towards the mean over the episodes, in address
    offset:       [C], the bias that x lacks of the convolution's output: normalisation cancels it, so that it
                  counts for the running mean only. Its gradient is zero.
    added:        [episodes · n, C, h, w], added after normalising
    relu, pool:   whether a ReLU follows, and a 2×2 max-pool; only a ReLU without addition is pooled

    Returns [episodes · n, C, h // 2, w // 2], or [episodes · n, C, h, w] without the pooling, channels last.
    """
    assert not pool or (relu and added is None)
    return apply_function(
        _Normalise, x, weight, bias, added, running_mean, running_var, offset, episodes, momentum, eps,
        relu, pool,
    )  # fmt: skip


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, x, weight, bias, added, running_mean, running_var, offset, episodes, momentum, eps, relu, pool
    ):
        x = x.contiguous(memory_format=torch.channels_last)
        if added is not None:
            added = added.contiguous(memory_format=torch.channels_last)
        n, C, h, w = x.shape
        images = n // episodes
        pixels = images * h * w  # of an episode
        programs = _programs(pixels, episodes)
        partial = x.new_empty(2, episodes, programs, C, dtype=torch.float32)
        mean, rstd = x.new_empty(2, episodes, C, dtype=torch.float32)
        step = 2 if pool else 1
        shape = (n, C, h // step, w // step)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        windows = images * (h // step) * (w // step)
        columns = _columns(C)
        with torch.cuda.device(x.device):  # Triton launches on the current one
            _sums[(programs, episodes, C // columns)](
                x, partial, mean, pixels, programs, C,
                ROWS=ROWS, COLUMNS=columns, LOOP=_loop(pixels, programs),
            )  # fmt: skip
            _statistics[(C // columns,)](
                partial, mean, rstd, running_mean, running_var, offset, pixels, programs, C, momentum, eps,
                EPISODES=episodes, PROGRAMS=triton.next_power_of_2(programs), COLUMNS=columns,
                OFFSET=offset is not None,
            )  # fmt: skip
            if windows:
                _apply[(triton.cdiv(windows, ROWS), episodes, C // columns)](
                    x, added, y, mean, rstd, weight, bias, windows, images, h, w, C,
                    ROWS=ROWS, COLUMNS=columns, STEP=step, RELU=relu, ADDED=added is not None,
                )  # fmt: skip
        # The sign of the output says where the ReLU is active; without an addition it follows from x.
        ctx.save_for_backward(x, mean, rstd, weight, bias, y if added is not None else None)
        ctx.episodes, ctx.step, ctx.relu = episodes, step, relu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        x, mean, rstd, weight, bias, y = ctx.saved_tensors
        episodes, step = ctx.episodes, ctx.step
        dy = dy.contiguous(memory_format=torch.channels_last)
        n, C, h, w = x.shape
        images = n // episodes
        pixels, windows = images * h * w, images * (h // step) * (w // step)
        programs = _programs(windows, episodes)
        partial = x.new_empty(2, episodes, programs, C, dtype=torch.float32)
        of_bias, of_weight = x.new_empty(2, episodes, C, dtype=torch.float32)  # sums per episode
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        dx = torch.empty_like(x, memory_format=torch.channels_last)
        dadded = torch.empty_like(dx) if y is not None else None
        columns = _columns(C)
        all_windows = images * triton.cdiv(h, step) * triton.cdiv(w, step)  # cut off at the edge, too
        kind = {"ROWS": ROWS, "COLUMNS": columns, "STEP": step, "RELU": ctx.relu, "ADDED": y is not None}
        with torch.cuda.device(x.device):
            _gradient_sums[(programs, episodes, C // columns)](
                x, y, dy, partial, mean, rstd, weight, bias, windows, images, programs, h, w, C,
                LOOP=_loop(windows, programs), **kind,
            )  # fmt: skip
            _gradient_statistics[(C // columns,)](
                partial, of_bias, of_weight, dbias, dweight, programs, C,
                EPISODES=episodes, PROGRAMS=triton.next_power_of_2(programs), COLUMNS=columns,
            )  # fmt: skip
            _gradient_apply[(triton.cdiv(all_windows, ROWS), episodes, C // columns)](
                x, y, dy, dx, dadded, mean, rstd, weight, bias, of_bias, of_weight,
                pixels, images, h, w, C, **kind,
            )  # fmt: skip
        return dx, dweight, dbias, dadded, *[None] * 8


def _columns(C: int) -> int:
    """Return the number of channels per program; it divides C."""
    for columns in (64, 32, 16):
        if C % columns == 0:
            return columns
    raise ValueError(f"{C} channels are not a multiple of 16.")


def _programs(rows: int, episodes: int) -> int:
    """Return the number of programs that share the reduction of an episode."""
    return max(1, min(int(triton.cdiv(rows, ROWS)), PROGRAMS // episodes))


def _loop(rows: int, programs: int) -> int:
    return int(triton.cdiv(triton.cdiv(rows, programs), ROWS))


@jit
def _sums(  # type: ignore[no-untyped-def]
    x_ptr, partial_ptr, pivot_ptr, pixels, programs, C,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """Sum x − pivot and its square over a share of an episode's pixels; the pivot is the first pixel's x.

    Near the mean squares lose no digits, and any x of the channel is near enough.
    """
    program, episode = tl.program_id(0), tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    first = x_ptr + episode.to(tl.int64) * pixels * C
    pivot = tl.load(first + columns).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for i in range(LOOP):
        rows = (program * LOOP + i) * ROWS + tl.arange(0, ROWS)
        valid = (rows < pixels)[:, None]
        x = tl.load(first + rows[:, None] * C + columns[None, :], mask=valid, other=0.0).to(tl.float32)
        x = tl.where(valid, x - pivot[None, :], 0.0)
        total += x
        squares += x * x
    address = (episode * programs + program) * C + columns
    tl.store(partial_ptr + address, tl.sum(total, 0))
    tl.store(partial_ptr + tl.num_programs(1) * programs * C + address, tl.sum(squares, 0))
    if program == 0:
        tl.store(pivot_ptr + episode * C + columns, pivot)


@jit
def _statistics(  # type: ignore[no-untyped-def]
    partial_ptr, mean_ptr, rstd_ptr, running_mean_ptr, running_var_ptr, offset_ptr,
    pixels, programs, C, momentum, eps,
    EPISODES: tl.constexpr, PROGRAMS: tl.constexpr, COLUMNS: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Turn partial sums to mean and 1/σ of each episode, and move the running statistics.

    Where the means go, the pivots are.
    """
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mean_of_all = tl.zeros((COLUMNS,), tl.float32)
    var_of_all = tl.zeros((COLUMNS,), tl.float32)
    for episode in range(EPISODES):
        total, squares = _both_sums(partial_ptr, episode, EPISODES, programs, C, columns, PROGRAMS)
        from_pivot = total / pixels
        pivot = tl.load(mean_ptr + episode * C + columns)
        var = tl.maximum(squares / pixels - from_pivot * from_pivot, 0.0)
        tl.store(mean_ptr + episode * C + columns, pivot + from_pivot)
        tl.store(rstd_ptr + episode * C + columns, tl.rsqrt(var + eps))
        mean_of_all += pivot + from_pivot
        var_of_all += var
    mean_of_all = mean_of_all / EPISODES
    var_of_all = var_of_all / EPISODES * (pixels / tl.maximum(pixels - 1, 1))  # as BatchNorm does, unbiased
    if OFFSET:
        mean_of_all += tl.load(offset_ptr + columns).to(tl.float32)
    before_mean, before_var = tl.load(running_mean_ptr + columns), tl.load(running_var_ptr + columns)
    tl.store(running_mean_ptr + columns, before_mean + momentum * (mean_of_all - before_mean))
    tl.store(running_var_ptr + columns, before_var + momentum * (var_of_all - before_var))


@jit
def _both_sums(partial_ptr, episode, episodes, programs, C, columns, PROGRAMS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add up what the programs of an episode have summed: two rows [COLUMNS]."""
    rows = tl.arange(0, PROGRAMS)
    valid = (rows < programs)[:, None]
    address = (episode * programs + rows[:, None]) * C + columns[None, :]
    second = partial_ptr + episodes * programs * C
    return (
        tl.sum(tl.load(partial_ptr + address, mask=valid, other=0.0), 0),
        tl.sum(tl.load(second + address, mask=valid, other=0.0), 0),
    )


@jit
def _scale_and_shift(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, episode, C, columns):  # type: ignore[no-untyped-def]
    """Return what turns x to the normalised, scaled and shifted: (x − mean) · scale + shift; and 1/σ.

    Subtracting first keeps the digits of a channel that hardly varies.
    """
    mean = tl.load(mean_ptr + episode * C + columns)
    rstd = tl.load(rstd_ptr + episode * C + columns)
    scale = rstd * tl.load(weight_ptr + columns).to(tl.float32)
    return mean, scale, tl.load(bias_ptr + columns).to(tl.float32), rstd


@jit
def _corner(windows, images, h, w, high, wide, episode, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the row of memory of each window's first pixel, and its position in the image."""
    column = (windows % wide) * STEP
    row = ((windows // wide) % high) * STEP
    image = windows // (wide * high) + episode * images
    return (image.to(tl.int64) * h + row) * w + column, row, column


@jit
def _apply(  # type: ignore[no-untyped-def]
    x_ptr, added_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, windows, images, h, w, C,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, RELU: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Normalise and add; or take the largest of each window; and nothing below zero."""
    episode = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    window = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = (window < windows)[:, None]
    out = (episode * windows + window).to(tl.int64)[:, None] * C + columns[None, :]
    mean, scale, shift, _ = _scale_and_shift(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, episode, C, columns)
    if STEP == 1:
        x = tl.load(x_ptr + out, mask=valid, other=0.0).to(tl.float32)
        y = (x - mean[None, :]) * scale[None, :] + shift[None, :]
        if ADDED:
            y += tl.load(added_ptr + out, mask=valid, other=0.0).to(tl.float32)
        if RELU:
            y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        corner, _, _ = _corner(window, images, h, w, h // STEP, w // STEP, episode, STEP)
        y = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in tl.static_range(STEP * STEP):
            address = (corner + (k // STEP) * w + k % STEP)[:, None] * C + columns[None, :]
            x = tl.load(x_ptr + address, mask=valid, other=0.0).to(tl.float32)
            z = (x - mean[None, :]) * scale[None, :] + shift[None, :]
            y = tl.maximum(y, z, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + out, y, mask=valid)


@jit
def _chosen(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, corner, w, C, columns, valid, mean, scale, shift,
    STEP: tl.constexpr, RELU: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Return the position of the maximum in each window, its x, and whether the ReLU is active there."""
    address = corner[:, None] * C + columns[None, :]
    chosen_x = tl.load(x_ptr + address, mask=valid, other=0.0).to(tl.float32)
    largest = (chosen_x - mean[None, :]) * scale[None, :] + shift[None, :]
    chosen = tl.zeros(largest.shape, tl.int32)
    for k in tl.static_range(1, STEP * STEP):
        address = (corner + (k // STEP) * w + k % STEP)[:, None] * C + columns[None, :]
        x = tl.load(x_ptr + address, mask=valid, other=0.0).to(tl.float32)
        z = (x - mean[None, :]) * scale[None, :] + shift[None, :]
        chosen = tl.where(z > largest, k, chosen)
        chosen_x = tl.where(z > largest, x, chosen_x)
        largest = tl.maximum(largest, z)
    if ADDED:
        largest = tl.load(y_ptr + address, mask=valid, other=0.0).to(tl.float32)
    passed = largest > 0
    if not RELU:
        passed = passed | valid
    return chosen, chosen_x, passed


@jit
def _gradient_sums(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, dy_ptr, partial_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, windows, images, programs,
    h, w, C,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, RELU: tl.constexpr, ADDED: tl.constexpr,
    LOOP: tl.constexpr,
):  # fmt: skip
    """Sum dy, and dy times the normalised x, over a share of an episode's windows."""
    program, episode = tl.program_id(0), tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    mean, scale, shift, rstd = _scale_and_shift(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, episode, C, columns)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    products = tl.zeros((ROWS, COLUMNS), tl.float32)
    for i in range(LOOP):
        window = (program * LOOP + i) * ROWS + tl.arange(0, ROWS)
        valid = (window < windows)[:, None]
        corner, _, _ = _corner(window, images, h, w, h // STEP, w // STEP, episode, STEP)
        _, x, passed = _chosen(
            x_ptr, y_ptr, corner, w, C, columns, valid, mean, scale, shift, STEP, RELU, ADDED
        )
        address = (episode * windows + window).to(tl.int64)[:, None] * C + columns[None, :]
        dy = tl.load(dy_ptr + address, mask=valid, other=0.0).to(tl.float32)
        dy = tl.where(passed, dy, 0.0)
        total += dy
        products += dy * ((x - mean[None, :]) * rstd[None, :])
    address = (episode * programs + program) * C + columns
    tl.store(partial_ptr + address, tl.sum(total, 0))
    tl.store(partial_ptr + tl.num_programs(1) * programs * C + address, tl.sum(products, 0))


@jit
def _gradient_statistics(  # type: ignore[no-untyped-def]
    partial_ptr, of_bias_ptr, of_weight_ptr, dbias_ptr, dweight_ptr, programs, C,
    EPISODES: tl.constexpr, PROGRAMS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Turn partial sums to those of each episode, and to the gradients of bias and weight."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dbias = tl.zeros((COLUMNS,), tl.float32)
    dweight = tl.zeros((COLUMNS,), tl.float32)
    for episode in range(EPISODES):
        total, products = _both_sums(partial_ptr, episode, EPISODES, programs, C, columns, PROGRAMS)
        tl.store(of_bias_ptr + episode * C + columns, total)
        tl.store(of_weight_ptr + episode * C + columns, products)
        dbias += total
        dweight += products
    tl.store(dbias_ptr + columns, dbias)
    tl.store(dweight_ptr + columns, dweight)


@jit
def _gradient_apply(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, dy_ptr, dx_ptr, dadded_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, of_bias_ptr,
    of_weight_ptr, pixels, images, h, w, C,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, RELU: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Dx = scale · (dy − mean(dy) − x̂ · mean(dy · x̂)), where dy reaches the chosen pixel of each window only.

    Windows that stick out at the edge were not pooled: no dy reaches them.
    """
    episode = tl.program_id(1)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    high, wide = (h + STEP - 1) // STEP, (w + STEP - 1) // STEP
    window = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = window < images * high * wide
    mean, scale, shift, rstd = _scale_and_shift(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, episode, C, columns)
    mean_dy = tl.load(of_bias_ptr + episode * C + columns) / pixels
    mean_dy_x = tl.load(of_weight_ptr + episode * C + columns) / pixels
    corner, row, column = _corner(window, images, h, w, high, wide, episode, STEP)
    whole = (exists & (row + STEP <= h) & (column + STEP <= w))[:, None]
    chosen, _, passed = _chosen(
        x_ptr, y_ptr, corner, w, C, columns, whole, mean, scale, shift, STEP, RELU, ADDED
    )
    image = window // (wide * high) + episode * images
    pooled = ((image.to(tl.int64) * (h // STEP) + row // STEP) * (w // STEP) + column // STEP)[:, None] * C
    dy = tl.load(dy_ptr + pooled + columns[None, :], mask=whole, other=0.0).to(tl.float32)
    dy = tl.where(passed, dy, 0.0)
    if ADDED:
        tl.store(dadded_ptr + pooled + columns[None, :], dy, mask=whole)
    for k in tl.static_range(STEP * STEP):
        valid = (exists & (row + k // STEP < h) & (column + k % STEP < w))[:, None]
        address = (corner + (k // STEP) * w + k % STEP)[:, None] * C + columns[None, :]
        x = (tl.load(x_ptr + address, mask=valid, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        own = tl.where(chosen == k, dy, 0.0)
        tl.store(
            dx_ptr + address, scale[None, :] * (own - mean_dy[None, :] - x * mean_dy_x[None, :]), mask=valid
        )
