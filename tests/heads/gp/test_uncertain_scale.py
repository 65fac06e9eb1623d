"""Few examples leave the scale of the logits open, so answers are averaged over it."""

import math

import numpy as np
import pytest
import torch

from gpldla import GPLDLAClassifier
from gpldla.classifier.uncertainty import uncertainty_of
from gpldla.heads import create_head
from gpldla.heads.gp.peak import PRIOR_WIDTH
from gpldla.heads.gp.uncertain_scale import UncertainScale


def blobs(n_way, shots, queries, dim, seed=0, apart=1.0):
    """Support [n, dim] with labels, query [q, dim] with labels, of normal classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    centres = apart * torch.randn(n_way, dim, generator=generator)
    labels, truth = (torch.arange(n_way).repeat_interleave(count) for count in (shots, queries))
    support, query = (centres[y] + torch.randn(len(y), dim, generator=generator) for y in (labels, truth))
    return support, labels, query, truth


def single_examples(n_way=4, dim=32, seed=0):
    return blobs(n_way=n_way, shots=1, queries=6, dim=dim, seed=seed)


def test_it_is_the_integral_over_beta():
    """Against a fine sum of softmax averages, with plain draws of the logits' noise."""
    support, labels, query, _ = single_examples()
    posterior = create_head("gpldla-auto").eval().adapt(support, labels, 4)
    mean, var = (x.numpy() for x in posterior.logits(query))
    rng = np.random.default_rng(0)
    noise = np.sqrt(var) * rng.standard_normal((20_000, *mean.shape))
    expected, total = 0, 0
    for t in np.linspace(-4, 4, 33):
        weight = math.exp(-(t**2) / 2)
        logits = math.exp(PRIOR_WIDTH * t) * mean + noise
        p = np.exp(logits - logits.max(-1, keepdims=True))
        expected = expected + weight * (p / p.sum(-1, keepdims=True)).mean(0)
        total += weight
    np.testing.assert_allclose(posterior.log_prob(query).exp().numpy(), expected / total, atol=0.006)


@pytest.mark.parametrize("predictive", ["mc", "mc-logits", "qmc"])
def test_every_predictive_averages(predictive):
    support, labels, query, _ = single_examples()
    exact = create_head("gpldla-auto").eval().adapt(support, labels, 4).log_prob(query).exp()
    head = create_head("gpldla-auto", predictive=predictive, n_samples=4000).eval()
    posterior = head.adapt(support, labels, 4)
    posterior.fix_draws()
    torch.testing.assert_close(posterior.log_prob(query).exp(), exact, atol=0.03, rtol=0)


@pytest.mark.parametrize("options", [{"center": False}, {"beta": 1.0}])
def test_the_papers_setting_and_a_given_beta_are_not_averaged(options):
    support, labels, _, _ = single_examples()
    assert create_head("gpldla-auto", **options).eval().adapt(support, labels, 4).uncertain_scale is None


def test_examples_measure_the_scale():
    """Single examples say nothing; the more there are of classes that overlap, the more they say."""
    spreads = []
    for shots in (1, 5, 60):
        support, labels, _, _ = blobs(n_way=5, shots=shots, queries=1, dim=32, apart=0.3)
        scale = create_head("gpldla-auto").eval().adapt(support, labels, 5).uncertain_scale
        spreads.append(0.0 if scale is None else scale.spread.item())
    assert spreads[0] == pytest.approx(PRIOR_WIDTH)
    assert PRIOR_WIDTH > spreads[1] > spreads[2]


def test_leaving_out_averages_as_well():
    """Against the leave-one-out predictions with each β given."""
    support, labels, _, _ = blobs(n_way=3, shots=4, queries=1, dim=16)
    head = create_head("gpldla-auto").eval()
    posterior = head.adapt(support, labels, 3)
    averaged = head.leave_one_out(support, labels, 3, None, posterior)
    tau, expected, beta = posterior.uncertain_scale.spread, 0, posterior.beta
    posterior.uncertain_scale = None
    for t, weight in ((-math.sqrt(3), 1 / 6), (0, 2 / 3), (math.sqrt(3), 1 / 6)):
        posterior.beta = beta * (tau * t).exp()
        expected = expected + weight * head.leave_one_out(support, labels, 3, None, posterior).exp()
    torch.testing.assert_close(averaged.exp(), expected)


def test_a_batch_averages_each_task_over_its_own_scale():
    one, labels, query, _ = blobs(n_way=3, shots=2, queries=4, dim=16)
    weights = torch.ones(2, len(labels))
    weights[0, 1::2] = 0  # the first task has one example per class
    head = create_head("gpldla-auto").eval()
    batch = head.adapt(one.expand(2, -1, -1), labels.expand(2, -1), 3, weights=weights)
    kept = weights[0] > 0
    alone = [head.adapt(one[kept], labels[kept], 3), head.adapt(one, labels, 3)]
    for answers, posterior in zip(batch.log_prob(query.expand(2, -1, -1)), alone):
        torch.testing.assert_close(answers, posterior.log_prob(query), atol=2e-5, rtol=0)


def test_class_priors_do_not_scale():
    scale = UncertainScale(torch.tensor(0.4), torch.tensor([0.9, 0.1, 0.0]).log())
    known = torch.tensor([0.9, 0.1, 0.0]).log()  # the logits of a row that says nothing
    averaged = scale.averaged(lambda mean: mean.log_softmax(-1), known.unsqueeze(0))
    torch.testing.assert_close(averaged.exp(), torch.tensor([[0.9, 0.1, 0.0]]))


def test_more_examples_could_remove_this_uncertainty():
    support, labels, query, _ = single_examples()
    posterior = create_head("gpldla-auto").eval().adapt(support, labels, 4)
    averaged = uncertainty_of(posterior, query)
    posterior.uncertain_scale = None
    plugged_in = uncertainty_of(posterior, query)
    assert (averaged[:, 2] >= 0).all()
    assert averaged[:, 2].mean() > plugged_in[:, 2].mean() + 0.02  # epistemic


def test_a_stored_posterior_answers_the_same():
    support, labels, query, _ = single_examples()
    head = create_head("gpldla-auto").eval()
    posterior = head.adapt(support, labels, 4)
    restored = head.restore(posterior.state())
    assert torch.equal(restored.log_prob(query), posterior.log_prob(query))


def test_the_most_probable_class_stays():
    X, y, query, _ = (x.numpy() for x in single_examples(seed=3))
    classifier = GPLDLAClassifier().fit(X, y)
    averaged = classifier.predict(query)
    classifier._task.posterior.uncertain_scale = None
    assert (averaged == classifier.predict(query)).all()
