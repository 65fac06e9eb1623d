"""The demo's promises, on the machine that runs this: slow, so only in `make test-long`."""

import json

import pytest
from benchmarks.demo import measure

from gpldla.reports.compare import run_comparison
from gpldla.training.methods import methods

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def results():
    return measure([0])


def test_it_takes_at_most_two_minutes_and_two_gigabytes(results):
    assert results["seconds"][0] <= 120
    assert results["peak_memory_mib"] <= 2048


def test_it_beats_both_controls_on_unseen_scripts_and_on_digits(results):
    for row in results["rows"]:
        margin = {1: 5, 5: 2}[row["shots"]]
        for control in ("pixels", "untrained"):
            assert row["accuracy"][0] >= row[control][0] + margin, row["label"]


def test_the_numbers_are_json(results):
    assert json.loads(json.dumps(results)) == results


def test_the_comparison_of_all_methods_takes_at_most_a_quarter_of_an_hour(tmp_path):
    comparison = run_comparison(tmp_path)
    assert comparison["seconds"] <= 15 * 60
    assert [row["method"] for row in comparison["rows"]] == list(methods())
