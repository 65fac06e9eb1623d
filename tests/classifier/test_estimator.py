import doctest
import pickle
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import gpldla.classifier.estimator
from gpldla import GPLDLAClassifier
from gpldla.heads.gp.strangers import beta_of_left_out
from gpldla.utils import progress
from gpldla.utils.errors import UserError
from tests.heads import reference

PAPER = {"beta": 1.0, "center": False, "covariance": "diag"}
NAMES = np.array(["ant", "bee", "cow", "dog"])
every_space = pytest.mark.parametrize(
    "settings",
    [
        {},
        {"center": False},
        {"center": False, "whiten": True},
        {"center": "support"},
        {"whiten": False},
        {"normalize": False},
        {"metric": np.diag([1.0, 2.0, 0.5, 1.0, 3.0, 1.0])},
    ],
    ids=str,
)


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(40, n_features=6, centers=4, cluster_std=3.0, random_state=0)
    return X, NAMES[y]


def make_task(ways, shots, d=16, apart=1.0, seed=0, *, others=0, queries=5):
    """Draw Gaussian classes; return X, y and queries, the last of which belong to `others` classes."""
    rng = np.random.default_rng(seed)
    means = apart * rng.normal(size=(ways + others, d))
    X = np.repeat(means[:ways], shots, 0) + rng.normal(size=(ways * shots, d))
    Q = np.repeat(means, queries, 0) + rng.normal(size=((ways + others) * queries, d))
    return X, np.repeat(np.arange(ways), shots), Q, np.repeat(np.arange(ways + others), queries)


def bits(p):
    """Return the entropy of the rows of p."""
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(-1)


def odds(p):
    return np.log(p) - np.log1p(-p)


class TestInScikitLearn:
    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
    @pytest.mark.parametrize(
        "settings",
        [{}, {"covariance": "full"}, {"map_steps": 2}, {"beta": 1.0, "center": False}],
        ids=str,
    )
    def test_every_check_of_an_estimator_passes(self, settings):
        results = check_estimator(GPLDLAClassifier(**settings), on_fail=None)
        failed = [result["check_name"] for result in results if result["status"] not in ("passed", "skipped")]
        assert failed == []
        assert sum(result["status"] == "passed" for result in results) > 40

    def test_the_docstring_tells_the_truth(self):
        assert doctest.testmod(gpldla.classifier.estimator).failed == 0

    def test_it_works_in_a_pipeline(self, blobs):
        X, y = blobs
        pipeline = make_pipeline(StandardScaler(), GPLDLAClassifier()).fit(X, y)
        Z = StandardScaler().fit_transform(X)
        np.testing.assert_allclose(
            pipeline.predict_proba(X), GPLDLAClassifier().fit(Z, y).predict_proba(Z), rtol=1e-12
        )

    def test_a_grid_search_chooses_beta(self, blobs):
        X, y = blobs
        search = GridSearchCV(
            GPLDLAClassifier(center=False), {"beta": [1e-3, 1.0, "auto"]}, scoring="neg_log_loss"
        )
        search.fit(X, y)
        scores = search.cv_results_["mean_test_score"]
        assert np.isfinite(scores).all()
        assert len({*scores}) == 3
        assert search.best_params_["beta"] != 1e-3  # knows next to nothing

    def test_a_grid_of_numpy_numbers_is_taken(self, blobs):
        grid = {"beta": np.arange(1, 3), "temperature": np.linspace(1, 2, 2, dtype=np.float32)}
        search = GridSearchCV(GPLDLAClassifier(), grid, error_score="raise").fit(*blobs)
        assert search.best_estimator_.beta_ in (1.0, 2.0)

    def test_cross_validation_gives_the_probabilities_of_rows_not_seen(self, blobs):
        X, y = blobs
        folds = [
            (np.arange(40)[np.arange(40) % 4 != k], np.arange(40)[np.arange(40) % 4 == k]) for k in range(4)
        ]
        proba = cross_val_predict(GPLDLAClassifier(), X, y, cv=folds, method="predict_proba")
        for train, test in folds:
            by_hand = GPLDLAClassifier().fit(X[train], y[train]).predict_proba(X[test])
            np.testing.assert_allclose(proba[test], by_hand, rtol=1e-12)

    def test_a_clone_has_the_settings_and_nothing_learned(self, blobs):
        chosen = {"beta": 0.5, "center": np.zeros(6), "priors": [1, 2, 3, 4], "novelty": (2.0, 1.0)}
        chosen = {**chosen, "metric": 2 * np.eye(6), "temperature": 1.5, "map_steps": 1, "random_state": 7}
        clf = GPLDLAClassifier(**chosen).fit(*blobs)
        copy = clone(clf)
        for name, value in chosen.items():
            np.testing.assert_array_equal(getattr(copy, name), value)
        with pytest.raises(NotFittedError):
            copy.predict(blobs[0])
        np.testing.assert_array_equal(copy.fit(*blobs).predict_proba(blobs[0]), clf.predict_proba(blobs[0]))

    @pytest.mark.parametrize("chosen", [{}, {"covariance": "full"}, {"predictive": "mc", "random_state": 1}])
    def test_a_pickle_answers_alike_and_learns_on(self, blobs, chosen):
        X, y = blobs
        clf = GPLDLAClassifier(**chosen).fit(X[:30], y[:30])
        copy = pickle.loads(pickle.dumps(clf))
        np.testing.assert_array_equal(copy.predict_proba(X), clf.predict_proba(X))
        np.testing.assert_array_equal(copy.none_of_these(X), clf.none_of_these(X))
        np.testing.assert_allclose(
            copy.partial_fit(X[30:], y[30:]).predict_proba(X),
            clf.partial_fit(X[30:], y[30:]).predict_proba(X),
            rtol=1e-12,
        )

    def test_joblib_saves_it_and_two_workers_share_it(self, blobs, tmp_path):
        X, y = blobs
        clf = GPLDLAClassifier().fit(X, y)
        joblib.dump(clf, tmp_path / "clf.joblib")
        loaded = joblib.load(tmp_path / "clf.joblib")
        np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
        with joblib.Parallel(n_jobs=2) as parallel:
            parts = parallel(joblib.delayed(clf.predict_proba)(X[i::2]) for i in range(2))
            refits = parallel(joblib.delayed(clone(clf).fit)(X, y) for _ in range(2))
        np.testing.assert_allclose(parts[0], clf.predict_proba(X)[::2], rtol=1e-12)
        np.testing.assert_allclose(parts[1], clf.predict_proba(X)[1::2], rtol=1e-12)
        np.testing.assert_allclose(refits[1].predict_proba(X), clf.predict_proba(X), rtol=1e-12)

    def test_real_digits(self):
        """A hundred a class of real handwritten digits on pixels, as they are."""
        X, y = load_digits(return_X_y=True)
        assert cross_val_score(GPLDLAClassifier(), X[:600], y[:600]).mean() > 0.9


class TestLabels:
    @pytest.mark.parametrize(
        "labels",
        [
            ["ant", "bee", "cow", "dog"],
            [7, -3, 10, 0],
            np.array(["a", "bb", "ccc", "dddd"]),
            np.array(["b", 'a"', "", "Ω"], dtype=object),
            np.array([2.0, 1.0, 0.0, 5.0]),
            np.array([1, 2, 3, 200], dtype=np.uint8),
        ],
        ids=lambda labels: str(np.asarray(labels).dtype),
    )
    def test_come_back_as_they_were(self, blobs, labels):
        X, y = blobs
        labels = np.asarray(labels)
        own = labels[np.searchsorted(NAMES, y)]
        clf = GPLDLAClassifier().fit(X, own)
        assert clf.classes_.dtype == clf.predict(X).dtype == labels.dtype
        assert clf.classes_.tolist() == sorted(labels.tolist())
        # The columns follow the classes, whatever they are called.
        named = GPLDLAClassifier().fit(X, y).predict_proba(X)
        np.testing.assert_allclose(clf.predict_proba(X), named[:, np.argsort(labels)], atol=1e-12)

    def test_may_be_true_and_false(self, blobs):
        X, y = blobs
        clf = GPLDLAClassifier().fit(X, y == "ant")
        assert clf.classes_.tolist() == [False, True]
        assert clf.predict(X).dtype == bool
        named = GPLDLAClassifier().fit(X, np.where(y == "ant", "z", "a"))  # in the same order of classes
        np.testing.assert_array_equal(clf.predict(X), named.predict(X) == "z")
        np.testing.assert_array_equal(clf.predict_proba(X), named.predict_proba(X))

    def test_single_examples_of_many_classes_are_nothing_to_warn_of(self):
        X, y, _, _ = make_task(30, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            GPLDLAClassifier().fit(X, y).partial_fit(X, y)

    def test_two_classes_have_two_rows_of_weights_and_one_decision(self, blobs):
        X, y = blobs
        two = np.isin(y, ["ant", "bee"])
        clf = GPLDLAClassifier().fit(X[two], y[two])
        assert clf.coef_.shape == (2, 6)
        log_proba = clf.predict_log_proba(X)
        np.testing.assert_allclose(clf.decision_function(X), log_proba[:, 1] - log_proba[:, 0])
        np.testing.assert_array_equal(clf.predict(X), np.where(clf.decision_function(X) > 0, "bee", "ant"))

    def test_decisions_among_more_classes_are_log_probabilities(self, blobs):
        clf = GPLDLAClassifier().fit(*blobs)
        np.testing.assert_array_equal(clf.decision_function(blobs[0]), clf.predict_log_proba(blobs[0]))


class TestThePapersSetting:
    @pytest.mark.parametrize(
        "changes", [{}, {"beta": 0.3, "beta_b": 2.0}, {"normalize": False, "beta": 0.1}], ids=str
    )
    def test_attributes_are_the_papers_quantities(self, blobs, changes):
        X, y = blobs
        clf = GPLDLAClassifier(**{**PAPER, **changes}).fit(X, y)
        codes = np.searchsorted(NAMES, y)
        beta, beta_b = changes.get("beta", 1.0), changes.get("beta_b", 1.0)
        w, b, V, v, sigma2 = reference.adapt(X, codes, 4, beta, beta_b, changes.get("normalize", True))
        for got, expected in (
            (clf.coef_, w),
            (clf.intercept_, b),
            (clf.coef_var_, V),
            (clf.intercept_var_, v),
            (clf.sigma2_, sigma2),
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)
        assert clf.beta_ == pytest.approx(beta, rel=1e-12)
        assert clf.n_features_in_ == 6

    def test_monte_carlo_tends_to_the_default_probabilities(self, blobs):
        X, y = blobs
        exact = GPLDLAClassifier(**PAPER, predictive="mc", n_samples=50_000, random_state=0).fit(X, y)
        clf = GPLDLAClassifier(**PAPER).fit(X, y)
        np.testing.assert_allclose(clf.predict_proba(X), exact.predict_proba(X), atol=0.01)

    def test_monte_carlo_has_one_fixed_set_of_draws(self, blobs):
        X, y = blobs
        clf = GPLDLAClassifier(**PAPER, predictive="mc", random_state=3).fit(X, y)
        whole = clf.predict_proba(X)
        parts = np.concatenate([clf.predict_proba(X[:7]), clf.predict_proba(X[7:])])
        np.testing.assert_allclose(whole, parts)
        np.testing.assert_array_equal(whole, clone(clf).fit(X, y).predict_proba(X))
        assert not np.allclose(whole, clone(clf).set_params(random_state=4).fit(X, y).predict_proba(X))

    def test_it_is_not_the_default(self, blobs):
        X, y = blobs
        paper, default = GPLDLAClassifier(**PAPER).fit(X, y), GPLDLAClassifier().fit(X, y)
        assert np.abs(paper.predict_proba(X) - default.predict_proba(X)).max() > 0.1


class TestTheSpace:
    def test_rows_are_unit_centred_by_classes_whitened_and_unit_again(self, blobs):
        X, y = blobs
        keep = np.r_[0:25, 30:34]  # classes of unequal size
        X, y = X[keep], y[keep]
        u = X / np.linalg.norm(X, axis=1, keepdims=True)
        means = {name: u[y == name].mean(0) for name in NAMES}
        centre = np.mean([*means.values()], axis=0)
        residuals = np.array([row - means[name] for row, name in zip(u, y)])
        S = residuals.T @ residuals
        A = np.eye(6) + (len(X) - 4) / np.trace(S) * S
        values, vectors = np.linalg.eigh(A)
        z = (u - centre) @ (vectors / np.sqrt(values)) @ vectors.T
        phi = z / np.linalg.norm(z, axis=1, keepdims=True)
        np.testing.assert_allclose(GPLDLAClassifier().fit(X, y).represent(X), phi, atol=1e-12)

    @every_space
    def test_the_weights_are_the_papers_for_rows_as_represented(self, blobs, settings):
        X, y = blobs
        clf = GPLDLAClassifier(**settings).fit(X, y)
        phi = clf.represent(X)
        if clf.normalize:
            np.testing.assert_allclose(np.linalg.norm(phi, axis=1), 1, rtol=1e-12)
        w, b, V, v, sigma2 = reference.adapt(
            phi, np.searchsorted(NAMES, y), 4, clf.beta_, 1.0, normalize=False
        )
        np.testing.assert_allclose(clf.coef_, w, atol=1e-9)
        np.testing.assert_allclose(clf.intercept_, b, atol=1e-9)
        np.testing.assert_allclose(clf.coef_var_, V, rtol=1e-9)
        np.testing.assert_allclose(clf.intercept_var_, v, rtol=1e-9)
        assert clf.sigma2_ == pytest.approx(sigma2)

    @every_space
    def test_the_probabilities_are_those_of_the_attributes(self, blobs, settings):
        """A person may compute the predictive from represent() and the attributes alone."""
        X, y = blobs
        clf = GPLDLAClassifier(**settings).fit(X, y)
        phi = clf.represent(X)
        mean = phi @ clf.coef_.T + clf.intercept_
        deviation = np.sqrt(phi**2 @ clf.coef_var_.T + clf.intercept_var_)
        rng = np.random.default_rng(0)
        scale = np.exp(clf.beta_spread_ * rng.standard_normal((20_000, 1, 1)))
        logits = scale * mean + deviation * rng.standard_normal((20_000, 1, 4))
        p = np.exp(logits - logits.max(-1, keepdims=True))
        expected = (p / p.sum(-1, keepdims=True)).mean(0)
        np.testing.assert_allclose(clf.predict_proba(X), expected, atol=0.015)

    def test_a_given_centre_is_subtracted_first(self, blobs):
        X, y = blobs
        plain = GPLDLAClassifier(center=False).fit(X - X.mean(0), y).predict_proba(X - X.mean(0))
        for center in ("support", X.mean(0), X.mean(0).tolist()):
            proba = GPLDLAClassifier(center=center).fit(X, y).predict_proba(X)
            np.testing.assert_allclose(proba, plain, rtol=1e-10)

    def test_whitening_follows_the_centre_unless_told(self, blobs):
        X, y = blobs

        def proba(**settings):
            return GPLDLAClassifier(beta=1.0, **settings).fit(X, y).predict_proba(X)

        np.testing.assert_array_equal(proba(), proba(whiten=True))
        np.testing.assert_array_equal(proba(center=False), proba(center=False, whiten=False))
        assert not np.allclose(proba(), proba(whiten=False))
        assert not np.allclose(proba(center=False), proba(center=False, whiten=True))

    @pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
    def test_the_length_of_rows_does_not_matter(self, blobs, scale):
        X, y = blobs[0].astype(np.float32), blobs[1]
        proba = GPLDLAClassifier().fit(np.float32(scale) * X, y).predict_proba(np.float32(scale) * X)
        np.testing.assert_allclose(proba, GPLDLAClassifier().fit(X, y).predict_proba(X), atol=1e-4)

    def test_many_copies_of_one_row_a_class_mean_what_one_copy_means(self, blobs):
        """Rounding around equal rows is no covariance to whiten by."""
        rows, y = blobs[0][:4], NAMES
        once = GPLDLAClassifier(beta=1.0).fit(rows, y)
        for copies in (3, 5, 7):
            often = GPLDLAClassifier(beta=1.0).fit(np.repeat(rows, copies, 0), np.repeat(y, copies))
            np.testing.assert_allclose(often.coef_, once.coef_, atol=1e-9)

    @pytest.mark.parametrize(
        "metric", [np.eye(6), np.eye(6, dtype=np.float32), np.eye(6, dtype=int).tolist()]
    )
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_metric_of_any_precision_meets_rows_of_any(self, blobs, metric, dtype):
        X, y = blobs[0].astype(dtype), blobs[1]
        proba = GPLDLAClassifier(metric=metric).fit(X, y).predict_proba(X)
        np.testing.assert_allclose(proba, GPLDLAClassifier().fit(X, y).predict_proba(X), atol=1e-5)

    def test_precision_follows_the_training_rows(self, blobs):
        X, y = blobs
        double = GPLDLAClassifier().fit(X, y)
        single = GPLDLAClassifier().fit(X.astype(np.float32), y)
        assert (double.coef_.dtype, single.coef_.dtype) == (np.float64, np.float32)
        assert double.predict_proba(X.astype(np.float32)).dtype == np.float64
        assert single.predict_proba(X).dtype == np.float32
        np.testing.assert_allclose(single.predict_proba(X), double.predict_proba(X), atol=1e-4)

    def test_training_rows_may_change_afterwards(self, blobs):
        X, y = blobs[0].copy(), blobs[1].copy()
        clf = GPLDLAClassifier().fit(X, y)
        Q = X.copy()
        before = clf.predict_proba(Q), clf.leave_one_out()
        X[:], y[:] = 0, "ant"
        np.testing.assert_array_equal(clf.predict_proba(Q), before[0])
        np.testing.assert_array_equal(clf.leave_one_out(), before[1])


class TestUnlabelledRows:
    def test_change_the_answers_and_say_so(self):
        X, y, Q, _ = make_task(5, 1)
        clf = GPLDLAClassifier().fit(X, y, X_unlabelled=Q)
        assert (clf.prior_source_, clf.n_unlabelled_) == ("unlabelled rows", len(Q))
        alone = GPLDLAClassifier().fit(X, y)
        assert alone.n_unlabelled_ == 0
        assert np.abs(clf.predict_proba(Q) - alone.predict_proba(Q)).max() > 1e-3
        # What has to be independent of them is
        np.testing.assert_array_equal(clf.none_of_these(Q), alone.none_of_these(Q))
        np.testing.assert_array_equal(clf.leave_one_out(), alone.leave_one_out())

    @pytest.mark.parametrize("count", [0, 9])
    def test_too_few_change_nothing(self, count):
        X, y, Q, _ = make_task(3, 1)
        clf, alone = GPLDLAClassifier().fit(X, y, X_unlabelled=Q[:count]), GPLDLAClassifier().fit(X, y)
        assert (clf.prior_source_, clf.n_unlabelled_) == ("single examples", 0)
        np.testing.assert_array_equal(clf.predict_proba(Q), alone.predict_proba(Q))

    def test_are_used_again_with_more_examples(self):
        X, y, Q, _ = make_task(4, 3)
        clf = GPLDLAClassifier().fit(X[:8], y[:8], X_unlabelled=Q).partial_fit(X[8:], y[8:])
        whole = GPLDLAClassifier().fit(X, y, X_unlabelled=Q)
        np.testing.assert_allclose(clf.predict_proba(Q), whole.predict_proba(Q), atol=1e-9)
        assert clf.fit(X, y).n_unlabelled_ == 0

    @pytest.mark.parametrize(
        "settings", [{"beta": 1.0}, {"center": "support"}, {"normalize": False}, {"map_steps": 1}]
    )
    def test_need_the_default_space(self, settings):
        X, y, Q, _ = make_task(3, 1)
        with pytest.raises(UserError, match="X_unlabelled needs beta='auto'"):
            GPLDLAClassifier(**settings).fit(X, y, X_unlabelled=Q)

    def test_have_the_columns_of_the_examples(self):
        X, y, Q, _ = make_task(3, 1)
        with pytest.raises(ValueError, match="features"):
            GPLDLAClassifier().fit(X, y, X_unlabelled=Q[:, 1:])


class TestTheChosenBeta:
    @pytest.mark.parametrize("d", [2, 16, 500])
    def test_is_the_documented_default_without_a_centre_where_each_class_has_one_example(self, d):
        X, y, _, _ = make_task(5, 1, d)
        clf = GPLDLAClassifier(center=False).fit(X, y)
        assert clf.beta_ == pytest.approx(3 / d**0.25, rel=1e-6)

    def test_says_what_it_comes_from(self):
        X, y, _, _ = make_task(5, 1)
        clf = GPLDLAClassifier().fit(X, y)
        assert clf.prior_source_ == "single examples"
        assert clf.fit(np.tile(X, (2, 1)), np.tile(y, 2)).prior_source_ == "single examples"  # copies
        assert clf.fit(*make_task(5, 2)[:2]).prior_source_ == "measured"
        assert GPLDLAClassifier(beta=1.0).fit(X, y).prior_source_ == "given"

    @pytest.mark.parametrize("apart", [0.3, 1.0, 3.0])
    def test_predicts_each_example_best_from_the_others(self, apart):
        X, y, _, _ = make_task(4, 6, apart=apart)
        head, member = GPLDLAClassifier()._head(), np.eye(4)[y]
        left_out = head.left_out(torch.tensor(X), torch.tensor(member))
        default = beta_of_left_out(left_out, torch.tensor(member), 16).item()

        def score(beta):
            left_out = GPLDLAClassifier(beta=beta).fit(X, y).leave_one_out()
            likelihood = np.log(left_out[np.arange(len(y)), y]).sum()
            return likelihood - 0.5 * (np.log(beta / default) / 0.4) ** 2

        betas = default * np.exp(np.linspace(-2, 2.5, 46))
        best = betas[np.argmax([score(float(beta)) for beta in betas])]
        assert GPLDLAClassifier().fit(X, y).beta_ == pytest.approx(best, rel=0.15)

    def test_is_smaller_where_classes_overlap(self):
        overlapping, apart = (
            GPLDLAClassifier().fit(*make_task(4, 6, apart=apart)[:2]).beta_ for apart in (0.3, 1.0)
        )
        assert overlapping < 0.5 * apart

    def test_of_a_thousand_rows_predicts_others_as_well_as_the_best(self):
        """It is chosen with some of them only."""
        X, y, Q, q = make_task(3, 400, apart=0.5, queries=200)

        def loss(beta):
            log_proba = GPLDLAClassifier(beta=beta).fit(X, y).predict_log_proba(Q)
            return -log_proba[np.arange(len(q)), q].mean()

        best = min(loss(beta) for beta in (0.3, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 8.0))
        assert loss("auto") < best + 0.02
        assert loss(0.1) > best + 0.1

    @pytest.mark.parametrize("normalize", [True, False])
    def test_in_single_precision_stands_an_offset_common_to_all_rows(self, blobs, normalize):
        X, y = blobs[0] + 100.0, blobs[1]
        double = GPLDLAClassifier(normalize=normalize).fit(X, y)
        single = GPLDLAClassifier(normalize=normalize).fit(X.astype(np.float32), y)
        assert single.beta_ == pytest.approx(double.beta_, rel=1e-3)
        np.testing.assert_allclose(single.leave_one_out(), double.leave_one_out(), atol=3e-4)


class TestPartialFit:
    X, y, Q, _ = make_task(4, 6, 5, seed=1)
    weights = np.random.default_rng(1).integers(0, 4, 24).astype(float)

    @settings(deadline=None, max_examples=40)
    @given(
        order=st.permutations(range(24)),
        cuts=st.sets(st.integers(1, 23), max_size=5),
        declared=st.none() | st.sets(st.sampled_from([*range(4)])),
        weighted=st.booleans(),
        options=st.sampled_from(
            [
                {},
                {"center": "support"},
                {"covariance": "full"},
                {"map_steps": 2},
                {**PAPER, "priors": "uniform"},
                {"normalize": False},
            ]
        ),
    )
    def test_in_any_parts_and_order_equals_one_fit(self, order, cuts, declared, weighted, options):
        weights = self.weights if weighted else np.ones(24)
        parts = GPLDLAClassifier(**options)
        for rows in np.split(np.array(order), sorted(cuts)):
            if weighted and not weights[rows].any():
                continue  # nothing to learn from
            parts.partial_fit(
                self.X[rows],
                NAMES[self.y[rows]],
                classes=None if declared is None else NAMES[sorted(declared)],
                sample_weight=weights[rows] if weighted else None,
            )
        whole = GPLDLAClassifier(**options).fit(self.X, NAMES[self.y], weights if weighted else None)
        assert parts.classes_.tolist() == whole.classes_.tolist()
        assert parts.beta_ == pytest.approx(whole.beta_, rel=1e-10)
        for name in ("coef_", "intercept_", "coef_var_", "intercept_var_", "sigma2_"):
            np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(parts.predict_proba(self.Q), whole.predict_proba(self.Q), atol=1e-10)

    def test_continues_a_fit(self):
        clf = GPLDLAClassifier().fit(self.X[:12], self.y[:12]).partial_fit(self.X[12:], self.y[12:])
        whole = GPLDLAClassifier().fit(self.X, self.y)
        np.testing.assert_allclose(clf.predict_proba(self.Q), whole.predict_proba(self.Q), atol=1e-10)

    def test_a_fit_forgets_what_was_before(self):
        clf = GPLDLAClassifier().partial_fit(self.X, self.y).fit(self.X[:12], self.y[:12])
        assert clf.classes_.tolist() == [0, 1]
        expected = GPLDLAClassifier().fit(self.X[:12], self.y[:12])
        np.testing.assert_array_equal(clf.predict_proba(self.Q), expected.predict_proba(self.Q))

    @pytest.mark.parametrize("options", [{}, {"covariance": "full"}, {"map_steps": 2}, PAPER], ids=str)
    def test_a_declared_class_has_no_probability_until_it_has_an_example(self, options):
        three = self.y < 3
        clf = GPLDLAClassifier(**options).partial_fit(self.X[three], self.y[three], classes=[0, 1, 2, 3, 9])
        without = GPLDLAClassifier(**options).fit(self.X[three], self.y[three])
        assert clf.classes_.tolist() == [0, 1, 2, 3, 9]
        proba = clf.predict_proba(self.Q)
        assert (proba[:, 3:] == 0).all()
        assert np.isneginf(clf.intercept_[3:]).all()
        np.testing.assert_allclose(proba[:, :3], without.predict_proba(self.Q), atol=1e-12)
        np.testing.assert_allclose(clf.none_of_these(self.Q), without.none_of_these(self.Q), atol=1e-12)
        np.testing.assert_allclose(clf.uncertainty(self.Q).total, bits(proba), atol=0.02)
        clf.partial_fit(self.X[18:19], [3])
        assert (clf.predict_proba(self.Q)[:, 3] > 0).all()
        assert (clf.predict_proba(self.Q)[:, 4] == 0).all()

    def test_one_class_at_a_time_from_the_first_on(self):
        clf = GPLDLAClassifier()
        for number in range(4):
            clf.partial_fit(self.X[self.y == number], NAMES[self.y[self.y == number]])
            assert clf.classes_.tolist() == NAMES[: number + 1].tolist()
            assert clf.predict_proba(self.Q).shape == (20, number + 1)
            np.testing.assert_allclose(clf.predict_proba(self.Q).sum(1), 1, rtol=1e-12)
            if number == 0:
                assert (clf.predict(self.Q) == "ant").all()
                assert clf.coef_.shape == (1, 5)
                assert (clf.uncertainty(self.Q).total == 0).all()
                assert np.isfinite(clf.none_of_these(self.Q)).all()
        whole = GPLDLAClassifier().fit(self.X, NAMES[self.y])
        np.testing.assert_allclose(clf.predict_proba(self.Q), whole.predict_proba(self.Q), atol=1e-10)

    def test_what_is_known_of_none_of_these_follows(self):
        clf = GPLDLAClassifier().fit(self.X[:18], self.y[:18])
        before = clf.none_of_these(self.Q)
        clf.partial_fit(self.X[18:], self.y[18:])
        assert not np.allclose(clf.none_of_these(self.Q), before)
        whole = GPLDLAClassifier().fit(self.X, self.y)
        np.testing.assert_allclose(clf.none_of_these(self.Q), whole.none_of_these(self.Q), atol=1e-6)

    def test_another_number_of_features_is_refused(self):
        clf = GPLDLAClassifier().fit(self.X, self.y)
        with pytest.raises(ValueError, match="X has 4 features, but GPLDLAClassifier is expecting 5"):
            clf.partial_fit(self.X[:, :4], self.y)

    def test_what_is_refused_leaves_the_classifier_as_it_was(self):
        clf = GPLDLAClassifier(priors=[0.5, 0.5]).fit(self.X[:12], self.y[:12])
        before = clf.predict_proba(self.Q)
        with pytest.raises(ValueError, match="priors must be 3 positive numbers"):
            clf.partial_fit(self.X[12:18], self.y[12:18])
        assert clf.classes_.tolist() == [0, 1]
        np.testing.assert_array_equal(clf.predict_proba(self.Q), before)
        clf.partial_fit(self.X[:12], self.y[:12])
        twice = GPLDLAClassifier(priors=[0.5, 0.5]).fit(np.tile(self.X[:12], (2, 1)), np.tile(self.y[:12], 2))
        np.testing.assert_allclose(clf.predict_proba(self.Q), twice.predict_proba(self.Q), atol=1e-10)


class TestPriors:
    def test_are_the_frequencies_by_default(self, blobs):
        X, y = blobs
        keep = np.flatnonzero((y != "ant") | (np.cumsum(y == "ant") <= 3))
        counts = [np.sum(y[keep] == name) for name in NAMES]
        assert counts == [3, 10, 10, 10]
        by_default = GPLDLAClassifier(beta=1.0).fit(X[keep], y[keep])
        given_ = GPLDLAClassifier(beta=1.0, priors=counts).fit(X[keep], y[keep])
        uniform = GPLDLAClassifier(beta=1.0, priors="uniform").fit(X[keep], y[keep])
        np.testing.assert_allclose(by_default.predict_proba(X), given_.predict_proba(X), atol=1e-12)
        assert (uniform.predict_proba(X)[:, 0] > by_default.predict_proba(X)[:, 0]).all()

    @pytest.mark.parametrize("make", [list, tuple, np.array])
    def test_shift_the_intercepts_by_their_logarithms(self, blobs, make):
        X, y = blobs
        given_ = GPLDLAClassifier(beta=1.0, priors=make([8.0, 1.0, 1.0, 2.0])).fit(X, y)
        uniform = GPLDLAClassifier(beta=1.0, priors="uniform").fit(X, y)
        shift = np.log([8.0, 1.0, 1.0, 2.0])
        np.testing.assert_allclose(given_.intercept_ - uniform.intercept_, shift - shift.mean(), atol=1e-12)
        np.testing.assert_allclose(given_.coef_, uniform.coef_, rtol=1e-12)

    @pytest.mark.parametrize("priors", [[1, 2], np.array([1.0, 2.0]), [1.0] * 5])
    def test_of_another_number_of_classes_are_refused(self, blobs, priors):
        with pytest.raises(ValueError, match="priors must be 4 positive numbers, one per class"):
            GPLDLAClassifier(priors=priors).fit(*blobs)

    @pytest.mark.parametrize("priors", ["even", [1, 1, 1, 0], [1, 1, 1, -1], [1, 1, 1, np.nan]])
    def test_that_are_no_priors_are_refused(self, blobs, priors):
        with pytest.raises(ValueError, match="priors must be 'uniform' or one positive number per class"):
            GPLDLAClassifier(priors=priors).fit(*blobs)


class TestSampleWeight:
    X, y, Q, _ = make_task(4, 5, 7, seed=2, others=1)
    options = pytest.mark.parametrize(
        "options",
        [{}, PAPER, {"covariance": "full"}, {"map_steps": 2}, {"center": "support"}, {"normalize": False}],
        ids=str,
    )

    @options
    def test_two_is_the_row_twice_and_zero_its_absence(self, options):
        weights = np.random.default_rng(0).integers(0, 4, 20)
        weighted = GPLDLAClassifier(**options).fit(self.X, self.y, weights)
        repeated = GPLDLAClassifier(**options).fit(np.repeat(self.X, weights, 0), np.repeat(self.y, weights))
        assert weighted.beta_ == pytest.approx(repeated.beta_, rel=1e-10)
        np.testing.assert_allclose(weighted.predict_proba(self.Q), repeated.predict_proba(self.Q), atol=1e-10)
        np.testing.assert_allclose(
            np.repeat(weighted.leave_one_out(), weights[weights > 0], 0), repeated.leave_one_out(), atol=1e-9
        )

    @options
    def test_two_is_the_row_twice_for_none_of_these_as_well(self, options):
        weights = np.random.default_rng(0).integers(0, 4, 20)
        weighted = GPLDLAClassifier(**options).fit(self.X, self.y, weights)
        repeated = GPLDLAClassifier(**options).fit(np.repeat(self.X, weights, 0), np.repeat(self.y, weights))
        np.testing.assert_allclose(weighted.none_of_these(self.Q), repeated.none_of_these(self.Q), atol=1e-4)

    def test_a_class_without_weight_is_absent(self):
        clf = GPLDLAClassifier().fit(self.X, self.y, (self.y != 2).astype(float))
        assert clf.classes_.tolist() == [0, 1, 3]

    @options
    def test_of_one_for_all_changes_nothing(self, options):
        plain = GPLDLAClassifier(**options).fit(self.X, self.y)
        weighted = GPLDLAClassifier(**options).fit(self.X, self.y, np.ones(20))
        np.testing.assert_allclose(plain.predict_proba(self.Q), weighted.predict_proba(self.Q), atol=1e-12)

    @pytest.mark.parametrize("total", [1.0, 3.0, 20.0])
    def test_can_state_how_common_the_classes_are(self, total):
        """Rows of a balanced sample weighted by the prevalence of their class, to any sum."""
        prevalence = np.array([0.1, 0.2, 0.3, 0.4])
        weights = total * prevalence[self.y] / 5
        weighted = GPLDLAClassifier(**PAPER).fit(self.X, self.y, weights)
        by_priors = GPLDLAClassifier(**PAPER, priors=prevalence).fit(self.X, self.y)
        np.testing.assert_allclose(weighted.coef_, by_priors.coef_, rtol=1e-10)
        np.testing.assert_allclose(weighted.intercept_, by_priors.intercept_, atol=1e-10)

    def test_more_weight_makes_surer(self):
        light, heavy = (
            GPLDLAClassifier(beta=1.0).fit(self.X, self.y, np.full(20, weight)) for weight in (1.0, 10.0)
        )
        assert (heavy.coef_var_ < light.coef_var_).all()

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (np.zeros(20), "at least one"),
            (np.full(20, -1.0), "Negative values in data passed to `sample_weight`"),
            (np.full(20, np.nan), "sample_weight contains NaN"),
            (np.ones(7), "sample_weight.shape == \\(7,\\), expected \\(20,\\)"),
        ],
        ids=["zero", "negative", "NaN", "short"],
    )
    def test_that_is_none_is_refused(self, weights, message):
        for fit in (GPLDLAClassifier().fit, GPLDLAClassifier().partial_fit):
            with pytest.raises(ValueError, match=message):
                fit(self.X, self.y, sample_weight=weights)


class TestManyRows:
    MEASURE = """
import resource, sys
import numpy as np
from gpldla import GPLDLAClassifier

rows, dtype = int(sys.argv[1]), sys.argv[2]
rng = np.random.default_rng(0)
clf = GPLDLAClassifier().fit(rng.standard_normal((25, 1280)).astype(dtype), np.arange(25) % 5)
clf.predict_proba(np.ones((2, 1280), np.float32))
X = np.empty((rows, 1280), np.float32)
for part in np.array_split(X, 20):
    rng.random(out=part, dtype=np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert clf.predict_proba(X).shape == (rows, 5)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""

    def extra_mebibytes(self, rows, dtype):
        command = [sys.executable, "-c", self.MEASURE, str(rows), dtype]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def test_are_answered_a_part_at_a_time(self):
        """All 20,000 at once take 800 MiB."""
        assert self.extra_mebibytes(20_000, "float64") < 400

    @pytest.mark.long
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_hundred_thousand_stay_under_a_gibibyte(self, dtype):
        assert self.extra_mebibytes(100_000, dtype) < 1024

    @pytest.mark.parametrize("options", [{}, {"covariance": "full"}], ids=str)
    def test_are_answered_as_each_by_itself(self, monkeypatch, options):
        X, y, Q, _ = make_task(4, 5, others=1)
        clf = GPLDLAClassifier(**options).fit(X, y)
        answers = {
            name: getattr(clf, name)
            for name in ("predict_proba", "decision_function", "represent", "none_of_these", "uncertainty")
        }
        whole = {name: np.asarray(answer(Q)) for name, answer in answers.items()}
        monkeypatch.setattr(gpldla.classifier.task, "VALUES_PER_CHUNK", 3 * 64)  # three rows
        for name, answer in answers.items():
            np.testing.assert_allclose(np.asarray(answer(Q)), whole[name], atol=1e-12, err_msg=name)


class TestWrongRows:
    wrong = pytest.mark.parametrize(
        ("value", "message"), [(np.nan, "Input X contains NaN"), (np.inf, "Input X contains infinity")]
    )

    @wrong
    def test_that_are_not_finite_are_refused(self, blobs, value, message):
        X, y = blobs
        bad = X.copy()
        bad[3, 2] = value
        for fit in ("fit", "partial_fit"):
            with pytest.raises(ValueError, match=message):
                getattr(GPLDLAClassifier(), fit)(bad, y)
        with pytest.raises(ValueError, match=message):
            GPLDLAClassifier().meta_fit(bad, y)
        clf = GPLDLAClassifier().fit(X, y)
        for answer in ("predict", "predict_proba", "represent", "uncertainty", "none_of_these"):
            with pytest.raises(ValueError, match=message):
                getattr(clf, answer)(bad)

    def test_of_another_length_are_refused(self, blobs):
        clf = GPLDLAClassifier().fit(*blobs)
        for answer in ("predict", "predict_proba", "represent", "uncertainty", "none_of_these"):
            with pytest.raises(ValueError, match="X has 5 features, but GPLDLAClassifier is expecting 6"):
                getattr(clf, answer)(blobs[0][:, :5])

    def test_that_are_none_are_refused(self, blobs):
        X, y = blobs
        for call in (
            lambda: GPLDLAClassifier().fit(X[:0], y[:0]),
            lambda: GPLDLAClassifier().partial_fit(X[:0], y[:0]),
            lambda: GPLDLAClassifier().fit(X, y).predict(X[:0]),
        ):
            with pytest.raises(ValueError, match="Found array with 0 sample"):
                call()

    @pytest.mark.parametrize(("label", "named"), [("ant", "'ant'"), (3, "3"), (True, "True")])
    def test_of_one_class_only_are_refused(self, blobs, label, named):
        sentence = f"y holds one class only, {named}; give examples of at least two classes."
        with pytest.raises(ValueError) as refusal:
            GPLDLAClassifier().fit(blobs[0], np.full(40, label))
        assert str(refusal.value) == sentence

    def test_with_numbers_to_predict_instead_of_labels_are_refused(self, blobs):
        with pytest.raises(ValueError, match="Unknown label type: continuous"):
            GPLDLAClassifier().fit(blobs[0], np.linspace(0, 1, 40))

    def test_with_another_number_of_labels_are_refused(self, blobs):
        with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[40, 39\]"):
            GPLDLAClassifier().fit(blobs[0], blobs[1][:39])


class TestWrongSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"beta": -1.0}, "beta must be a positive number"),
            ({"beta": "big"}, "beta must be a positive number or 'auto', not 'big'"),
            ({"beta": None}, "beta must be a positive number"),
            ({"beta_b": 0.0}, "beta_b must be a positive number, not 0.0"),
            ({"center": "middle"}, "There is no center 'middle'; use 'auto', 'support', False or a vector"),
            ({"center": True}, "center cannot be True"),
            ({"center": [1.0, 2.0]}, "center must be 6 finite numbers"),
            ({"center": [np.nan] * 6}, "center must be 6 finite numbers"),
            ({"whiten": "yes"}, "whiten must be True, False or 'auto', not 'yes'"),
            ({"covariance": "fully"}, "There is no covariance 'fully'; use 'diag' or 'full'"),
            ({"covariance": "full", "predictive": "mc"}, "predictive 'mc' needs covariance 'diag'"),
            ({"map_steps": -1}, "map_steps must be a whole number of at least 0, not -1"),
            ({"map_steps": 0.5}, "map_steps must be a whole number of at least 0, not 0.5"),
            ({"predictive": "mcmc"}, "There is no predictive 'mcmc'; did you mean 'mc'"),
            ({"n_samples": 0}, "n_samples must be a whole number of at least 1, not 0"),
            ({"temperature": 0}, "temperature must be a positive number, not 0"),
            ({"temperature": np.inf}, "temperature must be a positive number, not inf"),
            ({"metric": np.eye(5)}, r"metric must have shape \(6, 6\), not \(5, 5\)"),
            ({"novelty": [1.0]}, r"novelty must be two numbers, slope and offset, not \[1.0\]"),
        ],
        ids=str,
    )
    def test_are_named(self, blobs, settings, message):
        for fit in ("fit", "partial_fit"):
            with pytest.raises(ValueError, match=message):
                getattr(GPLDLAClassifier(**settings), fit)(*blobs)

    @pytest.mark.parametrize("prevalence", [0, 1, -0.1, 2.0])
    def test_a_prevalence_that_is_no_share_is_named(self, blobs, prevalence):
        with pytest.raises(ValueError, match=f"prevalence must lie between 0 and 1, not {prevalence}"):
            GPLDLAClassifier().fit(*blobs).none_of_these(blobs[0], prevalence=prevalence)

    @pytest.mark.parametrize(
        "answer", ["predict", "predict_proba", "represent", "uncertainty", "none_of_these"]
    )
    def test_no_answer_comes_before_a_fit(self, blobs, answer):
        with pytest.raises(NotFittedError):
            getattr(GPLDLAClassifier(), answer)(blobs[0])
        with pytest.raises(NotFittedError):
            GPLDLAClassifier().leave_one_out()


class TestTemperature:
    def test_divides_the_log_probabilities(self, blobs):
        X, y = blobs
        plain = GPLDLAClassifier().fit(X, y).predict_proba(X)
        expected = plain**0.5 / (plain**0.5).sum(1, keepdims=True)
        clf = GPLDLAClassifier(temperature=2.0).fit(X, y)
        np.testing.assert_allclose(clf.predict_proba(X), expected, rtol=1e-10)
        left_out = GPLDLAClassifier().fit(X, y).leave_one_out() ** 0.5
        np.testing.assert_allclose(clf.leave_one_out(), left_out / left_out.sum(1, keepdims=True), rtol=1e-10)


class TestLeaveOneOut:
    @pytest.mark.parametrize(
        ("options", "bound"),
        [
            ({}, 0.1),
            (PAPER, 0.03),
            ({"priors": "uniform"}, 0.1),
            ({"center": "support"}, 0.1),
            ({"covariance": "full"}, 0.1),
            ({"normalize": False}, 0.25),
        ],
        ids=str,
    )
    @pytest.mark.parametrize(("ways", "shots"), [(3, 6), (2, 10)])
    def test_comes_near_refits_without_each_row(self, options, bound, ways, shots):
        X, y, _, _ = make_task(ways, shots, 8, seed=3)
        clf = GPLDLAClassifier(**options).fit(X, y)

        def without(i):
            refit = GPLDLAClassifier(**{**options, "beta": clf.beta_})
            refit.fit(np.delete(X, i, 0), np.delete(y, i))
            refit._task.posterior.uncertain_scale = clf._task.posterior.uncertain_scale
            return refit.predict_proba(X[i : i + 1])

        refits = np.concatenate([without(i) for i in range(len(X))])
        gap = np.abs(clf.leave_one_out() - refits)
        assert gap.max() < bound
        assert gap.mean() < bound / 4
        # What they have in common is not that they saw the row: the fit that did is further away.
        assert gap.mean() < np.abs(clf.predict_proba(X) - refits).mean()

    def test_is_that_of_the_lda_estimate_whatever_steps_follow(self):
        X, y, _, _ = make_task(3, 6, 8, seed=3)
        plain, stepped = (GPLDLAClassifier(map_steps=steps).fit(X, y) for steps in (0, 2))
        np.testing.assert_allclose(stepped.leave_one_out(), plain.leave_one_out(), atol=1e-12)
        assert np.abs(stepped.predict_proba(X) - plain.predict_proba(X)).max() > 0.05

    def test_knows_nothing_where_a_class_has_one_row(self):
        X, y, _, _ = make_task(3, 4)
        rows = np.r_[0:4, 4, 8:12]
        proba = GPLDLAClassifier().fit(X[rows], y[rows]).leave_one_out()
        assert np.isnan(proba[4]).all()
        np.testing.assert_allclose(np.delete(proba, 4, 0).sum(1), 1, rtol=1e-12)

    def test_is_nearer_to_the_accuracy_on_fresh_rows_than_that_on_the_training_rows(self):
        left_out, fresh, seen = [], [], []
        for seed in range(15):
            X, y, Q, q = make_task(5, 5, 32, 0.4, seed, queries=20)
            clf = GPLDLAClassifier(priors="uniform").fit(X, y)
            left_out.append((clf.leave_one_out().argmax(1) == y).mean())
            fresh.append(clf.score(Q, q))
            seen.append(clf.score(X, y))
        assert np.mean(left_out) == pytest.approx(np.mean(fresh), abs=0.12)
        assert np.mean(seen) > np.mean(fresh) + 0.25


class TestUncertainty:
    @pytest.mark.parametrize("covariance", ["diag", "full"])
    @pytest.mark.parametrize(
        ("ways", "shots", "apart"), [(2, 5, 0.5), (5, 1, 1.0), (5, 5, 0.3), (20, 2, 1.0)]
    )
    def test_is_the_entropy_of_the_probabilities_in_two_parts(self, covariance, ways, shots, apart):
        X, y, Q, _ = make_task(ways, shots, 32, apart)
        clf = GPLDLAClassifier(covariance=covariance).fit(X, y)
        total, aleatoric, epistemic = clf.uncertainty(Q)
        assert total.shape == aleatoric.shape == epistemic.shape == (len(Q),)
        np.testing.assert_allclose(total, aleatoric + epistemic, atol=1e-12)
        assert (aleatoric >= 0).all()
        assert (epistemic >= 0).all()
        assert epistemic.mean() > 0.01
        assert (total <= np.log2(ways) + 1e-9).all()
        np.testing.assert_allclose(total, bits(clf.predict_proba(Q)), atol=0.02)

    def test_has_names(self, blobs):
        uncertainty = GPLDLAClassifier().fit(*blobs).uncertainty(blobs[0])
        assert uncertainty._fields == ("total", "aleatoric", "epistemic")

    def test_does_not_depend_on_the_temperature(self, blobs):
        X, y = blobs
        plain, warm = (GPLDLAClassifier(temperature=T).fit(X, y).uncertainty(X) for T in (1.0, 5.0))
        np.testing.assert_array_equal(plain, warm)

    @pytest.mark.parametrize("covariance", ["diag", "full"])
    def test_what_more_examples_could_tell_shrinks_as_they_come(self, covariance):
        X, y, Q, _ = make_task(4, 200, 8, 0.3)
        epistemic = []
        for shots in (1, 5, 25, 200):
            rows = np.concatenate([np.flatnonzero(y == number)[:shots] for number in range(4)])
            clf = GPLDLAClassifier(beta=1.5, covariance=covariance).fit(X[rows], y[rows])
            epistemic.append(clf.uncertainty(Q).epistemic.mean())
        assert (np.diff(epistemic) < 0).all()
        assert epistemic[-1] < 0.2 * epistemic[0]

    def test_is_larger_between_the_classes_than_at_their_means(self):
        X, y, _, _ = make_task(2, 20, 4, 3.0)
        means = np.stack([X[y == number].mean(0) for number in (0, 1)])
        unit = means / np.linalg.norm(means, axis=1, keepdims=True)
        between, at_first, at_second = GPLDLAClassifier().fit(X, y).uncertainty([unit.mean(0), *unit]).total
        assert between > 0.8
        assert max(at_first, at_second) < 0.5 * between


def novelty_of_tasks(classifier, ways, shots, *, tasks=40, d=16, apart=1.0, start=0):
    """Return the probabilities of queries, half of them of other classes, and which those are."""
    probabilities, truth = [], []
    for seed in range(start, start + tasks):
        X, y, Q, q = make_task(ways, shots, d, apart, seed, others=ways)
        probabilities.append(classifier.fit(X, y).none_of_these(Q))
        truth.append(q >= ways)
    return np.concatenate(probabilities), np.concatenate(truth)


def calibration_gap(p, truth):
    """Return the mean of |share − probability| over ten bins, weighted by their counts."""
    place = np.minimum((10 * p).astype(int), 9)
    return sum(
        (place == k).mean() * abs(p[place == k].mean() - truth[place == k].mean())
        for k in range(10)
        if (place == k).any()
    )


class TestNoneOfThese:
    @pytest.mark.parametrize(
        "options",
        [{}, {"center": False, "beta": 1.0}, {"normalize": False}, {"map_steps": 2}, {"covariance": "full"}],
        ids=str,
    )
    def test_is_calibrated_over_many_tasks(self, options):
        p, truth = novelty_of_tasks(GPLDLAClassifier(**options), 5, 5)
        assert ((p >= 0) & (p <= 1)).all()
        assert p.mean() == pytest.approx(0.5, abs=0.06)
        assert calibration_gap(p, truth) < 0.09
        assert roc_auc_score(truth, p) > 0.84

    @pytest.mark.parametrize(
        ("ways", "shots", "auc"), [(2, 5, 0.75), (5, 1, 0.65), (3, 2, 0.7), (12, 3, 0.7)]
    )
    def test_tells_other_classes_from_known_ones_with_little_to_go_by(self, ways, shots, auc):
        p, truth = novelty_of_tasks(GPLDLAClassifier(), ways, shots)
        assert ((p >= 0) & (p <= 1)).all()
        assert roc_auc_score(truth, p) > auc
        assert calibration_gap(p, truth) < 0.2

    def test_more_newton_steps_know_as_well_what_is_unlike_the_classes(self):
        plain, stepped = (
            roc_auc_score(*novelty_of_tasks(GPLDLAClassifier(map_steps=steps), 10, 5, tasks=15)[::-1])
            for steps in (0, 2)
        )
        assert stepped > plain - 0.02

    def test_is_the_prevalence_where_nothing_can_be_told(self):
        X, y, Q, _ = make_task(2, 1)
        clf = GPLDLAClassifier(center=False).fit(X, y)
        np.testing.assert_allclose(clf.none_of_these(Q), 0.5)
        np.testing.assert_allclose(clf.none_of_these(Q, prevalence=0.1), 0.1)

    @pytest.mark.parametrize("prevalence", [0.01, 0.3, 0.9])
    def test_the_prevalence_shifts_the_odds_exactly(self, blobs, prevalence):
        X, y = blobs
        clf = GPLDLAClassifier().fit(X, y)
        shift = odds(clf.none_of_these(X, prevalence=prevalence)) - odds(clf.none_of_these(X))
        np.testing.assert_allclose(shift, odds(np.float64(prevalence)), atol=1e-9)

    def test_given_numbers_are_used(self, blobs):
        X, y = blobs
        clf = GPLDLAClassifier(novelty=(3.0, 1.5)).fit(X, y)
        unit = clf.coef_ / np.linalg.norm(clf.coef_, axis=1, keepdims=True)
        nearest = (clf.represent(X) @ unit.T).max(1)
        np.testing.assert_allclose(odds(clf.none_of_these(X)), 1.5 - 3.0 * nearest, atol=1e-9)

    def test_every_row_is_answered_by_itself(self, blobs):
        clf = GPLDLAClassifier().fit(*blobs)
        np.testing.assert_allclose(
            clf.none_of_these(blobs[0])[7:8], clf.none_of_these(blobs[0][7:8]), atol=1e-12
        )


def make_world(classes, examples=20, d=8, seed=0):
    """Classes that share a covariance far from a multiple of I."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, d))
    noise = rng.normal(size=(classes * examples, d)) * np.geomspace(0.2, 2.0, d)
    return np.repeat(means, examples, 0) + noise, np.repeat(np.arange(classes), examples)


def tasks_of(X, y, classes, *, ways=5, shots=5, tasks=25, seed=0):
    """Yield training rows, their labels, queries, their labels and rows of other classes."""
    rng = np.random.default_rng(seed)
    for _ in range(tasks):
        chosen = rng.choice(classes, 2 * ways, replace=False)
        rows = {c: rng.permutation(np.flatnonzero(y == c)) for c in chosen}
        known = chosen[:ways]
        S = np.concatenate([rows[c][:shots] for c in known])
        Q = np.concatenate([rows[c][shots : shots + 6] for c in known])
        yield X[S], y[S], X[Q], y[Q], X[np.concatenate([rows[c][:6] for c in chosen[ways:]])]


def negative_log_likelihood(classifier, tasks):
    losses = []
    for X, y, Q, q, _ in tasks:
        log_proba = classifier.fit(X, y).predict_log_proba(Q)
        losses.append(-log_proba[np.arange(len(q)), np.searchsorted(classifier.classes_, q)].mean())
    return np.mean(losses)


LEARNED = ("beta", "beta_b", "temperature", "center", "metric", "novelty", "whiten")


WORLD = make_world(44)


@pytest.fixture(scope="module")
def learned():
    """What the first 24 classes of the world teach."""
    X, y = (part[WORLD[1] < 24] for part in WORLD)
    clf = GPLDLAClassifier(random_state=0)
    assert clf.meta_fit(X, y, episodes=30, progress=False) is clf
    return clf


class TestMetaFit:
    world = WORLD
    base = WORLD[1] < 24
    novel = np.arange(24, 44)

    def test_predicts_new_classes_better(self, learned):
        tasks = [*tasks_of(*self.world, self.novel)]
        meta = negative_log_likelihood(clone(learned), tasks)
        assert meta < negative_log_likelihood(GPLDLAClassifier(), tasks) - 0.05
        assert meta < negative_log_likelihood(GPLDLAClassifier(beta=1.0), tasks) - 0.2

    def test_sets_the_parameters(self, learned):
        assert 0.001 < learned.beta < 1000
        assert 0.001 < learned.beta_b < 1000
        assert 0.01 < learned.temperature < 1000
        assert learned.metric.shape == (8, 8)
        assert learned.whiten is True
        assert len(learned.novelty) == 2
        assert learned.novelty[0] > 0
        X, y = self.world
        means = [X[y == number].mean(0) for number in range(24)]
        np.testing.assert_allclose(learned.center, np.mean(means, 0), atol=1e-12)

    def test_leaves_what_it_does_not_learn(self, learned):
        defaults = GPLDLAClassifier(random_state=0).get_params()
        for name, value in learned.get_params().items():
            if name not in LEARNED:
                assert value == defaults[name], name

    def test_remembers_no_classes(self, learned):
        assert not hasattr(learned, "classes_")
        with pytest.raises(NotFittedError):
            learned.predict(self.world[0])

    def test_survives_clone_and_pickle(self, learned):
        X, y, Q, _, _ = next(tasks_of(*self.world, self.novel))
        expected = clone(learned).fit(X, y).predict_proba(Q)
        for copy in (clone(clone(learned)), pickle.loads(pickle.dumps(learned))):
            for name in LEARNED:
                np.testing.assert_array_equal(getattr(copy, name), getattr(learned, name), err_msg=name)
            np.testing.assert_array_equal(copy.fit(X, y).predict_proba(Q), expected)

    def test_is_used_in_cross_validation(self, learned):
        X, y = self.world
        few = np.isin(y, self.novel[:5])
        assert cross_val_score(learned, X[few], y[few], error_score="raise").mean() > 0.7

    def test_learns_none_of_these(self, learned):
        clf, known, unknown = clone(learned), [], []
        for X, y, Q, _, U in tasks_of(*self.world, self.novel):
            clf.fit(X, y)
            known.append(clf.none_of_these(Q))
            unknown.append(clf.none_of_these(U))
        p = np.concatenate([*known, *unknown])
        truth = np.repeat([False, True], len(p) // 2)
        assert roc_auc_score(truth, p) > 0.8
        assert calibration_gap(p, truth) < 0.1

    def test_learns_none_of_these_for_single_examples(self):
        X, y = self.world
        clf = GPLDLAClassifier(random_state=0)
        clf.meta_fit(X[self.base], y[self.base], shots=1, episodes=30, progress=False)
        pairs = [
            (np.concatenate([clf.fit(X, y).none_of_these(Q), clf.none_of_these(U)]), len(Q))
            for X, y, Q, _, U in tasks_of(*self.world, self.novel, shots=1)
        ]
        p = np.concatenate([p for p, _ in pairs])
        truth = np.concatenate([np.arange(len(p)) >= n for p, n in pairs])
        assert calibration_gap(p, truth) < 0.1
        assert roc_auc_score(truth, p) > 0.65

    @pytest.mark.parametrize("options", [{}, {"predictive": "mc"}], ids=str)
    def test_the_same_seed_learns_the_same(self, options):
        X, y = make_world(14, 8)

        def learn(seed):
            clf = GPLDLAClassifier(random_state=seed, **options)
            clf.meta_fit(X, y, shots=3, ways=3, episodes=5, progress=False)
            return [clf.beta, clf.beta_b, clf.temperature, *clf.novelty]

        assert learn(1) == learn(1)
        assert learn(1) != learn(2)

    def test_rows_of_another_precision_may_follow(self):
        X, y = make_world(14, 8)
        clf = GPLDLAClassifier(random_state=0)
        clf.meta_fit(X.astype(np.float32), y, shots=3, ways=3, episodes=5, progress=False)
        clf.set_params(metric=np.eye(8, dtype=np.float32) if clf.metric is None else clf.metric)
        assert clf.fit(X[:24], y[:24]).predict_proba(X).dtype == np.float64

    @pytest.mark.parametrize(
        "options", [{"covariance": "full"}, {"map_steps": 1}, {"normalize": False}], ids=str
    )
    def test_serves_every_posterior(self, options):
        X, y = make_world(16, 8)
        clf = GPLDLAClassifier(random_state=0, **options)
        clf.meta_fit(X, y, shots=3, ways=3, episodes=5, progress=False)
        few = y < 3
        assert clf.fit(X[few], y[few]).score(X[few], y[few]) > 0.8

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ways": 9}, "Only 6 base classes have more than 5 examples, but a task needs 9"),
            ({"shots": 8, "ways": 3}, "Only 0 base classes have more than 8 examples, but a task needs 3"),
            ({"shots": 0}, "shots must be a whole number of at least 1, not 0"),
            ({"shots": 2.5}, "shots must be a whole number of at least 1, not 2.5"),
            ({"ways": 1}, "ways must be a whole number of at least 2, not 1"),
            ({"episodes": 0}, "episodes must be a whole number of at least 1, not 0"),
            ({"episodes": "many"}, "episodes must be a whole number of at least 1, not 'many'"),
        ],
        ids=str,
    )
    def test_too_little_to_learn_from_is_named(self, options, message):
        X, y = make_world(6, 8)
        clf = GPLDLAClassifier()
        with pytest.raises(ValueError, match=message):
            clf.meta_fit(X, y, **options)
        assert clf.beta == "auto"

    def test_says_nothing_without_progress_and_speaks_to_stderr_with_it(self, capsys, monkeypatch):
        X, y = make_world(6, 8)
        monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
        GPLDLAClassifier().meta_fit(X, y, ways=3, episodes=2, progress=False)
        assert capsys.readouterr() == ("", "")
        GPLDLAClassifier().meta_fit(X, y, ways=3, episodes=2)
        out, err = capsys.readouterr()
        assert out == ""
        assert "learning the prior" in err

    def test_real_digits_teach_other_digits(self):
        """Five digits to learn the prior from, single examples of the other five to use it on."""
        X, y = load_digits(return_X_y=True)
        clf = GPLDLAClassifier(random_state=0)
        clf.meta_fit(X[y < 5], y[y < 5], shots=1, ways=5, episodes=20, progress=False)
        losses = {"meta": [], "paper": []}
        rng = np.random.default_rng(0)
        for _ in range(10):
            rows = np.array([rng.choice(np.flatnonzero(y == number)) for number in range(5, 10)])
            Q, q = X[y >= 5][:200], y[y >= 5][:200]
            for name, classifier in (("meta", clf), ("paper", GPLDLAClassifier(**PAPER))):
                log_proba = classifier.fit(X[rows], y[rows]).predict_log_proba(Q)
                losses[name].append(-log_proba[np.arange(len(q)), q - 5].mean())
        assert np.mean(losses["meta"]) < np.mean(losses["paper"]) - 0.1


class TestWhatIsRefusedChangesNothing:
    X, y = make_blobs(24, 6, centers=3, random_state=0)

    @pytest.mark.parametrize("settings", [{"beta": -1.0}, {"priors": [0.5, 0.5]}, {"covariance": "none"}])
    def test_a_fit(self, settings):
        clf = GPLDLAClassifier().fit(self.X, self.y)
        before = clf.predict_proba(self.X)
        with pytest.raises(ValueError, match=next(iter(settings))):
            clf.set_params(**settings).fit(self.X, NAMES[self.y])
        np.testing.assert_array_equal(clf.classes_, [0, 1, 2])
        np.testing.assert_array_equal(clf.predict_proba(self.X), before)

    @pytest.mark.parametrize(
        ("old", "new"), [([0, 1, 2], "owl"), (["a", "b", "c"], 1), ([False, True, True], 1)]
    )
    def test_labels_of_another_kind(self, old, new):
        clf = GPLDLAClassifier().fit(self.X, np.array(old)[self.y])
        with pytest.raises(ValueError, match="of types that cannot be compared"):
            clf.partial_fit(self.X[:1], [new])
        with pytest.raises(ValueError, match="of types that cannot be compared"):
            clf.partial_fit(self.X[:1], np.array(old)[:1], classes=[new])
        assert clf.classes_.dtype == np.array(old).dtype

    def test_strings_may_come_as_objects(self):
        clf = GPLDLAClassifier().fit(self.X, NAMES[self.y])
        clf.partial_fit(self.X[:1], np.array(["owl"], dtype=object))
        assert clf.classes_.tolist() == ["ant", "bee", "cow", "owl"]


def test_answers_are_those_of_the_fit_whatever_is_set_later():
    X, y = make_blobs(24, 6, centers=3, cluster_std=4, random_state=0)
    clf = GPLDLAClassifier().fit(X, y)

    def answers():
        return [clf.predict_proba(X), clf.leave_one_out(), clf.none_of_these(X), clf.represent(X)]

    expected = answers()
    clf.set_params(center=False, normalize=False, whiten=False, beta=3.0, temperature=2.0)
    clf._novelty = None
    for ours, theirs in zip(answers(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
