"""Accuracy and calibration on unseen classes: features once, then thousands of episodes in batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gpldla.classifier.calibration import (
    accuracy_percent,
    apply_temperature,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from gpldla.classifier.features import cpu_batch_size
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.own_prior import mixture, own_prior_head
from gpldla.data import Part, Protocol
from gpldla.data.augment.transforms import evaluation_images
from gpldla.data.episodes import EpisodeSampler
from gpldla.data.part_images import PartImages
from gpldla.heads import Head
from gpldla.utils.errors import UserError

# How much is computed at once: what suits a CPU's caches, or what fills a GPU.
IMAGES_PER_CHUNK = {"cpu": 128, "cuda": 2_048}
GPU_PIXELS_PER_CHUNK = 2_048 * 84**2  # fewer images where they are larger
PROBS_PER_CHUNK = {"cpu": 20_000, "cuda": 5_000_000}
MAP_VALUES_PER_CHUNK = {"cpu": 1 << 24, "cuda": 1 << 28}


@dataclass(frozen=True)
class Task:
    """The shape of the episodes that a model is evaluated on."""

    ways: int = 5
    shots: int = 1
    queries: int = 15
    separate_groups: bool = False

    def sampler(
        self, part: Part, *, seed: int, split: str, device: torch.device | str = "cpu"
    ) -> EpisodeSampler:
        """Return the sampler of such episodes from a part."""
        return EpisodeSampler(
            part,
            ways=self.ways,
            shots=self.shots,
            queries=self.queries,
            seed=seed,
            split=split,
            separate_groups=self.separate_groups,
            device=device,
        )


@dataclass(frozen=True)
class Predictions:
    """What a model predicts for many episodes: log_prob [E, q, ways], labels [q]."""

    log_prob: Tensor
    labels: Tensor

    @property
    def flat(self) -> tuple[Tensor, Tensor]:
        """All queries in one row: log_prob [E * q, ways], labels [E * q]."""
        return self.log_prob.flatten(0, 1), self.labels.repeat(len(self.log_prob))


@dataclass(frozen=True)
class Answers:
    """What classifiers answer in episodes, their temperatures [E] and the shares of their own prior [E]."""

    predictions: Predictions
    temperatures: Tensor
    shares: Tensor

    @classmethod
    def joined(cls, parts: "Sequence[Answers]") -> "Answers":
        """Return the answers of several evaluations of the same queries as those of one."""
        log_prob = torch.cat([part.predictions.log_prob for part in parts])
        return cls(
            Predictions(log_prob, parts[0].predictions.labels),
            torch.cat([part.temperatures for part in parts]),
            torch.cat([part.shares for part in parts]),
        )


class PartEvaluator:
    """Evaluates a model on one part: represents each image once, when an episode first needs it."""

    def __init__(self, model: FewShotModel, part: Part, images: PartImages | None = None) -> None:
        """Leave the model in evaluation mode; `images`: those of the part, if kept elsewhere."""
        self.model, self.part = model.eval(), part
        self._images = images or PartImages(part, model.device, keep=False)
        self._row = torch.full((len(part.indices),), -1)  # of each image in _represented; -1: none yet
        self._represented: Tensor | None = None

    @torch.no_grad()
    def predict(
        self,
        task: Task,
        *,
        episodes: int,
        seed: int,
        split: str,
        first: int = 0,
        head: Head | None = None,
    ) -> Predictions:
        """Predict episodes first .. first + episodes - 1 of (seed, split).

        Monte Carlo draws follow `seed` too. head: another one than the model's, for its features
        """
        drawn = task.sampler(self.part, seed=seed, split=split).draw(first, episodes)
        represented = self._represent(torch.cat([drawn.support, drawn.query], dim=1))
        labels, chunk_size = drawn.labels.to(represented.device), _episodes_per_chunk(task, represented)
        chunks = zip(torch.split(drawn.support, chunk_size), torch.split(drawn.query, chunk_size))
        answers = []
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            for support, query in chunks:
                rows, queries = (
                    represented[self._row[images].to(labels.device)] for images in (support, query)
                )
                adapt = self.model.posterior if head is None else head.adapt
                posterior = adapt(rows, labels.expand(len(rows), -1), task.ways)
                answers.append(posterior.log_prob(queries).cpu())
        return Predictions(torch.cat(answers), drawn.query_labels.cpu())

    def answer(self, task: Task, predictions: Predictions, *, seed: int, split: str) -> Answers:
        """Return what classifiers answer in the episodes that the model has made `predictions` for."""
        episodes = len(predictions.log_prob)
        if self.model.calibration is None:
            stored = torch.full((episodes,), self.model.temperature, dtype=torch.float64)
            log_prob = apply_temperature(predictions.log_prob, self.model.temperature)
            return Answers(Predictions(log_prob, predictions.labels), stored, torch.zeros_like(stored))

        def of(support: Tensor, labels: Tensor) -> Tensor:
            return torch.stack(self.model.task_answer(support, labels, task.ways), -1)

        found = self.of_supports(of, task, episodes=episodes, seed=seed, split=split)
        temperatures, shares = found.unbind(-1)
        log_prob = predictions.log_prob
        log_prob = apply_temperature(log_prob, temperatures.view(-1, 1, 1).to(log_prob))
        if (shares > 0).any():
            own = self.predict(task, episodes=episodes, seed=seed, split=split, head=own_prior_head())
            log_prob = mixture(log_prob, own.log_prob, shares.view(-1, 1, 1))
        return Answers(Predictions(log_prob, predictions.labels), temperatures, shares)

    @torch.no_grad()
    def of_supports(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        task: Task,
        *,
        episodes: int,
        seed: int,
        split: str,
    ) -> Tensor:
        """Return function(support [e, n, ...], labels [n]) [e] of all episodes that `predict` has, [E]."""
        drawn = task.sampler(self.part, seed=seed, split=split).draw(0, episodes)
        represented = self._represent(drawn.support)
        labels, chunk_size = drawn.labels.to(represented.device), _episodes_per_chunk(task, represented)
        values = []
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            for support in torch.split(drawn.support, chunk_size):
                values.append(function(represented[self._row[support].to(labels.device)], labels).cpu())
        return torch.cat(values)

    @torch.no_grad()
    def one_episode(self, task: Task, *, seed: int, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the head consumes in one episode: support [n, ...], labels [n] and query [q, ...]."""
        drawn = task.sampler(self.part, seed=seed, split=split).draw(0, 1)
        represented = self._represent(torch.cat([drawn.support[0], drawn.query[0]]))
        labels = drawn.labels.to(represented.device)
        return represented[self._row[drawn.support[0]]], labels, represented[self._row[drawn.query[0]]]

    def _represent(self, indices: Tensor) -> Tensor:
        """Return what is represented so far, with the images of these indices among it."""
        indices = torch.unique(indices)
        new = indices[self._row[indices] < 0]
        known = [] if self._represented is None else [self._represented]
        known += [self.model.represent(images) for images in _image_chunks(self.model, self._images, new)]
        self._represented = torch.cat(known)
        self._row[new] = torch.arange(len(self._represented) - len(new), len(self._represented))
        return self._represented


@torch.no_grad()
def mean_feature(model: FewShotModel, part: Part) -> Tensor:
    """Return the mean feature of all images of a part, [d]; leaves the model in evaluation mode."""
    model.eval()
    everything = torch.arange(len(part.indices))
    total = sum(
        model.backbone.features(images.to(model.dtype, memory_format=torch.channels_last)).double().sum(0)
        for images in _image_chunks(model, PartImages(part, model.device, keep=False), everything)
    )
    return cast(Tensor, total) / len(everything)


@torch.no_grad()
def keep_base_images(model: FewShotModel, part: Part) -> None:
    """Put the first images of each class of a part into the head, as many as it wants."""
    head, facts = model.head, model.preprocessing
    counts = torch.from_numpy(part.counts)
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    number = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels]  # of each image within its class
    kept = (number < head.needs_base_images).nonzero().flatten()
    mean, std = (torch.tensor(v, device=model.device).view(-1, 1, 1) for v in (facts.mean, facts.std))
    chunks = _image_chunks(model, PartImages(part, model.device, keep=False), kept)
    pixels = [(255 * (images * std + mean)).round().clamp(0, 255).to(torch.uint8) for images in chunks]
    head.base_images, head.base_labels = torch.cat(pixels), labels[kept].to(model.device)


def _episodes_per_chunk(task: Task, represented: Tensor) -> int:
    """Return how many episodes to predict at once; represented [n, ...]."""
    device = represented.device
    size = _limit(PROBS_PER_CHUNK, device) // (task.queries * task.ways**2)
    if represented.ndim > 2:  # maps or images, which a head may compare pair by pair
        pairs = task.ways * (task.shots + task.queries) * task.ways
        size = min(size, _limit(MAP_VALUES_PER_CHUNK, device) // (pairs * represented[0].numel()))
    return max(1, size)


def _image_chunks(model: FewShotModel, images: PartImages, indices: Tensor) -> Iterator[Tensor]:
    """Yield preprocessed images in chunks: the store may be larger than memory."""
    device, size = model.device, model.preprocessing.size
    most = _limit(IMAGES_PER_CHUNK, device)
    fitting = max(1, GPU_PIXELS_PER_CHUNK // size**2)
    at_once = cpu_batch_size(size, most) if device.type == "cpu" else min(most, fitting)
    for chunk in torch.split(indices, at_once) if len(indices) else ():  # a GPU cannot resize 0 images
        yield evaluation_images(images[chunk], model.preprocessing)


def _limit(limits: dict[str, int], device: torch.device) -> int:
    return limits.get(device.type, limits["cpu"])


@dataclass(frozen=True)
class Evaluation:
    """The measured numbers, as JSON, the predictions they come from, and the answers of classifiers."""

    numbers: dict[str, Any]
    predictions: Predictions
    answers: Answers


class ProtocolEvaluator:
    """Evaluates a model on a protocol; represents the images of each part once, for any number of tasks."""

    def __init__(self, model: FewShotModel, protocol: Protocol) -> None:
        self.model, self.protocol = model, protocol
        self._parts: dict[str, PartEvaluator] = {}

    def part(self, name: str) -> PartEvaluator:
        """Return the evaluator of a part."""
        if name not in self._parts:
            self._parts[name] = PartEvaluator(self.model, self.protocol.part(name))
        return self._parts[name]

    def _can_validate(self, task: Task) -> bool:
        """Return whether the validation classes suffice for this task, in number and in images."""
        if "validation" not in self.protocol.parts:
            return False
        try:
            task.sampler(self.protocol.part("validation"), seed=0, split="validation-temperature")
        except UserError:
            return False
        return True

    def evaluate(self, task: Task, *, episodes: int = 600, repeats: int = 5, seed: int = 0) -> Evaluation:
        """Measure the model on the novel classes.

        Each quantity comes five times: as predicted; with the temperature stored in the model; as classifiers
        answer, see `FewShotModel.task_answer`; with the temperature fitted on validation classes for this
        very task (the stored one where they are too few for it); and with it fitted on other episodes of the
        novel classes, which is what the paper reports and no user can do.
        """
        novel = self.part("novel")
        seeds = list(range(seed, seed + repeats))
        by_seed = [novel.predict(task, episodes=episodes, seed=s, split="novel") for s in seeds]
        everything = Predictions(torch.cat([p.log_prob for p in by_seed]), by_seed[0].labels)

        answers = Answers.joined(
            [novel.answer(task, p, seed=s, split="novel") for p, s in zip(by_seed, seeds)]
        )
        temperature = self.model.temperature
        validates = self._can_validate(task)
        if validates:
            on_validation = self.part("validation").predict(
                task, episodes=episodes, seed=seed, split="validation-temperature"
            )
            temperature = fit_temperature(*on_validation.flat)
        on_other_novel = novel.predict(
            task, episodes=episodes * repeats, seed=seed, split="novel-temperature"
        )
        paper_temperature = fit_temperature(*on_other_novel.flat)

        numbers: dict[str, Any] = {
            "dataset": self.protocol.name,
            "ways": task.ways,
            "shots": task.shots,
            "queries": task.queries,
            "separate_groups": task.separate_groups,
            "episodes": episodes,
            "repeats": repeats,
            "seeds": seeds,
            "temperature_model": self.model.temperature,
            "temperature_task": answers.temperatures.median().item(),
            "own_prior_share": answers.shares.mean().item(),
            "temperature_val": temperature,
            "temperature_val_is_fitted": validates,
            "temperature_paper": paper_temperature,
        }
        for suffix, t in (
            ("", 1.0),
            ("_model_temperature", self.model.temperature),
            ("_val_temperature", temperature),
            ("_paper_temperature", paper_temperature),
        ):
            numbers |= {name + suffix: value for name, value in measure(everything, repeats, t).items()}
        measured = measure(answers.predictions, repeats)
        numbers |= {f"{name}_classifier": value for name, value in measured.items()}
        return Evaluation(numbers, everything, answers)


def measure(predictions: Predictions, repeats: int = 1, temperature: float = 1.0) -> dict[str, float]:
    """Return accuracy with interval, NLL and ECE; percentages but for the NLL.

    interval: half of the 95 % interval of the mean over all episodes; accuracy_std: standard deviation of the
    means of the repeats, as the paper reports.
    """
    log_prob = apply_temperature(predictions.log_prob, temperature)
    accuracy = accuracy_percent(log_prob, predictions.labels)  # [E]
    flat, labels = Predictions(log_prob, predictions.labels).flat
    means = accuracy.view(repeats, -1).mean(1)
    return {
        "accuracy": accuracy.mean().item(),
        "interval": 1.96 * accuracy.std(correction=0).item() / math.sqrt(len(accuracy)),
        "accuracy_std": means.std(correction=0).item(),
        "nll": negative_log_likelihood(flat, labels),
        "ece": reliability(flat, labels).error,
        "ece_equal_mass": reliability(flat, labels, equal_mass=True).error,
    }
