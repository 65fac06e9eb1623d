"""The tutorials run as they stand, and what they say of their outcome is so."""

import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.method_figures import FIGURES

DOCS = Path(__file__).parents[2] / "docs"


def outcome(name, **replaced):
    """Run the code and the commands of a tutorial, and return its names."""
    scope: dict = {}
    page = (DOCS / "tutorials" / f"{name}.md").read_text("utf-8")
    for old, new in replaced.items():
        assert old in page
        page = page.replace(old, new)
    for language, block in re.findall(r"```(python|bash)\n(.*?)```", page, re.S):
        if language == "python":
            exec(compile(block, name, "exec"), scope)
        for command in block.splitlines() if language == "bash" else []:
            program, *arguments = shlex.split(command)
            subprocess.run([sys.executable, "-m", program, *arguments], check=True, timeout=600)
    return scope


def test_reading_a_reliability_diagram():
    diagram = outcome("reliability")["diagram"]
    assert diagram.counts.sum() == 1747
    assert 0 < diagram.error < 10


def test_a_bin_of_twenty_answers_is_nine_points_off():
    page = (DOCS / "tutorials" / "reliability.md").read_text("utf-8")
    assert "bin of 20 answers that are right half of the time lies 9 points off on average" in " ".join(
        page.split()
    )
    draws = np.random.default_rng(0).binomial(20, 0.5, 100_000)
    assert 100 * np.abs(draws / 20 - 0.5).mean() == pytest.approx(9, abs=0.5)


def test_abstaining_and_new_classes():
    found = outcome("abstaining")
    clf, X, y = found["clf"], found["X"], found["y"]
    assert clf.classes_.tolist() == list(range(8))
    given, right = found["given"], found["right"]
    known = y[found["rest"]] < 7
    assert given[known].mean() > 3 * given[~known].mean()
    assert right[given].mean() > 0.9
    assert clf.score(X[y == 7], y[y == 7]) > 0.8


def test_your_own_prior():
    found = outcome("prior")
    assert found["taught"] > found["plain"] - 0.01
    assert found["taught_nll"] < found["plain_nll"]


def test_teaching_over_http(tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    found = outcome("serving", **{"8123": port})
    assert found["server"].returncode in (0, -signal.SIGTERM)
    assert (
        found["classifier"].predict([found["digits"].images[row, 0] for row in found["ones"][6:9]]).tolist()
        == ["one"] * 3
    )


@pytest.mark.long
def test_training_on_many_gpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(outcome("many-gpus")["one"]) > 10


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_the_method_are_drawn(name):
    figure = FIGURES[name]()
    assert all(ax.get_title(loc="left") for ax in figure.axes)
    assert (DOCS / "images" / f"{name}.png").exists()
    page = (DOCS / "how-it-works.md").read_text("utf-8")
    assert f"images/{name}.png" in page
