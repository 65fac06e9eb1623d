"""docs/architecture.md names the rooms of the contract and files that exist, and its examples run."""

import json
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch

from gpldla import FewShotModel
from gpldla.backbones import base as backbones_base
from gpldla.backbones import create_backbone, list_backbones
from gpldla.data import list_protocols, list_sets
from gpldla.data import protocols as protocols_module
from gpldla.data import sets as sets_module
from gpldla.heads import base as heads_base
from gpldla.heads import list_heads
from gpldla.testing import HeadContract
from gpldla.training import recipe as recipe_module
from gpldla.training.methods import methods
from gpldla.utils.errors import UserError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
EXAMPLES = ("A head", "A backbone", "A data set", "A recipe setting", "A command")


def blocks(title):
    """Return the code of the section of an example."""
    section = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)[1]
    return re.findall(r"```python\n(.*?)```", section, re.S)


def run_blocks(title, count=None):
    """Run the blocks of a section, one after another in one module, and return the module."""
    module = types.ModuleType(f"architecture_{title.replace(' ', '_').lower()}")
    sys.modules[module.__name__] = module  # where dataclasses look for the types of fields
    for block in blocks(title)[:count]:
        exec(compile(block, f"docs/architecture.md, {title}", "exec"), module.__dict__)
    return module


@pytest.fixture(autouse=True)
def only_for_one_test(monkeypatch, tmp_path):
    """Take back what the examples register, and let them write elsewhere."""
    monkeypatch.chdir(tmp_path)
    registries = (
        heads_base._HEADS,
        backbones_base._BACKBONES,
        sets_module.SETS,
        protocols_module.PROTOCOLS,
    )
    before = [dict(registry) for registry in registries]
    modules = set(sys.modules)
    yield
    for registry, content in zip(registries, before):
        registry.clear()
        registry.update(content)
    for name in set(sys.modules) - modules:
        if name.startswith("architecture_"):
            del sys.modules[name]


def test_every_block_of_python_belongs_to_an_example():
    assert PAGE.count("```python") == sum(len(blocks(title)) for title in EXAMPLES)


def test_the_rooms_are_those_of_the_contract_in_its_order():
    table = re.search(r"^## The rooms\n(.*?)^## ", PAGE, re.M | re.S)[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = contract["contracts"][0]["layers"]
    stated = [{*re.findall(r"`(\w+)`", row)} for row in rows]
    assert stated == [{room.strip().removeprefix("gpldla.") for room in layer.split("|")} for layer in layers]


def test_every_room_of_the_package_is_on_the_page():
    folder = ROOT / "src" / "gpldla"
    rooms = {
        path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    table = re.search(r"^## The rooms\n(.*?)^## ", PAGE, re.M | re.S)[1]
    assert rooms - {"__init__", "__main__"} <= {*re.findall(r"`(\w+)`", table)}


def test_the_files_of_the_diagram_exist():
    diagram = re.search(r"```mermaid\n(.*?)```", PAGE, re.S)[1]
    named = [name for text in re.findall(r"<br/>([^\"]+)", diagram) for name in text.split(", ")]
    assert len(named) >= 10
    for name in named:
        assert (ROOT / "src" / "gpldla" / name).exists(), name


def test_a_head(monkeypatch):
    assert "nearest-example" not in list_heads()
    module = run_blocks("A head")
    assert "nearest-example" in methods()
    assert module.result.finished
    config = json.loads(Path("runs/nearest-example/config.json").read_text("utf-8"))
    assert config["head"] == "nearest-example"
    assert FewShotModel.from_pretrained("runs/nearest-example").head.log_scale.item() != 0  # it was trained


class TestTheHead(HeadContract):
    name = "nearest-example"

    @pytest.fixture(autouse=True)
    def registered(self, only_for_one_test):
        run_blocks("A head", 1)


def test_a_backbone():
    assert "two-blocks" not in list_backbones()
    run_blocks("A backbone")
    backbone = create_backbone("two-blocks").eval()
    images = torch.rand(2, 1, 28, 28)
    assert backbone(images).shape == (2, backbone.feature_dim)
    assert backbone.maps(images).shape == (2, *backbone.map_shape)
    assert FewShotModel.from_pretrained("runs/two-blocks").backbone_name == "two-blocks"


def test_a_data_set(run):
    assert "dots" not in list_sets()
    run_blocks("A data set")
    assert "dots" in list_protocols()
    code, out, _ = run("data", "prepare", "dots")
    assert code == 0
    assert "dots novel: 10 classes, 300 of the 1,800 images" in out


def test_a_recipe_setting(monkeypatch):
    module = run_blocks("A recipe setting")
    with pytest.raises(UserError, match="warmup = -1"):
        module.WarmupRecipe(warmup=-1)
    monkeypatch.setattr(recipe_module, "Recipe", module.WarmupRecipe)  # as if the lines were in Recipe
    assert recipe_module.read_recipe("demo-fast").warmup == 0
    assert recipe_module.read_recipe("demo-fast", {"warmup": 30}).warmup == 30
    with pytest.raises(UserError, match="warmup"):
        recipe_module.read_recipe("demo-fast", {"warmup": "long"})
    with pytest.raises(UserError, match="warmup"):
        recipe_module.read_recipe("demo-fast", {"warmupp": 30})


def test_a_command(run):
    from gpldla.cli.app import app

    before = list(app.registered_commands)
    try:
        run_blocks("A command")
        code, out, _ = run("heads", "--json")
        assert code == 0
        assert json.loads(out)["gpdkt"] == {"kernel": "bncosine", "noise": 0.1}
        code, out, _ = run("heads")
        assert "relationnet: no options" in out
        code, out, _ = run("heads", "--help")
        assert "Example: gpldla heads" in out
    finally:
        app.registered_commands[:] = before
