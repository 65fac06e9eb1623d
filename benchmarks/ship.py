"""Make a shipped model of a run: weights, configuration, training curve and card, in the package.

    python -m benchmarks.ship RUN_FOLDER NAME [--to src/gpldla/classifier/models] [--note SENTENCE]

RUN_FOLDER is what `python -m benchmarks.paper train` leaves: a model, metrics.jsonl and measured.json. Every
number of the card comes from these; what they cannot know, such as the terms of the data, is in ship.toml.
"""

import argparse
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError
from torch import Tensor

from benchmarks.paper import MEASURED
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.model_files import write_model_files
from gpldla.classifier.shipped import CARD, CONFIG, CURVE, MODELS
from gpldla.data.augment.transforms import evaluation_images
from gpldla.data.catalog import find_set, sources_of
from gpldla.data.sets import StoredSet
from gpldla.reports.plots import training_curve
from gpldla.training.metrics import METRICS
from gpldla.training.recipe import HeadSettings, Recipe, flatten, stored_settings
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, read_json, write_atomically

HERE = Path(__file__).parent
WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
LARGE = 1_000_000  # bytes of weights above which they are rounded to float16
TOLERANCE = 0.01  # how far rounding may move a feature vector, relative to its length
TEMPERATURES = {  # what the card calls them; suffix of the numbers, name of the temperature
    "none": ("", None),
    "stored in the model": ("_model_temperature", "temperature_model"),
    "from validation classes, for this task": ("_val_temperature", "temperature_val"),
    "from other tasks of novel classes, as in the paper": ("_paper_temperature", "temperature_paper"),
}


def ship(run: Path, name: str, models: Path = MODELS, note: str = "") -> Path:
    """Write the model of a run to `models`/`name`, and return that folder."""
    model = FewShotModel.from_pretrained(run)
    measured = _measured(run, model)
    _check_name(name, measured)
    check_writable(models / name)
    weights = stored_weights(model)
    model.info = {**model.info, "measured": measured}
    if any(tensor.dtype == torch.float16 for tensor in weights.values()):
        model.info["float16"] = {"largest_feature_difference": _checked_difference(model, weights)}
    if note:
        model.info["note"] = note
    curve = _curve(run, name, model)
    card = _card(name, model, sum(tensor.nbytes for tensor in weights.values()))
    folder = models / name
    write_atomically(folder / CURVE, curve)
    write_atomically(folder / CARD, card.encode())
    write_model_files(folder, weights, model.config())  # last: with them the folder is a model
    return folder


def _measured(run: Path, model: FewShotModel) -> dict[str, Any]:
    """Return the numbers of a run but for its reliability diagrams, which are large."""
    measured = read_json(run / MEASURED)
    if measured.get("temperature_model") != model.temperature:
        raise UserError(f"{run / MEASURED} was measured of another model than {run} holds; measure it again.")
    return {key: value for key, value in measured.items() if not key.startswith("reliability")}


def _check_name(name: str, measured: dict[str, Any]) -> None:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise UserError(f"{name!r} is no name for a model; take small letters, digits and single hyphens.")
    named = re.search(r"(\d+)shot$", name)
    if named and int(named[1]) != measured.get("shots"):
        raise UserError(
            f"{name!r} says {named[1]} shots, but {measured.get('shots')} were measured; choose another name."
        )


# ---- weights


def stored_weights(model: FewShotModel) -> dict[str, Tensor]:
    """Return the tensors to be stored: those of large models in float16, if they have two or more dimensions.

    BatchNorm's statistics and the prior's float64 parameters have fewer and stay as they are.
    """
    tensors = model.state_dict()
    if sum(tensor.nbytes for tensor in tensors.values()) <= LARGE:
        return tensors
    return {
        name: tensor.half() if tensor.ndim > 1 and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def _checked_difference(model: FewShotModel, weights: dict[str, Tensor]) -> float:
    """Return how far the stored weights move features, or refuse to store them."""
    difference = feature_difference(model, weights)
    print(f"Rounding to float16 changes features of random images by at most {100 * difference:.2g} %.")
    if not difference <= TOLERANCE:  # so written as to catch NaN
        raise UserError(
            f"Rounding the weights to float16 changes features by {100 * difference:.2g} %, more than"
            f" {100 * TOLERANCE:g} %; raise LARGE in {Path(__file__).name} to store them as they are."
        )
    return difference


@torch.no_grad()
def feature_difference(model: FewShotModel, weights: dict[str, Tensor]) -> float:
    """Return the largest relative change of a feature vector, over random images."""
    other = FewShotModel.from_config(model.config(), "the model").eval()
    other.load_state_dict(weights)
    facts = model.preprocessing
    generator = torch.Generator().manual_seed(0)
    shape = (16, facts.channels, facts.size, facts.size)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    images = evaluation_images(pixels, facts)
    before, after = model.backbone(images), other.backbone(images)  # [16, d]
    result: float = ((after - before).norm(dim=1) / before.norm(dim=1)).max().item()
    return result


# ---- the picture and the card


def _curve(run: Path, name: str, model: FewShotModel) -> bytes:
    if not (run / METRICS).is_file():
        raise UserError(f"There is no file {run / METRICS}; ship the folder that the training left.")
    lines = [json.loads(line) for line in (run / METRICS).read_text("utf-8").splitlines()]
    recipe = stored_settings(model.info["recipe"])
    return training_curve(
        [line for line in lines if "episode" in line],  # others are of a base stage
        name,
        training=f"base classes, {recipe['ways']}-way {recipe['shots']}-shot",
        validation=f"validation classes, {_validation_task(recipe)}",
    )


def _card(name: str, model: FewShotModel, n_bytes: int) -> str:
    measured, backbone = model.info["measured"], model.backbone
    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,  # a missing number is an error, not a gap in the card
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    kinds = WORDS["kinds"]
    try:
        parts = _parts(measured["dataset"])
        return environment.get_template("model_card.md.jinja").render(
            name=name,
            config=model.config(),
            kind=kinds.get(measured["dataset"], kinds["other"]),
            measured=measured,
            rows=[_row(label, measured) for label in TEMPERATURES],
            facts=model.preprocessing,
            parameters=sum(parameter.numel() for parameter in backbone.parameters()),
            feature_dim=backbone.feature_dim,
            megabytes=n_bytes / 1e6,
            halved=model.info.get("float16"),
            note=model.info.get("note"),
            novel_classes=next((part["classes"] for part in parts if part["name"] == "novel"), 0),
            one_set=len({part["set"] for part in parts}) == 1,
            parts=parts,
            sets=_sets(measured["dataset"]),
            validation_task=_validation_task(stored_settings(model.info["recipe"])),
            duration=_duration(model.info["seconds"]),
            settings=_settings(stored_settings(model.info["recipe"])),
        )
    except (KeyError, UndefinedError) as error:
        raise UserError(f"The run lacks what the card has to say ({error}); measure it again.") from None


def _validation_task(recipe: dict[str, Any]) -> str:
    return f"{recipe['validation.ways']}-way {recipe['validation.shots'] or recipe['shots']}-shot"


def _row(label: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured with one of the temperatures."""
    suffix, temperature = TEMPERATURES[label]
    names = ("accuracy", "interval", "nll", "ece", "ece_equal_mass")
    numbers = {name: measured[name + suffix] for name in names}
    return {"label": label, "temperature": measured[temperature] if temperature else 1.0, **numbers}


def _parts(protocol: str) -> list[dict[str, Any]]:
    """Return where each part of a protocol comes from and how many classes it has, where that is known."""
    rows = []
    for part, (set_name, part_of_set) in sources_of(protocol).items():
        lists = find_set(set_name).class_lists
        classes = lists[part_of_set] if part_of_set in lists else sum(lists.values(), ())
        rows.append({"name": part, "set": set_name, "classes": len(classes)})
    return rows


def _sets(protocol: str) -> list[dict[str, Any]]:
    """Return what there is to say of each data set of a protocol."""
    facts = []
    for name in dict.fromkeys(set_name for set_name, _ in sources_of(protocol).values()):
        found = find_set(name)
        stored = found if isinstance(found, StoredSet) else None
        facts.append(
            {
                "title": stored.title if stored else name,
                "images": stored.n_images if stored else None,
                "source": stored.get.split(" ")[0] if stored else "",
                "terms": WORDS["terms"].get(name, "Check the terms of these pictures.").strip(),
            }
        )
    return facts


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} seconds" if minutes < 2 else f"{minutes:.0f} minutes"


def _settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe, by dotted name, that are not the default."""
    defaults = flatten(Recipe(head=HeadSettings(recipe["head.name"])).as_dict())
    return {name: value for name, value in recipe.items() if name not in defaults or defaults[name] != value}


def main() -> None:
    """Ship the model of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--to", type=Path, default=MODELS, metavar="FOLDER", help="default: in the package")
    parser.add_argument(
        "--note", default="", help="a sentence for the card, such as how the images were reduced"
    )
    options = parser.parse_args()
    try:
        folder = ship(options.run, options.name, options.to, options.note)
    except UserError as error:
        parser.error(str(error))
    measured = read_json(folder / CONFIG)["info"]["measured"]
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    print(
        f"{folder}: {measured['ways']}-way {measured['shots']}-shot on {measured['dataset']}"
        f" {measured['accuracy']:.2f} ± {measured['interval']:.2f} %, {megabytes:.2f} MB"
    )


if __name__ == "__main__":
    main()
