"""FewShotClassifier: a FewShotModel adapted to a task, which answers for pictures or texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpldla.classifier.examples import Examples
from gpldla.classifier.features import FeatureCache, list_items
from gpldla.classifier.labels import class_indices, distinct_classes, label_array, list_of_labels
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.task import AdaptedTask
from gpldla.classifier.uncertainty import Uncertainty
from gpldla.data.user_files import printable
from gpldla.heads import Posterior
from gpldla.utils.errors import UserError
from gpldla.utils.progress import SILENT, Reporter


class FewShotClassifier:
    """A FewShotModel adapted to a task.

    Changing the examples (`add`, `relabel`, `remove`) returns a new classifier, so one classifier may answer
    in many threads at once.

    classes: sorted where labels can be compared, else in the order in which they came
    task: the adapted head, with the examples
    """

    def __init__(self, model: FewShotModel, classes: np.ndarray, task: AdaptedTask) -> None:
        """Put a classifier together from its parts; `FewShotModel.adapt` makes one from pictures or texts."""
        self.model, self.classes, self.task = model, classes, task

    @classmethod
    def adapt(
        cls,
        model: FewShotModel,
        items: Sequence[Any],
        labels: Sequence[Any],
        *,
        cache: FeatureCache | None = None,
        reporter: Reporter = SILENT,
    ) -> "FewShotClassifier":
        """Adapt a model to pictures or texts with one label each."""
        items = _non_empty(items, model)
        rows = model.embed(items, cache=cache, reporter=reporter)
        return cls.from_rows(model, rows, labels, names=_names(items))

    @classmethod
    def from_rows(
        cls,
        model: FewShotModel,
        rows: Tensor,
        labels: Sequence[Any],
        *,
        names: tuple[str, ...] | None = None,
    ) -> "FewShotClassifier":
        """Adapt a model to items as `FewShotModel.embed` represents them [n, ...], with one label each."""
        listed = _one_per_item(labels, len(rows))
        classes = distinct_classes(listed)
        examples = Examples(rows, class_indices(listed, classes).to(rows.device), names=names)
        return cls._of(model, label_array(classes), examples)

    @classmethod
    def _of(cls, model: FewShotModel, classes: np.ndarray, examples: Examples) -> "FewShotClassifier":
        if len(classes) < 2:
            raise UserError(
                f"All examples are of class {classes.tolist()[0]!r}; give examples of at least two classes."
            )
        task = AdaptedTask.adapt(
            model.head,
            examples,
            len(classes),
            backbone=model.adaptable_backbone(),
            temperature=model.temperature,
        )
        return cls(model, classes, task)

    @property
    def posterior(self) -> Posterior:
        """The adapted head."""
        return self.task.posterior

    def predict_proba(
        self, items: Sequence[Any], *, cache: FeatureCache | None = None, reporter: Reporter = SILENT
    ) -> np.ndarray:
        """Return p(class | item), [n, n_classes] in the order of `classes`, with the model's temperature."""
        return self.probabilities(self._embed(items, cache=cache, reporter=reporter))

    def probabilities(self, represented: Tensor) -> np.ndarray:
        """Return p(class | item) of items as `FewShotModel.embed` represents them, [n, n_classes]."""
        return self.task.log_prob(represented).exp().cpu().numpy()

    def predict(self, items: Sequence[Any]) -> np.ndarray:
        """Return the most probable class of each item."""
        predicted: np.ndarray = self.classes[self.predict_proba(items).argmax(-1)]
        return predicted

    @property
    def has_novelty(self) -> bool:
        """Whether `none_of_these` works with this head."""
        return self.posterior.has_novelty

    def none_of_these(self, items: Sequence[Any], *, prevalence: float = 0.5) -> np.ndarray:
        """Return the probability [n] that each item is of no known class, see `GPLDLAClassifier`."""
        return self.novelty_of(self._embed(items), prevalence)

    def novelty_of(self, represented: Tensor, prevalence: float = 0.5) -> np.ndarray:
        """Return `none_of_these` of items as `FewShotModel.embed` represents them, [n]."""
        self._require(self.posterior.has_novelty)
        return self.task.none_of_these(represented, prevalence).cpu().numpy()

    def calibrate_novelty(self) -> None:
        """Calibrate `none_of_these` on the examples now, else it is done at the first question."""
        self._require(self.posterior.has_novelty)
        self.task.calibrate_novelty()

    def uncertainty(self, items: Sequence[Any]) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in bits, each [n], see `GPLDLAClassifier`."""
        self._require(self.posterior.has_logits)
        return Uncertainty(*self.task.uncertainty(self._embed(items)).T.cpu().numpy())

    def leave_one_out(self) -> np.ndarray:
        """Return the probabilities of each support example under the classifier that has not seen it.

        [n, n_classes]; NaN for the only example of a class. Closed form with the head "gpldla-auto", else one
        adaptation per example.
        """
        return self.task.leave_one_out().cpu().numpy()

    @property
    def support(self) -> Tensor | None:
        """The examples as `FewShotModel.embed` represents them [n, ...]; None where they were not saved."""
        return None if self.task.examples is None else self.task.examples.rows

    @property
    def labels(self) -> np.ndarray:
        """The label of each example, [n]."""
        labels: np.ndarray = self.classes[self.task.kept_examples().labels.cpu().numpy()]
        return labels

    @property
    def names(self) -> tuple[str, ...] | None:
        """What each example is called, such as the path of its picture; None where nobody has said."""
        return self.task.kept_examples().names

    def add(self, items: Sequence[Any], labels: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier that has seen these examples, of known or new classes, as well."""
        examples = self.task.kept_examples()
        items = _non_empty(items, self.model)
        rows, listed = self.model.embed(items), _one_per_item(labels, len(items))
        classes = self._classes_with(listed)
        more = Examples(rows, class_indices(listed, classes).to(rows.device), names=_names(items))
        return self._of(self.model, label_array(classes), self._recoded(examples, classes).add(more))

    def relabel(self, which: Sequence[Any], labels: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier in which some examples have other labels.

        which: examples by index, or by name (see `names`); labels: one for each, of known or new classes
        """
        examples = self.task.kept_examples()
        indices = examples.find(_listed(which))
        listed = _one_per_item(labels, len(indices), "examples")
        classes = self._classes_with(listed)
        changed = self._recoded(examples, classes).relabel(indices, class_indices(listed, classes))
        return self._without_empty_classes(changed, classes)

    def remove(self, which: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier without some examples, given by index or by name; see `names`.

        A class whose last example goes is a class no more.
        """
        examples = self.task.kept_examples()
        left = examples.remove(examples.find(_listed(which)))
        return self._without_empty_classes(left, self.classes.tolist())

    def to(self, device: str | torch.device) -> "FewShotClassifier":
        """Move to another device, in place, and return itself."""
        self.model.to(device)
        self.task = self.task.to(device)
        return self

    def save(self, file: str | Path, *, support: bool = True, names: bool = True) -> None:
        """Write one safetensors file.

        support: keep the examples; without them nothing can be added, relabelled or removed later
        names: keep what the examples are called, such as the paths of pictures
        """
        from gpldla.classifier.file import save_classifier

        save_classifier(self, Path(file), support=support, names=names)

    @classmethod
    def load(cls, file: str | Path) -> "FewShotClassifier":
        """Read what `save` wrote."""
        from gpldla.classifier.file import load_classifier

        return load_classifier(Path(file))

    def _embed(self, items: Sequence[Any], **options: Any) -> Tensor:
        return self.model.embed(_non_empty(items, self.model), **options)

    def _require(self, capability: bool) -> None:
        if not capability:
            raise UserError(
                f"The head {self.model.head_name!r} does not say this; use a model with 'gpldla-auto'."
            )

    def _classes_with(self, labels: list[Any]) -> list[Any]:
        return distinct_classes([*list_of_labels(self.classes), *labels])

    def _recoded(self, examples: Examples, classes: list[Any]) -> Examples:
        """Return examples whose labels are indices of `classes`, among which are those of this classifier."""
        return examples.recode(class_indices(list_of_labels(self.classes), classes).tolist())

    def _without_empty_classes(self, examples: Examples, classes: list[Any]) -> "FewShotClassifier":
        if not len(examples):
            raise UserError("No examples are left; keep examples of at least two classes.")
        kept = torch.unique(examples.labels).tolist()
        new_index = [kept.index(old) if old in kept else -1 for old in range(len(classes))]
        return self._of(self.model, label_array([classes[old] for old in kept]), examples.recode(new_index))


def _non_empty(items: Any, model: FewShotModel) -> list[Any]:
    listed = list_items(items, model.backbone.reads)
    if not listed:
        raise UserError(f"There are no {model.backbone.reads}; give at least one.")
    return listed


def _one_per_item(labels: Sequence[Any], count: int, what: str = "images") -> list[Any]:
    listed = list_of_labels(labels)
    if len(listed) != count:
        raise UserError(f"There are {count} {what} and {len(listed)} labels; give one label per image.")
    return listed


def _listed(which: Any) -> list[Any]:
    if isinstance(which, (str, bytes, Path)) or not hasattr(which, "__iter__"):
        raise UserError("Give a list of examples, not a single one.")
    return list(which)


def _names(items: list[Any]) -> tuple[str, ...] | None:
    """Return what items are called: paths and texts have names, pictures in memory have none."""
    if any(isinstance(item, (str, Path)) for item in items):
        return tuple(printable(item) if isinstance(item, (str, Path)) else "" for item in items)
    return None
