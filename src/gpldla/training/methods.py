"""Methods to compare: a head with its options, and the training settings that go with it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpldla.heads import list_heads
from gpldla.training.setting_names import flatten
from gpldla.utils.errors import UserError, did_you_mean

FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Method:
    """A row of a comparison.

    settings: of a recipe, by dotted name; they win over those of the recipe that the method is trained by
    backbones: for some networks, the variant that the method wants
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    backbones: Mapping[str, str]

    @property
    def head(self) -> str:
        """The name of its head."""
        return str(self.settings["head.name"])

    def apply_to(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a recipe, by dotted name, with this method in place of its own."""
        others = {name: value for name, value in settings.items() if not name.startswith("head.")}
        if others.get("backbone") in self.backbones:
            others["backbone"] = self.backbones[others["backbone"]]
        return {**others, **self.settings}


def is_head_option(name: str) -> bool:
    """Return whether a setting, by dotted name, is an option of the head."""
    return name.startswith("head.") and name != "head.name"


def methods() -> dict[str, Method]:
    """Return the methods by name; a head that none of them uses is one itself, with its defaults."""
    described = {}
    for name, settings in tomllib.loads(FILE.read_text("utf-8")).items():
        title, backbones = settings.pop("title"), settings.pop("backbone", {})
        described[name] = Method(name, title, flatten(settings), backbones)
    used = {method.head for method in described.values()}
    others = {name: Method(name, name, {"head.name": name}, {}) for name in list_heads() if name not in used}
    return described | others


def find_method(name: str) -> Method:
    """Return a method by name."""
    known = methods()
    if name not in known:
        raise UserError(f"There is no method {name!r}{did_you_mean(name, known)}")
    return known[name]
