"""The page docs/correcting.md: its table, and what it says about it."""

import json
from pathlib import Path

import pytest
from benchmarks.suggest import DOMAINS, MARGIN, OURS, ROUNDS, render

PAGE = Path(__file__).parents[2] / "docs" / "correcting.md"


@pytest.fixture(scope="module")
def results():
    return json.loads((PAGE.parents[1] / "results" / "suggest.json").read_text())


def test_the_table_is_that_of_the_results(results):
    assert render(PAGE.read_text(), results) == PAGE.read_text()


def test_suggest_is_better_than_random_choice_everywhere(results):
    assert results["repeats"] >= 50
    rows = [row for row in results["rows"] if row["rule"] == OURS]
    cells = {(row["domain"], row["start"], row["labels_per_class"]) for row in rows}
    starts = ("all known", "half unknown")
    assert cells == {(d, s, k + 1) for d in DOMAINS for s in starts for k in range(ROUNDS)}
    assert all(row["gain"] - row["half_width"] > 0 for row in rows)


def test_the_smallest_margin_gains_less_in_all_cells_but_one(results):
    gains = {}
    for row in results["rows"]:
        gains.setdefault((row["domain"], row["start"], row["labels_per_class"]), {})[row["rule"]] = row[
            "gain"
        ]
    assert sum(own[MARGIN] >= own[OURS] for own in gains.values()) == 1
