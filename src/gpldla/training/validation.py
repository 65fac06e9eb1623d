"""Validation during training: tasks from the validation classes choose weights and fit the temperature."""

from functools import cached_property

import torch
from lightning_fabric import Fabric

from gpldla.classifier.calibration import fit_temperature
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.task_temperature import TaskTemperature
from gpldla.data import Part
from gpldla.data.part_images import PartImages
from gpldla.evaluation import PartEvaluator, Predictions, Task
from gpldla.training.home_tasks import fit_task_temperature
from gpldla.training.process_group import ProcessGroup
from gpldla.training.recipe import Recipe
from gpldla.utils.errors import UserError

SHARE_OF_SHAPE = 6  # of the episodes for the temperature, to one of the shapes of tasks


class Validation:
    """The validation classes of a training, and the tasks that models are measured on."""

    def __init__(self, recipe: Recipe, part: Part, fabric: Fabric) -> None:
        """Refuse tasks that the classes cannot fill before training starts."""
        settings = recipe.validation
        self.task = Task(settings.ways, recipe.validation_shots, settings.queries, recipe.separate_groups)
        self._settings, self._seed, self._part = settings, recipe.seed, part
        try:
            self.task.sampler(part, seed=recipe.seed, split="validation")
        except UserError as error:
            raise UserError(f"For [validation] (ways, shots, queries): {error}") from None
        self._device, self._processes = fabric.device, ProcessGroup(fabric)

    @cached_property
    def _images(self) -> PartImages:
        return PartImages(self._part, self._device)  # after those of the base classes, which need memory more

    def predictions(self, model: FewShotModel) -> Predictions:
        """Predict the validation tasks."""
        return self._predict(model, self._settings.episodes, "validation")

    def temperature(self, model: FewShotModel) -> float:
        """Return the temperature fitted on other tasks of the validation classes."""
        predictions = self._predict(model, self._settings.temperature_episodes, "validation-temperature")
        return fit_temperature(*predictions.flat)

    def calibration(self, model: FewShotModel, temperature: float) -> TaskTemperature | None:
        """Return what temperatures of tasks are computed from; every process computes the same."""
        evaluator = PartEvaluator(model, self._part, self._images)
        episodes = max(2, self._settings.temperature_episodes // SHARE_OF_SHAPE)
        return fit_task_temperature(evaluator, self.task, temperature, episodes=episodes, seed=self._seed)

    def try_head(self, model: FewShotModel) -> None:
        """Let the head of a model adapt to one task, so that options it refuses are named before training."""
        task, facts = self.task, model.preprocessing
        labels = torch.arange(task.ways).repeat_interleave(task.shots)
        model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            represented = model.represent(torch.zeros(1, facts.channels, facts.size, facts.size))
            model.posterior(represented.expand(len(labels), *represented.shape[1:]), labels, task.ways)

    def _predict(self, model: FewShotModel, episodes: int, split: str) -> Predictions:
        """Predict episodes of the validation classes, each process some of them."""
        task, processes = self.task, self._processes
        evaluator = PartEvaluator(model, self._part, self._images)
        if processes.world_size == 1:
            return evaluator.predict(task, episodes=episodes, seed=self._seed, split=split)
        first, end = (
            episodes * rank // processes.world_size for rank in (processes.rank, processes.rank + 1)
        )
        queries = task.ways * task.queries
        log_prob = torch.zeros(episodes, queries, task.ways, dtype=model.dtype, device=self._device)
        labels = torch.arange(task.ways).repeat_interleave(task.queries)
        if first < end:
            local = evaluator.predict(task, episodes=end - first, first=first, seed=self._seed, split=split)
            log_prob[first:end] = local.log_prob.to(log_prob)
        processes.all_reduce_sum([log_prob])
        return Predictions(log_prob.cpu(), labels)
