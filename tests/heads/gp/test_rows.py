"""Products of unit features that are never formed equal those of unit features that are."""

import pytest
import torch

from gpldla.heads.base import unit_length
from gpldla.heads.gp.rows import Rows


@pytest.fixture
def numbers():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return draw


@pytest.mark.parametrize("normalize", [True, False])
def test_products(numbers, normalize):
    x, W, b, A = numbers(3, 7, 5), numbers(3, 4, 5), numbers(3, 4), numbers(3, 7, 4)
    x[1, 2] = 0
    phi = unit_length(x) if normalize else x
    rows = Rows.of(x, normalize=normalize)
    torch.testing.assert_close(rows.dot(W, b), phi @ W.mT + b.unsqueeze(-2))
    torch.testing.assert_close(rows.squared_dot(W, b), phi.square() @ W.mT + b.unsqueeze(-2))
    torch.testing.assert_close(rows.weighted_sum(A), A.mT @ phi)
    torch.testing.assert_close(rows.squared_weighted_sum(A), A.mT @ phi.square())
    torch.testing.assert_close(rows.gram(), phi @ phi.mT)


@pytest.mark.parametrize("size", [1e-37, 1e-30, 1e-20, 1e-12, 1e12, 1e20, 1e37])
def test_the_size_of_features_does_not_matter(numbers, size):
    x, W, b = numbers(6, 5).float(), numbers(4, 5).float(), numbers(4).float()
    x[3] = 0
    expected, rows = Rows.of(x, normalize=True), Rows.of(x * size, normalize=True)
    torch.testing.assert_close(rows.dot(W, b), expected.dot(W, b))
    torch.testing.assert_close(rows.squared_dot(W, b), expected.squared_dot(W, b))
    torch.testing.assert_close(rows.gram(), expected.gram())


def test_gradient_is_that_of_unit_features(numbers):
    x, W, b = numbers(6, 5).requires_grad_(), numbers(4, 5), numbers(4)
    ours = torch.autograd.grad(Rows.of(x, normalize=True).squared_dot(W, b).sum(), x)[0]
    theirs = torch.autograd.grad((unit_length(x).square() @ W.mT).sum(), x)[0]
    torch.testing.assert_close(ours, theirs)


def test_no_rows(numbers):
    assert Rows.of(numbers(0, 5), normalize=True).dot(numbers(4, 5), numbers(4)).shape == (0, 4)
