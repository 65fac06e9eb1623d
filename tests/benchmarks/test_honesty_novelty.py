import numpy as np
import pytest
from benchmarks.honesty.novelty import OURS, auroc, best_rival, draw_open, measure_novelty, novelty_tables
from sklearn.metrics import roc_auc_score


def world(classes=9, examples=14, d=10, apart=1.5):
    rng = np.random.default_rng(0)
    means = apart * rng.normal(size=(classes, d))
    return np.repeat(means, examples, 0) + rng.normal(size=(classes * examples, d)), np.repeat(
        np.arange(classes), examples
    )


def test_auroc_is_that_of_scikit_learn_with_ties():
    rng = np.random.default_rng(0)
    score, unknown = rng.integers(0, 6, 50), rng.random(50) < 0.3
    assert auroc(score, unknown) == pytest.approx(100 * roc_auc_score(unknown, score))


def test_unknown_queries_are_of_other_classes_and_no_query_is_in_the_support():
    X, y = world()
    label_of = {row.tobytes(): label for row, label in zip(X, y)}
    for task in draw_open(X, y, 4, 2, 5):
        classes = {label_of[row.tobytes()] for row in task.support}
        assert len(classes) == 4
        assert [label_of[row.tobytes()] not in classes for row in task.queries] == task.unknown.tolist()
        assert not {row.tobytes() for row in task.support} & {row.tobytes() for row in task.queries}


def test_rows_and_tables():
    X, y = world()
    rows = measure_novelty(X, y, 4, 2, 6)
    ours = next(row for row in rows if row["score"] == OURS)
    assert ours["ahead"] == ours["ahead_noise"] == 0
    assert ours["auroc"] > 70
    assert 0 <= ours["ece"] < 25
    rival = best_rival(rows)
    assert rival["ahead"] == pytest.approx(ours["auroc"] - rival["auroc"], abs=0.02)
    facts = {"domain": "blobs", "ways": 4, "shots": 2}
    results = {"command": "c", "commit": "abc", "device": "d", "tasks": [6, 6]}
    tables = novelty_tables({**results, "rows": [{**facts, **row} for row in rows]})
    assert tables["none of these"][2].startswith(f"| 4-way 2-shot | 1 | {ours['auroc']:.1f} |")
    assert measure_novelty(X, y, 8, 1, 6) == []  # no two classes are left
