"""The files of a model's folder, and trained models that come with the package, by name."""

from pathlib import Path
from typing import Any

from gpldla.utils.errors import UserError, did_you_mean
from gpldla.utils.files import read_json

WEIGHTS, CONFIG = "model.safetensors", "config.json"
CARD, CURVE = "README.md", "curve.png"  # of a shipped model: its model card and its learning curve
MODELS = Path(__file__).parent / "models"
MEASURED = ("dataset", "ways", "shots", "accuracy", "interval", "ece_val_temperature")  # measurements to list


def shipped_models() -> dict[str, Path]:
    """Return the folder of each shipped model, by name."""
    return {config.parent.name: config.parent for config in sorted(MODELS.glob(f"*/{CONFIG}"))}


def model_folder(name_or_folder: str | Path) -> Path:
    """Return the folder of a model: this one if it exists, else that of the shipped model of this name."""
    folder, name = Path(name_or_folder), str(name_or_folder)
    shipped = shipped_models()
    if folder.is_dir():
        return folder
    if name in shipped:
        return shipped[name]
    if folder.exists() or len(folder.parts) > 1:
        return folder  # a path, not a name: the caller's error names what is missing
    if not shipped:
        raise UserError(f"{name} is not a model: there is no such folder; train one with `gpldla train`.")
    raise UserError(f"There is no folder and no shipped model {name!r}{did_you_mean(name, shipped)}")


def shipped_facts() -> list[dict[str, Any]]:
    """Return what `gpldla models --json` prints: one entry per model, with measurements on novel classes."""
    return [_facts(name, folder) for name, folder in shipped_models().items()]


def _facts(name: str, folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    try:
        measured = config["info"]["measured"]
        measurements = {key: measured[key] for key in MEASURED}
        network = {key: config[key] for key in ("backbone", "head")}
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder / CONFIG} has no measurements ({error!r});"
            " put models there with `python -m benchmarks.ship`."
        ) from None
    return {
        "name": name,
        **network,
        **measurements,
        "megabytes": round((folder / WEIGHTS).stat().st_size / 1e6, 2),
        "folder": str(folder),
        "card": str(folder / CARD),
    }
