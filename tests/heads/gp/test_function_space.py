"""Newton's step and the blocks of the covariance against the full system, all classes at once, in numpy."""

import numpy as np
import pytest
import torch

from gpldla.heads.gp.function_space import cholesky, curvature_blocks, newton_step


def problem(n=6, C=3, *, rank=None, spread=2.0, seed=0):
    """Return a kernel matrix, logits, one-hot labels and weights of a task whose classes all occur."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n, rank or n + 2))
    y = np.eye(C)[np.concatenate([np.arange(C), rng.integers(0, C, n - C)])]
    return factor @ factor.T + 0.5, spread * rng.normal(size=(n, C)), y, rng.uniform(0.2, 3.0, (n, 1))


def softmax(f):
    e = np.exp(f - f.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def textbook_step(K, f, y, weights):
    """Return a = (I + WK)⁻¹(Wf + ∇ log p) with W and K written out for all nC logits; class by class."""
    n, C = f.shape
    p = softmax(f)
    W = np.zeros((n * C, n * C))
    big_K = np.zeros((n * C, n * C))
    slope = np.zeros(n * C)
    for c in range(C):
        big_K[c * n : (c + 1) * n, c * n : (c + 1) * n] = K
        for i in range(n):
            slope[c * n + i] = weights[i, 0] * (y[i, c] - p[i, c])
            for e in range(C):
                W[c * n + i, e * n + i] = weights[i, 0] * ((c == e) * p[i, c] - p[i, c] * p[i, e])
    a = np.linalg.solve(np.eye(n * C) + W @ big_K, W @ f.T.ravel() + slope)
    return a.reshape(C, n).T


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


nobody = torch.zeros(1, 3, dtype=torch.bool)


@pytest.mark.parametrize("rank", [2, None])  # 2: the kernel matrix has no inverse
@pytest.mark.parametrize("spread", [0.0, 2.0, 10.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_newton_step_solves_the_full_system(rank, spread, weighted):
    K, f, y, weights = problem(rank=rank, spread=spread)
    expected = textbook_step(K, f, y, weights if weighted else np.ones_like(weights))
    got = newton_step(*tensors(K, f, y), nobody, torch.from_numpy(weights) if weighted else None)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-8)


def test_newton_step_of_a_batch_is_that_of_each():
    parts = [tensors(*problem(seed=seed)) for seed in range(4)]
    K, f, y, weights = (torch.stack(many).view(2, 2, *many[0].shape) for many in zip(*parts))
    together = newton_step(K, f, y, nobody.expand(2, 2, 1, 3), weights)
    for i, (K, f, y, weights) in enumerate(parts):
        torch.testing.assert_close(together[i // 2, i % 2], newton_step(K, f, y, nobody, weights))


def test_a_class_without_examples_drops_out_of_the_step():
    K, f, y, weights = problem()
    wider = [np.insert(array, 1, value, axis=1) for array, value in ((f, 7.0), (y, 0.0))]
    absent = torch.tensor([[False, True, False, False]])
    got = newton_step(*tensors(K, *wider), absent, torch.from_numpy(weights))
    expected = newton_step(*tensors(K, f, y), nobody, torch.from_numpy(weights))
    torch.testing.assert_close(got[:, [0, 2, 3]], expected, atol=1e-12, rtol=1e-12)
    assert got[:, 1].abs().max() < 1e-100


def test_a_weight_of_three_is_the_example_three_times_and_of_zero_its_absence():
    K, f, y, _ = problem()
    times = [1, 3, 0, 2, 1, 1]
    repeated = np.repeat(np.arange(6), times)
    weights = torch.tensor(times, dtype=torch.float64).unsqueeze(-1)
    once = torch.from_numpy(K) @ newton_step(*tensors(K, f, y), nobody, weights)
    copies = newton_step(*tensors(K[np.ix_(repeated, repeated)], f[repeated], y[repeated]), nobody)
    torch.testing.assert_close(once, torch.from_numpy(K[:, repeated]) @ copies, atol=1e-9, rtol=0)


def test_the_mode_stays_where_it_is():
    K, f, y, _ = tensors(*problem())
    for _ in range(30):
        f = K @ newton_step(K, f, y, nobody)
    a = newton_step(K, f, y, nobody)
    torch.testing.assert_close(a, y - f.softmax(-1), atol=1e-10, rtol=0)  # ∇ of Eq. 9 is 0: K⁻¹f = y − p
    torch.testing.assert_close(K @ a, f, atol=1e-10, rtol=0)


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_blocks_are_the_inverse_of_kernel_plus_inverse_curvature(shape):
    rng = np.random.default_rng(1)
    factor = rng.normal(size=(*shape, 5, 3))
    K, D = factor @ factor.swapaxes(-1, -2), 10 ** rng.uniform(-6, 1, (*shape, 5, 4))
    blocks = curvature_blocks(*tensors(K, D)).numpy()
    assert blocks.shape == (*shape, 4, 5, 5)
    for at in np.ndindex(*shape):
        for c in range(4):
            direct = np.linalg.inv(K[at] + np.diag(1 / D[at][:, c]))
            np.testing.assert_allclose(blocks[at][c], direct, rtol=1e-7, atol=1e-10)


def test_where_there_is_no_curvature_the_block_is_zero():
    K, _, _, _ = problem()
    D = np.full((6, 2), 0.3)
    D[2, 0], D[:, 1] = 0, 0
    blocks = curvature_blocks(*tensors(K, D)).numpy()
    rest = [0, 1, 3, 4, 5]
    direct = np.linalg.inv(K[np.ix_(rest, rest)] + np.eye(5) / 0.3)
    np.testing.assert_allclose(blocks[0][np.ix_(rest, rest)], direct, atol=1e-12)
    assert np.abs(blocks[0][2]).max() < 1e-100
    assert np.abs(blocks[1]).max() < 1e-100


def test_cholesky_gives_the_lower_factor():
    K, _, _, _ = problem()
    np.testing.assert_allclose(cholesky(torch.from_numpy(K)).numpy(), np.linalg.cholesky(K), atol=1e-12)
