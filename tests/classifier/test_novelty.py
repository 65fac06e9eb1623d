import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from gpldla.classifier.novelty import Novelty, calibrate, fit_novelty
from gpldla.heads.gpldla_auto import GPLDLAAuto

every_head = pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": False, "whiten": False, "beta": 1.0},
        {"normalize": False},
        {"map_steps": 2},
        {"covariance": "full"},
    ],
    ids=str,
)


def make_task(ways, shots, d=16, apart=1.0, seed=0, others=0, queries=5):
    """Return support, labels and queries; the last of the queries are of `others` classes."""
    rng = np.random.default_rng(seed)
    means = apart * rng.normal(size=(ways + others, d))
    X = np.repeat(means[:ways], shots, 0) + rng.normal(size=(ways * shots, d))
    Q = np.repeat(means, queries, 0) + rng.normal(size=((ways + others) * queries, d))
    return torch.from_numpy(X), torch.arange(ways).repeat_interleave(shots), torch.from_numpy(Q)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def cosines(head, support, labels, n_way, query):
    """Return the cosine of each query with each class mean, in the space of the task, in numpy."""
    space = head.adapt(support, labels, n_way).space
    z, q = space(support).numpy(), space(query).numpy()
    z = unit(z) if head.normalize else z
    means = np.stack([z[labels == number].mean(0) for number in labels.unique()])
    return unit(q) @ unit(means).T


class TestLikeness:
    @every_head
    def test_is_the_cosine_with_the_nearest_class_mean(self, options):
        X, y, Q = make_task(4, 5, others=2)
        head = GPLDLAAuto(**options).eval()
        expected = cosines(head, X, y, 4, Q).max(1)
        np.testing.assert_allclose(head.adapt(X, y, 4).nearest_mean_cosine(Q).numpy(), expected, atol=1e-9)

    def test_a_class_without_examples_is_like_nothing(self):
        X, y, Q = make_task(3, 5, others=2)
        head = GPLDLAAuto(beta=1.0).eval()
        torch.testing.assert_close(
            head.adapt(X, y, 5).nearest_mean_cosine(Q), head.adapt(X, y, 3).nearest_mean_cosine(Q)
        )

    def test_of_batches_is_that_of_each_task(self):
        tasks = [make_task(3, 4, seed=seed) for seed in range(3)]
        X, y, Q = (torch.stack(parts) for parts in zip(*tasks))
        head = GPLDLAAuto(beta=1.0).eval()
        together = head.adapt(X, y, 3).nearest_mean_cosine(Q)
        for answer, (support, labels, query) in zip(together, tasks):
            torch.testing.assert_close(answer, head.adapt(support, labels, 3).nearest_mean_cosine(query))


class TestProbability:
    def test_is_the_logistic_function_of_likeness_and_prevalence(self):
        X, y, Q = make_task(4, 5)
        posterior = GPLDLAAuto().eval().adapt(X, y, 4)
        alike = posterior.nearest_mean_cosine(Q).numpy()
        for prevalence in (0.5, 0.01, 0.8):
            expected = 1 / (1 + np.exp(3.0 * alike - 1.2) * (1 - prevalence) / prevalence)
            answer = Novelty(3.0, 1.2).probability(posterior.nearest_mean_cosine(Q), prevalence)
            np.testing.assert_allclose(answer.numpy(), expected, rtol=1e-10)

    def test_falls_as_likeness_rises(self):
        X, y, Q = make_task(4, 5, others=4)
        posterior = GPLDLAAuto().eval().adapt(X, y, 4)
        order = posterior.nearest_mean_cosine(Q).argsort()
        assert (Novelty(3.0, 1.2).probability(posterior.nearest_mean_cosine(Q))[order].diff() < 0).all()


def logistic_fit(known, unknown):
    """Minimise the penalised logistic loss, both kinds weighing the same, over slope and offset directly."""
    scores = np.r_[known, unknown]
    sign = np.r_[-np.ones(len(known)), np.ones(len(unknown))]
    n = len(scores)
    weight = np.where(sign < 0, n / (2 * len(known)), n / (2 * len(unknown)))
    centre, spread = scores.mean(), max(scores.std(), 1e-3)

    def loss(theta):
        slope, offset = theta
        margin = sign * (offset - slope * scores)
        return (weight * np.logaddexp(0, -margin)).sum() + 0.5 * (slope * spread) ** 2

    start = [1 / spread, centre / spread]
    options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 5000, "maxfev": 5000}
    return minimize(loss, start, method="Nelder-Mead", options=options).x


class TestCalibrate:
    @pytest.mark.parametrize(("k", "u"), [(30, 30), (100, 5), (4, 60), (1, 1)])
    def test_is_the_logistic_fit_with_both_kinds_alike(self, k, u):
        rng = np.random.default_rng(k)
        known, unknown = 0.6 + 0.15 * rng.normal(size=k), 0.3 + 0.15 * rng.normal(size=u)
        novelty = calibrate(torch.from_numpy(known), torch.from_numpy(unknown))
        slope, offset = logistic_fit(known, unknown)
        at = np.linspace(-0.2, 1, 7)
        np.testing.assert_allclose(novelty.offset - novelty.slope * at, offset - slope * at, atol=2e-3)

    def test_many_examples_of_normal_likeness_give_the_exact_odds(self):
        """log N(s; 0.3, σ) − log N(s; 0.6, σ) is a line in s."""
        rng = np.random.default_rng(0)
        known, unknown = 0.6 + 0.15 * rng.normal(size=40_000), 0.3 + 0.15 * rng.normal(size=10_000)
        novelty = calibrate(torch.from_numpy(known), torch.from_numpy(unknown))
        slope = 0.3 / 0.15**2
        assert novelty.slope == pytest.approx(slope, rel=0.03)
        assert novelty.offset == pytest.approx(slope * 0.45, rel=0.03)

    def test_likeness_never_speaks_for_the_unknown(self):
        """Where the unknown happen to be the more alike, likeness says nothing."""
        known, unknown = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.7, 0.8, 0.9])
        novelty = calibrate(known, unknown)
        assert novelty.slope == 0
        assert abs(novelty.offset) < 1

    def test_without_any_example_nothing_is_told(self):
        assert calibrate(torch.empty(0), torch.empty(0)) == Novelty(0.0, 0.0)

    @pytest.mark.parametrize("kind", ["known", "unknown"])
    def test_the_missing_kind_is_a_standard_deviation_away(self, kind):
        there = torch.tensor([0.4, 0.5, 0.6, 0.7], dtype=torch.float64)
        none = torch.empty(0, dtype=torch.float64)
        novelty = calibrate(there, none) if kind == "known" else calibrate(none, there)
        mean, deviation = 0.55, np.std([0.4, 0.5, 0.6, 0.7])
        assert novelty.slope == pytest.approx(1 / deviation)
        even_odds_at = novelty.offset / novelty.slope
        assert even_odds_at == pytest.approx(mean + (-0.5 if kind == "known" else 0.5) * deviation)

    @pytest.mark.parametrize("values", [[0.5], [0.5, 0.5, 0.5]])
    def test_examples_that_are_all_alike_give_finite_numbers(self, values):
        same = torch.tensor(values)
        for novelty in (
            calibrate(same, torch.empty(0)),
            calibrate(torch.empty(0), same),
            calibrate(same, same),
            calibrate(same, same - 0.1),
        ):
            assert np.isfinite([novelty.slope, novelty.offset]).all()

    def test_float32_and_float64_give_the_same(self):
        generator = torch.Generator().manual_seed(0)
        known, unknown = (torch.rand(30, generator=generator, dtype=torch.float64) for _ in range(2))
        single, double = calibrate(known.float(), unknown.float() - 0.5), calibrate(known, unknown - 0.5)
        assert single.slope == pytest.approx(double.slope, rel=1e-3)
        assert single.offset == pytest.approx(double.offset, rel=1e-2, abs=1e-3)


def refitted_without_each(head, X, y, ways):
    """Return the likeness of each example to the classes when it is left out, everything fitted again."""
    alike = []
    for i in range(len(X)):
        kept = torch.arange(len(X)) != i
        alike.append(cosines(head, X[kept], y[kept], ways, X[i : i + 1]).max())
    return torch.tensor(alike)


def refitted_without_its_class(head, X, y, ways):
    return torch.cat(
        [
            torch.from_numpy(cosines(head, X[y != number], y[y != number], ways, X[y == number]).max(1))
            for number in range(ways)
        ]
    )


class TestFitNovelty:
    @every_head
    @pytest.mark.parametrize(("ways", "shots"), [(3, 6), (6, 5)])
    def test_is_calibrated_on_what_refits_without_each_example_and_class_say(self, options, ways, shots):
        X, y, _ = make_task(ways, shots, apart=1.5)
        head = GPLDLAAuto(**options).eval()
        expected = calibrate(
            refitted_without_each(head, X, y, ways), refitted_without_its_class(head, X, y, ways)
        )
        novelty = fit_novelty(head, X, y, ways)
        at = np.linspace(0, 1, 5)
        p, q = (1 / (1 + np.exp(n.slope * at - n.offset)) for n in (novelty, expected))
        np.testing.assert_allclose(p, q, atol=0.05)

    def test_many_classes_are_left_out_in_groups(self, monkeypatch):
        """Twenty-five classes in ten folds: every example once, to classes without its own."""
        X, y, _ = make_task(25, 3)
        head = GPLDLAAuto(beta=1.0).eval()
        fitted = []
        fit_space = head.fit_space
        monkeypatch.setattr(
            head, "fit_space", lambda support, member: fitted.append(member) or fit_space(support, member)
        )
        fit_novelty(head, X, y, 25)
        gone = [{*range(25)} - {*member.argmax(-1).tolist()} for member in fitted]
        assert len(gone) == 10
        assert sorted(number for fold in gone for number in fold) == [*range(25)]

    def test_two_classes_know_only_what_is_known(self):
        """None can be left out; the unknown are taken to be less alike than the known."""
        X, y, Q = make_task(2, 6, apart=2.0, others=4, queries=10)
        head = GPLDLAAuto().eval()
        novelty = fit_novelty(head, X, y, 2)
        assert novelty.slope > 0
        p = novelty.probability(head.adapt(X, y, 2).nearest_mean_cosine(Q))
        assert roc_auc_score(np.repeat([0, 1], [20, 40]), p) > 0.7

    def test_single_examples_know_only_what_is_unknown(self):
        X, y, Q = make_task(6, 1, apart=2.0, others=6, queries=10)
        head = GPLDLAAuto().eval()
        novelty = fit_novelty(head, X, y, 6)
        assert novelty.slope > 0
        assert (
            roc_auc_score(
                np.repeat([0, 1], 60), novelty.probability(head.adapt(X, y, 6).nearest_mean_cosine(Q))
            )
            > 0.7
        )

    def test_two_single_examples_know_nothing(self):
        X, y, _ = make_task(2, 1)
        assert fit_novelty(GPLDLAAuto().eval(), X, y, 2) == Novelty(0.0, 0.0)

    def test_weights_are_repetitions(self):
        X, y, _ = make_task(4, 4)
        weights = torch.tensor([1, 2, 3, 1] * 4)
        head = GPLDLAAuto(beta=1.0).eval()
        weighted = fit_novelty(head, X, y, 4, weights.double())
        repeated = fit_novelty(head, X.repeat_interleave(weights, 0), y.repeat_interleave(weights), 4)
        assert weighted.slope == pytest.approx(repeated.slope, rel=1e-3)
        assert weighted.offset == pytest.approx(repeated.offset, rel=1e-3)

    def test_a_class_without_examples_changes_nothing(self):
        X, y, _ = make_task(4, 4)
        head = GPLDLAAuto(beta=1.0).eval()
        with_it, without = fit_novelty(head, X, y, 6), fit_novelty(head, X, y, 4)
        assert with_it.slope == pytest.approx(without.slope, rel=1e-6)
        assert with_it.offset == pytest.approx(without.offset, rel=1e-6)


def test_with_one_class_nothing_can_be_told():
    X, _, Q = make_task(1, 4, others=1)
    head = GPLDLAAuto().eval()
    novelty = fit_novelty(head, X, torch.zeros(4, dtype=torch.int64), 2)
    posterior = head.adapt(X, torch.zeros(4, dtype=torch.int64), 2)
    assert (novelty.probability(posterior.nearest_mean_cosine(Q), 0.3) - 0.3).abs().max() < 1e-6


def test_of_many_examples_an_even_choice_calibrates(monkeypatch):
    X, y, _ = make_task(8, 30)
    everything = fit_novelty(GPLDLAAuto().eval(), X, y, 8)
    monkeypatch.setattr("gpldla.heads.gpldla_auto.MAX_LEFT_OUT", 100)
    sizes, left_out = [], GPLDLAAuto.left_out
    monkeypatch.setattr(
        GPLDLAAuto, "left_out", lambda head, X, member: sizes.append(len(X)) or left_out(head, X, member)
    )
    some = fit_novelty(GPLDLAAuto().eval(), X, y, 8)
    assert max(sizes) <= 100
    likenesses = torch.linspace(0, 0.8, 9)
    p, q = (torch.sigmoid(n.offset - n.slope * likenesses) for n in (everything, some))
    assert (p - q).abs().max() < 0.15
