import pytest
import torch

from gpldla.heads.gp.products import directions_by_products, square_roots
from gpldla.heads.gp.task_space import scatter_directions


@pytest.mark.parametrize(
    ("n", "d", "rank"), [(1, 8, 1), (4, 10, 2), (25, 1280, 25), (100, 384, 3), (600, 64, 2), (40, 6, 6)]
)
def test_whitens_as_the_eigenvectors_do(n, d, rank):
    generator = torch.Generator().manual_seed(n)
    residuals = torch.randn(n, rank, generator=generator) @ torch.randn(rank, d, generator=generator)
    kappa = n / residuals.square().sum()
    z = torch.nn.functional.normalize(torch.randn(20, d, generator=generator) + residuals[:1], dim=-1)

    def whitened(directions, shrink):
        return z + (z @ directions.mT * shrink) @ directions

    expected = whitened(*scatter_directions(residuals, kappa))
    assert (expected - z).abs().max() > 1e-3
    assert (whitened(*directions_by_products(residuals, kappa)) - expected).abs().max() < 1e-5


def test_examples_that_are_all_alike_stay_as_they_are():
    directions, _ = directions_by_products(torch.zeros(5, 7), torch.tensor(0.0))
    assert (directions == 0).all()


def test_roots_of_matrices_with_eigenvalues_far_apart():
    generator = torch.Generator().manual_seed(0)
    vectors, _ = torch.linalg.qr(torch.randn(3, 30, 30, generator=generator, dtype=torch.float64))
    values = torch.logspace(0, 3, 30, dtype=torch.float64)
    matrix = (vectors * values) @ vectors.mT
    root, inverse_root = square_roots(matrix, torch.full((3,), 2000.0, dtype=torch.float64))
    torch.testing.assert_close(root @ root, matrix, rtol=1e-8, atol=1e-8)
    identity = torch.eye(30, dtype=torch.float64).expand(3, -1, -1)
    torch.testing.assert_close(inverse_root @ root, identity, rtol=0, atol=1e-8)
