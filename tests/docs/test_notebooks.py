"""The notebooks run from the first cell to the last."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = ("embeddings", "meta-training", "photographs", "texts")


def test_each_is_run_below():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == list(NAMES)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path):
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", f"import matplotlib\nmatplotlib.use('Agg')\n{code}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # what a notebook writes goes to folders of its own
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
