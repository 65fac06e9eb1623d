import numpy as np
import pytest
from benchmarks.own_data.names import draw
from benchmarks.own_data.names_rivals import (
    SCALE,
    chosen,
    discriminant_analysis,
    lp_plus_plus,
    tip_adapter,
    unit,
    zero_shot,
)
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis


@pytest.fixture
def task():
    rng = np.random.default_rng(0)
    T = unit(rng.normal(size=(3, 8)))
    y = np.repeat(np.arange(3), 6)
    X, Q = (unit(T[y] + 0.5 * rng.normal(size=(18, 8))) for _ in range(2))
    return X, y, T, Q


def test_tip_adapter_is_a_sum_over_examples(task):
    X, y, T, Q = task
    logits = tip_adapter(X, y, T, Q, alpha=2.0, beta=3.0)
    for q, row in zip(Q, logits):
        expected = SCALE * T @ q
        for x, label in zip(X, y):
            expected[label] += 2.0 * np.exp(-3.0 * (1 - q @ x))
        np.testing.assert_allclose(row, expected)


def test_discriminant_analysis_is_lda_with_a_ridge(task):
    X, y, T, Q = task
    own = discriminant_analysis(X, y, T, Q, alpha=1.0) - zero_shot(X, y, T, Q)
    means = np.stack([X[y == c].mean(0) for c in range(3)])
    scatter = sum(np.outer(x - means[c], x - means[c]) for x, c in zip(X, y))
    covariance = (scatter + np.trace(scatter) / (len(X) - 1) * np.eye(8)) / 8

    class Given:
        def fit(self, _):
            self.covariance_ = covariance
            return self

    lda = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Given()).fit(X, y)
    expected = lda.decision_function(Q)
    np.testing.assert_allclose(own - own[:, :1], expected - expected[:, :1], atol=1e-6)


def test_lp_plus_plus_lowers_its_loss(task):
    X, y, T, _ = task

    def loss(logits):
        return -log_softmax(logits, axis=1)[np.arange(len(y)), y].mean()

    assert loss(lp_plus_plus(X, y, T, X)) < loss(lp_plus_plus(X, y, T, X, steps=1))


def test_constants_are_chosen_by_held_out_examples(task):
    X, y, T, Q = task
    useless = np.roll(T, 1, 0) * 0
    grid = [{"alpha": 0.0}, {"alpha": 1.0}]
    np.testing.assert_array_equal(
        chosen(discriminant_analysis, grid, 6)(X, y, useless, Q),
        discriminant_analysis(X, y, useless, Q, alpha=1.0),
    )
    assert chosen(tip_adapter, grid, 1) is tip_adapter


def test_tasks_are_drawn_class_by_class():
    labels = np.repeat(np.arange(6), 15)
    for own, support, query in draw(labels, 4, 3, 5):
        assert labels[support].tolist() == np.repeat(own, 3).tolist()
        assert labels[query].tolist() == np.repeat(own, 10).tolist()
        assert not set(support) & set(query)
