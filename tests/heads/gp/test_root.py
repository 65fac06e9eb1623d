"""The root of features that are nowhere negative, against its definition in NumPy."""

import numpy as np
import pytest
import torch

from gpldla.heads.base import unit_length
from gpldla.heads.gp.root import PRIOR_FEATURES, SLOPE, STABILISED, root_power, rooted, taylor_slope


def obeying(b, n, d, seed=0, noise=0.3):
    """Rows [n, d] whose variance is about mean^b / 100 over features with means from 0.02 to 1."""
    rng = np.random.default_rng(seed)
    mean = np.exp(rng.uniform(-4, 0, d))
    shape = 100 * mean ** (2 - b)  # of a gamma distribution with this mean and variance mean²/shape
    return torch.from_numpy(rng.gamma(shape, mean / shape, (n, d)))


def slope_in_numpy(rows):
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    mean, var = rows.mean(0), rows.var(0, ddof=1)
    varies = (mean > 0) & (var > 1e-6 * mean**2)
    x, y = np.log(mean[varies]), np.log(var[varies])
    x = x - x.mean()
    b = (x @ y + PRIOR_FEATURES * SLOPE) / (x @ x + PRIOR_FEATURES)
    return min(max(b, 0), 2)


@pytest.mark.parametrize("b", [0.0, 1.0, 1.5, 2.0])
def test_the_slope_is_that_of_taylors_law(b):
    rows = obeying(b, 200, 2000)
    slope = taylor_slope(unit_length(rows), torch.ones(200, dtype=torch.bool)).item()
    assert slope == pytest.approx(slope_in_numpy(rows.numpy()), abs=1e-9)
    assert slope == pytest.approx(b, abs=0.1)
    assert root_power(rows).item() == pytest.approx(1 - STABILISED * slope / 2)


def test_few_features_say_little():
    rows = obeying(2.0, 20, 4)
    x = np.log(unit_length(rows).mean(0).numpy()).var() * 4
    slope = taylor_slope(unit_length(rows), torch.ones(20, dtype=torch.bool)).item()
    assert slope == pytest.approx(slope_in_numpy(rows.numpy()), abs=1e-9)
    assert abs(slope - SLOPE) < abs(2.3 - SLOPE) * x / (x + PRIOR_FEATURES)


@pytest.mark.parametrize(
    "rows",
    [torch.zeros(3, 5), torch.ones(4, 5), torch.rand(1, 5), torch.eye(5)[:, :1].expand(5, 3)],
    ids=["zero", "constant", "one row", "alike"],
)
def test_without_variance_the_prior_decides(rows):
    assert root_power(rows).item() == pytest.approx(1 - STABILISED * SLOPE / 2, abs=1e-3)


def test_each_task_has_its_own_power_whatever_its_scale_and_order():
    rows = torch.stack([obeying(0.5, 30, 100), obeying(1.8, 30, 100)])
    powers = root_power(rows)
    assert powers[0] - powers[1] > 0.2
    for task, power in zip(rows, powers):
        torch.testing.assert_close(root_power(task), power)
        order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(root_power(1e-20 * task[order]), power)


def test_rows_that_do_not_count_make_no_difference():
    rows = obeying(1.5, 12, 50)
    present = torch.arange(12) < 8
    torch.testing.assert_close(root_power(rows, present), root_power(rows[:8]))
    assert root_power(rows) != root_power(rows[:8])


def test_where_a_feature_is_negative_there_is_no_root():
    rows = torch.rand(2, 5, 7).double()
    rows[1, 0, 0] = -1
    power = root_power(rows)
    assert power[0] < 1
    assert power[1] == 1
    assert torch.equal(rooted(rows, power)[1], unit_length(rows[1]))
    assert root_power(rows[1]) is None
    assert rooted(rows, None) is rows


def test_rows_are_raised_to_the_power_and_signs_are_kept():
    rows = torch.rand(2, 5, 7).double()
    rows[0, 0, 0] = 0
    power = torch.tensor([0.6, 0.9], dtype=torch.float64)
    got = unit_length(rooted(rows, power))
    for one, task, p in zip(got, rows, power):
        torch.testing.assert_close(one, unit_length(task**p))
    torch.testing.assert_close(rooted(1e-30 * rows, power), rooted(rows, power))
    torch.testing.assert_close(unit_length(rooted(-rows, power)), -got)


def test_gradients_are_finite_also_at_zero():
    rows = torch.rand(4, 6).double()
    rows[0, 0] = 0
    rows.requires_grad_()
    rooted(rows, torch.tensor(0.5).double()).square().sum().backward()
    assert rows.grad.isfinite().all()
    assert torch.autograd.gradcheck(
        lambda x: rooted(x, torch.tensor(0.5).double()), (torch.rand(3, 4).double() + 0.1).requires_grad_()
    )
