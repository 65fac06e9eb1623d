"""The trainings of all methods beside GPLDLA: each can be queued, with the same budget."""

import pytest
from benchmarks.paper import PLAN, jobs, plan, with_what_they_need
from benchmarks.rivals import rival_entries

from gpldla.reports.paper_tables import paper_tables
from gpldla.training.methods import methods
from gpldla.training.recipe import read_recipe

NAMES = rival_entries(PLAN.with_name("rivals.toml")).keys()
PLANNED = {training.name: training for training in plan([])}


def test_all_methods_of_the_papers_accuracy_tables_are_planned():
    in_the_paper = {m for t in paper_tables().values() if t.measure == "accuracy" for m in t.rows}
    planned = {training.method for training in PLANNED.values()}
    assert (in_the_paper & methods().keys()) - planned == {"gpdkt-linear"}


def test_every_trial_is_a_recipe():
    for name in NAMES:
        training = PLANNED[name]
        for trial in training.trials:
            read_recipe(training.recipe, training.set | trial, method=training.method)


def test_the_budget_is_the_same_for_all():
    tried = [PLANNED[name] for name in NAMES if PLANNED[name].trials]
    assert {len(training.trials) for training in tried} == {4}
    assert all("-1shot-" in training.name for training in tried)
    for name in NAMES:
        if PLANNED[name].as_in:
            other = PLANNED[PLANNED[name].as_in]
            assert other.trials
            assert other.method == PLANNED[name].method


@pytest.mark.parametrize("pattern", ["mini-cub-conv4-5shot-versa", "cub-conv4-32-5shot-ml-lstm"])
def test_what_a_choice_needs_is_queued_before(pattern, tmp_path):
    ordered = with_what_they_need(plan([pattern]))
    assert [training.name for training in ordered][-1] == pattern
    queue = [job for training in ordered for job in jobs(training, tmp_path, tmp_path)]
    done = set()
    for job in queue:
        assert done >= {*job.needs}
        done.add(job.done)
    assert sum("-trial" in job.name for job in queue) == 4


def test_no_file_means_no_rivals(tmp_path):
    assert rival_entries(tmp_path / "rivals.toml") == {}
