import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from gpldla.classifier.novelty import OFFSET, SLOPE, Novelty, calibrate, fit_novelty
from gpldla.heads.gp.strangers import PRIOR_FREEDOM, PRIOR_LIKENESS, strangers_likeness
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


class TestNearestMeanCosine:
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


SHARE = 0.6  # ρ


def log_ratio(x, means, shots, spread):
    """Return 2·log N(x; s·m, v(1 − ρs)I) − 2·log N(x; 0, vI) for each class, per dimension, v = spread.

    Densities in as many dimensions as rows have, each with the variance v divided by that number, as the
    difference of two sums of squares and two log variances.
    """
    shots = np.asarray(shots, dtype=float)
    s = shots * SHARE / (shots * SHARE + 1 - SHARE)
    known_variance = spread * (1 - SHARE * s)
    to_known = ((x - s[:, None] * means) ** 2).sum(-1) / known_variance + np.log(known_variance)
    return (x**2).sum() / spread + np.log(spread) - to_known


def reference_fit(head, support, labels, n_way, rows, spread=None, full_shots=None):
    """Return the fit of rows to the best class, from class means and densities in numpy, in the task's space.

    full_shots: what the part that does not depend on the row is of, if not of the support
    """
    space = head.adapt(support, labels, n_way).space
    z, q, present = space(support).numpy(), space(rows).numpy(), labels.unique()
    means = np.stack([z[labels == number].mean(0) for number in present])
    shots = np.array([float((labels == number).sum()) for number in present])
    if spread is None:
        spread = (z**2).sum(1).mean() / (1 - 1 / len(present) if head.center else 1)
    ratios = np.array([log_ratio(x, means, shots, spread) for x in q])
    if full_shots is not None:
        full, own = (n * SHARE / (n * SHARE + 1 - SHARE) for n in (np.asarray(full_shots, float), shots))
        ratios += np.log(1 - SHARE * own) - np.log(1 - SHARE * full)
    return ratios.max(1), spread


def refitted_without_each(head, X, y, ways):
    """Return the fit of each example to the classes when it is left out, everything fitted again."""
    _, spread = reference_fit(head, X, y, ways, X[:1])
    fits, shots = [], torch.bincount(y, minlength=ways).numpy()
    for i in range(len(X)):
        kept = torch.arange(len(X)) != i
        fits += [*reference_fit(head, X[kept], y[kept], ways, X[i : i + 1], spread, shots)[0]]
    return torch.tensor(fits)


def refitted_without_its_class(head, X, y, ways):
    return torch.cat(
        [
            torch.from_numpy(reference_fit(head, X[y != number], y[y != number], ways, X[y == number])[0])
            for number in range(ways)
        ]
    )


def fits(head, X, y, ways, rows):
    return head.adapt(X, y, ways).class_fit(rows, head.novelty_scores(X, y, ways, None).classes)


def probabilities(head, X, y, ways, rows, weights=None):
    novelty = fit_novelty(head, X, y, ways, weights)
    return novelty.probability(novelty.score(head.adapt_weighted(X, y, ways, weights), rows))


class TestClassFit:
    @every_head
    def test_is_the_log_ratio_of_two_normal_densities(self, options):
        X, y, Q = make_task(4, 5, others=2)
        head = GPLDLAAuto(**options).eval()
        expected, _ = reference_fit(head, X, y, 4, Q)
        np.testing.assert_allclose(fits(head, X, y, 4, Q).numpy(), expected, atol=1e-9)

    def test_unequal_shots(self):
        X, y, Q = make_task(4, 5, others=2)
        kept = torch.tensor([0, 5, 6, 10, 11, 12, 13, 15, 16, 17])
        head = GPLDLAAuto().eval()
        expected, _ = reference_fit(head, X[kept], y[kept], 4, Q)
        np.testing.assert_allclose(fits(head, X[kept], y[kept], 4, Q).numpy(), expected, atol=1e-9)

    @every_head
    @pytest.mark.parametrize(("ways", "shots"), [(4, 3), (6, 2)])
    def test_scores_are_those_of_refits(self, options, ways, shots):
        """But κ, which is held when one example is left out."""
        X, y, _ = make_task(ways, shots, apart=1.5)
        head = GPLDLAAuto(**options).eval()
        scores = head.novelty_scores(X, y, ways, None)
        exact = not head.whiten
        expected = refitted_without_each(head, X, y, ways)
        np.testing.assert_allclose(scores.known, expected, atol=1e-9 if exact else 0.15)
        np.testing.assert_allclose(scores.unknown, refitted_without_its_class(head, X, y, ways), atol=1e-6)

    def test_a_class_without_examples_fits_nothing(self):
        X, y, Q = make_task(3, 5, others=2)
        head = GPLDLAAuto(beta=1.0).eval()
        torch.testing.assert_close(fits(head, X, y, 5, Q), fits(head, X, y, 3, Q))

    def test_falls_with_the_distance_in_the_same_direction(self):
        """A cosine does not: it is 1 in the direction of a class however far away."""
        X, y, _ = make_task(4, 5, apart=2.0)
        head = GPLDLAAuto(normalize=False).eval()
        mean = X[y == 0].mean(0) - X.mean(0)
        away = torch.stack([X.mean(0) + times * mean for times in (2.0, 4.0, 8.0)])
        assert (fits(head, X, y, 4, away).diff() < 0).all()


class TestInvariances:
    @pytest.mark.parametrize("shots", [1, 3])
    def test_order_scale_and_copies_make_no_difference(self, shots):
        X, y, Q = make_task(5, shots, others=3)
        head = GPLDLAAuto().eval()
        expected = probabilities(head, X, y, 5, Q)
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(probabilities(head, X[order], y[order], 5, Q), expected)
        torch.testing.assert_close(probabilities(head, 1e4 * X, y, 5, 1e4 * Q), expected)
        copied = probabilities(head, torch.cat([X, X]), torch.cat([y, y]), 5, Q)
        torch.testing.assert_close(copied, probabilities(head, X, y, 5, Q, 2 * torch.ones(len(X)).double()))
        names = torch.tensor([3, 0, 4, 1, 2])
        torch.testing.assert_close(probabilities(head, X, names[y], 5, Q), expected)

    def test_a_copy_is_no_second_example(self):
        X, y, _ = make_task(5, 1, others=3)
        scores = GPLDLAAuto().eval().novelty_scores(torch.cat([X, X[:1]]), torch.cat([y, y[:1]]), 5, None)
        assert len(scores.known) == 0
        torch.testing.assert_close(scores.classes.shrink, torch.full((5,), SHARE).double())

    def test_float32_is_close_to_float64(self):
        X, y, Q = make_task(5, 3, others=3)
        head = GPLDLAAuto().eval()
        single = probabilities(head, X.float(), y, 5, Q.float())
        torch.testing.assert_close(single.double(), probabilities(head, X, y, 5, Q), atol=1e-3, rtol=0)


class TestDegenerate:
    @pytest.mark.parametrize("shots", [1, 2])
    @pytest.mark.parametrize("ways", [2, 3, 5])
    @pytest.mark.parametrize("rows", ["identical", "zero", "identical classes"])
    def test_answers_are_probabilities(self, ways, shots, rows):
        X, y, Q = make_task(ways, shots, others=1)
        X = {
            "identical": X[:1].expand_as(X).clone(),
            "zero": torch.zeros_like(X),
            "identical classes": X[y == 0].repeat(ways, 1),
        }[rows]
        p = probabilities(GPLDLAAuto().eval(), X, y, ways, torch.cat([Q, torch.zeros_like(Q[:1])]))
        assert ((p >= 0) & (p <= 1)).all()

    def test_one_zero_row_among_others(self):
        X, y, Q = make_task(4, 2, others=2)
        X[3] = 0
        p = probabilities(GPLDLAAuto().eval(), X, y, 4, Q)
        assert ((p > 0) & (p < 1)).all()


def gaussian_open_tasks(share, ways, shots, tasks, d=24):
    """Tasks of the model itself: class means N(0, ρI), examples N(mean, (1 − ρ)I), all around one centre."""
    for seed in range(tasks):
        rng = np.random.default_rng(seed)
        means = np.sqrt(share) * rng.normal(size=(2 * ways, d))
        rows = means[:, None] + np.sqrt(1 - share) * rng.normal(size=(2 * ways, shots + 8, d))
        support = torch.from_numpy(rows[:ways, :shots].reshape(-1, d))
        queries = torch.from_numpy(rows[:, shots:].reshape(-1, d))
        yield support, torch.arange(ways).repeat_interleave(shots), queries, np.repeat([0, 1], 8 * ways)


def calibration_error(p, truth):
    place = np.minimum((10 * p).astype(int), 9)
    return sum(
        (place == k).mean() * abs(p[place == k].mean() - truth[place == k].mean()) for k in np.unique(place)
    )


@pytest.mark.parametrize(("share", "ways", "shots", "most"), [(0.3, 5, 1, 0.1), (0.4, 5, 3, 0.08)])
def test_is_calibrated_and_better_than_a_cosine_where_the_model_holds(share, ways, shots, most):
    answers, truth, areas = [], [], []
    for X, y, Q, unknown in gaussian_open_tasks(share, ways, shots, tasks=30):
        head = GPLDLAAuto().eval()
        answers.append(probabilities(head, X, y, ways, Q).numpy())
        truth.append(unknown)
        cosine = -head.adapt(X, y, ways).nearest_mean_cosine(Q)
        areas.append([roc_auc_score(unknown, score) for score in (answers[-1], cosine)])
    assert calibration_error(np.concatenate(answers), np.concatenate(truth)) < most
    ours, of_cosine = np.mean(areas, 0)
    assert ours > of_cosine


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
        at = np.linspace(-3, 1, 5)
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
        gone = [{*range(25)} - {*member.argmax(-1).tolist()} for member in fitted[1:]]  # the first is of all
        assert len(gone) == 10
        assert sorted(number for fold in gone for number in fold) == [*range(25)]

    def test_two_classes_have_unknown_ones_with_the_usual_fit(self):
        """None can be left out."""
        X, y, Q = make_task(2, 6, apart=2.0, others=4, queries=10)
        head = GPLDLAAuto().eval()
        novelty = fit_novelty(head, X, y, 2)
        assert novelty.slope > 0
        p = novelty.probability(novelty.score(head.adapt(X, y, 2), Q))
        assert roc_auc_score(np.repeat([0, 1], [20, 40]), p) > 0.7

    @pytest.mark.parametrize("shots", [2, 5, 200])
    def test_two_tight_classes_know_their_own_examples(self, shots):
        """However little the fits of known examples differ, a row that fits a little less is still known."""
        rng = np.random.default_rng(0)
        centers = np.array([[3.0, 0.1], [0.1, 3.0]])
        y = np.repeat([0, 1], shots)
        X = torch.from_numpy(centers[y] + 0.05 * rng.normal(size=(len(y), 2)))
        others = torch.tensor([[2.0, 2.1], [1.0, 1.0]]).double()
        p = probabilities(GPLDLAAuto().eval(), X, torch.from_numpy(y), 2, torch.cat([X, others]))
        assert p[: len(X)].max() < 0.3
        assert p[len(X) :].min() > 0.4

    def test_single_examples_know_only_what_is_unknown(self):
        X, y, Q = make_task(6, 1, apart=2.0, others=6, queries=10)
        head = GPLDLAAuto().eval()
        novelty = fit_novelty(head, X, y, 6)
        assert novelty.slope > 0
        p = novelty.probability(novelty.score(head.adapt(X, y, 6), Q))
        assert roc_auc_score(np.repeat([0, 1], 60), p) > 0.7

    def test_single_examples_set_the_level_and_their_likeness_the_unit(self):
        X, y, _ = make_task(6, 1)
        head = GPLDLAAuto().eval()
        scores, novelty = head.novelty_scores(X, y, 6, None), fit_novelty(head, X, y, 6)
        z = unit(X.numpy())
        likeness = strangers_likeness(torch.from_numpy(z), torch.ones(6).double(), whiten=True).item()
        prior = PRIOR_LIKENESS / 4  # √16 features
        sigma2 = (PRIOR_FREEDOM * prior + 9 * likeness) / (
            PRIOR_FREEDOM + 9
        )  # 6·(6 − 3)/2 degrees of freedom
        assert novelty.slope == pytest.approx(SLOPE / np.sqrt(sigma2))
        assert novelty.offset - novelty.slope * scores.unknown.mean().item() == pytest.approx(OFFSET)

    def test_two_single_examples_compare_with_unrelated_rows(self):
        """In many dimensions independent rows are such; to them the probability is that of the level."""
        rng = np.random.default_rng(0)
        X, Q = (torch.from_numpy(rng.normal(size=(n, 20_000))) for n in (2, 5))
        p = probabilities(GPLDLAAuto().eval(), X, torch.tensor([0, 1]), 2, Q)
        np.testing.assert_allclose(p, 1 / (1 + np.exp(-OFFSET)), atol=0.06)

    def test_two_single_examples_without_a_centre_know_nothing(self):
        X, y, _ = make_task(2, 1)
        assert fit_novelty(GPLDLAAuto(center=False).eval(), X, y, 2) == Novelty(0.0, 0.0)

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
    assert len(GPLDLAAuto().eval().novelty_scores(X, y, 8, None).known) <= 100
    some = fit_novelty(GPLDLAAuto().eval(), X, y, 8)
    at = torch.linspace(-3, 1, 9)
    p, q = (torch.sigmoid(n.offset - n.slope * at) for n in (everything, some))
    assert (p - q).abs().max() < 0.15
