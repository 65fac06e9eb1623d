"""What the list of heads promises of every head in it."""

import pytest
import torch

from gpldla.heads import create_head, list_heads
from gpldla.testing import random_episode

OF_THE_PAPER = {
    "baseline++",
    "feature-transfer",
    "gpdkt",
    "gpldla",
    "laplace",
    "lda",
    "maml",
    "matchingnet",
    "metaqda",
    "protonet",
    "relationnet",
    "simpleshot",
}


def test_the_rivals_of_the_paper_are_there():
    assert set(list_heads()) >= OF_THE_PAPER


@pytest.mark.parametrize("name", list_heads())
@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (5, 5), (7, [1, 2, 3, 4, 5, 6, 7]), (30, 1)])
def test_every_head_adapts_to_plain_features_of_any_number_of_classes_and_shots(name, ways, shots):
    options = {"snail": {"ways": 30}, "meta-mixture": {"components": 4}}.get(name, {})
    head = create_head(name, feature_dim=64, **options).eval()
    support, labels, query, _ = random_episode(shots, ways, 2, 64, dtype=torch.float32)
    log_prob = head.adapt(support, labels, ways).log_prob(query)
    assert log_prob.shape == (2 * ways, ways)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(2 * ways), atol=2e-3, rtol=0)
