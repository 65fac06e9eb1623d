"""Training a model by a recipe: stage after stage, with validation, checkpoints and resume."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor

from gpldla.backbones import backbone_preprocessing
from gpldla.classifier.calibration import accuracy_percent
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.task_temperature import TaskTemperature
from gpldla.data import Access, DataPaths, Protocol, load_protocol
from gpldla.evaluation import keep_base_images, mean_feature
from gpldla.training import checkpoint
from gpldla.training.base_stage import BaseStage
from gpldla.training.checkpoint import TrainingState
from gpldla.training.episode_stage import EpisodeStage, episode_sampler
from gpldla.training.feature_wise import transform_features
from gpldla.training.metrics import MetricsRecorder
from gpldla.training.process_group import make_fabric, report_errors_once, report_lost_processes
from gpldla.training.recipe import Recipe
from gpldla.training.run_folder import RunFolder
from gpldla.training.stage import Acceleration, RunningMeans, Stage, StageContext
from gpldla.training.trackers import open_tracker
from gpldla.training.validation import Validation
from gpldla.utils.devices import torch_device
from gpldla.utils.errors import UserError
from gpldla.utils.process import stop_signals
from gpldla.utils.progress import CountProgress, Reporter, say


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended: the kept model, and whether all episodes were done or it was stopped before.

    is_first_process: whether this process is the one of several that wrote the model
    """

    model: FewShotModel
    episodes: int
    finished: bool
    is_first_process: bool = True


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    accelerator: str | torch.device = "auto",
    devices: int = 1,
    nodes: int = 1,
    data_paths: DataPaths | None = None,
    protocol: Protocol | None = None,
    acceleration: Acceleration | None = None,
    console: Console | None = None,
    show_progress: bool = True,
) -> TrainingResult:
    """Meta-train by `recipe` and write a FewShotModel to `folder`; an interrupted run is continued.

    Ctrl-C and SIGTERM write a checkpoint first; a kill loses what came after the last one.

    devices, nodes: how many processes train together. Those of this machine are started here, by running the
    program again, unless torchrun or SLURM has started them; see docs/training.md.
    protocol: the recipe's data where the caller has loaded it already; it is loaded here otherwise
    """
    folder = Path(folder)
    console = console or Console(stderr=True)
    found = RunFolder(folder, recipe)
    fabric = make_fabric(torch_device(accelerator), devices, nodes, recipe.precision)
    with report_lost_processes(fabric):
        fabric.launch()
        is_first = fabric.global_rank == 0
        with report_errors_once(fabric):
            protocol = protocol or _load(recipe, data_paths or DataPaths(), fabric, console)
            how = acceleration or Acceleration()
            run = _Run(recipe, folder, protocol, fabric, how, resumed=found.state is not None)
        with ExitStack() as held:
            with report_errors_once(fabric):
                held.enter_context(found.locked(run.processes))
            if found.state is not None:
                _restore(run, found.state)
                if is_first and show_progress and not run.is_done:
                    say(console, f"Going on in {folder} after {run.stage.done} {run.stage.unit}.")
            elif fabric.world_size > 1:
                run.save()  # one of many processes is lost more easily: a state to continue from
            finished = run.go(console, show_progress and is_first)
        return TrainingResult(run.kept_model(), run.episodes, finished, is_first)


def _load(recipe: Recipe, data_paths: DataPaths, fabric: Fabric, console: Console) -> Protocol:
    """Return the data; the first process of a node packs what is missing, the others find it."""
    with fabric.rank_zero_first(local=True):
        try:
            return load_protocol(
                recipe.dataset,
                size=backbone_preprocessing(recipe.backbone).size,
                side=recipe.stored_side or None,
                access=Access(data_paths, Reporter(console if fabric.local_rank == 0 else None)),
            )
        except UserError as error:  # raised below: the other processes wait at the end of this block
            fault = error
    raise fault


def _restore(run: "_Run", state: TrainingState) -> None:
    try:
        run.restore(state)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{run.folder / checkpoint.FILE} is not a complete state of this training ({error});"
            " delete it to start again, or choose another folder."
        ) from None


def _fresh_model(recipe: Recipe) -> FewShotModel:
    return FewShotModel(
        recipe.backbone,
        recipe.head.name,
        head_options=recipe.head.options,
        **recipe.unusual_settings(),
    )


def _load_start_network(name_or_folder: str, model: FewShotModel) -> None:
    other = FewShotModel.from_pretrained(Path(name_or_folder))  # a path, so that nothing is downloaded
    if other.backbone_name != model.backbone_name:
        raise UserError(
            f"start = {name_or_folder!r} has the network {other.backbone_name}, not {model.backbone_name};"
            " choose a model that has it, or train that one."
        )
    model.backbone.load_state_dict(other.backbone.state_dict())


class _Run:
    """One training run: its stages, its validation, and its state from step to step."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        protocol: Protocol,
        fabric: Fabric,
        acceleration: Acceleration,
        *,
        resumed: bool,
    ) -> None:
        self.recipe, self.folder, self.fabric = recipe, folder, fabric
        self.validation = Validation(recipe, protocol.part("validation"), fabric)
        torch.manual_seed(recipe.seed)
        self.model = _fresh_model(recipe)
        if recipe.start and not resumed:
            _load_start_network(recipe.start, self.model)
        if not list(self.model.parameters()):
            raise UserError(
                f"Backbone {recipe.backbone!r} with head {recipe.head.name!r} has nothing to learn."
            )
        self.validation.try_head(self.model)
        self.model.to(fabric.device)
        if self.model.head.needs_base_images:
            keep_base_images(self.model, protocol.part("base"))
        if recipe.precision == "64-true":
            self.model.double()
        if recipe.feature_wise_scale or recipe.feature_wise_shift:
            transform_features(self.model.backbone, recipe.feature_wise_scale, recipe.feature_wise_shift)
        self.context = StageContext(recipe, self.model, protocol.part("base"), fabric, acceleration)
        self.processes = self.context.processes
        self.stages = _stages(recipe, self.model)
        if EpisodeStage in (stage.func for stage in self.stages):  # refused now, as validation is
            episode_sampler(self.context)
        self.stage_index = 0
        self.stage: Stage = self.stages[0](self.context)
        self.best_accuracy = -1.0
        self.best_weights: dict[str, Tensor] = {}
        self.temperature = 1.0
        self.calibration: TaskTemperature | None = None
        self.seconds = 0.0  # spent training, over all parts of an interrupted run

    # ---- the loop

    def go(self, console: Console, show_progress: bool) -> bool:
        """Run to the end or to the first stop signal; return whether the end was reached."""
        with stop_signals() as stopped:
            while True:
                stage = self.stage
                with CountProgress(
                    stage.total, stage.done, console, unit=stage.unit, enabled=show_progress
                ) as progress:
                    if not self._run_stage(progress, stopped):
                        return False
                if self._is_last_stage:
                    return True
                self._begin_stage(self.stage_index + 1)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self._is_last_stage and self.stage.done >= self.stage.total

    @property
    def episodes(self) -> int:
        """How many episodes are done."""
        return self.stage.done if isinstance(self.stage, EpisodeStage) else 0

    @property
    def _is_last_stage(self) -> bool:
        return self.stage_index == len(self.stages) - 1

    def _begin_stage(self, index: int) -> None:
        """Go on to a stage, from the best weights of the one before; what it learns is kept in any case."""
        self.stage_index = index
        self.best_accuracy = -1.0
        self.model.load_state_dict(self.best_weights)
        self.stage = self.stages[index](self.context)

    def _run_stage(self, progress: CountProgress, stopped: Callable[[], bool]) -> bool:
        stage, recipe = self.stage, self.recipe
        if stage.done >= stage.total:
            if self.processes.is_first:
                self._write_model()  # a kill may have come between the last checkpoint and the model
            return True
        started = time.monotonic() - self.seconds
        with self._recorder(stage) as recorder:
            while stage.done < stage.total:
                before = stage.done
                stage.update()
                last = stage.done >= stage.total
                reports = last or _crossed_multiple(before, stage.done, recipe.log_every)
                # Many processes must agree whether to stop, which they do when they communicate anyway.
                stops = self.processes.any(stopped()) if self.processes.world_size == 1 or reports else False
                if reports:
                    stage.collect()
                    metrics = stage.window.means()
                    if isinstance(stage, EpisodeStage):
                        metrics |= self.model.head.scalars()
                    stage.window = RunningMeans()
                    rate = float(stage.optimizer.param_groups[0]["lr"])
                    recorder.record(stage.done, {**metrics, "learning_rate": rate})
                    progress.update(stage.done, metrics)
                if last or (
                    stage.validate_every and _crossed_multiple(before, stage.done, stage.validate_every)
                ):
                    accuracy = self._validate()
                    recorder.record(stage.done, {"validation_accuracy": accuracy})
                    best = "  (best)" if accuracy == self.best_accuracy else ""
                    progress.say(
                        f"{stage.step_name.replace('_', ' ')} {stage.done}:"
                        f" validation accuracy {accuracy:.2f} %{best}"
                    )
                if last and self._is_last_stage:
                    kept = self.kept_model()
                    self.temperature = self.validation.temperature(kept)
                    self.calibration = self.validation.calibration(kept, self.temperature)
                self.seconds = time.monotonic() - started
                if last or stops or _crossed_multiple(before, stage.done, recipe.checkpoint_every):
                    self.save()
                if stops and not (last and self._is_last_stage):
                    progress.say(
                        f"Stopped after {stage.done} {stage.unit}; the same command goes on from here."
                    )
                    return False
        return True

    def _recorder(self, stage: Stage) -> "MetricsRecorder":
        if not self.processes.is_first:
            return MetricsRecorder(None, stage.step_name, 0)
        tracker = open_tracker(self.recipe, self.folder)
        return MetricsRecorder(self.folder, stage.step_name, stage.done, tracker)

    # ---- validation

    def _validate(self) -> float:
        """Measure the current weights on validation classes and keep them if they are the best so far."""
        current = self._current_model()
        self._fill_base_mean(current)
        predictions = self.validation.predictions(current)
        if predictions.log_prob.isnan().any():
            self.stage.collect()  # which raises where the loss is not finite either
            raise UserError(
                "Predictions for validation classes are NaN after"
                f" {self.stage.done} {self.stage.unit};"
                " use other options of the head, smaller rates or another precision."
            )
        accuracy = accuracy_percent(predictions.log_prob, predictions.labels).mean().item()
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            self.best_weights = {name: t.detach().clone() for name, t in current.state_dict().items()}
        return accuracy

    def _fill_base_mean(self, model: FewShotModel) -> None:
        """Compute the mean of the base classes for a head that needs it; it is fixed after the base stage."""
        if model.head.needs_base_mean and isinstance(self.stage, BaseStage):
            cast(Tensor, model.head.base_mean).copy_(mean_feature(model, self.context.part))

    def _current_model(self) -> FewShotModel:
        average = self.stage.average
        return self.model if average is None else average.model  # type: ignore[return-value]

    def kept_model(self) -> FewShotModel:
        """Return the model with the weights that did best on validation classes, ready for evaluation."""
        recipe = self.recipe
        model = _fresh_model(recipe)
        model.temperature, model.calibration = self.temperature, self.calibration
        model.info = {
            "recipe": recipe.as_dict(),
            "episodes": self.episodes,
            "seconds": round(self.seconds, 1),
            "validation_accuracy": None if self.best_accuracy < 0 else self.best_accuracy,
        }
        if recipe.precision == "64-true":
            model.double()
        model.load_weights(self.best_weights or self._current_model().state_dict())
        return model.to(self.fabric.device).eval()

    # ---- saving and resuming

    def save(self) -> None:
        """Write the training state, then the kept model beside it; one process does."""
        self.stage.collect()
        if not self.processes.is_first:
            return
        tensors = {
            "model": self.model.state_dict(),
            "stage": self.stage.extra_tensors(),
            "optimizer": self.stage.optimizer_tensors(),
            "best": self.best_weights,
        }
        if self.stage.average is not None:
            tensors["averaged"] = self.stage.average.model.state_dict()
        values = {
            "recipe": self.recipe.as_dict(),
            "stage": self.stage_index,
            "done": self.stage.done,
            "best_accuracy": self.best_accuracy,
            "temperature": self.temperature,
            "calibration": None if self.calibration is None else self.calibration.as_json(),
            "seconds": self.seconds,
            "window": self.stage.window.sums,
        }
        TrainingState(tensors, values).write(self.folder)
        self._write_model()

    def _write_model(self) -> None:
        if not self.best_weights:  # stopped before validation, which does this too
            self._fill_base_mean(self._current_model())
        self.kept_model().save(self.folder)

    def restore(self, state: TrainingState) -> None:
        """Restore what `save` wrote; the run then ends as if it had never been interrupted."""
        device, values = self.fabric.device, state.values
        self.best_weights = {name: t.to(device) for name, t in state.tensors.get("best", {}).items()}
        if values.get("stage", 0) != self.stage_index:
            self._begin_stage(values["stage"])
        self.model.load_state_dict(state.tensors["model"])
        self.stage.restore_extra(state.tensors.get("stage", {}))
        self.stage.restore_optimizer(state.tensors.get("optimizer", {}))
        self.stage.done = int(values["done"])
        if not 0 <= self.stage.done <= self.stage.total:
            raise ValueError(f"{self.stage.done} of {self.stage.total} steps done")
        if self.stage.average is not None and self.stage.done:
            averaged = state.tensors["averaged"]  # of which older versions had other names
            self.stage.average.restore(
                {name.removeprefix("module."): t for name, t in averaged.items() if name != "n_averaged"}
            )
        self.stage.window = RunningMeans(values["window"] if self.processes.is_first else None)
        self.best_accuracy = values["best_accuracy"]
        self.temperature = values["temperature"]
        calibration = values.get("calibration")
        self.calibration = None if calibration is None else TaskTemperature.from_json(calibration)
        self.seconds = values["seconds"]


def _stages(recipe: Recipe, model: FewShotModel) -> list[partial[Any]]:
    """Return what makes each stage, in order.

    A head that asks for a base classifier gets a network that is frozen after it, and episodes only if it
    has parameters of its own. A recipe may ask for one for any other head, as a start for episodes.
    """
    wanted = model.head.base_stage
    classifier = wanted if recipe.base.classifier == "auto" else recipe.base.classifier
    if classifier in (None, "none"):
        if model.head.needs_base_mean:
            raise UserError(
                f"Head {recipe.head.name!r} needs a network that was trained on the base classes first;"
                " leave base.classifier at 'auto'."
            )
        return [partial(EpisodeStage, frozen_backbone=False)]
    frozen = wanted is not None
    stages: list[partial[Any]] = [partial(BaseStage, classifier=classifier)]
    if not frozen or list(model.head.parameters()):
        stages.append(partial(EpisodeStage, frozen_backbone=frozen))
    return stages


def _crossed_multiple(before: int, after: int, every: int) -> bool:
    """Return whether a multiple of `every` lies in (before, after]."""
    return after // every > before // every
