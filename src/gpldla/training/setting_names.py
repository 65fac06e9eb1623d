"""Names of recipe settings: dotted as in TOML, and what the flat files of before called them."""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from gpldla.utils.errors import UserError

TABLES = ("head", "base", "validation")
# Older names that do not follow from their prefix.
_RENAMED = {
    "head": "head.name",
    "head_learning_rate": "head_learning_rate",  # a setting of the training, no option of the head
    "turns": "folds",
    "validate_every": "validation.every",
    "temperature_episodes": "validation.temperature_episodes",
}


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name: {"head": {"power": 0.7}} and {"head.power": 0.7} are the same."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": deeper for inner, deeper in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def current_name(name: str) -> str:
    """Return today's name of a setting: head_power → head.power; any other name stays."""
    if name in _RENAMED:
        return _RENAMED[name]
    table, _, rest = name.partition("_")
    return f"{table}.{rest}" if table in TABLES and rest else name


def stored_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a model or a training state has stored, in either form, by dotted name.

    Nothing is checked but the names: settings that were added later are missing.
    """
    return {current_name(name): value for name, value in flatten(stored).items()}


def explain_old_names(settings: Mapping[str, Any]) -> str:
    """Say how settings with older names are written now, as a part of a sentence."""
    return "; ".join(
        f"{name} is written {current_name(name)} now: {_as_toml(current_name(name), value)}"
        for name, value in settings.items()
    )


def _as_toml(name: str, value: object) -> str:
    table, _, key = name.rpartition(".")
    return (f"[{table}] " if table else "") + f"{key} = {json.dumps(value, default=str)}"


def current_command(command: str) -> str:
    """Return a `gpldla train` command with today's names after each --set."""
    words = command.split(" ")  # not shlex, which would lose the quotes
    for index in range(1, len(words)):
        if words[index - 1] == "--set":
            name, equals, value = words[index].partition("=")
            words[index] = current_name(name) + equals + value
    return " ".join(words)


def set_options(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as the words of a command: --set head.power=0.7."""
    return [word for name, value in flatten(settings).items() for word in ("--set", f"{name}={value}")]


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `key=value` from the command line; the value is TOML, and a bare word is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"{text!r} is not an override; write key=value.")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return name.strip(), value.strip()
