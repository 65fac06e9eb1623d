"""The commands that train a model and measure it: `gpldla train` and `gpldla eval`."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gpldla.cli.options import (
    DEFAULT_DEVICE,
    AsJson,
    Cache,
    DataRoot,
    Device,
    data_access,
    data_paths,
    messages,
)
from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.classifier.model import FewShotModel


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Name of a shipped recipe, a TOML file, or folder:PATH: a recipe chosen for your pictures."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder for the model; an unfinished training in it is resumed."),
    ],
    method: Annotated[
        str | None, typer.Option(help="Train this method instead of the recipe's; see docs/methods.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="Override the recipe's number of episodes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Override the recipe's seed.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override any setting of the recipe; may be repeated."
        ),
    ] = None,
    device: Device = DEFAULT_DEVICE,
    devices: Annotated[
        int,
        typer.Option(min=1, help="Processes per node: one per GPU, or several that share the CPU's cores."),
    ] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Meta-train a model by a recipe; the same command resumes an interrupted training.

    Example: gpldla train glyphs -o runs/glyphs --set shots=5 --episodes 1000

    Another method on the same data: gpldla train glyphs --method protonet -o runs/protonet

    Your own pictures: gpldla train folder:photos -o runs/mine

    Several GPUs: gpldla train cub -o runs/cub --devices 4
    """
    from gpldla.data.sets import FOLDER_PREFIX
    from gpldla.training.folder_recipe import folder_recipe
    from gpldla.training.recipe import parse_override, read_recipe
    from gpldla.training.run import train as run_training
    from gpldla.utils.devices import torch_device

    overrides: dict[str, Any] = dict(parse_override(text) for text in settings or [])
    overrides |= {k: v for k, v in (("episodes", episodes), ("seed", seed)) if v is not None}
    paths = data_paths(data_root, cache)
    given: str | dict[str, Any] = recipe
    if recipe.startswith(FOLDER_PREFIX):
        chosen = folder_recipe(recipe, paths)
        given = chosen.settings
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:  # not in the processes that this one starts
            say(messages, chosen.sentence)
    result = run_training(
        read_recipe(given, overrides, method=method),
        output,
        accelerator=torch_device(device),
        devices=devices,
        nodes=nodes,
        data_paths=paths,
        console=messages,
    )
    if not result.is_first_process:
        return  # only the first process prints
    if not result.finished:
        raise typer.Exit(130)
    accuracy = result.model.info["validation_accuracy"]
    say(messages, f"Validation accuracy {accuracy:.2f} %. The model is in {output}.")


def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model, or the name of a shipped one.")],
    dataset: Annotated[
        str | None, typer.Option(help="Data set; default: the one that the model was trained on.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(help="Examples per class; default: as in the validation of the training.")
    ] = None,
    ways: Annotated[int, typer.Option(help="Classes per task.")] = 5,
    queries: Annotated[int, typer.Option(help="Test images per class.")] = 15,
    episodes: Annotated[int, typer.Option(help="Episodes per repeat.")] = 600,
    repeats: Annotated[int, typer.Option(help="Repeats, with the seeds SEED, SEED + 1, ...")] = 5,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    separate_groups: Annotated[
        bool,
        typer.Option("--separate-groups", help="Support and query from different groups (font families)."),
    ] = False,
    predictive: Annotated[
        str | None,
        typer.Option(help="How probabilities are computed, such as mc for the paper's Monte Carlo sampling."),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Number of Monte Carlo samples.")] = None,
    as_json: AsJson = False,
    device: Device = DEFAULT_DEVICE,
    data_root: DataRoot = None,
    cache: Cache = None,
) -> None:
    """Measure a model on novel classes: accuracy with its 95 % interval, NLL and ECE.

    Example: gpldla eval runs/glyphs --dataset glyphs-digits --shots 5

    A shipped model, see `gpldla models`: gpldla eval cub-conv4-5shot
    """
    from gpldla.classifier.model import FewShotModel
    from gpldla.data import load_protocol
    from gpldla.evaluation import ProtocolEvaluator, Task
    from gpldla.reports.terminal import evaluation_table
    from gpldla.utils.devices import torch_device

    _check_amount(episodes, repeats, seed)
    loaded = FewShotModel.from_pretrained(model)
    loaded.set_head_options({"predictive": predictive, "n_samples": samples})
    loaded.to(torch_device(device))
    recipe = _training_recipe(loaded, model)
    dataset = dataset or recipe.get("dataset")
    if dataset is None:
        raise UserError(f"The config.json of {model} names no data set; name one with --dataset.")
    protocol = load_protocol(
        dataset,
        size=loaded.preprocessing.size,
        side=recipe.get("stored_side") or None,  # as in training, so that the same store is used
        parts=("validation", "novel"),
        access=data_access(data_root, cache),
    )
    if shots is None:  # validation may have had other shots than training
        shots = recipe.get("validation.shots") or recipe.get("shots", 1)
    task = Task(ways, shots, queries, separate_groups)
    result = ProtocolEvaluator(loaded, protocol).evaluate(task, episodes=episodes, repeats=repeats, seed=seed)
    numbers = {"model": str(model), "predictive": predictive or "default", **result.numbers}
    if as_json:
        typer.echo(json.dumps(numbers, indent=2))
    else:
        Console().print(evaluation_table(numbers))


def _check_amount(episodes: int, repeats: int, seed: int) -> None:
    for name, value in (("--episodes", episodes), ("--repeats", repeats)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, not {value}.")
    if episodes * repeats < 2:
        raise UserError("One task has no interval; ask for at least two with --episodes or --repeats.")
    if not -(2**63) <= seed < 2**63 - repeats:
        raise UserError(f"--seed must be a 64-bit integer, not {seed}.")


def _training_recipe(model: "FewShotModel", name: Path) -> dict[str, Any]:
    """Return the settings that the model was trained with, as far as its config.json has them."""
    from gpldla.training.recipe import stored_settings

    stored = model.info.get("recipe", {}) if isinstance(model.info, dict) else None
    recipe = stored_settings(stored) if isinstance(stored, dict) else None
    kinds = {"dataset": str, "stored_side": int, "validation.shots": int, "shots": int}
    if recipe is None or any(not isinstance(recipe.get(key, kind()), kind) for key, kind in kinds.items()):
        raise UserError(f"The recipe in the config.json of {name} is not valid; train the model again.")
    return recipe
