"""Metrics to MLflow or Weights & Biases, through the loggers of Lightning."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpldla.training.recipe import Recipe, flatten
from gpldla.utils.errors import UserError, first_line
from gpldla.utils.files import read_json, write_json

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

PROJECT = "gpldla"  # the experiment of MLflow, or the project of Weights & Biases
RUN_ID = "tracker.json"  # in the folder of the training: a resumed one goes on in the same run


def open_tracker(recipe: Recipe, folder: Path) -> "Logger | None":
    """Return what the recipe's metrics also go to; None unless its `tracker` names something.

    MLFLOW_TRACKING_URI and `wandb login` say where the server is and who writes there; without a URI MLflow
    writes a database into the folder.
    """
    if recipe.tracker == "none":
        return None
    file = folder / RUN_ID
    before = read_json(file).get(recipe.tracker) if file.exists() else None
    try:
        logger, run = _open(recipe.tracker, folder, before)
    except ImportError as error:
        raise UserError(
            f"tracker = {recipe.tracker!r} needs a package that cannot be imported ({first_line(error)});"
            " pip install 'gpldla[trackers]'."
        ) from None
    except Exception as error:  # of MLflow or W&B: no server, not logged in
        raise UserError(
            f"tracker = {recipe.tracker!r} cannot be opened ({first_line(error)}); see docs/training.md."
        ) from None
    write_json(file, {recipe.tracker: run})
    logger.log_hyperparams(flatten(recipe.as_dict()))
    return logger


def _open(tracker: str, folder: Path, run: str | None) -> "tuple[Logger, Any]":
    """Return a logger and the id of its run; run: the one to go on with."""
    from pytorch_lightning import loggers

    if tracker == "mlflow":
        server = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        mlflow = loggers.MLFlowLogger(PROJECT, folder.name, tracking_uri=server, run_id=run)
        return mlflow, mlflow.run_id
    wandb = loggers.WandbLogger(folder.name, folder, id=run, project=PROJECT, resume="allow")
    return wandb, wandb.experiment.id
