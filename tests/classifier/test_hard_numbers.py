"""Settings and features at the edge of what floating-point numbers hold: an answer, or one sentence."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from gpldla import GPLDLAClassifier
from gpldla.classifier.examples import Examples
from gpldla.classifier.task import AdaptedTask
from gpldla.heads import create_head
from gpldla.utils.errors import UserError


def rows(dtype=np.float64, scale=1.0):
    """Twelve rows of three classes [12, 6], and five to classify [5, 6]."""
    generator = np.random.default_rng(0)
    X = np.concatenate([generator.normal(mean, 1, (4, 6)) for mean in (0, 2, 4)])
    queries = generator.normal(2, 2, (5, 6))
    return (X * scale).astype(dtype), np.repeat([0, 1, 2], 4), (queries * scale).astype(dtype)


@pytest.mark.parametrize("prior", [1e-40, 1e-310])
def test_a_tiny_prior_is_not_zero_in_float32(prior):
    answers = []
    for dtype in (np.float32, np.float64):
        X, y, queries = rows(dtype)
        answers.append(GPLDLAClassifier(priors=[prior, 0.5, 0.5]).fit(X, y).predict_proba(queries))
    np.testing.assert_allclose(*answers, atol=1e-4)


@pytest.mark.parametrize("scale", [1e20, 1e30])
@pytest.mark.parametrize("options", [{}, {"center": False}, {"beta": 1.0}, {"covariance": "full"}], ids=str)
def test_features_too_large_to_square_are_refused_in_a_sentence(options, scale):
    X, y, queries = rows(np.float32, scale)
    with pytest.raises(UserError, match=r"features reach .* in float32; scale them, or give float64"):
        GPLDLAClassifier(normalize=False, **options).fit(X, y)
    proba = GPLDLAClassifier(**options).fit(X, y).predict_proba(queries)  # at unit length they can be squared
    assert np.isfinite(proba).all()


def test_prototypes_too_large_to_square_are_refused_in_a_sentence():
    X, y, queries = map(torch.from_numpy, rows(np.float32, 1e20))
    task = AdaptedTask.adapt(create_head("protonet", 6), Examples(X, y), 3)
    with pytest.raises(UserError, match="5 of 5 answers are NaN: features are too large to compute with"):
        task.log_prob(queries)


@pytest.mark.parametrize("center", ["auto", False])
def test_newton_steps_do_without_scaled_features_in_float32(center):
    X, y = load_wine(return_X_y=True)  # up to 1680
    order = np.random.default_rng(150).permutation(len(X))
    fitted = GPLDLAClassifier(normalize=False, center=center, map_steps=3)
    fitted.fit(X[order[:150]].astype(np.float32), y[order[:150]])
    assert np.isfinite(fitted.predict_proba(X[order[150:]].astype(np.float32))).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metric": np.diag([np.nan, 1, 1, 1, 1, 1])}, "metric holds numbers that are infinite or NaN"),
        ({"novelty": [np.nan, 0]}, "novelty holds numbers that are infinite or NaN"),
        ({"novelty": [1, np.inf]}, "novelty holds numbers that are infinite or NaN"),
        ({"normalize": "no"}, "normalize must be True or False, not 'no'"),
        ({"normalize": None}, "normalize must be True or False, not None"),
    ],
    ids=str,
)
def test_settings_that_are_none_are_refused(options, sentence):
    X, y, _ = rows()
    with pytest.raises(UserError, match=sentence):
        GPLDLAClassifier(**options).fit(X, y)


@pytest.mark.parametrize("predictive", ["mc", "mc-logits"])
def test_drawn_answers_are_those_of_the_seed(predictive):
    X, y, queries = rows()
    fitted = GPLDLAClassifier(predictive=predictive, random_state=0).fit(X, y)
    proba = fitted.predict_proba(queries)
    np.testing.assert_array_equal(fitted.predict_proba(queries), proba)
    np.testing.assert_allclose(fitted.predict_proba(queries[::-1])[::-1], proba, atol=1e-12)
    other = GPLDLAClassifier(predictive=predictive, random_state=1).fit(X, y).predict_proba(queries)
    assert not np.allclose(other, proba)
