"""Meta-training: episodes of the base classes, one after the other, with checkpoints and resume."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from gpldla.data.part_images import PartImages
from gpldla.data.training_images import TRAINING_TRANSFORMS
from gpldla.episodes import Episodes
from gpldla.errors import UserError
from gpldla.evaluation import PartEvaluator, Task, measure
from gpldla.files import check_writable, write_atomically
from gpldla.model import FewShotModel
from gpldla.process import stop_signals
from gpldla.progress import Reporter, TrainingProgress, say
from gpldla.recipe import Recipe

METRICS = "metrics.jsonl"
EPISODES_DRAWN_AT_ONCE = 256
ACCURACY_EVERY = 5  # episodes, at most, between looks at the training accuracy: a second pass of the head


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
        if show_progress and run.done < recipe.episodes:
            say(console, f"Going on in {folder} after {run.done} episodes.")
    with TrainingProgress(recipe.episodes, run.done, console, enabled=show_progress) as progress:
        finished = run.go(progress)
    return TrainingResult(run.kept_model(), run.done, finished)


def _check_same_recipe(before: dict[str, Any], recipe: Recipe, folder: Path) -> None:
    now = recipe.flat()
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
    """One training run: what changes from step to step, and how to save it."""

    def __init__(self, recipe: Recipe, folder: Path, protocol: Protocol, fabric: Fabric) -> None:
        self.recipe, self.folder, self.fabric = recipe, folder, fabric
        self.validation_part = protocol.part("validation")
        base = protocol.part("base")
        task = Task(recipe.ways, recipe.shots, recipe.queries, recipe.separate_groups)
        self.sampler = task.sampler(base, seed=recipe.seed, split="base")
        # What validation cannot do is said now, not after the training.
        self._validation_task().sampler(self.validation_part, seed=recipe.seed, split="validation")
        torch.manual_seed(recipe.seed)
        self.model = FewShotModel(recipe.backbone, recipe.head, head_options=recipe.head_options)
        if self.model.head.base_stage is not None:
            raise UserError(
                f"Head {recipe.head!r} wants a base classifier first; this version trains by episodes only."
            )
        if not list(self.model.parameters()):
            raise UserError(f"Backbone {recipe.backbone!r} with head {recipe.head!r} has nothing to learn.")
        optimizer = torch.optim.Adam(
            [
                {"params": list(self.model.backbone.parameters()), "lr": recipe.learning_rate},
                {"params": list(self.model.head.parameters()), "lr": recipe.head_learning_rate},
            ]
        )
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.wrapped, self.optimizer = fabric.setup(self.model, optimizer)
        self.averaged = (
            AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(recipe.ema), use_buffers=True)
            if recipe.ema
            else None
        )
        self.images = PartImages(base, fabric.device)
        self.transform = TRAINING_TRANSFORMS[recipe.augment]
        self.done = 0
        self.best_accuracy = -1.0
        self.best_weights: dict[str, Tensor] = {}
        self.temperature = 1.0
        self.seconds = 0.0  # spent training, over all parts of an interrupted run
        self.window = _Window()

    # ---- the loop

    def go(self, progress: TrainingProgress) -> bool:
        """Run to the end or to the first stop signal; return whether the end was reached."""
        recipe = self.recipe
        if self.done >= recipe.episodes:
            self._write_model()  # a kill may have come between the last checkpoint and the model
            return True
        self._forget_metrics_after(self.done)
        started = time.monotonic() - self.seconds
        writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=self.done)
        with stop_signals() as stopped, writer, (self.folder / METRICS).open("a", encoding="utf-8") as lines:

            def record(numbers: dict[str, float]) -> None:
                lines.write(json.dumps({"episode": self.done, **numbers}) + "\n")
                lines.flush()
                for name, value in numbers.items():
                    writer.add_scalar(name, value, self.done)

            for episodes in self._updates():
                before = self.done
                self._update(episodes)
                last = self.done >= recipe.episodes
                if last or _passed(before, self.done, recipe.log_every):
                    numbers = self.window.means() | self.model.head.scalars()
                    self.window = _Window()
                    record({**numbers, "learning_rate": self.optimizer.param_groups[0]["lr"]})
                    progress.update(self.done, numbers)
                if last or (recipe.validate_every and _passed(before, self.done, recipe.validate_every)):
                    accuracy = self._validate()
                    record({"validation_accuracy": accuracy})
                    best = "  (best)" if accuracy == self.best_accuracy else ""
                    progress.say(f"episode {self.done}: validation accuracy {accuracy:.2f} %{best}")
                if last:
                    self._fit_temperature()
                self.seconds = time.monotonic() - started
                if last or stopped() or _passed(before, self.done, recipe.checkpoint_every):
                    self.save()
                if stopped() and not last:
                    progress.say(f"Stopped after {self.done} episodes; the same command goes on from here.")
                    return False
        return True

    def _updates(self) -> Iterator[Episodes]:
        """Yield the episodes of one update after the other, from the first that is not done."""
        size = self.recipe.episodes_per_update
        a_block = max(1, EPISODES_DRAWN_AT_ONCE // size) * size
        while self.done < self.recipe.episodes:
            block = self.sampler.draw(self.done, min(a_block, self.recipe.episodes - self.done))
            for start in range(0, len(block.support), size):
                chosen = slice(start, start + size)
                yield Episodes(
                    block.support[chosen],
                    block.labels,
                    block.query[chosen],
                    block.query_labels,
                    block.classes[chosen],
                )

    def _update(self, episodes: Episodes) -> None:
        """Take one optimiser step on the mean loss of some episodes; BatchNorm sees one episode at a time."""
        self.wrapped.train()
        factor = self.recipe.learning_rate_factor(self.done)
        for group, rate in zip(self.optimizer.param_groups, self.base_rates):
            group["lr"] = rate * factor
        device = self.fabric.device
        labels, query_labels = episodes.labels.to(device), episodes.query_labels.to(device)
        for support, query in zip(episodes.support, episodes.query):
            stored = self.images[torch.cat([support, query])]
            images = self.transform(stored.pixels, self.model.preprocessing, stored.shapes)
            loss, represented = self.wrapped(images, labels, query_labels, self.recipe.ways)
            if not torch.isfinite(loss):
                raise UserError(
                    f"The loss is not a number any more after {self.done} episodes;"
                    " use a smaller learning_rate or another precision."
                )
            self.fabric.backward(loss / len(episodes.support))
            self.window.add("loss", loss.item())
            if self.done % min(ACCURACY_EVERY, self.recipe.log_every) == 0:
                self.window.add("accuracy", self._accuracy(represented, labels, query_labels))
            self.done += 1
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    @torch.no_grad()
    def _accuracy(self, represented: Tensor, labels: Tensor, query_labels: Tensor) -> float:
        support, query = represented[: len(labels)], represented[len(labels) :]
        log_prob = self.model.posterior(support, labels, self.recipe.ways).log_prob(query)
        return 100 * (log_prob.argmax(-1) == query_labels).float().mean().item()

    # ---- validation

    def _validate(self) -> float:
        """Measure the current weights on validation classes and keep them if they are the best so far."""
        current = self._current_model()
        task = self._validation_task()
        with _random_state_kept():
            predictions = PartEvaluator(current, self.validation_part).predict(
                task, episodes=self.recipe.validation_episodes, seed=self.recipe.seed, split="validation"
            )
        accuracy = measure(predictions)["accuracy"]
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            self.best_weights = {name: t.detach().clone() for name, t in current.state_dict().items()}
        return accuracy

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
                    "episodes": self.done,
                    "seconds": round(self.seconds, 1),
                    "validation_accuracy": self.best_accuracy,
                },
            )
        model.load_state_dict(self.best_weights or self._current_model().state_dict())
        return model.to(self.fabric.device).eval()

    # ---- saving and resuming

    def save(self) -> None:
        """Write the training state, then the kept model beside it."""
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": checkpoint.optimizer_tensors(self.optimizer.optimizer),
            "best": self.best_weights,
            "random": checkpoint.random_tensors(),
        }
        if self.averaged is not None:
            tensors["averaged"] = self.averaged.state_dict()
        numbers = {
            "recipe": self.recipe.flat(),
            "done": self.done,
            "best_accuracy": self.best_accuracy,
            "temperature": self.temperature,
            "seconds": self.seconds,
            "window": self.window.sums,
        }
        TrainingState(tensors, numbers).write(self.folder)
        self._write_model()

    def _write_model(self) -> None:
        self.kept_model().save(self.folder)

    def restore(self, state: TrainingState) -> None:
        """Put back what `save` wrote; the run then ends as if it had never stopped."""
        self.model.load_state_dict(state.tensors["model"])
        checkpoint.restore_optimizer(self.optimizer.optimizer, state.tensors["optimizer"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state.tensors["averaged"])
        device = self.fabric.device
        self.best_weights = {name: t.to(device) for name, t in state.tensors.get("best", {}).items()}
        self.done = state.numbers["done"]
        self.best_accuracy = state.numbers["best_accuracy"]
        self.temperature = state.numbers["temperature"]
        self.seconds = state.numbers["seconds"]
        self.window = _Window(state.numbers["window"])
        checkpoint.restore_random(state.tensors["random"])

    def _forget_metrics_after(self, episode: int) -> None:
        """Drop the lines of episodes that will be done again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / METRICS
        if path.exists():
            whole_lines = [line for line in path.read_text("utf-8").splitlines(True) if line.endswith("\n")]
            kept = [line for line in whole_lines if json.loads(line)["episode"] <= episode]
            write_atomically(path, "".join(kept).encode())


class _Window:
    """Means since the last report: sums and counts by name."""

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in (sums or {}).items()}

    def add(self, name: str, value: float) -> None:
        pair = self.sums.setdefault(name, [0.0, 0.0])
        pair[0] += value
        pair[1] += 1

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.sums.items()}


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
