import numpy as np
import pytest
from sklearn.datasets import load_digits

from gpldla.data.sets import digits
from gpldla.data.store import ImageSet


@pytest.fixture(scope="module")
def digit_set() -> ImageSet:
    return digits.make()


def test_counts_are_those_of_scikit_learn(digit_set: ImageSet) -> None:
    assert digit_set.images.shape == (1797, 1, 32, 32)
    assert digit_set.class_names == tuple("0123456789")
    assert digit_set.counts.tolist() == np.bincount(load_digits().target).tolist()


def test_reduced_again_each_image_is_its_source_upright_and_inverted(digit_set: ImageSet) -> None:
    source = load_digits()
    by_class = source.images[np.argsort(source.target, kind="stable")].reshape(1797, -1)
    ink = 255.0 - digit_set.images[:, 0, 4:-4, 4:-4]
    reduced = ink.reshape(1797, 8, 3, 8, 3).mean(axis=(2, 4)).reshape(1797, -1)
    correlation = [np.corrcoef(a, b)[0, 1] for a, b in zip(reduced, by_class)]
    assert min(correlation) > 0.95


def test_dark_ink_on_light_paper_with_a_margin(digit_set: ImageSet) -> None:
    images = digit_set.images
    assert (images.min(axis=(1, 2, 3)) < 100).all()
    assert images.mean() > 150
    rim = images.copy()
    rim[:, :, 2:-2, 2:-2] = 255
    assert rim.min() > 180


def test_made_twice_alike(digit_set: ImageSet) -> None:
    assert digits.make().images.tobytes() == digit_set.images.tobytes()


def test_every_digit_is_novel(digit_set: ImageSet) -> None:
    assert digits.Digits().parts(digit_set.class_names) == {"novel": tuple(range(10))}
