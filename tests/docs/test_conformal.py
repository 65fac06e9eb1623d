"""The code of docs/conformal.md runs, and its statements about coverage and size hold."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from gpldla import GPLDLAClassifier

pytest.importorskip("mapie", reason="needs the extra conformal")

PAGE = (Path(__file__).parents[2] / "docs" / "conformal.md").read_text("utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SEEDS = range(10)


def run(shots=5, seed=0, **replaced):
    """Run the page's code with other shots, another seed and other settings."""
    code = CODE
    for old, new in (
        ("train_size=50", f"train_size={10 * shots}"),
        ("random_state=0", f"random_state={seed}"),
        *replaced.items(),
    ):
        assert old in code, old
        code = code.replace(old, new)
    scope: dict = {}
    exec(compile(code, "docs/conformal.md", "exec"), scope)
    return scope


@pytest.fixture(scope="module")
def by_shots():
    """Return the variables of ten runs with 1, 5 and 20 shots each."""
    return {shots: [run(shots, seed) for seed in SEEDS] for shots in (1, 5, 20)}


def test_the_page_runs_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scope = run()
    assert scope["sets"].shape == (1797 - 50 - 200, 10, 1)
    assert scope["labels"].tolist() == scope["clf"].predict(scope["X_new"]).tolist()
    assert isinstance(scope["clf"], GPLDLAClassifier)


def test_its_candidates_are_its_sets():
    scope = run()
    for row, answer in zip(scope["candidates"][:50], scope["sets"][:50, :, 0]):
        assert row == np.flatnonzero(answer).tolist()
    assert any(len(row) == 1 for row in scope["candidates"])
    assert any(len(row) > 1 for row in scope["candidates"])


def test_calibration_rows_are_held_out():
    scope = run()
    rows = [{row.tobytes() for row in scope[name]} for name in ("X_fit", "X_calib", "X_new")]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 1797


@pytest.mark.parametrize("shots", [1, 5, 20])
def test_the_coverage_is_what_was_asked_for(by_shots, shots):
    coverage = [scope["coverage"] for scope in by_shots[shots]]
    error = np.std(coverage, ddof=1) / np.sqrt(len(coverage))
    assert 0.9 - 2 * error <= np.mean(coverage) < 0.93


def test_another_confidence_is_kept_as_well():
    coverage = [
        run(seed=seed, **{"confidence_level=0.9": "confidence_level=0.7"})["coverage"] for seed in SEEDS
    ]
    error = np.std(coverage, ddof=1) / np.sqrt(len(coverage))
    assert 0.7 - 2 * error <= np.mean(coverage) < 0.75


@pytest.mark.filterwarnings("ignore:WARNING. your conformalization dataset has less labels")
def test_the_coverage_differs_between_calibration_sets_as_the_page_says():
    """With 50 rows: √(0.9·0.1/50) = 0.042."""
    coverage = [run(seed=seed, **{"train_size=200": "train_size=50"})["coverage"] for seed in range(25)]
    assert 0.6 * 0.042 < np.std(coverage) < 1.5 * 0.042


def test_sets_are_smaller_where_shots_are_more(by_shots):
    size = {shots: np.mean([scope["size"] for scope in scopes]) for shots, scopes in by_shots.items()}
    assert size[1] > 2 * size[5]
    assert size[5] > 1.1 * size[20]


def test_probabilities_far_from_calibrated_leave_the_coverage():
    """A prior scale a thousand times too small."""
    poor = {"GPLDLAClassifier()": "GPLDLAClassifier(beta=1e-3, priors='uniform')"}
    scopes = [run(seed=seed, **poor) for seed in SEEDS]
    assert np.mean([scope["clf"].predict_proba(scope["X_new"]).max(1).mean() for scope in scopes]) < 0.15
    assert 0.88 < np.mean([scope["coverage"] for scope in scopes]) < 0.93


def test_empty_sets_come_with_many_shots_and_not_with_aps(by_shots):
    assert any(not row for scope in by_shots[20] for row in scope["candidates"])
    aps = {"prefit=True": 'prefit=True, conformity_score="aps"'}
    scopes = [run(20, seed, **aps) for seed in range(3)]
    assert all(row for scope in scopes for row in scope["candidates"])
    for scope, plain in zip(scopes, by_shots[20]):
        assert scope["size"] > plain["size"]


@pytest.mark.parametrize(("confidence", "enough"), [(0.9, 10), (0.99, 100)])
def test_as_many_rows_are_needed_as_the_page_says(confidence, enough):
    assert f"{confidence:.0%}".replace("%", " %") in PAGE
    assert f"{enough} " in PAGE or f"{enough}." in PAGE
    replaced = {"confidence_level=0.9": f"confidence_level={confidence}"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not every digit is among so few
        run(**replaced, **{"train_size=200": f"train_size={enough}"})
        with pytest.raises(ValueError, match="Number of samples of the score is too low"):
            run(**replaced, **{"train_size=200": f"train_size={enough - 1}"})


@pytest.mark.parametrize("labels", ["np.array(list('abcdefghij'))[y]", "y + 5"])
def test_labels_may_be_of_any_type(labels):
    replaced = {"X, y = load_digits(return_X_y=True)": f"X, y = load_digits(return_X_y=True)\ny = {labels}"}
    scope, plain = run(**replaced), run()
    assert scope["coverage"] == plain["coverage"]
    assert {label for row in scope["candidates"] for label in row} == {*np.unique(scope["y"]).tolist()}


def test_several_confidences_share_the_last_axis():
    scope = run(**{"confidence_level=0.9": "confidence_level=[0.7, 0.9, 0.95]"})
    assert scope["sets"].shape[2] == 3
    sizes = scope["sets"].sum(1)
    assert (np.diff(sizes, axis=1) >= 0).all()
    assert sizes[:, 2].mean() > sizes[:, 0].mean()
