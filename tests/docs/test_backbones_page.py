"""The page docs/backbones.md: its commands and its code, with tiny networks in the place of the hub's."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.backbones import table
from PIL import Image
from torch import nn

from tests.backbones.hub_models import save_tiny

pytest.importorskip("transformers")
PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
OUTSIDE = re.sub(r"```python\n.*?```", "", PAGE.read_text(), flags=re.DOTALL)
COMMANDS = re.findall(r"^    (.*)$", OUTSIDE, re.MULTILINE)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the pictures of the page, and the hub's cache with its network."""
    rng = np.random.default_rng(0)
    for name in ("wren", "robin"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            picture = Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8))
            picture.save(tmp_path / "photos" / name / f"{index}.jpg")
            picture.save(tmp_path / f"{name}-{index}.jpg")
    picture.save(tmp_path / "new.jpg")
    root = tmp_path / "cache" / "models--facebook--dinov2-small"
    save_tiny("dinov2", root / "snapshots" / ("a" * 40))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "features"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands(place, capsys, monkeypatch):
    from gpldla.cli import main

    ran = [command for command in COMMANDS if command.startswith("gpldla ")]
    assert len(ran) >= 3
    for command in ran:
        monkeypatch.setattr("sys.argv", shlex.split(command))
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, (command, capsys.readouterr().err)
    assert "wren" in capsys.readouterr().out
    getting = [command for command in COMMANDS if not command.startswith("gpldla ")]
    assert getting == ["pip install 'gpldla[hf]'", "hf download facebook/dinov2-small"]


def test_the_table_is_that_of_the_results():
    results = json.loads((PAGE.parents[1] / "results" / "backbones.json").read_text())
    assert "<!-- backbones -->\n" + "\n".join(table(results)) + "\n<!-- end -->" in PAGE.read_text()
    by_network = {row["backbone"]: row["relative"] for row in results["networks"]}
    assert 0.4 < by_network["efficientnet-lite2"] < 0.6  # "about half the speed"
    lower = [row for row in results["rows"] if row["backbone"] == "efficientnet-lite2"]
    assert all(row["nll_difference"] < 0 < row["accuracy_difference"] for row in lower)  # "in every cell"


class Pooled(nn.Module):
    """A module as a user has one."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 5)

    def forward(self, images):
        return self.convolution(images).relu().mean((2, 3))


@pytest.mark.parametrize("block", BLOCKS)
def test_code(place, block):
    torch.manual_seed(0)
    assert len(BLOCKS) == 2
    exec(block, {"module": Pooled()})
