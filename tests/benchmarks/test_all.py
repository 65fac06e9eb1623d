"""The benchmark scripts run, and say what the documentation says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """Return the printed text and the saved numbers of benchmarks/predictive.py --quick."""
    json_file = tmp_path_factory.mktemp("results") / "predictive.json"
    command = [sys.executable, "-m", "benchmarks.predictive", "--quick", "--json", str(json_file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads(json_file.read_text())


def test_quadrature_is_exact_in_every_case(quick_run):
    _, result = quick_run
    errors = [row["largest_error"] for row in result["rows"] if row["method"] == "quadrature"]
    assert len(errors) == len(result["cases"])
    assert max(errors) < 0.02


def test_the_script_names_the_cheapest_exact_method(quick_run):
    printed, result = quick_run
    verdict = result["verdict"]
    assert "quadrature" in verdict["within_tolerance"]
    assert "quadrature" in verdict["within_tolerance_and_stress"]
    assert f"The cheapest of these: {verdict['cheapest']}." in printed
    assert f"The cheapest of these: {verdict['cheapest_and_stress']}." in printed


def test_the_unequal_case_is_unequal(quick_run):
    _, result = quick_run
    ratios = [case["median_variance_ratio"] for case in result["cases"] if case["column"] == "unequal shots"]
    assert min(ratios) > 20


def test_saved_numbers_say_where_they_come_from(quick_run):
    _, result = quick_run
    assert result["command"] == "python -m benchmarks.predictive --quick"
    assert {"commit", "device", "seeds", "truth_samples", "summary"} <= result.keys()


def test_loading_runs_without_any_data(tmp_path):
    """On generated photographs, for a blink: the script works, the speed is another matter."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.loading",
        "--seconds",
        "0.3",
        "--rounds",
        "1",
        "--files",
        "20",
    ]
    environment = {**os.environ, "GPLDLA_DATA": str(tmp_path), "GPLDLA_CACHE": str(tmp_path / "cache")}
    target = tmp_path / "loading.json"
    run = subprocess.run(
        [*command, "--json", str(target)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads(target.read_text())["rows"]
    assert [row["data"] for row in rows] == ["generated", "generated"]
    assert all(row["ratio"] > 1 for row in rows)


@pytest.mark.long
def test_pictures_run_without_any_data(tmp_path):
    """With a small network on few drawn pictures: every way works, and its rate is that of its pictures."""
    command = "-m benchmarks.pictures --model cub-conv4-5shot --rounds 1 --seconds 0.05 --small 60 --phone 4"
    environment = {**os.environ, "GPLDLA_DATA": str(tmp_path), "GPLDLA_CACHE": str(tmp_path / "cache")}
    target = tmp_path / "pictures.json"
    run = subprocess.run(
        [sys.executable, *command.split(), "--growth", "5", "10", "--json", str(target)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(target.read_text())
    assert [case["count"] for case in results["cases"]] == [60, 4]
    for case in results["cases"]:
        assert case["ratios"][case["best"]] == 1
        assert {"fit", "transform", "predict", "predict -o"} <= case["ratios"].keys()
        assert all(0.001 < ratio < 1000 for ratio in case["ratios"].values())
    assert [row["pictures"] for row in results["growth"]] == [5, 10]
    assert all(row["megabytes"] > 50 for row in results["growth"])
    imports, bare, stored, plain = results["first_answer_ms"].values()
    assert imports < bare < plain
    assert stored < plain
