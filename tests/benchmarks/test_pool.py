"""The tasks that unlabelled rows are measured on."""

import numpy as np
import pytest
from benchmarks.honesty.pool import CELLS, FOREIGN, QUERIES, Cell, draw, measure


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_rows_are_examples_queries_or_unlabelled(cell):
    y = np.arange(45).repeat(20)
    for task in draw(y, cell, 3):
        known = np.concatenate([task.support, task.query])
        assert len(np.unique(known)) == len(known) == cell.ways * (cell.shots + QUERIES)
        assert len(np.unique(task.unlabelled)) == len(task.unlabelled) == cell.rows
        assert not np.isin(task.unlabelled, known).any()
        assert (y[task.query].reshape(cell.ways, -1) == y[task.support][:: cell.shots, None]).all()
        foreign = ~np.isin(y[task.unlabelled], y[task.support])
        assert foreign.sum() == (round(FOREIGN * cell.rows) if cell.kind == "mixed" else 0)
        if cell.kind == "even":
            assert np.ptp(np.unique(y[task.unlabelled], return_counts=True)[1]) == 0


def test_unlabelled_rows_of_distinct_classes_help():
    rng = np.random.default_rng(0)
    y = np.arange(8).repeat(20)
    X = 0.4 * rng.standard_normal((8, 30))[y] + rng.standard_normal((160, 30))
    cell = Cell(5, 1, 50, "even")
    found = measure(X, list(draw(y, cell, 10)), cell)
    assert found["with"]["accuracy"] > found["without"]["accuracy"]
    assert found["with"]["nll"] < found["without"]["nll"]
