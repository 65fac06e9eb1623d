"""What tasks of the validation classes are like, in many shapes: the calibration that a model takes away."""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from gpldla.classifier.calibration import fit_temperature, reliability
from gpldla.classifier.own_prior import own_prior_head
from gpldla.classifier.task_temperature import USUAL_WAYS, Linear, Shape, TaskTemperature, log_gap
from gpldla.evaluation import PartEvaluator, Task
from gpldla.utils.errors import UserError

# Ways and shots of the tasks, where the classes suffice for them.
SHAPES = ((5, 1), (5, 2), (5, 5), (5, 10), (2, 1), (2, 5), (10, 1), (10, 5), (20, 1), (20, 5))
QUERIES, SPLIT = 5, "validation-shapes"
LEAST_DEVIATION = 0.02  # of a log gap
OWN_EPISODES = 300  # for the ECE of the tasks' own prior: its noise is then below one point


def fit_task_temperature(
    evaluator: PartEvaluator, usual: Task, temperature: float, *, episodes: int = 100, seed: int = 0
) -> TaskTemperature | None:
    """Return what the temperatures of tasks are computed from; None if it cannot be measured.

    evaluator: of validation classes; usual: the shape of tasks for which the temperature is `temperature`
    episodes:  of each shape
    """
    model = evaluator.model
    if model.head.consumes == "backbone":
        return None  # which adapts the network to each task: hundreds of them take too long
    shapes, temperatures, gaps, deviations = [], [], [], []
    for ways, shots in SHAPES:
        task = Task(ways, shots, QUERIES, usual.separate_groups)
        try:
            predictions = evaluator.predict(task, episodes=episodes, seed=seed, split=SPLIT)
        except UserError:  # too few classes or images
            continue
        gap = evaluator.of_supports(
            partial(log_gap, model.head, n_way=ways), task, episodes=episodes, seed=seed, split=SPLIT
        )
        shapes.append(_shape(task))
        temperatures.append(math.log(fit_temperature(*predictions.flat)))
        gaps.append(gap.mean().item())
        deviations.append(math.log(max(LEAST_DEVIATION, gap.std(correction=0).item())))
    if not shapes:
        return None
    log_temperature = _fit(shapes, temperatures)
    # The model's temperature was fitted to many more tasks of the usual shape.
    missing = math.log(temperature) - log_temperature.at(_shape(usual))
    log_temperature = replace(log_temperature, constant=log_temperature.constant + missing)
    own_error = _own_error(evaluator, usual, seed)
    return TaskTemperature(log_temperature, _fit(shapes, gaps), _fit(shapes, deviations), own_error)


def _own_error(evaluator: PartEvaluator, usual: Task, seed: int) -> float | None:
    """Return the ECE of the tasks' own prior with one example per class; None where it is the model's."""
    if evaluator.model.head.consumes != "features" or evaluator.model.head_name == "gpldla-auto":
        return None
    task = Task(USUAL_WAYS, 1, QUERIES, usual.separate_groups)
    try:
        predictions = evaluator.predict(
            task, episodes=OWN_EPISODES, seed=seed, split=SPLIT, head=own_prior_head()
        )
    except UserError:  # too few classes
        return None
    return reliability(*predictions.flat).error


def _shape(task: Task) -> Shape:
    return Shape(math.log(task.shots), math.log(task.ways / USUAL_WAYS))


def _fit(shapes: list[Shape], values: list[float]) -> Linear:
    """Return the least squares fit to values at these shapes."""
    design = np.array([[1.0, *shape] for shape in shapes])
    constant, shots, ways = np.linalg.lstsq(design, np.array(values), rcond=None)[0].tolist()
    return Linear(constant, shots, ways)
