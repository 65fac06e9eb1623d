from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from gpldla import GPLDLAClassifier
from gpldla.classifier import prior_learning
from gpldla.classifier.calibration import apply_temperature, negative_log_likelihood
from gpldla.classifier.prior_learning import _draw_episodes, _Tasks, _Whitening, learn_prior
from gpldla.heads.gpldla_auto import GPLDLAAuto
from gpldla.utils.errors import UserError
from gpldla.utils.progress import SILENT, Reporter


def make_head(**options):
    return GPLDLAAuto(**options).eval()


def make_world(classes=24, examples=12, d=6, spread=(0.2, 2.0), seed=0):
    """Return rows [n, d] and labels [n]: classes whose noise has deviations from spread[0] to spread[1]."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(classes * examples, d)) * np.geomspace(*spread, d)
    rows = np.repeat(rng.normal(size=(classes, d)), examples, 0) + noise
    return torch.from_numpy(rows), torch.arange(classes).repeat_interleave(examples)


def learn(X, y, **changes):
    options = {"shots": 3, "ways": 3, "episodes": 10, "seed": 0, "make_head": make_head, "normalize": True}
    return learn_prior(X, y, **{**options, "reporter": SILENT, **changes})


class TestWhitening:
    @pytest.mark.parametrize("shrinkage", [0.0, 0.3, 0.9])
    def test_is_the_inverse_square_root_of_the_shrunk_covariance(self, shrinkage):
        X, y = make_world(5, 10)
        residuals = np.concatenate([X[y == k].numpy() - X[y == k].numpy().mean(0) for k in range(5)])
        covariance = residuals.T @ residuals / (50 - 5)
        covariance /= np.trace(covariance) / 6  # a multiple of I does not matter
        explicit = np.linalg.inv(sqrtm(shrinkage * np.eye(6) + (1 - shrinkage) * covariance).real)
        np.testing.assert_allclose(_Whitening(X, y).map(shrinkage).numpy(), explicit, rtol=1e-8, atol=1e-10)

    def test_whitened_rows_have_the_same_deviation_in_every_direction(self):
        X, y = make_world(5, 200)
        z = (X @ _Whitening(X, y).map(0.0)).numpy()
        residuals = np.concatenate([z[y == k] - z[y == k].mean(0) for k in range(5)])
        covariance = residuals.T @ residuals / (len(X) - 5)
        np.testing.assert_allclose(covariance, covariance[0, 0] * np.eye(6), atol=1e-10)

    def test_shrunk_all_the_way_is_none(self):
        assert _Whitening(*make_world(5, 10)).map(1.0) is None

    @pytest.mark.parametrize("shots", [1, 3])
    def test_rows_without_spread_are_left_alone(self, shots):
        rows = torch.eye(4, dtype=torch.float64).repeat_interleave(shots, 0)
        assert _Whitening(rows, torch.arange(4).repeat_interleave(shots)).map(0.3) is None

    def test_labels_may_be_any_numbers(self):
        X, y = make_world(5, 10)
        torch.testing.assert_close(_Whitening(X, y).map(0.3), _Whitening(X, 100 - 7 * y).map(0.3))


class TestEpisodes:
    def draw(self, counts, *, shots=2, ways=3, episodes=20, d=6, classes=None, seed=0):
        counts = torch.tensor(counts)
        labels = torch.arange(len(counts)).repeat_interleave(counts)
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(9))]
        classes = torch.arange(len(counts)) if classes is None else torch.tensor(classes)
        generator = torch.Generator().manual_seed(seed)
        return _draw_episodes(labels, classes, counts, shots, ways, episodes, d, generator), labels

    def test_have_the_asked_shape(self):
        drawn, _ = self.draw([12] * 8, episodes=7)
        assert drawn.support.shape == (7, 3 * 2)
        assert drawn.query.shape == (7, 3 * 10)
        assert drawn.unknown.shape == (7, 3 * 10)

    def test_go_class_by_class_and_repeat_no_row(self):
        drawn, labels = self.draw([12] * 8)
        for support, query, unknown in zip(*drawn):
            of_support, of_query = labels[support].view(3, 2), labels[query].view(3, -1)
            assert (of_support == of_support[:, :1]).all()
            assert (of_query == of_support[:, :1]).all()
            assert len(of_support[:, 0].unique()) == 3
            rows = torch.cat([support, query, unknown])
            assert len(rows.unique()) == len(rows)
            assert not torch.isin(labels[unknown], of_support).any()

    def test_differ_from_one_another(self):
        drawn, labels = self.draw([12] * 8)
        assert len({tuple(labels[row].tolist()) for row in drawn.support}) > 10

    def test_come_from_the_given_classes(self):
        drawn, labels = self.draw([12] * 8, classes=[1, 3, 5, 6])
        assert {*labels[torch.cat([*drawn.support, *drawn.query, *drawn.unknown])].tolist()} == {1, 3, 5, 6}

    def test_leave_out_classes_without_a_row_to_ask_for(self):
        drawn, labels = self.draw([12, 2, 12, 1, 12, 3])
        assert {*labels[drawn.support.flatten()].tolist()} == {0, 2, 4, 5}
        assert drawn.query.shape[1] == 3  # one a class: the fourth has no more

    def test_fall_back_on_all_classes_where_the_given_are_too_few(self):
        drawn, labels = self.draw([12] * 8, classes=[1, 3])
        assert {*labels[drawn.support.flatten()].tolist()} == {*range(8)}

    def test_know_nothing_unknown_where_each_class_is_needed(self):
        drawn, _ = self.draw([12] * 3)
        assert drawn.unknown.shape == (20, 0)

    def test_become_fewer_where_memory_asks_for_it(self, monkeypatch):
        rows = 3 * (2 + 10) + 3 * 10
        monkeypatch.setattr(prior_learning, "VALUES", 5 * rows * 6)
        assert len(self.draw([12] * 8)[0].support) == 5
        monkeypatch.setattr(prior_learning, "VALUES", 1)
        assert len(self.draw([12] * 8)[0].support) == 1


class TestTasks:
    X, y = make_world(8)

    def make(self, metric=None, head=make_head):
        generator = torch.Generator().manual_seed(0)
        counts = torch.bincount(self.y)
        drawn = _draw_episodes(self.y, torch.arange(8), counts, 4, 3, 5, 6, generator)
        return _Tasks(torch.nn.functional.normalize(self.X), metric, drawn, 3, head), drawn

    @pytest.mark.parametrize("metric", [None, torch.diag(torch.tensor([5.0, 3, 2, 1, 1, 0.2]).double())])
    @pytest.mark.parametrize("options", [{}, {"covariance": "full"}, {"map_steps": 1}], ids=str)
    def test_are_answered_as_the_classifier_will_answer_them(self, metric, options):
        tasks, drawn = self.make(metric, lambda **given: make_head(**{**given, **options}))
        log_prob, truth = tasks.predictions(2.0, 0.5)
        clf = GPLDLAClassifier(
            beta=2.0,
            beta_b=0.5,
            center=np.zeros(6),
            whiten=True,
            metric=None if metric is None else metric.numpy(),
            **options,
        )
        rows = self.X.numpy()
        for number, (support, query) in enumerate(zip(drawn.support, drawn.query)):
            clf.fit(rows[support], np.repeat(range(3), 4))
            own = slice(number * len(query), (number + 1) * len(query))
            np.testing.assert_allclose(log_prob[own].numpy(), clf.predict_log_proba(rows[query]), atol=1e-6)
            assert truth[own].tolist() == np.repeat(range(3), len(query) // 3).tolist()

    def test_lose_what_the_answers_lose(self):
        tasks, _ = self.make()
        assert tasks.loss(1.5, 1.0) == pytest.approx(negative_log_likelihood(*tasks.predictions(1.5, 1.0)))

    @pytest.mark.parametrize("prior", [(1e-4, 1.0), (1e4, 1.0), (1.0, 1e-4), (1.0, 1e4)])
    def test_lose_everything_with_a_prior_out_of_bounds(self, prior):
        assert self.make()[0].loss(*prior) == np.inf

    def test_tell_classes_outside_from_those_inside(self):
        assert self.make()[0].novelty(1.0, 1.0).slope > 0


class TestLearnPrior:
    def test_returns_parameters_of_the_classifier(self):
        X, y = make_world()
        learned = learn(X, y)
        assert {*learned} == {"beta", "beta_b", "temperature", "center", "metric", "novelty"}
        GPLDLAClassifier().set_params(**learned).fit(X[:36], y[:36])

    def test_the_centre_is_the_mean_of_the_class_means(self):
        X, y = make_world()
        rows = torch.cat([torch.arange(5), torch.arange(12, len(X))])  # unequal classes
        means = [X[rows][y[rows] == k].mean(0).numpy() for k in range(24)]
        np.testing.assert_allclose(learn(X[rows], y[rows])["center"], np.mean(means, 0), atol=1e-12)

    def test_the_metric_whitens_noise_that_is_not_round(self):
        X, y = make_world(examples=30, spread=(0.1, 3.0))
        metric = learn(X, y, normalize=False)["metric"]
        residuals = np.concatenate([X[y == k].numpy() - X[y == k].numpy().mean(0) for k in range(24)])
        before, after = (np.linalg.cond(np.cov(rows.T)) for rows in (residuals, residuals @ metric))
        assert after < before / 5

    def test_the_metric_is_that_of_all_base_classes(self):
        X, y = make_world()
        learned = learn(X, y)
        z = torch.nn.functional.normalize(X - torch.from_numpy(learned["center"]))
        of_all = [_Whitening(z, y).map(shrinkage) for shrinkage in prior_learning.SHRINKAGES[:-1]]
        assert min(np.abs(learned["metric"] - metric.numpy()).max() for metric in of_all) < 1e-12

    def test_few_classes_are_not_halved_and_leave_the_rows_as_they_are(self):
        assert learn(*make_world(7))["metric"] is None

    @pytest.mark.parametrize("normalize", [True, False])
    def test_beta_and_beta_b_beat_their_neighbours_on_new_episodes(self, normalize):
        X, y = make_world(40, examples=20, spread=(0.7, 0.7))
        learned = learn(X, y, episodes=60, normalize=normalize)
        z = X - torch.from_numpy(learned["center"])
        z = torch.nn.functional.normalize(z) if normalize else z
        metric = None if learned["metric"] is None else torch.from_numpy(learned["metric"])
        generator = torch.Generator().manual_seed(99)
        counts = torch.bincount(y)
        drawn = _draw_episodes(y, torch.arange(40), counts, 3, 3, 60, 6, generator)
        tasks = _Tasks(z, metric, drawn, 3, lambda **given: make_head(**{**given, "normalize": normalize}))
        best = tasks.loss(learned["beta"], learned["beta_b"])
        assert best < tasks.loss(learned["beta"] / 5, learned["beta_b"])
        assert best < tasks.loss(learned["beta"], 30.0)
        assert best < np.log(3) - 0.2

    def test_the_temperature_is_the_best_one(self, monkeypatch):
        seen = []
        fit = prior_learning.fit_temperature
        monkeypatch.setattr(
            prior_learning, "fit_temperature", lambda *answers: seen.append(answers) or fit(*answers)
        )
        temperature = learn(*make_world())["temperature"]
        (answers,) = seen

        def loss(T):
            return negative_log_likelihood(apply_temperature(answers[0], T), answers[1])

        assert loss(temperature) <= min(loss(1.0), loss(1.1 * temperature), loss(0.9 * temperature))

    def test_the_seed_decides(self):
        X, y = make_world()
        once, again, other = learn(X, y, seed=1), learn(X, y, seed=1), learn(X, y, seed=2)
        for name, value in once.items():
            np.testing.assert_array_equal(value, again[name])
        assert once["beta"] != other["beta"]

    def test_draws_nothing_from_the_global_generators(self):
        X, y = make_world()
        torch.manual_seed(0)
        np.random.seed(0)
        expected = torch.rand(1), np.random.random()
        torch.manual_seed(0)
        np.random.seed(0)
        learn(X, y, make_head=lambda **given: make_head(**{"predictive": "mc", **given}))
        assert (torch.rand(1), np.random.random()) == expected

    def test_float32_stays_float32(self):
        X, y = make_world()
        learned = learn(X.float(), y)
        assert learned["center"].dtype == np.float32
        assert learned["metric"] is None or learned["metric"].dtype == np.float32
        assert learned["beta"] == pytest.approx(learn(X, y)["beta"], rel=0.2)

    def test_the_bar_reaches_its_end_and_not_beyond(self):
        steps, totals = [], []

        class Counter(Reporter):
            @contextmanager
            def bar(self, label, total):
                totals.append(total)
                yield steps.append

        learn(*make_world(), reporter=Counter())
        assert 0.5 * totals[0] < sum(steps) <= totals[0]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"shots": 12}, "Only 0 base classes have more than 12 examples, but a task needs 3; lower ways"),
            ({"ways": 25}, "Only 24 base classes have more than 3 examples, but a task needs 25; lower ways"),
            ({"shots": 0}, "shots must be a whole number of at least 1, not 0"),
            ({"ways": 1}, "ways must be a whole number of at least 2, not 1"),
            ({"ways": "five"}, "ways must be a whole number of at least 2, not 'five'"),
        ],
        ids=str,
    )
    def test_what_cannot_be_done_is_named(self, changes, message):
        with pytest.raises(UserError, match=message):
            learn(*make_world(), **changes)
