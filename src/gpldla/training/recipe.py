"""Recipes: all settings of a training, read from TOML, with the shipped ones beside this file.

A new setting is one line in the dataclass that it belongs to; its range is beside its default.
"""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from gpldla.data.augment.training_images import TRAINING_TRANSFORMS
from gpldla.data.preprocessing import ImageSettings
from gpldla.heads import head_class, head_options
from gpldla.training.last_layers import LAYERS
from gpldla.training.methods import find_method, is_head_option
from gpldla.training.setting_names import (
    TABLES,
    current_name,
    explain_old_names,
    flatten,
    parse_override,
    stored_settings,
)
from gpldla.utils.errors import UserError, did_you_mean

__all__ = [
    "SHIPPED",
    "BaseSettings",
    "HeadSettings",
    "Recipe",
    "ValidationSettings",
    "flatten",
    "list_recipes",
    "make_recipe",
    "parse_override",
    "read_recipe",
    "read_settings",
    "stored_settings",
]

SHIPPED = Path(__file__).parent / "recipes"


# ---- ranges of settings


@dataclass(frozen=True)
class _Range:
    """Which values a setting may have, and the words for that."""

    holds: Callable[[Any], bool]
    words: str


def _setting(default: Any, allowed: _Range) -> Any:
    """Declare a setting with its default and the values that it may have."""
    return field(default=default, metadata={"allowed": allowed})


def _at_least(least: int) -> _Range:
    return _Range(lambda value: value >= least, f"at least {least}")


def _between(low: float, high: float) -> _Range:
    return _Range(lambda value: low <= value <= high, f"from {low} to {high}")


def _one_of(*words: str) -> _Range:
    return _Range(lambda value: value in words, f"one of {', '.join(words)}")


_POSITIVE = _Range(lambda value: 0 < value < math.inf, "positive")
_NOT_NEGATIVE = _Range(lambda value: 0 <= value < math.inf, "0 or more")
_SCHEDULE = _one_of("constant", "cosine", "step")


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise UserError(f"Recipe setting {name} = {value!r} must be {wanted}.")


class _Settings:
    """What the dataclasses below share: each value is checked against its range."""

    _table = ""  # prefix of the names of its settings: "base."

    def __post_init__(self) -> None:
        for setting in fields(self):  # type: ignore[arg-type]  # all that inherit are dataclasses
            allowed, value = setting.metadata.get("allowed"), getattr(self, setting.name)
            if allowed is not None:
                _require(allowed.holds(value), self._table + setting.name, value, allowed.words)


# ---- the settings


@dataclass(frozen=True)
class HeadSettings:
    """[head]: which few-shot method, and its options; in a file both are in one table."""

    name: str = "gpldla"
    options: dict[str, Any] = field(default_factory=dict)  # each head has its own: see docs/methods

    def __post_init__(self) -> None:
        known = head_options(self.name)
        for option in self.options:
            if option not in known:
                raise UserError(f"Head {self.name!r} has no option {option!r}{did_you_mean(option, known)}")


@dataclass(frozen=True)
class BaseSettings(_Settings):
    """[base]: the stage that trains the network to classify the base classes, where a method has one."""

    _table = "base."

    # "auto": what the head asks for
    classifier: str = _setting("auto", _one_of("auto", "none", *LAYERS))
    epochs: float = _setting(90.0, _POSITIVE)  # or a part of one
    batch: int = _setting(256, _at_least(2))
    optimizer: str = _setting("sgd", _one_of("sgd", "adam"))  # SGD has momentum 0.9
    learning_rate: float = _setting(0.1, _POSITIVE)
    weight_decay: float = _setting(0.0001, _NOT_NEGATIVE)
    schedule: str = _setting("step", _SCHEDULE)  # "step": a tenth after 1/2 and after 3/4 of the batches
    # Part of the batches over which the rate rises linearly, from a sixteenth, before the schedule starts
    warmup: float = _setting(0.0, _Range(lambda part: 0 <= part < 1, "at least 0 and less than 1"))
    validate_every: int = _setting(10, _NOT_NEGATIVE)  # epochs; 0: once, at the end


@dataclass(frozen=True)
class ValidationSettings(_Settings):
    """[validation]: tasks from the validation classes choose the weights that are kept."""

    _table = "validation."

    every: int = _setting(1_000, _NOT_NEGATIVE)  # episodes of training; 0: once, at the end
    episodes: int = _setting(200, _at_least(2))
    ways: int = 5
    shots: int = 0  # 0: as in training
    queries: int = 15
    temperature_episodes: int = _setting(600, _at_least(2))  # to fit the temperature on, at the end


@dataclass(frozen=True)
class Recipe(ImageSettings, _Settings):
    """Every setting of a training run.

    Those of `ImageSettings` are for images outside of training; zoom counts in training, too, where nothing
    crops images at random.
    """

    # What is trained on what
    dataset: str = "glyphs"
    backbone: str = "conv4s"
    start: str = ""  # the folder or name of a trained model, to begin with its network
    # Episodes
    ways: int = 5
    shots: int = 1
    queries: int = 16
    # The images of an episode are split into so many folds, which take turns as its query; the loss is the
    # mean over folds. With shots + queries folds and one query per class: leave-one-out episodes.
    folds: int = _setting(1, _at_least(1))
    separate_groups: bool = False  # support and query of a class from different groups (font families)
    stored_side: int = _setting(
        0, _between(0, 4096)
    )  # of packed photographs, in pixels; 0: what suits the backbone
    augment: str = _setting("none", _one_of(*TRAINING_TRANSFORMS))  # random changes to training images
    # Part of a photograph's area: more than 0, at most 1
    smallest_crop: float = _setting(0.08, _Range(lambda part: 0 < part <= 1, "more than 0, at most 1"))
    # Of photographs: brightness, contrast and saturation times 0.6 to 1.4
    colour_jitter: float = _setting(0.4, _between(0, 1))
    # Feature-wise transformation (arXiv 2001.08735, which has 0.3 and 0.5): the standard deviations of a
    # random scale and shift of each channel after each block, in training
    feature_wise_scale: float = _setting(0.0, _NOT_NEGATIVE)
    feature_wise_shift: float = _setting(0.0, _NOT_NEGATIVE)
    episodes: int = _setting(60_000, _at_least(1))
    episodes_per_update: int = _setting(1, _at_least(1))
    seed: int = _setting(0, _Range(lambda seed: -(2**63) <= seed < 2**63, "a number of 64 bits"))
    # Optimisation: Adam with one rate for the network and one for the head's parameters
    learning_rate: float = _setting(0.002, _POSITIVE)
    weight_decay: float = _setting(
        0.0, _NOT_NEGATIVE
    )  # of the network, decoupled: each step subtracts rate × decay × w
    head_learning_rate: float = _setting(0.005, _POSITIVE)
    schedule: str = _setting("cosine", _SCHEDULE)  # "cosine" ends at 0
    decay_every: int = _setting(3_000, _at_least(1))  # episodes between the decays of "step"
    decay_factor: float = _setting(0.5, _POSITIVE)
    # Decay of the averaged weights that are validated and kept, less in a training of fewer than
    # 5 / (1 - ema) updates; 0 keeps the last weights
    ema: float = _setting(0.0, _Range(lambda ema: 0 <= ema < 1, "at least 0 and less than 1"))
    # As Lightning Fabric names them; not 16-mixed, whose loss scale is a state that checkpoints do not have
    precision: str = _setting("32-true", _one_of("32-true", "bf16-mixed", "64-true"))
    # Reporting, in episodes, or batches of the base stage
    log_every: int = _setting(20, _at_least(1))
    checkpoint_every: int = _setting(1_000, _at_least(1))
    tracker: str = _setting("none", _one_of("none", "mlflow", "wandb"))  # where metrics go besides the folder
    # Tables
    head: HeadSettings = field(default_factory=HeadSettings)
    base: BaseSettings = field(default_factory=BaseSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)

    def __post_init__(self) -> None:
        try:
            ImageSettings.__post_init__(self)
        except UserError as error:
            raise UserError(f"Recipe setting {error}") from None
        _Settings.__post_init__(self)
        most = 1 if self.separate_groups else self.shots + self.queries
        wanted = "1 with separate_groups" if self.separate_groups else f"at most shots + queries, {most}"
        _require(self.folds <= most, "folds", self.folds, wanted)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as in a file: general ones, then the tables."""
        settings = {name: value for name, value in vars(self).items() if name not in TABLES}
        return {
            **settings,
            "head": {"name": self.head.name, **self.head.options},
            "base": dict(vars(self.base)),
            "validation": dict(vars(self.validation)),
        }

    @property
    def validation_shots(self) -> int:
        """Shots of the tasks that the model is chosen for."""
        return self.validation.shots or self.shots

    def learning_rate_factor(self, episode: int) -> float:
        """Return what the rates are multiplied with when `episode` episodes are done."""
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, episode / self.episodes)))
        if self.schedule == "step":
            return float(self.decay_factor ** (episode // self.decay_every))
        return 1.0


# ---- from settings to a recipe


def setting_types(head: str) -> dict[str, type]:
    """Return the type of every setting of a recipe with this head, by dotted name."""
    types: dict[str, type] = {"head.name": str}
    for prefix, kind in (("", Recipe), ("base.", BaseSettings), ("validation.", ValidationSettings)):
        hints = get_type_hints(kind)
        types |= {prefix + f.name: hints[f.name] for f in fields(kind) if prefix + f.name not in TABLES}
    for option, default in head_options(head).items():
        # A number may stand for "auto" in some heads, which check their options themselves.
        is_checked = type(default) in (bool, int, float, str) and default != "auto"
        types[f"head.{option}"] = type(default) if is_checked else object
    return types


def make_recipe(settings: Mapping[str, Any]) -> Recipe:
    """Check settings, in tables or by dotted names, and make a recipe; a wrong name or type is named."""
    flat = flatten(settings)
    head = _converted("head.name", flat.get("head.name", HeadSettings.name), str)
    types = setting_types(head)
    unknown = {name: value for name, value in flat.items() if name not in types}
    older = {name: value for name, value in unknown.items() if current_name(name) in types}
    if older:
        raise UserError(f"{explain_old_names(older)}.")
    tables: dict[str, dict[str, Any]] = {table: {} for table in ("", *TABLES)}
    for name, value in flat.items():
        if name in unknown:
            where = f" with head {head!r}" if name.startswith("head.") else ""
            raise UserError(f"There is no recipe setting {name!r}{where}{did_you_mean(name, types)}")
        table, _, key = name.rpartition(".")
        tables[table][key] = _converted(name, value, types[name])
    options = {key: value for key, value in tables["head"].items() if key != "name"}
    return Recipe(
        **tables[""],
        head=HeadSettings(head, options),
        base=BaseSettings(**tables["base"]),
        validation=ValidationSettings(**tables["validation"]),
    )


def _converted(name: str, value: Any, kind: type) -> Any:
    """Accept a value of the wanted type, a whole number for a float, and nothing else."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and not -(2**63) <= value < 2**63:  # which neither torch nor floats take
        raise UserError(f"Recipe setting {name} must be a number of at most 64 bits.")
    if kind is float and is_whole:
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"Recipe setting {name} = {value!r} must be of type {kind.__name__}.")
    return value


def read_recipe(
    name_or_path: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
) -> Recipe:
    """Read a shipped recipe by name, a TOML file by path, or settings.

    The settings of a `method` win over those of the recipe, and `overrides` over both. Where these name
    another head, the options of the recipe's own are left out, and mirror images if it sees no features.
    """
    overrides = flatten(overrides or {})
    settings = flatten(name_or_path) if isinstance(name_or_path, Mapping) else read_settings(name_or_path)
    if method is not None:
        settings = find_method(method).apply_to({"backbone": Recipe.backbone, **settings})
    before = settings.get("head.name", HeadSettings.name)
    head = overrides.get("head.name", before)
    if head != before:
        settings = {name: value for name, value in settings.items() if not is_head_option(name)}
    if isinstance(head, str) and head_class(head).consumes != "features":
        settings.pop("mirrored", None)
    return make_recipe({**settings, **overrides})


def read_settings(name_or_path: str | Path) -> dict[str, Any]:
    """Return the settings in a recipe's file by dotted name, unchecked."""
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.is_file():
        shipped = list_recipes()
        if str(name_or_path) not in shipped:
            raise UserError(
                f"There is no recipe {str(name_or_path)!r}{did_you_mean(str(name_or_path), shipped)}"
            )
        path = SHIPPED / f"{name_or_path}.toml"
    try:
        return flatten(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise UserError(f"There is no recipe file {path}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable TOML ({error}).") from None


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))
