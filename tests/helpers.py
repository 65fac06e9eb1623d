"""Small data and recipes for tests, and the command line."""

import sys

import numpy as np
import pytest

from gpldla.cli import app as cli
from gpldla.data.protocols import Part, Protocol
from gpldla.data.store import ImageSet, image_set_from_classes
from gpldla.training.recipe import make_recipe


def tiny_set(counts=(6, 7, 8, 9), *, size=32, groups=None, seed=0) -> ImageSet:
    """Noise around one random picture a class, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    images = []
    for count in counts:
        picture = rng.integers(0, 256, (1, 1, size, size))
        noise = rng.integers(-40, 41, (count, 1, size, size))
        images.append(np.clip(picture + noise, 0, 255).astype(np.uint8))
    return image_set_from_classes("tiny", [f"class {i}" for i in range(len(counts))], images, groups)


def whole(image_set: ImageSet) -> Part:
    return Part(image_set, tuple(range(len(image_set.counts))))


def tiny_protocol(*args, **options) -> Protocol:
    """Stands in for load_protocol."""
    parts = {
        name: whole(tiny_set((6, 7, 8, 9), seed=i)) for i, name in enumerate(("base", "validation", "novel"))
    }
    return Protocol("tiny", parts)


def tiny_recipe(head="gpldla", **settings):
    """A training of a second on `tiny_protocol`.

    head: its name; settings: dotted names as in {"head.power": 0.7}, or head__power=0.7
    """
    defaults = {
        "dataset": "glyphs",
        "ways": 3,
        "shots": 1,
        "queries": 2,
        "episodes": 12,
        "validation.every": 4,
        "validation.episodes": 4,
        "validation.ways": 3,
        "validation.queries": 3,
        "validation.temperature_episodes": 4,
        "log_every": 2,
        "checkpoint_every": 4,
        "ema": 0.5,
    }
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return make_recipe({**defaults, "head.name": head, **given})


def call(*arguments):
    """Run the command in this process; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gpldla", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    return exit_.value.code
