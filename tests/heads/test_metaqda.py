"""MetaQDA against explicit d×d matrices and scipy's densities."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpldla.heads import create_head
from gpldla.heads.metaqda import padded_class_indices
from gpldla.testing import HeadContract, random_episode
from gpldla.utils.errors import UserError

VARIANTS = {
    "bayes": {"estimate": "bayes"},
    "map": {"estimate": "map"},
    "mixed": {"estimate": "map", "mix_identity": True},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


class TestMetaQDA(HeadContract):
    name = "metaqda"


class TestMetaQDAMap(HeadContract):
    name = "metaqda"
    options = VARIANTS["map"]


class TestMetaQDAMixed(HeadContract):
    name = "metaqda"
    options = VARIANTS["mixed"]


def random_head(d, variant="bayes", *, seed=0, **options):
    """A head with a prior and a base mean far from those it starts with."""
    torch.manual_seed(seed)
    head = create_head("metaqda", d, **VARIANTS[variant], **options).double()
    with torch.no_grad():
        head.base_mean.uniform_(0, 1)
        head.m.normal_(std=0.3)
        head.log_kappa.fill_(-0.7)
        head.log_excess.fill_(0.9)
        head.log_diagonal.normal_(std=0.5)
        head.below_diagonal.normal_(std=0.5)  # of which only the part below the diagonal counts
    return head


def textbook_densities(head, support, labels, query, ways):
    """log p(x | class j), [q, C]: m, κ, ν and S of every class written out, and scipy's distributions."""

    def phi(x):
        x = x.numpy() - head.base_mean.numpy()
        return x / np.linalg.norm(x, axis=1, keepdims=True) if head.normalize else x

    d = len(head.m)
    m, kappa = head.m.detach().numpy(), np.exp(head.log_kappa.item())
    nu = d - 1 + np.exp(head.log_excess.item())
    L = np.tril(head.below_diagonal.detach().numpy(), -1) + np.diag(
        np.exp(head.log_diagonal.detach().numpy())
    )
    densities = np.empty((len(query), ways))
    for j in range(ways):
        x = phi(support[labels == j])
        N, x_bar = len(x), x.mean(0)
        mean = (kappa * m + N * x_bar) / (kappa + N)
        S = L @ L.T + kappa * N / (kappa + N) * np.outer(x_bar - m, x_bar - m)
        for i in range(N):
            S += np.outer(x[i] - x_bar, x[i] - x_bar)
        if head.estimate == "bayes":
            dof = nu + N + 1 - d
            scale = S * (kappa + N + 1) / ((kappa + N) * dof)
            densities[:, j] = multivariate_t(mean, scale, df=dof).logpdf(phi(query))
            continue
        covariance = S / (nu + N + d + 2)
        if head.mix_identity:
            precision = 0.5 * np.linalg.inv(covariance) + 0.5 * np.eye(d)
            densities[:, j] = [-0.5 * (f - mean) @ precision @ (f - mean) for f in phi(query)]
        else:
            densities[:, j] = multivariate_normal(mean, covariance).logpdf(phi(query))
    return densities


def normalised(densities):
    return densities - logsumexp(densities, axis=1, keepdims=True)


def log_prob_of(head, support, labels, query, ways, *, grad=False):
    with torch.set_grad_enabled(grad):
        return head.adapt(support, labels, ways).log_prob(query).detach()


@every_variant
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("ways", "shots", "d"), [(2, 1, 4), (3, 5, 7), (5, [1, 2, 3, 4, 5], 6), (3, [12, 1, 4], 5)]
)
def test_answer_is_the_normalised_density_of_the_textbook(variant, grad, normalize, ways, shots, d):
    support, labels, query, _ = random_episode(shots, ways, 4, d, seed=ways, nonnegative=False)
    head = random_head(d, variant, normalize=normalize)
    log_prob = log_prob_of(head, support, labels, query, ways, grad=grad)
    expected = normalised(textbook_densities(head, support, labels, query, ways))
    np.testing.assert_allclose(log_prob.numpy(), expected, rtol=1e-9, atol=1e-10)


@every_variant
def test_episodes_of_a_batch_may_have_different_numbers_of_shots(variant):
    support, _, query, _ = random_episode(3, 3, 2, 5, batch=(4,))
    labels = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2], [2] * 7 + [1, 0], [1, 0, 0, 2, 2, 2, 1, 1, 1]])
    labels = torch.cat([labels, labels[1:2].flip(-1)])
    head = random_head(5, variant)
    together = log_prob_of(head, support, labels, query, 3)
    for i in range(4):
        expected = normalised(textbook_densities(head, support[i], labels[i], query[i], 3))
        np.testing.assert_allclose(together[i].numpy(), expected, rtol=1e-9, atol=1e-10)


@every_variant
def test_two_hundred_ways(variant):
    support, labels, query, _ = random_episode(2, 200, 1, 6)
    head = random_head(6, variant)
    log_prob = log_prob_of(head, support, labels, query, 200)
    expected = normalised(textbook_densities(head, support, labels, query, 200))
    np.testing.assert_allclose(log_prob.numpy(), expected, rtol=1e-9, atol=1e-10)


@every_variant
def test_gradient_reaches_features_and_prior(variant):
    support, labels, query, query_labels = random_episode([1, 2, 1], 3, 1, 4, nonnegative=False)
    head = random_head(4, variant)
    assert torch.autograd.gradcheck(
        lambda support, query, *_: head.loss(support, labels, query, query_labels, 3),
        (support.requires_grad_(), query.requires_grad_(), *head.parameters()),
        atol=1e-6,
    )
    head.loss(support, labels, query, query_labels, 3).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.abs().max() > 1e-4, name


def step_of(optimizer, **options):
    def change(head, episode):
        steps = optimizer(head.parameters(), lr=0.1, **options)
        head.loss(*episode, 3).backward()
        steps.step()

    return change


def change_of_one_element(head, _):
    with torch.no_grad():
        head.below_diagonal[3, 1] += 1


def other_state(**options):
    return lambda head, _: head.load_state_dict(random_head(6, seed=1).state_dict(), **options)


CHANGES = {
    "SGD": step_of(torch.optim.SGD),
    "Adam": step_of(torch.optim.Adam),
    "Adam, one by one": step_of(torch.optim.Adam, foreach=False),
    "another state": other_state(),
    "another state, assigned": other_state(assign=True),
    "one element": change_of_one_element,
}


@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in CHANGES.items()])
def test_kept_inverse_is_renewed_when_a_parameter_changes(change):
    episode = random_episode(2, 3, 2, 6)
    head = random_head(6)
    before = log_prob_of(head, *episode[:3], 3)
    change(head, episode)
    after = log_prob_of(head, *episode[:3], 3)
    new = random_head(6)
    new.load_state_dict(head.state_dict())
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, log_prob_of(new, *episode[:3], 3))
    torch.testing.assert_close(after, log_prob_of(head, *episode[:3], 3, grad=True))


def test_kept_inverse_is_forgotten_by_eval_after_a_change_that_leaves_no_trace():
    """A fused optimiser does not count up Tensor._version."""
    episode = random_episode(2, 3, 2, 6)
    head = random_head(6)
    log_prob_of(head, *episode[:3], 3)
    step_of(torch.optim.Adam, fused=True)(head, episode)
    torch.testing.assert_close(
        log_prob_of(head.eval(), *episode[:3], 3), log_prob_of(head, *episode[:3], 3, grad=True)
    )


def test_a_head_made_in_inference_mode_works():
    support, labels, query, _ = random_episode(2, 3, 2, 6)
    with torch.inference_mode():
        log_prob = create_head("metaqda", 6).double().adapt(support, labels, 3).log_prob(query)
    assert log_prob.isfinite().all()


def test_kept_inverse_follows_the_type_of_the_features():
    support, labels, query, _ = random_episode(2, 3, 2, 6)
    head = random_head(6)
    before = log_prob_of(head, support, labels, query, 3)
    assert log_prob_of(head, support.float(), labels, query.float(), 3).dtype == torch.float32
    assert torch.equal(log_prob_of(head, support, labels, query, 3), before)


@every_variant
@pytest.mark.parametrize("shots", [5, [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("grad", [True, False])
def test_float32_stays_close_to_float64_at_1600_features(variant, shots, grad):
    """Classes that overlap: the answers are not all 0 and 1, which would hide an error."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(5), torch.tensor([shots] * 5 if shots == 5 else shots))
    centres = 0.1 * torch.randn(5, 1600, generator=generator, dtype=torch.float64)

    def features(of):
        return (centres[of] + torch.randn(len(of), 1600, generator=generator, dtype=torch.float64)).relu()

    support, query = features(labels), features(torch.arange(5).repeat(15))
    head = create_head("metaqda", 1600, **VARIANTS[variant]).double()
    with torch.no_grad():
        head.base_mean.copy_(support.mean(0))
        head.log_kappa.fill_(-1)
        head.log_excess.fill_(2)
        head.log_diagonal.normal_(std=0.2, generator=generator)
        head.below_diagonal.normal_(std=0.01, generator=generator)
    exact = log_prob_of(head, support, labels, query, 5, grad=grad).exp()
    single = log_prob_of(head.float(), support.float(), labels, query.float(), 5, grad=grad).exp()
    assert ((exact > 0.01) & (exact < 0.99)).any()
    assert (single - exact).abs().max() < 1e-3


class LargestResult(TorchDispatchMode):
    """Remember the size of the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return result


@every_variant
@pytest.mark.parametrize("grad", [True, False])
def test_no_matrix_of_a_class_is_formed(variant, grad):
    """The largest tensor is L, d×d once, in training as in use."""
    d = 300
    support, labels, query, query_labels = random_episode(1, 20, 1, d)
    head = random_head(d, variant)
    with LargestResult() as largest, torch.set_grad_enabled(grad):
        loss = head.loss(support, labels, query, query_labels, 20)
        if grad:
            loss.backward()
    assert largest.numel == d * d


def test_slots_list_the_examples_of_each_class():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (2, 3, 11), generator=generator)
    labels[0, 0] = torch.tensor([2] * 8 + [0, 1, 0])  # no example of class 3
    slots, filled = padded_class_indices(labels, 4)
    assert slots.shape == filled.shape == (2, 3, 4, 8)
    for i in range(2):
        for j in range(3):
            for k in range(4):
                expected = [n for n in range(11) if labels[i, j, n] == k]
                assert slots[i, j, k][filled[i, j, k]].tolist() == expected


def test_waits_for_a_base_classifier_and_its_mean():
    head = create_head("metaqda", 8)
    assert head.base_stage == "linear"
    assert head.needs_base_mean
    assert torch.equal(head.state_dict()["base_mean"], torch.zeros(8))


def test_scalars_are_kappa_and_nu():
    head = random_head(6)
    assert head.scalars() == pytest.approx({"kappa": np.exp(-0.7), "nu": 5 + np.exp(0.9)})


def test_wrong_options_are_named():
    with pytest.raises(UserError, match="estimate must be 'bayes' or 'map', not 'full'"):
        create_head("metaqda", 8, estimate="full")
    with pytest.raises(UserError, match="mix_identity belongs to estimate='map'"):
        create_head("metaqda", 8, mix_identity=True)
    with pytest.raises(UserError, match="'metaqda' has one parameter per feature; give feature_dim"):
        create_head("metaqda")
