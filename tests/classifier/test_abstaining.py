import doctest
import pickle
from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted

import gpldla.classifier.abstaining
from gpldla import AbstainingClassifier, GPLDLAClassifier
from gpldla.classifier.abstention import PREVALENCE


class Oracle(ClassifierMixin, BaseEstimator):
    """Knows the probabilities of classes: a row of X holds their logarithms."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        p = np.exp(X)
        return p / p.sum(1, keepdims=True)


def calibrated(n, ways=3, seed=0):
    """Return logits [n, ways] and labels drawn from their softmax."""
    rng = np.random.default_rng(seed)
    X = 2 * rng.normal(size=(n, ways))
    p = Oracle().predict_proba(X)
    return X, (p.cumsum(1) < rng.random((n, 1))).sum(1)


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(60, n_features=6, centers=3, cluster_std=4.0, random_state=0)
    return X, np.array(["ant", "bee", "cow"])[y]


class TestThePromise:
    @pytest.mark.parametrize("max_error", [0.02, 0.05, 0.2, 0.5])
    def test_errors_among_answers_are_at_most_what_was_asked_for(self, max_error):
        X, y = calibrated(20_000)
        clf = AbstainingClassifier(Oracle(), max_error=max_error, abstain_label=-1).fit(X, y)
        answers = clf.predict(X)
        given = answers != -1
        assert given.any()
        error = (answers[given] != y[given]).mean()
        assert error <= max_error + 3 * np.sqrt(max_error / given.sum())
        assert error > 0  # it does not hide

    @pytest.mark.parametrize("ways", [3, 5])
    def test_gpldla_keeps_it_over_many_tasks(self, ways):
        wrong = total = 0
        for seed in range(40):
            rng = np.random.default_rng(seed)
            means = rng.normal(size=(ways, 16))
            X = np.repeat(means, 5, 0) + rng.normal(size=(5 * ways, 16))
            Q = np.repeat(means, 10, 0) + rng.normal(size=(10 * ways, 16))
            clf = AbstainingClassifier(GPLDLAClassifier(), max_error=0.1).fit(X, np.repeat(range(ways), 5))
            given = clf.answered(Q)
            total += given.sum()
            wrong += (clf.predict(Q)[given] != np.repeat(range(ways), 10)[given]).sum()
        assert total > 100
        assert wrong / total <= 0.1

    def test_answers_become_fewer_as_less_error_is_allowed(self):
        X, y = calibrated(2000)
        clf = AbstainingClassifier(Oracle().fit(X, y))
        given = [clf.set_params(max_error=e).answered(X) for e in (1.0, 0.5, 0.2, 0.05, 0.01, 0.0)]
        assert given[0].all()
        assert not given[-1].any()
        for more, less in pairwise(given):
            assert (more >= less).all()
            assert more.sum() > less.sum()

    def test_an_answer_is_given_up_to_and_with_the_bound(self):
        X = np.log([[0.75, 0.25], [0.74, 0.26], [0.25, 0.75]])
        clf = AbstainingClassifier(Oracle().fit(X, [0, 1, 1]), max_error=0.25)
        assert clf.answered(X).tolist() == [True, False, True]
        assert clf.predict(X).tolist() == [0, None, 1]

    def test_every_row_is_judged_by_itself(self):
        X, y = calibrated(200)
        clf = AbstainingClassifier(Oracle().fit(X, y), max_error=0.2, abstain_label=-1)
        whole = clf.predict(X)
        assert whole.tolist() == [clf.predict(X[i : i + 1])[0] for i in range(len(X))]
        order = np.random.default_rng(0).permutation(200)
        assert clf.predict(X[order]).tolist() == whole[order].tolist()

    def test_answers_are_those_of_the_classifier(self, blobs):
        X, y = blobs
        clf = AbstainingClassifier(GPLDLAClassifier(), max_error=0.3).fit(X, y)
        plain = GPLDLAClassifier().fit(X, y)
        given = clf.answered(X)
        assert 0 < given.sum() < 60
        assert clf.predict(X)[given].tolist() == plain.predict(X)[given].tolist()
        assert all(answer is None for answer in clf.predict(X)[~given])
        np.testing.assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))
        expected = plain.predict_proba(X).max(1) * (1 - plain.none_of_these(X, prevalence=PREVALENCE))
        np.testing.assert_array_equal(given, expected >= 0.7)

    def test_where_all_rows_are_of_known_classes_probabilities_alone_count(self, blobs):
        X, y = blobs
        clf = AbstainingClassifier(GPLDLAClassifier(), max_error=0.3, prevalence=0).fit(X, y)
        np.testing.assert_array_equal(clf.answered(X), clf.predict_proba(X).max(1) >= 0.7)

    @pytest.mark.parametrize("prevalence", [-0.1, 1, "rare", None, np.nan])
    def test_a_prevalence_that_is_no_share_is_named(self, blobs, prevalence):
        with pytest.raises(ValueError, match="prevalence must be at least 0 and less than 1"):
            AbstainingClassifier(GPLDLAClassifier(), prevalence=prevalence).fit(*blobs)


class TestTheLabelOfNoAnswer:
    @pytest.mark.parametrize(
        "label",
        [
            None,
            -1,
            "unsure",
            "a string longer than any class",
            np.nan,
            2.5,
            False,
            ("ask", "a person"),
            [1, 2],
            {},
        ],
        ids=repr,
    )
    def test_may_be_anything(self, blobs, label):
        X, y = blobs
        clf = AbstainingClassifier(GPLDLAClassifier(), max_error=0.3, abstain_label=label).fit(X, y)
        answers, given = clf.predict(X), clf.answered(X)
        assert answers.shape == (60,)
        assert set(answers[given]) <= {"ant", "bee", "cow"}
        for answer in answers[~given]:
            assert answer is label or answer == label

    @pytest.mark.parametrize("labels", [[3, 5, 7], [True, False, True], ["ant", "bee", "cow"]], ids=str)
    def test_changes_no_class(self, blobs, labels):
        X, y = blobs
        own = np.array(labels)[np.searchsorted(["ant", "bee", "cow"], y)]
        answers = AbstainingClassifier(GPLDLAClassifier(), 1.0).fit(X, own).predict(X)
        assert answers.tolist() == GPLDLAClassifier().fit(X, own).predict(X).tolist()
        answers = AbstainingClassifier(GPLDLAClassifier(), 0.3, "?").fit(X, own).predict(X)
        assert set(answers.tolist()) == {*labels, "?"}


class TestFittedOrNot:
    def test_a_fitted_classifier_is_used_as_it_is(self, blobs):
        X, y = blobs
        fitted = GPLDLAClassifier().fit(X, y)
        clf = AbstainingClassifier(fitted, max_error=0.3)
        assert clf.classes_.tolist() == ["ant", "bee", "cow"]
        again = AbstainingClassifier(GPLDLAClassifier(), max_error=0.3).fit(X, y)
        assert clf.predict(X).tolist() == again.predict(X).tolist()

    def test_fit_leaves_the_given_classifier_alone(self, blobs):
        X, y = blobs
        given = GPLDLAClassifier().fit(X[y != "cow"], y[y != "cow"])
        clf = AbstainingClassifier(given).fit(X, y)
        assert given.classes_.tolist() == ["ant", "bee"]
        assert clf.classes_.tolist() == ["ant", "bee", "cow"]
        assert clf.classifier_ is not given

    def test_without_a_fit_there_is_no_answer(self, blobs):
        clf = AbstainingClassifier(GPLDLAClassifier())
        for answer in (clf.predict, clf.predict_proba, clf.answered):
            with pytest.raises(NotFittedError):
                answer(blobs[0])

    def test_scikit_learn_can_tell_which(self, blobs):
        check_is_fitted(AbstainingClassifier(GPLDLAClassifier().fit(*blobs)))
        check_is_fitted(AbstainingClassifier(GPLDLAClassifier()).fit(*blobs))
        with pytest.raises(NotFittedError):
            check_is_fitted(AbstainingClassifier(GPLDLAClassifier()))

    def test_fit_hands_on_what_the_classifier_takes(self, blobs):
        X, y = blobs
        weights = np.where(y == "ant", 0.0, 1.0)
        clf = AbstainingClassifier(GPLDLAClassifier()).fit(X, y, sample_weight=weights)
        assert clf.classes_.tolist() == ["bee", "cow"]


class TestInScikitLearn:
    def test_the_docstring_tells_the_truth(self):
        assert doctest.testmod(gpldla.classifier.abstaining).failed == 0

    @pytest.mark.parametrize(
        "inner",
        [GPLDLAClassifier(), LogisticRegression(), make_pipeline(StandardScaler(), GPLDLAClassifier())],
        ids=["gpldla", "logistic", "pipeline"],
    )
    def test_it_holds_any_classifier_with_probabilities(self, blobs, inner):
        X, y = blobs
        clf = AbstainingClassifier(inner, max_error=0.2, prevalence=0).fit(X, y)
        given = clf.answered(X)
        np.testing.assert_array_equal(given, 1 - clone(inner).fit(X, y).predict_proba(X).max(1) <= 0.2)
        assert (clf.predict(X)[given] == y[given]).mean() > 0.8

    def test_it_is_the_last_step_of_a_pipeline(self, blobs):
        X, y = blobs
        pipeline = make_pipeline(StandardScaler(), AbstainingClassifier(GPLDLAClassifier(), max_error=0.3))
        Z = StandardScaler().fit_transform(X)
        expected = AbstainingClassifier(GPLDLAClassifier(), max_error=0.3).fit(Z, y).predict(Z)
        assert pipeline.fit(X, y).predict(X).tolist() == expected.tolist()

    def test_a_clone_has_the_settings_and_nothing_learned(self, blobs):
        clf = AbstainingClassifier(GPLDLAClassifier(beta=0.5), 0.3, "?").fit(*blobs)
        copy = clone(clf)
        assert (copy.clf.beta, copy.max_error, copy.abstain_label) == (0.5, 0.3, "?")
        with pytest.raises(NotFittedError):
            copy.predict(blobs[0])
        assert copy.fit(*blobs).predict(blobs[0]).tolist() == clf.predict(blobs[0]).tolist()

    def test_a_pickle_answers_alike(self, blobs):
        clf = AbstainingClassifier(GPLDLAClassifier(), 0.3).fit(*blobs)
        copy = pickle.loads(pickle.dumps(clf))
        assert copy.predict(blobs[0]).tolist() == clf.predict(blobs[0]).tolist()

    @pytest.mark.parametrize("label", [None, "?", -1])
    def test_the_score_is_the_share_of_right_answers(self, blobs, label):
        X, y = blobs
        clf = AbstainingClassifier(GPLDLAClassifier(), 0.3, label).fit(X, y)
        right = sum(answer == truth for answer, truth in zip(clf.predict(X), y))
        assert 0 < right < 60
        assert clf.score(X, y) == pytest.approx(right / 60)
        assert np.isfinite(cross_val_score(clf, X, y, error_score="raise")).all()

    def test_whole_numbers_are_scored_too(self):
        X, y = calibrated(300)
        clf = AbstainingClassifier(Oracle(), 0.3, -1).fit(X, y)
        assert clf.score(X, y) == pytest.approx(np.mean(clf.predict(X) == y))

    def test_a_grid_search_reaches_the_inner_settings(self, blobs):
        search = GridSearchCV(
            AbstainingClassifier(GPLDLAClassifier()), {"clf__beta": [0.1, 2.0]}, scoring="neg_log_loss"
        ).fit(*blobs)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()


class TestRefusals:
    @pytest.mark.parametrize("max_error", [-0.1, 1.5, "little", None, np.nan])
    def test_an_error_that_is_no_share_is_named(self, blobs, max_error):
        with pytest.raises(ValueError, match="max_error must lie between 0 and 1, not"):
            AbstainingClassifier(GPLDLAClassifier(), max_error).fit(*blobs)
        fitted = GPLDLAClassifier().fit(*blobs)
        for answer in ("predict", "answered"):
            with pytest.raises(ValueError, match="max_error must lie between 0 and 1, not"):
                getattr(AbstainingClassifier(fitted, max_error), answer)(blobs[0])

    @pytest.mark.parametrize("max_error", [0, 1, np.float32(0.25), np.float64(0.25), np.int64(1)], ids=repr)
    def test_any_kind_of_number_will_do(self, blobs, max_error):
        assert len(AbstainingClassifier(GPLDLAClassifier(), max_error).fit(*blobs).predict(blobs[0])) == 60

    def test_a_classifier_without_probabilities_is_named(self, blobs):
        sentence = "LinearSVC has no predict_proba; give a classifier that has."
        with pytest.raises(ValueError, match=sentence):
            AbstainingClassifier(LinearSVC()).fit(*blobs)
        fitted = LinearSVC().fit(*blobs)
        for answer in ("predict", "answered"):
            with pytest.raises(ValueError, match=sentence):
                getattr(AbstainingClassifier(fitted), answer)(blobs[0])
