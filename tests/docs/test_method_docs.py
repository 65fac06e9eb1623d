"""docs/methods agrees with the package, and its example of a new method runs."""

import ast
import json
import re
import sys
import types
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from gpldla.heads import base as heads_base
from gpldla.heads import create_head, gpldla_auto, head_class, head_options, list_heads
from gpldla.heads.gp import peak, strangers, unlabelled
from gpldla.testing import HeadContract, random_episode
from gpldla.training import run as training
from gpldla.training.methods import methods
from gpldla.training.recipe import BaseSettings, read_recipe
from tests.helpers import tiny_protocol, tiny_recipe

FOLDER = Path(__file__).parents[2] / "docs" / "methods"
README = (FOLDER / "README.md").read_text("utf-8")
PAGES = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.md") if path.stem != "README"}
SECTIONS = [
    "What it is",
    "Formulas",
    "How it is trained",
    "Options",
    "What it can and cannot do",
    "Cost",
    "Where this differs from the paper",
    "Reference",
]
CODE = re.findall(r"```python\n(.*?)```", README, re.S)
every_head = pytest.mark.parametrize("head", list_heads())


def section(text, title):
    """Return the text under a heading of the second level."""
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def rows(text, first_column=None):
    """Return the cells of each table row whose first cell is `first_column`, or any code."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    wanted = r"`[^`]+`" if first_column is None else re.escape(f"`{first_column}`")
    return [row for row in cells if len(row) > 1 and re.fullmatch(wanted, row[0])]


def code_in(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_every_head_has_a_page_and_no_page_is_left_over():
    assert sorted(PAGES) == list_heads()


@every_head
def test_pages_have_the_same_sections(head):
    assert re.findall(r"^## (.*)", PAGES[head], re.M) == SECTIONS
    assert f"`{head}`" in section(PAGES[head], "What it is")
    assert len(section(PAGES[head], "What it is").strip().splitlines()) <= 5
    assert re.search(r"^    \S", section(PAGES[head], "Formulas"), re.M)
    assert re.search(r"arXiv \d{4}\.\d{5}|ICLR \d{4}", section(PAGES[head], "Reference"))


@every_head
def test_the_table_of_options_is_that_of_the_head(head):
    table = rows(section(PAGES[head], "Options"))
    stated = [(code_in(row[0])[0], ast.literal_eval(code_in(row[1])[0])) for row in table]
    assert stated == list(head_options(head).items())
    assert [type(default) for _, default in stated] == [type(d) for d in head_options(head).values()]


@every_head
def test_no_page_names_an_option_that_does_not_exist(head):
    named = re.findall(r"\bhead\.(?!py|md)(\w+)", PAGES[head])
    assert {*named} <= {*head_options(head), "name"}
    settings = {field.name for field in fields(BaseSettings)}
    assert {*re.findall(r"\bbase\.(?!py|md)(\w+)", PAGES[head])} <= settings
    assert {*re.findall(r"\b(?:head|base)_\w+", PAGES[head])} <= {"head_learning_rate", "base_mean"}


@every_head
def test_the_index_has_a_true_row_of_each_head(head):
    (row,) = rows(README.split("\n## ")[0], head)
    _, phrase, options, base_stage, consumes, page = row
    assert phrase
    assert code_in(options) == list(head_options(head))
    assert base_stage == (head_class(head).base_stage or "no")
    assert consumes == head_class(head).consumes
    assert re.fullmatch(r"\[.+\]\((.+)\)", page)[1] == f"{head}.md"


@pytest.mark.parametrize("method", methods().values(), ids=lambda method: method.name)
def test_presets_stand_in_the_index_and_with_their_settings_on_the_page(method):
    (row,) = rows(section(README, "Train any method on any recipe"), method.head)
    assert method.name in code_in(row[1])
    (row,) = rows(section(PAGES[method.head], "How it is trained"), method.name)
    settings = {
        f"{key} = {json.dumps(value)}" for key, value in method.settings.items() if key != "head.name"
    }
    if "the same and" in row[1]:  # as the preset that is called like the head
        (other,) = rows(section(PAGES[method.head], "How it is trained"), method.head)
        row[1] += other[1]
    stated = {code for code in code_in(row[1]) if " = " in code}
    assert stated == settings
    for pair in method.backbones.items():
        assert {*pair} <= {*code_in(row[1])}


def test_the_table_of_the_base_stage_has_defaults_and_what_presets_change():
    table = {code_in(row[0])[0]: row[1:3] for row in rows(section(README, "The base stage"))}
    defaults = {f"base.{field.name}": field.default for field in fields(BaseSettings)}
    assert {key: ast.literal_eval(code_in(row[0])[0]) for key, row in table.items()} == defaults
    changed = {key: ast.literal_eval(code_in(row[1])[0]) for key, row in table.items() if row[1]}
    for head in ("feature-transfer", "baseline++"):
        settings = methods()[head].settings.items()
        assert {key: value for key, value in settings if key.startswith("base.")} == changed


@pytest.mark.parametrize("file", ["README", *list_heads()])
def test_links_lead_somewhere(file):
    path = FOLDER / f"{file}.md"
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("file", ["README", *list_heads()])
def test_files_of_the_code_that_are_named_exist(file):
    text = (FOLDER / f"{file}.md").read_text("utf-8")
    made_by_the_reader = {"src/gpldla/heads/cosine_centroid.py", "tests/heads/test_cosine_centroid.py"}
    for named in {*re.findall(r"`((?:src|tests)/[\w/]+\.\w+)`", text)} - made_by_the_reader:
        assert (FOLDER.parents[1] / named).exists(), named


# ---- what one page says


def test_the_numbers_that_gpldla_auto_chooses_beta_by_are_those_of_the_code():
    formulas = section(PAGES["gpldla-auto"], "Formulas")
    assert f"β₀ = {strangers.DEFAULT_SCALE:g} / d^¼" in formulas
    assert f"β₀ = {strangers.LOGIT_SCALE:g} · N^{{1/3}}" in formulas
    assert f"({strangers.PRIOR_FREEDOM:g} · {strangers.PRIOR_LIKENESS:g}/√d + ν σ̂²)" in formulas
    assert f"½ (log(β/β₀) / {peak.PRIOR_WIDTH:g})²" in formulas
    assert f"for k from −{-peak.GRID[0]} to {peak.GRID[-1]};" in formulas
    assert f"Of more than {gpldla_auto.MAX_LEFT_OUT} examples" in formulas
    assert f"⌊n/{gpldla_auto.N_SCORED_EXAMPLES}⌋-th example is scored" in formulas


def test_gpldla_auto_without_its_additions_is_gpldla():
    assert "`center=False`,\n  `whiten=False` and a number for `beta`" in PAGES["gpldla-auto"]
    support, labels, query, _ = random_episode([1, 2, 4], 3, 5, 16)
    plain = create_head("gpldla", beta=2.0).eval()
    ours = create_head("gpldla-auto", beta=2.0, center=False, whiten=False).eval()
    assert torch.equal(
        ours.adapt(support, labels, 3).log_prob(query), plain.adapt(support, labels, 3).log_prob(query)
    )


# ---- the example of a new method

EXAMPLE = "cosine-centroid"


@pytest.fixture
def example():
    """Register the head of the example for one test."""
    (block,) = [block for block in CODE if "@register_head" in block]
    before = dict(heads_base._HEADS)
    module = types.ModuleType("cosine_centroid")
    exec(compile(block, "docs/methods/README.md", "exec"), module.__dict__)
    yield module
    heads_base._HEADS.clear()
    heads_base._HEADS.update(before)


def test_the_example_gives_probabilities(example):
    head = create_head(EXAMPLE, feature_dim=8)
    generator = torch.Generator().manual_seed(0)
    support, query = torch.randn(10, 8, generator=generator), torch.randn(4, 8, generator=generator)
    log_prob = head.adapt(support, torch.arange(5).repeat(2), 5).log_prob(query)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(4))


@pytest.mark.usefixtures("example")
class TestTheExample(HeadContract):
    name = EXAMPLE


def test_the_example_trains_as_the_text_says(example, tmp_path, monkeypatch):
    assert EXAMPLE in methods()
    assert read_recipe("cub", {"head.scale": 5.0}, method=EXAMPLE).head.options == {"scale": 5.0}
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    monkeypatch.setattr("gpldla.training.recipe.read_recipe", lambda _, method: tiny_recipe(head=method))
    monkeypatch.setitem(sys.modules, "cosine_centroid", example)
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in CODE if "import train" in block]
    exec(compile(block, "docs/methods/README.md", "exec"), {})
    config = json.loads((tmp_path / "runs" / EXAMPLE / "config.json").read_text("utf-8"))
    assert config["head"] == EXAMPLE


def test_the_contract_test_of_the_text_is_that_of_this_file(example):
    (block,) = [block for block in CODE if "HeadContract" in block]
    scope = {"__name__": "tests.heads.test_cosine_centroid", "__package__": "tests.heads"}
    exec(compile(block, "docs/methods/README.md", "exec"), scope)
    assert issubclass(scope["TestCosineCentroid"], HeadContract)
    assert scope["TestCosineCentroid"].name == TestTheExample.name


def test_the_example_is_forgotten_afterwards():
    assert EXAMPLE not in list_heads()


def test_the_numbers_that_gpldla_auto_learns_from_unlabelled_rows_by_are_those_of_the_code():
    formulas = section(PAGES["gpldla-auto"], "Formulas")
    assert f"(e{'⁰¹²³'[int(unlabelled.NONE)]} + Σ_l exp(cos_l/σ))" in formulas
    assert unlabelled.WEIGHT == 0.5
    assert "R_ij = r_ij/2" in formulas
    assert f"β is {unlabelled.UNLABELLED_FACTOR:g} times that of the labelled rows" in formulas
    assert unlabelled.STEPS == 3
    assert "in three steps" in formulas
