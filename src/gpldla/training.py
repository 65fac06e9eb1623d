"""Training a model by a recipe: stage after stage, with validation, checkpoints and resume."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.tensorboard import SummaryWriter

from gpldla import checkpoint
from gpldla.backbones import backbone_preprocessing
from gpldla.calibration import fit_temperature
from gpldla.checkpoint import TrainingState
from gpldla.data import Access, Places, Protocol, load_protocol
from gpldla.errors import UserError
from gpldla.evaluation import PartEvaluator, Task, mean_feature, measure
from gpldla.files import check_writable, write_atomically
from gpldla.model import FewShotModel
from gpldla.process import stop_signals
from gpldla.progress import Reporter, TrainingProgress, say
from gpldla.recipe import Recipe
from gpldla.stages import BaseStage, EpisodeStage, Material, Stage, Window, episode_sampler

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended: the kept model, and whether all episodes were done or someone stopped it."""

    model: FewShotModel
    episodes: int
    finished: bool


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    accelerator: str = "auto",
    places: Places | None = None,
    console: Console | None = None,
    show_progress: bool = True,
) -> TrainingResult:
    """Meta-train by `recipe` and leave a FewShotModel in `folder`; goes on where an earlier run stopped.

    Ctrl-C and SIGTERM write a checkpoint first; a kill loses what came after the last one.
    """
    folder = Path(folder)
    console = console or Console(stderr=True)
    started = TrainingState.read(folder) if (folder / checkpoint.FILE).exists() else None
    if started is not None:
        _check_same_recipe(started.numbers["recipe"], recipe, folder)
    elif (folder / "config.json").exists():
        raise UserError(f"{folder} already holds a model; choose another folder.")
    check_writable(folder)
    protocol = load_protocol(
        recipe.dataset,
        size=backbone_preprocessing(recipe.backbone).size,
        side=recipe.stored_side or None,
        access=Access(places or Places(), Reporter(console)),
    )
    if accelerator == "auto":  # Fabric's own choice includes Apple's GPU, which has no float64
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(accelerator=accelerator, devices=1, precision=recipe.precision)  # type: ignore[arg-type]
    run = _Run(recipe, folder, protocol, fabric)
    if started is not None:
        run.restore(started)
        if show_progress and not run.is_done:
            say(console, f"Going on in {folder} after {run.stage.done} {run.stage.unit}.")
    finished = run.go(console, show_progress)
    return TrainingResult(run.kept_model(), run.episodes, finished)


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


class _Run:
    """One training run: its stages, what changes from step to step, and how to save it."""

    def __init__(self, recipe: Recipe, folder: Path, protocol: Protocol, fabric: Fabric) -> None:
        self.recipe, self.folder, self.fabric = recipe, folder, fabric
        self.validation_part = protocol.part("validation")
        # What validation cannot do is said now, not after the training.
        self._validation_task().sampler(self.validation_part, seed=recipe.seed, split="validation")
        torch.manual_seed(recipe.seed)
        self.model = FewShotModel(recipe.backbone, recipe.head, head_options=recipe.head_options)
        if not list(self.model.parameters()):
            raise UserError(f"Backbone {recipe.backbone!r} with head {recipe.head!r} has nothing to learn.")
        self.model.to(fabric.device)
        self.material = Material(recipe, self.model, protocol.part("base"), fabric)
        self.stages = _stages(recipe, self.model)
        if EpisodeStage in (stage.func for stage in self.stages):  # as for validation: said now
            episode_sampler(self.material)
        self.stage_number = 0
        self.stage = self.stages[0](self.material)
        self.averaged = self._new_average()
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
                with TrainingProgress(
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
        self.stage = self.stages[number](self.material)
        self.averaged = self._new_average()

    def _run_stage(self, progress: TrainingProgress, stopped: Callable[[], bool]) -> bool:
        stage, recipe = self.stage, self.recipe
        if stage.done >= stage.total:
            self._write_model()  # a kill may have come between the last checkpoint and the model
            return True
        self._forget_metrics_after(stage)
        started = time.monotonic() - self.seconds
        board = self.folder / "tensorboard" / ("" if stage.step_name == "episode" else stage.step_name)
        writer = SummaryWriter(str(board), purge_step=stage.done)
        with writer, (self.folder / METRICS).open("a", encoding="utf-8") as lines:

            def record(numbers: dict[str, float]) -> None:
                lines.write(json.dumps({stage.step_name: stage.done, **numbers}) + "\n")
                lines.flush()
                for name, value in numbers.items():
                    writer.add_scalar(name, value, stage.done)

            while stage.done < stage.total:
                before = stage.done
                stage.update()
                if self.averaged is not None:
                    self.averaged.update_parameters(self.model)
                last = stage.done >= stage.total
                if last or _passed(before, stage.done, recipe.log_every):
                    numbers = stage.window.means()
                    if isinstance(stage, EpisodeStage):
                        numbers |= self.model.head.scalars()
                    stage.window = Window()
                    record({**numbers, "learning_rate": stage.optimizer.param_groups[0]["lr"]})
                    progress.update(stage.done, numbers)
                if last or (stage.validate_every and _passed(before, stage.done, stage.validate_every)):
                    accuracy = self._validate()
                    record({"validation_accuracy": accuracy})
                    best = "  (best)" if accuracy == self.best_accuracy else ""
                    progress.say(
                        f"{stage.step_name.replace('_', ' ')} {stage.done}:"
                        f" validation accuracy {accuracy:.2f} %{best}"
                    )
                if last and self._is_last_stage:
                    self._fit_temperature()
                self.seconds = time.monotonic() - started
                if last or stopped() or _passed(before, stage.done, recipe.checkpoint_every):
                    self.save()
                if stopped() and not (last and self._is_last_stage):
                    progress.say(
                        f"Stopped after {stage.done} {stage.unit}; the same command goes on from here."
                    )
                    return False
        return True

    # ---- validation

    def _validate(self) -> float:
        """Measure the current weights on validation classes and keep them if they are the best so far."""
        current = self._current_model()
        task = self._validation_task()
        self._fill_base_mean(current)
        with _random_state_kept():
            predictions = PartEvaluator(current, self.validation_part).predict(
                task, episodes=self.recipe.validation_episodes, seed=self.recipe.seed, split="validation"
            )
        accuracy = measure(predictions)["accuracy"]
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            self.best_weights = {name: t.detach().clone() for name, t in current.state_dict().items()}
        return accuracy

    def _fill_base_mean(self, model: FewShotModel) -> None:
        """Tell a head that wants it where the base classes lie; after the base stage that stays as it is."""
        if model.head.needs_base_mean and isinstance(self.stage, BaseStage):
            cast(Tensor, model.head.base_mean).copy_(mean_feature(model, self.material.part))

    def _fit_temperature(self) -> None:
        model = self.kept_model()
        predictions = PartEvaluator(model, self.validation_part).predict(
            self._validation_task(),
            episodes=self.recipe.temperature_episodes,
            seed=self.recipe.seed,
            split="validation-temperature",
        )
        self.temperature = fit_temperature(*predictions.flat)

    def _validation_task(self) -> Task:
        recipe = self.recipe
        return Task(
            recipe.validation_ways,
            recipe.validation_shots or recipe.shots,
            recipe.validation_queries,
            recipe.separate_groups,
        )

    def _new_average(self) -> AveragedModel | None:
        if not self.recipe.ema:
            return None
        return AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(self.recipe.ema), use_buffers=True)

    def _current_model(self) -> FewShotModel:
        return self.model if self.averaged is None else self.averaged.module  # type: ignore[return-value]

    def kept_model(self) -> FewShotModel:
        """Return the model with the weights that did best on validation classes, ready for evaluation."""
        recipe = self.recipe
        with _random_state_kept():  # fresh weights are drawn, then replaced
            model = FewShotModel(
                recipe.backbone,
                recipe.head,
                head_options=recipe.head_options,
                temperature=self.temperature,
                info={
                    "recipe": recipe.flat(),
                    "episodes": self.episodes,
                    "seconds": round(self.seconds, 1),
                    "validation_accuracy": None if self.best_accuracy < 0 else self.best_accuracy,
                },
            )
        model.load_state_dict(self.best_weights or self._current_model().state_dict())
        return model.to(self.fabric.device).eval()

    # ---- saving and resuming

    def save(self) -> None:
        """Write the training state, then the kept model beside it."""
        tensors = {
            "model": self.model.state_dict(),
            "stage": self.stage.own_tensors(),
            "optimizer": self.stage.optimizer_tensors(),
            "best": self.best_weights,
            "random": checkpoint.random_tensors(),
        }
        if self.averaged is not None:
            tensors["averaged"] = self.averaged.state_dict()
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
        self.stage.restore_own(state.tensors.get("stage", {}))
        self.stage.restore_optimizer(state.tensors.get("optimizer", {}))
        if self.averaged is not None:
            self.averaged.load_state_dict(state.tensors["averaged"])
        self.stage.done = numbers["done"]
        self.stage.window = Window(numbers["window"])
        self.best_accuracy = numbers["best_accuracy"]
        self.temperature = numbers["temperature"]
        self.seconds = numbers["seconds"]
        checkpoint.restore_random(state.tensors["random"])

    def _forget_metrics_after(self, stage: Stage) -> None:
        """Drop the lines of steps that will be done again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / METRICS
        if path.exists():
            whole_lines = [line for line in path.read_text("utf-8").splitlines(True) if line.endswith("\n")]
            kept = [line for line in whole_lines if json.loads(line).get(stage.step_name, 0) <= stage.done]
            write_atomically(path, "".join(kept).encode())


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


def _passed(before: int, after: int, every: int) -> bool:
    """Say whether a multiple of `every` lies between two numbers of episodes."""
    return after // every > before // every


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Let what happens inside not change the training that follows."""
    before = checkpoint.random_tensors()
    try:
        yield
    finally:
        checkpoint.restore_random(before)
