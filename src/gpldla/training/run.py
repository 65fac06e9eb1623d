"""Training a model by a recipe: stage after stage, with validation, checkpoints and resume."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor

from gpldla.backbones import backbone_preprocessing
from gpldla.classifier.calibration import accuracy_percent, fit_temperature
from gpldla.classifier.features import evaluation_mode
from gpldla.classifier.model import FewShotModel
from gpldla.data import Access, DataPaths, Protocol, load_protocol
from gpldla.data.part_images import PartImages
from gpldla.evaluation import PartEvaluator, Predictions, Task, mean_feature
from gpldla.training import checkpoint
from gpldla.training.checkpoint import TrainingState
from gpldla.training.metrics import MetricsRecorder
from gpldla.training.ranks import make_fabric, report_errors_once, report_lost_processes
from gpldla.training.recipe import Recipe
from gpldla.training.stages import BaseStage, EpisodeStage, RunningMeans, Stage, StageContext, episode_sampler
from gpldla.utils.devices import torch_device
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, exclusive_lock, remove_partial_file
from gpldla.utils.process import stop_signals
from gpldla.utils.progress import CountProgress, Reporter, say


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended: the kept model, and whether all episodes were done or someone stopped it.

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
    console: Console | None = None,
    show_progress: bool = True,
) -> TrainingResult:
    """Meta-train by `recipe` and leave a FewShotModel in `folder`; goes on where an earlier run stopped.

    Ctrl-C and SIGTERM write a checkpoint first; a kill loses what came after the last one.

    devices, nodes: how many processes train together. Those of this machine are started here, by running the
    program again, unless torchrun or SLURM has started them; see docs/training.md.
    """
    folder = Path(folder)
    console = console or Console(stderr=True)
    started = TrainingState.read(folder) if (folder / checkpoint.FILE).exists() else None
    if started is not None:
        _check_same_recipe(started.numbers["recipe"], recipe, folder)
    elif (folder / "config.json").exists():
        raise UserError(f"{folder} already holds a model; choose another folder.")
    check_writable(folder)
    fabric = make_fabric(torch_device(accelerator), devices, nodes, recipe.precision)
    with report_lost_processes(fabric):
        fabric.launch()
        talks = fabric.global_rank == 0
        with report_errors_once(fabric):
            protocol = _load(recipe, data_paths or DataPaths(), fabric, console)
            run = _Run(recipe, folder, protocol, fabric, resumed=started is not None)
        if started is not None:
            try:
                run.restore(started)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise UserError(
                    f"{folder / checkpoint.FILE} is not the whole state of this training ({error});"
                    " delete it to begin anew, or choose another folder."
                ) from None
            if talks and show_progress and not run.is_done:
                say(console, f"Going on in {folder} after {run.stage.done} {run.stage.unit}.")
        elif fabric.world_size > 1:
            run.save()  # of many processes one is lost sooner: let there be a state to go on from
        with exclusive_lock(folder, "training") if fabric.world_size == 1 else nullcontext():
            if talks:
                remove_partial_file(folder / checkpoint.FILE)
            finished = run.go(console, show_progress and talks)
        return TrainingResult(run.kept_model(), run.episodes, finished, talks)


def _load(recipe: Recipe, data_paths: DataPaths, fabric: Fabric, console: Console) -> Protocol:
    """Return the data; the first process of a node packs what is missing, the others find it."""
    fault = None
    with fabric.rank_zero_first(local=True):
        try:
            return load_protocol(
                recipe.dataset,
                size=backbone_preprocessing(recipe.backbone).size,
                side=recipe.stored_side or None,
                access=Access(data_paths, Reporter(console if fabric.local_rank == 0 else None)),
            )
        except UserError as error:  # the others are waiting: let them come here too
            fault = error
    raise fault


def _check_same_recipe(before: dict[str, Any], recipe: Recipe, folder: Path) -> None:
    now = recipe.flat()
    before = Recipe(head=recipe.head).flat() | before  # a setting that did not exist then had its default
    changed = [
        f"{key} ({before.get(key)!r}, now {now.get(key)!r})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise UserError(
            f"{folder} holds a run with other settings: {', '.join(changed)};"
            " go on with those settings or choose another folder."
        )


def _fresh_model(recipe: Recipe) -> FewShotModel:
    return FewShotModel(
        recipe.backbone,
        recipe.head,
        head_options=recipe.head_options,
        zoom=recipe.zoom,
        mirrored=recipe.mirrored,
    )


def _load_start_network(name_or_folder: str, model: FewShotModel) -> None:
    other = FewShotModel.from_pretrained(name_or_folder)
    if other.backbone_name != model.backbone_name:
        raise UserError(
            f"start = {name_or_folder!r} has the network {other.backbone_name}, not {model.backbone_name};"
            " choose a model that has it, or train that one."
        )
    model.backbone.load_state_dict(other.backbone.state_dict())


class _Run:
    """One training run: its stages, what changes from step to step, and how to save it."""

    def __init__(
        self, recipe: Recipe, folder: Path, protocol: Protocol, fabric: Fabric, *, resumed: bool
    ) -> None:
        self.recipe, self.folder, self.fabric = recipe, folder, fabric
        self.validation_part = protocol.part("validation")
        # What validation cannot do is said now, not after the training.
        try:
            self._validation_task().sampler(self.validation_part, seed=recipe.seed, split="validation")
        except UserError as error:
            settings = "validation_ways, validation_shots, validation_queries"
            raise UserError(f"For validation ({settings}): {error}") from None
        torch.manual_seed(recipe.seed)
        self.model = _fresh_model(recipe)
        if recipe.start and not resumed:
            _load_start_network(recipe.start, self.model)
        if not list(self.model.parameters()):
            raise UserError(f"Backbone {recipe.backbone!r} with head {recipe.head!r} has nothing to learn.")
        self._try_head()
        self.model.to(fabric.device)
        if recipe.precision == "64-true":
            self.model.double()
        self.context = StageContext(recipe, self.model, protocol.part("base"), fabric)
        self.ranks = self.context.ranks
        self.validation_images = PartImages(self.validation_part, fabric.device)
        self.stages = _stages(recipe, self.model)
        if EpisodeStage in (stage.func for stage in self.stages):  # as for validation: said now
            episode_sampler(self.context)
        self.stage_number = 0
        self.stage: Stage = self.stages[0](self.context)
        self.best_accuracy = -1.0
        self.best_weights: dict[str, Tensor] = {}
        self.temperature = 1.0
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
                self._begin_stage(self.stage_number + 1)

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
        return self.stage_number == len(self.stages) - 1

    def _begin_stage(self, number: int) -> None:
        """Go on to a stage, from the best weights of the one before; what it learns is kept in any case."""
        self.stage_number = number
        self.best_accuracy = -1.0
        self.model.load_state_dict(self.best_weights)
        self.stage = self.stages[number](self.context)

    def _run_stage(self, progress: CountProgress, stopped: Callable[[], bool]) -> bool:
        stage, recipe = self.stage, self.recipe
        if stage.done >= stage.total:
            if self.ranks.is_first:
                self._write_model()  # a kill may have come between the last checkpoint and the model
            return True
        started = time.monotonic() - self.seconds
        with self._recorder(stage) as recorder:
            while stage.done < stage.total:
                before = stage.done
                stage.update()
                last = stage.done >= stage.total
                reports = last or _crossed_multiple(before, stage.done, recipe.log_every)
                # Many processes must agree whether to stop, which they do when they talk anyway.
                stops = self.ranks.any(stopped()) if self.ranks.world_size == 1 or reports else False
                if reports:
                    stage.collect()
                    numbers = stage.window.means()
                    if isinstance(stage, EpisodeStage):
                        numbers |= self.model.head.scalars()
                    stage.window = RunningMeans()
                    rate = float(stage.optimizer.param_groups[0]["lr"])
                    recorder.record(stage.done, {**numbers, "learning_rate": rate})
                    progress.update(stage.done, numbers)
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
                    self._fit_temperature()
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
        if not self.ranks.is_first:
            return MetricsRecorder(None, stage.step_name, 0)
        return MetricsRecorder(self.folder, stage.step_name, stage.done)

    # ---- validation

    def _validate(self) -> float:
        """Measure the current weights on validation classes and keep them if they are the best so far."""
        current = self._current_model()
        task = self._validation_task()
        self._fill_base_mean(current)
        predictions = self._predict(current, task, self.recipe.validation_episodes, "validation")
        if predictions.log_prob.isnan().any():
            self.stage.collect()  # which says so where the loss is no number either
            raise UserError(
                "Predictions for validation classes are no numbers after"
                f" {self.stage.done} {self.stage.unit};"
                " use other options of the head, smaller rates or another precision."
            )
        accuracy = accuracy_percent(predictions.log_prob, predictions.labels).mean().item()
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            self.best_weights = {name: t.detach().clone() for name, t in current.state_dict().items()}
        return accuracy

    def _try_head(self) -> None:
        """Let the head adapt to a task of validation once: what its options forbid is said now, too."""
        task, see = self._validation_task(), self.model.preprocessing
        labels = torch.arange(task.ways).repeat_interleave(task.shots)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), evaluation_mode(self.model):
            seen = self.model.represent(torch.zeros(1, see.channels, see.size, see.size))
            self.model.posterior(seen.expand(len(labels), *seen.shape[1:]), labels, task.ways)

    def _fill_base_mean(self, model: FewShotModel) -> None:
        """Tell a head that wants it where the base classes lie; after the base stage that stays as it is."""
        if model.head.needs_base_mean and isinstance(self.stage, BaseStage):
            cast(Tensor, model.head.base_mean).copy_(mean_feature(model, self.context.part))

    def _fit_temperature(self) -> None:
        model = self.kept_model()
        predictions = self._predict(
            model, self._validation_task(), self.recipe.temperature_episodes, "validation-temperature"
        )
        self.temperature = fit_temperature(*predictions.flat)

    def _predict(self, model: FewShotModel, task: Task, episodes: int, split: str) -> Predictions:
        """Answer episodes of the validation classes, each process some of them."""
        evaluator = PartEvaluator(model, self.validation_part, self.validation_images)
        seed = self.recipe.seed
        if self.ranks.world_size == 1:
            return evaluator.predict(task, episodes=episodes, seed=seed, split=split)
        bounds = [episodes * rank // self.ranks.world_size for rank in (self.ranks.rank, self.ranks.rank + 1)]
        queries = task.ways * task.queries
        log_prob = torch.zeros(episodes, queries, task.ways, dtype=model.dtype, device=self.fabric.device)
        labels = torch.arange(task.ways).repeat_interleave(task.queries)
        if bounds[0] < bounds[1]:
            own = evaluator.predict(
                task, episodes=bounds[1] - bounds[0], first=bounds[0], seed=seed, split=split
            )
            log_prob[bounds[0] : bounds[1]] = own.log_prob.to(log_prob)
        self.ranks.all_reduce_sum([log_prob])
        return Predictions(log_prob.cpu(), labels)

    def _validation_task(self) -> Task:
        recipe = self.recipe
        return Task(
            recipe.validation_ways,
            recipe.validation_shots or recipe.shots,
            recipe.validation_queries,
            recipe.separate_groups,
        )

    def _current_model(self) -> FewShotModel:
        average = self.stage.average
        return self.model if average is None else average.model  # type: ignore[return-value]

    def kept_model(self) -> FewShotModel:
        """Return the model with the weights that did best on validation classes, ready for evaluation."""
        recipe = self.recipe
        model = _fresh_model(recipe)
        model.temperature = self.temperature
        model.info = {
            "recipe": recipe.flat(),
            "episodes": self.episodes,
            "seconds": round(self.seconds, 1),
            "validation_accuracy": None if self.best_accuracy < 0 else self.best_accuracy,
        }
        if recipe.precision == "64-true":
            model.double()
        model.load_state_dict(self.best_weights or self._current_model().state_dict())
        return model.to(self.fabric.device).eval()

    # ---- saving and resuming

    def save(self) -> None:
        """Write the training state, then the kept model beside it; one process does."""
        self.stage.collect()
        if not self.ranks.is_first:
            return
        tensors = {
            "model": self.model.state_dict(),
            "stage": self.stage.extra_tensors(),
            "optimizer": self.stage.optimizer_tensors(),
            "best": self.best_weights,
        }
        if self.stage.average is not None:
            tensors["averaged"] = self.stage.average.model.state_dict()
        numbers = {
            "recipe": self.recipe.flat(),
            "stage": self.stage_number,
            "done": self.stage.done,
            "best_accuracy": self.best_accuracy,
            "temperature": self.temperature,
            "seconds": self.seconds,
            "window": self.stage.window.sums,
        }
        TrainingState(tensors, numbers).write(self.folder)
        self._write_model()

    def _write_model(self) -> None:
        if not self.best_weights:  # stopped before validation, which does this too
            self._fill_base_mean(self._current_model())
        self.kept_model().save(self.folder)

    def restore(self, state: TrainingState) -> None:
        """Put back what `save` wrote; the run then ends as if it had never stopped."""
        device, numbers = self.fabric.device, state.numbers
        self.best_weights = {name: t.to(device) for name, t in state.tensors.get("best", {}).items()}
        if numbers.get("stage", 0) != self.stage_number:
            self._begin_stage(numbers["stage"])
        self.model.load_state_dict(state.tensors["model"])
        self.stage.restore_extra(state.tensors.get("stage", {}))
        self.stage.restore_optimizer(state.tensors.get("optimizer", {}))
        self.stage.done = int(numbers["done"])
        if not 0 <= self.stage.done <= self.stage.total:
            raise ValueError(f"{self.stage.done} of {self.stage.total} steps done")
        if self.stage.average is not None and self.stage.done:
            averaged = state.tensors["averaged"]  # of which older versions had other names
            self.stage.average.restore(
                {name.removeprefix("module."): t for name, t in averaged.items() if name != "n_averaged"}
            )
        self.stage.window = RunningMeans(numbers["window"] if self.ranks.is_first else None)
        self.best_accuracy = numbers["best_accuracy"]
        self.temperature = numbers["temperature"]
        self.seconds = numbers["seconds"]


def _stages(recipe: Recipe, model: FewShotModel) -> list[partial[Any]]:
    """Return what makes each stage, in order.

    A head that asks for a base classifier gets a network that is frozen after it, and episodes only if it
    has parameters of its own. A recipe may ask for one without that, as a start for episodes.
    """
    wanted = model.head.base_stage
    classifier = wanted if recipe.base_classifier == "auto" else recipe.base_classifier
    if classifier in (None, "none"):
        if model.head.needs_base_mean:
            raise UserError(
                f"Head {recipe.head!r} needs a network that was trained on the base classes first;"
                " leave base_classifier at 'auto'."
            )
        return [partial(EpisodeStage, frozen_backbone=False)]
    frozen = wanted is not None
    stages: list[partial[Any]] = [partial(BaseStage, classifier=classifier)]
    if not frozen or list(model.head.parameters()):
        stages.append(partial(EpisodeStage, frozen_backbone=frozen))
    return stages


def _crossed_multiple(before: int, after: int, every: int) -> bool:
    """Say whether a multiple of `every` lies between two numbers of episodes."""
    return after // every > before // every
