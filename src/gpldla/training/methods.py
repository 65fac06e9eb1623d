"""Methods to compare: a head with its options, and the training settings that go with it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpldla.heads import list_heads
from gpldla.utils.errors import UserError, did_you_mean

FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Method:
    """A row of a comparison.

    settings: of a recipe; they win over those of the recipe that the method is trained by
    backbones: for some networks, the variant that the method wants
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    backbones: Mapping[str, str]

    @property
    def head(self) -> str:
        """The name of its head."""
        return self.settings["head"]

    def apply_to(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a recipe with this method in place of its own."""
        own_options = {"head", *(key for key in recipe if is_head_option(key))}
        settings = {key: value for key, value in recipe.items() if key not in own_options}
        if settings.get("backbone") in self.backbones:
            settings["backbone"] = self.backbones[settings["backbone"]]
        return {**settings, **self.settings}


def is_head_option(key: str) -> bool:
    """Say whether a recipe's setting is an option of its head."""
    return key.startswith("head_") and key != "head_learning_rate"


def methods() -> dict[str, Method]:
    """Return the methods by name; a head that none of them uses is one itself, with its defaults."""
    described = {}
    for name, settings in tomllib.loads(FILE.read_text("utf-8")).items():
        title, backbones = settings.pop("title"), settings.pop("backbone", {})
        described[name] = Method(name, title, settings, backbones)
    used = {method.head for method in described.values()}
    others = {name: Method(name, name, {"head": name}, {}) for name in list_heads() if name not in used}
    return described | others


def find_method(name: str) -> Method:
    """Return a method by name."""
    known = methods()
    if name not in known:
        raise UserError(f"There is no method {name!r}{did_you_mean(name, known)}")
    return known[name]
