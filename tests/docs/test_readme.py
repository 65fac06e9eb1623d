"""The code of the README runs, and its numbers are the measured ones."""

import json
import re
from pathlib import Path

import pytest
from benchmarks.demo import table
from benchmarks.honesty import first_screen, pool
from sklearn.base import clone

from gpldla import FewShotModel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_its_code_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    FewShotModel("conv4s").save(tmp_path / "demo" / "model")  # what `make demo` leaves
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_its_accuracy_of_the_example_is_real():
    scope: dict = {}
    exec(re.findall(r"```python\n(.*?)```", README, re.S)[0], scope)
    X, y = scope["X"], scope["y"]
    clf = clone(scope["clf"]).fit(X[:50], y[:50])  # the block goes on to add examples
    X, y = X[50:], y[50:]
    claimed = re.search(r"right (\d+) % of the time, and (\d+) % sure", README)
    assert round(100 * clf.score(X, y)) == int(claimed[1])
    assert round(100 * clf.predict_proba(X).max(1).mean()) == int(claimed[2])


def test_its_table_is_the_measured_one():
    results = json.loads((ROOT / "results" / "demo.json").read_text("utf-8"))
    for line in table(results):
        assert line in README
    assert f"{results['peak_memory_mib']} MiB" in README
    words = {3: "three", 4: "four", 5: "five"}
    assert f"about {words[round(sorted(results['seconds'])[1] / 60)]} minutes" in README


@pytest.mark.parametrize("network", ["conv4", "resnet10"])
def test_it_says_which_numbers_are_second_measurements(network):
    name = {"conv4": "Conv-4", "resnet10": "ResNet-10"}[network]
    for shots in (1, 5):
        cell = json.loads((ROOT / "results" / "cells" / f"cub-{network}-{shots}shot.json").read_text("utf-8"))
        (note,) = [note for note in cell["notes"] if note.startswith("The second measurement")]
        one, five = re.search(r"had ([\d.]+) \(5-shot: ([\d.]+)\)", note).groups()
        assert f"{one} and {five} % ({name})" in " ".join(README.split())
        experiments = (ROOT / "docs" / "experiments.md").read_text("utf-8")
        assert f"[{one} and {five} % before]" in experiments


@pytest.mark.parametrize("line", re.findall(r"^\| (?:CUB|Omniglot).*\|$", README, re.M))
def test_its_numbers_beside_the_papers_are_those_of_the_results(line):
    name, *numbers = [entry.strip(" *") for entry in line.strip("|").split("|")]
    places = {"Conv-4": "conv4", "Conv-4S": "conv4s", "ResNet-10": "resnet10"}
    data, network = name.split(", ")
    setting = f"{data.lower().replace(' → ', '-')}, {places[network]}"
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    for shots, paper, ours in ((1, *numbers[:2]), (5, *numbers[2:])):
        row = re.search(rf"^\| {setting} \| {shots} \|(.*)\|$", results, re.M)[1]
        shown = [entry.strip(" *") for entry in row.split("|")]
        assert (shown[0], shown[2]) == (paper, ours)


def test_it_has_numbers_beside_the_papers():
    assert len(re.findall(r"^\| (?:CUB|Omniglot).*\|$", README, re.M)) == 3


@pytest.mark.parametrize(
    "file", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(file):
    text = (ROOT / file).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / file).parent / target).exists(), target


def test_its_first_table_is_that_of_the_stored_matrix():
    results = json.loads((ROOT / "results" / "honesty.json").read_text("utf-8"))
    assert "| 5, 1 | **" in README
    assert first_screen.render(README, results) == README


def test_the_tables_on_rows_without_labels_are_the_stored_ones():
    results = json.loads((ROOT / "results" / "pool.json").read_text("utf-8"))
    page = (ROOT / "docs" / "own-data.md").read_text("utf-8")
    assert "| 5-way 1-shot | 50, even | " in page
    assert pool.render(page, results) == page
