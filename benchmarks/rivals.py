"""The trainings of all methods beside GPLDLA on one protocol, from benchmarks/rivals.toml."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpldla.training.methods import find_method
from gpldla.training.recipe import read_settings
from gpldla.training.setting_names import flatten

BUDGET = "Four trials at a quarter of the length, on validation classes, chose its settings."


def rival_entries(file: Path) -> dict[str, dict[str, Any]]:
    """Return entries like those of benchmarks/paper.toml by name; none where there is no such file."""
    if not file.is_file():
        return {}
    written = tomllib.loads(file.read_text("utf-8"))
    return {
        entry.pop("name"): entry
        for method, of_method in written["methods"].items()
        for protocol in written["protocols"]
        if protocol in of_method.get("only", _usual(written["protocols"]))
        for entry in _entries(method, of_method, protocol, written["protocols"])
    }


def _usual(protocols: dict[str, Any]) -> list[str]:
    """Return the protocols of a method that does not name its own."""
    return [name for name in protocols if not protocols[name].get("named_only")]


def _entries(
    method: str, of_method: dict[str, Any], protocol: str, protocols: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the one-shot and the five-shot entry of a method on a protocol."""
    facts = protocols[protocol]
    tried_on = facts.get("as_in", protocol)
    for shots in (1, 5):
        of_shots = {"shots": shots, "validation.shots": shots, "episodes": facts["episodes"][str(shots)]}
        settings = flatten(facts["set"]) | of_shots | flatten(of_method.get("set", {}))
        settings |= flatten(of_method.get(f"{shots}shot", {}))
        if read_settings(facts["recipe"])["backbone"] != facts["backbone"]:
            settings |= {"backbone": facts["backbone"]}
        tried = _name(method, tried_on, protocols[tried_on], 1)
        name = _name(method, protocol, facts, shots)
        entry = {"name": name, "recipe": facts["recipe"], "method": method, "set": settings}
        entry |= {"episodes": facts["tested"]}
        if of_method.get("trials"):
            entry |= {"trials": of_method["trials"]} if name == tried else {"as_in": tried}
            entry |= {"notes": [BUDGET]}
        yield entry


def _name(method: str, protocol: str, facts: dict[str, Any], shots: int) -> str:
    """Return the name of an entry, which has the variant of the network that the method wants."""
    network = find_method(method).backbones.get(facts["backbone"], facts["backbone"])
    return f"{facts['recipe']}-{network}-{shots}shot-{method}"
