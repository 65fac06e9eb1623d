"""Recipes: one flat list of settings a training, read from TOML, with the shipped ones beside this file."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from gpldla.data.augment.training_images import TRAINING_TRANSFORMS
from gpldla.data.preprocessing import ImageSettings
from gpldla.heads import head_class, head_options
from gpldla.training.methods import find_method, is_head_option
from gpldla.utils.errors import UserError, did_you_mean

SHIPPED = Path(__file__).parent / "recipes"
HEAD_OPTION = "head_"  # a key with this prefix goes to the head: head_n_samples = 10
BASE_CLASSIFIERS = ("auto", "none", "linear", "cosine")
SCHEDULES = ("constant", "cosine", "step")
# Not 16-mixed, which scales its loss by a state that checkpoints do not have.
PRECISIONS = ("32-true", "bf16-mixed", "64-true")


@dataclass(frozen=True)
class Recipe(ImageSettings):
    """Every setting of a training run.

    Those of `ImageSettings` are for images outside of training; zoom counts in training, too, where nothing
    crops images at random.
    """

    # What is trained on what
    dataset: str = "glyphs"
    backbone: str = "conv4s"
    head: str = "gpldla"
    start: str = ""  # the folder or name of a trained model, to begin with its network
    # Episodes
    ways: int = 5
    shots: int = 1
    queries: int = 16
    turns: int = 1  # of a class's images as its support, in one episode; the loss is the mean over turns
    separate_groups: bool = False  # support and query of a class from different groups (font families)
    stored_side: int = 0  # of packed photographs, in pixels; 0: what suits the backbone
    augment: str = "none"  # what happens to training images: "characters", "strokes", "photographs", nothing
    smallest_crop: float = 0.08  # of a photograph's area
    colour_jitter: float = 0.4  # of photographs: brightness, contrast and saturation times 0.6 to 1.4
    episodes: int = 60_000
    episodes_per_update: int = 1
    seed: int = 0
    # Optimisation: Adam with one rate for the network and one for the head's parameters
    learning_rate: float = 0.002
    weight_decay: float = 0.0  # of the network: each step takes rate × decay of a weight away
    head_learning_rate: float = 0.005
    schedule: str = "cosine"  # "constant", "cosine" to 0, or "step"
    decay_every: int = 3_000  # episodes between the decays of "step"
    decay_factor: float = 0.5
    # Decay of the averaged weights that are validated and kept, less in a training of fewer than
    # 5 / (1 - ema) updates; 0 keeps the last weights
    ema: float = 0.0
    precision: str = "32-true"  # or "bf16-mixed" or "64-true", as Lightning Fabric names them
    # Validation classes choose the weights that are kept; validate_every = 0 looks at them once, at the end
    validate_every: int = 1_000
    validation_episodes: int = 200
    validation_ways: int = 5
    validation_shots: int = 0  # 0: as in training
    validation_queries: int = 15
    temperature_episodes: int = 600
    # The base stage of methods that have one: a classifier of the base classes trains the network first.
    base_classifier: str = "auto"  # "auto": what the head asks for; "linear", "cosine" or "none"
    base_epochs: float = 90.0  # or a part of one
    base_batch: int = 256
    base_optimizer: str = "sgd"  # with momentum 0.9, or "adam"
    base_learning_rate: float = 0.1
    base_weight_decay: float = 0.0001
    base_schedule: str = "step"  # a tenth after 1/2 and after 3/4 of the batches; or "constant", "cosine"
    base_validate_every: int = 10  # epochs; 0 looks at the validation classes once, at the end
    # Reporting, in episodes, or batches of the base stage
    log_every: int = 20
    checkpoint_every: int = 1_000
    head_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except UserError as error:
            raise UserError(f"Recipe setting {error}") from None
        for name in (
            "episodes",
            "episodes_per_update",
            "turns",
            "log_every",
            "checkpoint_every",
            "decay_every",
        ):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        most = 1 if self.separate_groups else self.shots + self.queries
        wanted = "1 with separate_groups" if self.separate_groups else f"at most shots + queries, {most}"
        _require(self.turns <= most, "turns", self.turns, wanted)
        _require(self.base_batch >= 2, "base_batch", self.base_batch, "at least 2")
        for name in ("weight_decay", "base_validate_every", "base_weight_decay"):
            _require(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more")
        for name in (
            "learning_rate",
            "head_learning_rate",
            "decay_factor",
            "base_epochs",
            "base_learning_rate",
        ):
            _require(0 < getattr(self, name) < math.inf, name, getattr(self, name), "positive")
        _require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a number of 64 bits")
        for name in ("validation_episodes", "temperature_episodes"):
            _require(getattr(self, name) >= 2, name, getattr(self, name), "at least 2")
        _require(0 < self.smallest_crop <= 1, "smallest_crop", self.smallest_crop, "more than 0, at most 1")
        _require(0 <= self.colour_jitter <= 1, "colour_jitter", self.colour_jitter, "from 0 to 1")
        _require(0 <= self.stored_side <= 4096, "stored_side", self.stored_side, "from 0 to 4096")
        _require(self.validate_every >= 0, "validate_every", self.validate_every, "0 or more")
        _require(0 <= self.ema < 1, "ema", self.ema, "at least 0 and less than 1")
        for name, words in (
            ("schedule", SCHEDULES),
            ("augment", tuple(TRAINING_TRANSFORMS)),
            ("precision", PRECISIONS),
            ("base_classifier", BASE_CLASSIFIERS),
            ("base_optimizer", ("sgd", "adam")),
            ("base_schedule", SCHEDULES),
        ):
            _require(getattr(self, name) in words, name, getattr(self, name), f"one of {', '.join(words)}")
        known = head_options(self.head)
        for option in self.head_options:
            if option not in known:
                raise UserError(f"Head {self.head!r} has no option {option!r}{did_you_mean(option, known)}")

    def flat(self) -> dict[str, Any]:
        """Return the settings as they stand in a file."""
        settings = asdict(self)
        options = settings.pop("head_options")
        return settings | {HEAD_OPTION + name: value for name, value in options.items()}

    def learning_rate_factor(self, episode: int) -> float:
        """Return what the rates are multiplied with when `episode` episodes are done."""
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, episode / self.episodes)))
        if self.schedule == "step":
            return self.decay_factor ** (episode // self.decay_every)
        return 1.0


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise UserError(f"Recipe setting {name} = {value!r} must be {wanted}.")


def make_recipe(settings: Mapping[str, Any]) -> Recipe:
    """Check a flat list of settings and make a recipe; a wrong key or type is named."""
    types = {name: kind for name, kind in get_type_hints(Recipe).items() if name != "head_options"}
    head = _converted("head", settings.get("head", Recipe.head), str)
    options = {HEAD_OPTION + name: default for name, default in head_options(head).items()}
    chosen: dict[str, Any] = {}
    chosen_options: dict[str, Any] = {}
    for key, value in settings.items():
        if key in types:
            chosen[key] = _converted(key, value, types[key])
        elif key in options:
            kind = type(options[key])
            name = key.removeprefix(HEAD_OPTION)
            # A number may stand for "auto" in some heads, which look for themselves.
            is_checked = kind in (bool, int, float, str) and options[key] != "auto"
            chosen_options[name] = _converted(key, value, kind) if is_checked else value
        else:
            where = f" with head {head!r}" if key.startswith(HEAD_OPTION) else ""
            raise UserError(
                f"There is no recipe setting {key!r}{where}{did_you_mean(key, [*types, *options])}"
            )
    return Recipe(**chosen, head_options=chosen_options)


def _converted(key: str, value: Any, kind: type) -> Any:
    """Accept a value of the wanted type, a whole number for a float, and nothing else."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"Recipe setting {key} = {value!r} must be of type {kind.__name__}.")
    return value


def read_recipe(
    name_or_path: str | Path, overrides: Mapping[str, Any] | None = None, *, method: str | None = None
) -> Recipe:
    """Read a shipped recipe by name or a TOML file by path.

    The settings of a `method` win over those of the recipe, and `overrides` over both. Where these name
    another head, the options of the recipe's own are left out, and mirror images if it sees no features.
    """
    settings = read_settings(name_or_path)
    if method is not None:
        settings = find_method(method).apply_to({"backbone": Recipe.backbone, **settings})
    overrides = overrides or {}
    if "head" in overrides and overrides["head"] != settings.get("head", Recipe.head):
        settings = {key: value for key, value in settings.items() if not is_head_option(key)}
    head = overrides.get("head", settings.get("head", Recipe.head))
    if isinstance(head, str) and head_class(head).consumes != "features":
        settings.pop("mirrored", None)
    return make_recipe({**settings, **overrides})


def read_settings(name_or_path: str | Path) -> dict[str, Any]:
    """Return what stands in a recipe's file, unchecked."""
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.is_file():
        shipped = list_recipes()
        if str(name_or_path) not in shipped:
            raise UserError(
                f"There is no recipe {str(name_or_path)!r}{did_you_mean(str(name_or_path), shipped)}"
            )
        path = SHIPPED / f"{name_or_path}.toml"
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no recipe file {path}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not readable TOML ({error}).") from None


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `key=value` from the command line; the value is TOML, and a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{text!r} is not an override; write key=value.")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
