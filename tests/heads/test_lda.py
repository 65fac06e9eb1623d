"""The LDA plugin alone: σ is the median pairwise distance, the rest is GPLDLA's."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from gpldla.heads import create_head
from gpldla.testing import HeadContract, random_episode


class TestLDA(HeadContract):
    name = "lda"


@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (3, 1), (5, 3), (4, [1, 2, 3, 4])])
@pytest.mark.parametrize("normalize", [True, False])
def test_sigma_is_the_median_pairwise_distance(ways, shots, normalize):
    support, labels, _, _ = random_episode(shots, ways, 1, 6)
    posterior = create_head("lda", normalize=normalize).adapt(support, labels, ways)
    phi = support.numpy()
    if normalize:
        phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
    sigma = np.median(pdist(phi))
    assert posterior.sigma2.sqrt().item() == pytest.approx(sigma, rel=1e-9)
    means = np.stack([phi[labels.numpy() == j].mean(0) for j in range(ways)])
    np.testing.assert_allclose(posterior.weight_mean.detach().numpy(), means / sigma**2, rtol=1e-9)


def test_all_but_sigma_is_as_in_gpldla():
    """With the same σ² the two posteriors are one: β of GPLDLA is chosen such that its σ² is the median's."""
    support, labels, _, _ = random_episode(3, 4, 2, 9)
    with torch.no_grad():
        alone = create_head("lda", beta=1.0, beta_b=0.7).eval().adapt(support, labels, 4)
        unscaled = create_head("gpldla", beta=1.0, beta_b=0.7).eval().adapt(support, labels, 4)
        beta = (unscaled.sigma2 / alone.sigma2).item()
        scaled = create_head("gpldla", beta=beta, beta_b=0.7).eval().adapt(support, labels, 4)
    torch.testing.assert_close(scaled.weight_mean, alone.weight_mean)
    torch.testing.assert_close(scaled.bias_mean, alone.bias_mean)
    torch.testing.assert_close(scaled.bias_var, alone.bias_var)  # V* holds β itself and may differ


def test_one_support_example_has_no_distances():
    support, _, query, _ = random_episode(1, 2, 2, 6)
    log_prob = create_head("lda").eval().adapt(support[:1], torch.tensor([1]), 2).log_prob(query)
    assert torch.equal(log_prob.exp(), torch.tensor([0.0, 1.0], dtype=log_prob.dtype).expand(4, 2))
