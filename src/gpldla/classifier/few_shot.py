"""FewShotClassifier: a FewShotModel adapted to a task, which answers for pictures or texts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpldla.backbones import Backbone
from gpldla.classifier.class_names import ClassNames
from gpldla.classifier.examples import Examples, list_of_examples
from gpldla.classifier.expected_accuracy import ExpectedAccuracy
from gpldla.classifier.feature_cache import FeatureCache
from gpldla.classifier.features import list_items
from gpldla.classifier.labels import (
    class_indices,
    distinct_classes,
    label_array,
    list_of_labels,
    one_per_item,
)
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.sharing import CLASSIFIER, Shared, shared_folder
from gpldla.classifier.shipped import CARD
from gpldla.classifier.suggestion import Suggestions, suggest
from gpldla.classifier.task import AdaptedTask
from gpldla.classifier.uncertainty import Uncertainty
from gpldla.data.user_files import printable
from gpldla.heads import Posterior
from gpldla.utils.errors import UserError, require_positive
from gpldla.utils.files import write_atomically
from gpldla.utils.progress import SILENT, Reporter


class FewShotClassifier(Shared):
    """A FewShotModel adapted to a task.

    `add`, `relabel` and `remove` return a new classifier; this one does not change, so many threads may use
    it at once.

    classes: sorted if labels can be compared, else in order of appearance
    task: the adapted head, with the examples
    class_names: the names of classes that are its prior, or None
    """

    def __init__(
        self,
        model: FewShotModel,
        classes: np.ndarray,
        task: AdaptedTask,
        class_names: ClassNames | None = None,
    ) -> None:
        """Put a classifier together from its parts; `FewShotModel.adapt` makes one from pictures or texts."""
        self.model, self.classes, self.task, self.class_names = model, classes, task, class_names

    @classmethod
    def adapt(
        cls,
        model: FewShotModel,
        items: Sequence[Any],
        labels: Sequence[Any],
        *,
        cache: FeatureCache | None = None,
        reporter: Reporter = SILENT,
        unlabelled: Sequence[Any] | None = None,
        class_names: ClassNames | None = None,
    ) -> "FewShotClassifier":
        """Adapt a model to pictures or texts with one label each, see `FewShotModel.adapt`."""
        items = _non_empty(items, model)
        rows = model.embed(items, cache=cache, reporter=reporter)
        more = list_items([] if unlabelled is None else unlabelled, model.backbone.reads)
        extra = model.embed(more, cache=cache, reporter=reporter) if more else None
        return cls.from_rows(
            model, rows, labels, names=_names(items), unlabelled=extra, class_names=class_names
        )

    @classmethod
    def from_rows(
        cls,
        model: FewShotModel,
        rows: Tensor,
        labels: Sequence[Any],
        *,
        names: tuple[str, ...] | None = None,
        unlabelled: Tensor | None = None,
        class_names: ClassNames | None = None,
    ) -> "FewShotClassifier":
        """Adapt a model to items as `FewShotModel.embed` represents them [n, ...], with one label each.

        unlabelled [m, ...]: more items, without labels
        """
        listed = one_per_item(labels, len(rows))
        classes = distinct_classes([*listed, *(class_names.vectors if class_names else ())])
        examples = Examples(rows, class_indices(listed, classes).to(rows.device), names=names)
        return cls._of(model, label_array(classes), examples, unlabelled, class_names)

    @classmethod
    def _of(
        cls,
        model: FewShotModel,
        classes: np.ndarray,
        examples: Examples,
        unlabelled: Tensor | None,
        class_names: ClassNames | None,
    ) -> "FewShotClassifier":
        if len(classes) < 2:
            raise UserError(
                f"All examples are of class {classes.tolist()[0]!r}; give examples of at least two classes."
            )
        task = AdaptedTask.adapt(
            model.head if class_names is None else class_names.head(model, classes),
            examples,
            len(classes),
            backbone=model.adaptable_backbone(),
            temperature=model.temperature,
            unlabelled=unlabelled,
        )
        if model.calibration is not None:
            answer = model.task_answer(examples.rows[None], examples.labels, len(classes))
            task = replace(task, temperature=answer.temperature.item())
            task = task.with_own_prior(answer.share.item())
        return cls(model, classes, task, class_names)

    def __repr__(self) -> str:
        examples = (
            "examples not kept" if self.task.examples is None else f"{len(self.task.examples)} examples"
        )
        return f"<FewShotClassifier: {len(self.classes)} classes, {examples}, {self.model!r}>"

    def info(self) -> dict[str, Any]:
        """Return what the classifier holds and how good it is, as JSON; what `gpldla info` prints."""
        from gpldla.classifier.describe import describe

        return describe(self)

    @property
    def temperature(self) -> float:
        """What log probabilities are divided by: the temperature of this task, see docs/models.md."""
        return self.task.temperature

    def with_temperature(self, temperature: float) -> "FewShotClassifier":
        """Return a classifier with another temperature, and without `own_prior_share`.

        1 gives the probabilities of the method itself.
        """
        require_positive(temperature=temperature)
        task = replace(self.task, temperature=temperature, own_prior=None)
        return FewShotClassifier(self.model, self.classes, task, self.class_names)

    @property
    def own_prior_share(self) -> float:
        """The share of the answers that comes from a prior which the task itself sets, see docs/models.md.

        It is near 0 for tasks like those that the model was trained on, and near 1 far from them.
        """
        return 0.0 if self.task.own_prior is None else self.task.own_prior.share

    @property
    def posterior(self) -> Posterior:
        """The adapted head."""
        return self.task.posterior

    def predict_proba(
        self, items: Sequence[Any], *, cache: FeatureCache | None = None, reporter: Reporter = SILENT
    ) -> np.ndarray:
        """Return p(class | item), [n, n_classes] in the order of `classes`, with the task's temperature."""
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
        """Calibrate `none_of_these` on the examples now, instead of in its first call."""
        self._require(self.posterior.has_novelty)
        self.task.calibrate_novelty()

    def uncertainty(self, items: Sequence[Any]) -> Uncertainty:
        """Return total, aleatoric and epistemic uncertainty in bits, each [n], see `GPLDLAClassifier`."""
        self._require(self.posterior.has_logits)
        return Uncertainty(*self.task.uncertainty(self._embed(items)).T.cpu().numpy())

    def suggest(self, items: Sequence[Any], n: int = 10) -> np.ndarray:
        """Return the indices [n] of the unlabelled items to label next, the most informative first.

        They are those whose labels would teach most about the others, see `gpldla.classifier.suggestion`.
        """
        return self.suggestions(self._embed(items), n).indices

    def suggestions(self, represented: Tensor, n: int = 10) -> Suggestions:
        """As `suggest`, for items as `FewShotModel.embed` represents them, and with the gain of each."""
        self._require(self.posterior.has_representation)
        return suggest(self.task, represented, n)

    def leave_one_out(self) -> np.ndarray:
        """Return the probabilities of each support example under the classifier without it.

        [n, n_classes]; NaN for the only example of a class. Closed form with the head "gpldla-auto", else one
        adaptation per example.
        """
        return self.task.leave_one_out().cpu().numpy()

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the accuracy to expect for new items, and an interval that holds it with 90 % probability.

        Leave-one-out predictions alone are too pessimistic, because the class of the left-out example is a
        shot short; here they are corrected for it. New items are taken to be of the classes with two or more
        examples, in the proportions of the examples.
        None where every class has a single example, and with other heads than "gpldla-auto".
        """
        return self.task.expected_accuracy()

    @property
    def support(self) -> Tensor | None:
        """The examples as `FewShotModel.embed` represents them [n, ...]; None if they were not saved."""
        return None if self.task.examples is None else self.task.examples.rows

    @property
    def labels(self) -> np.ndarray:
        """The label of each example, [n]."""
        labels: np.ndarray = self.classes[self.task.require_examples().labels.cpu().numpy()]
        return labels

    @property
    def names(self) -> tuple[str, ...] | None:
        """The name of each example, such as the path of its picture; None if the examples have no names."""
        return self.task.require_examples().names

    def item_names(self) -> list[str]:
        """Return what to call each example in a message: its name, else # and its index."""
        names = self.names or ("",) * len(self.labels)
        return [name or f"#{index}" for index, name in enumerate(names)]

    def find(self, which: Sequence[Any]) -> list[int]:
        """Return the indices of examples that are given by index, by name, or by the end of a path."""
        return self.task.require_examples().find(list_of_examples(which))

    def add(self, items: Sequence[Any], labels: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier adapted to these examples, too, of known or new classes."""
        self.task.require_examples()
        items = _non_empty(items, self.model)
        return self.add_rows(self.model.embed(items), labels, items)

    def add_rows(self, rows: Tensor, labels: Sequence[Any], items: list[Any]) -> "FewShotClassifier":
        """As `add`, for items that `FewShotModel.embed` represents as rows [n, ...]."""
        listed = one_per_item(labels, len(rows))
        classes = self._classes_with(listed)
        before = self._recoded(self.task.require_examples(), classes)
        more = Examples(rows, class_indices(listed, classes).to(rows.device), names=_names(items))
        return self._of(
            self.model, label_array(classes), before.add(more), self.task.unlabelled, self.class_names
        )

    def without_known(self, items: list[Any], rows: Tensor, labels: Sequence[Any]) -> list[int]:
        """Return the indices of the items that are no examples yet, by name, content and label.

        An item that is an example with another label raises a sentence that says how to correct it.
        """
        examples = self.task.require_examples()
        by_name: dict[str, list[int]] = {}
        for index, name in enumerate(examples.names or ()):
            by_name.setdefault(name, []).append(index)
        new = []
        for i, name in enumerate(_names(items) or ("",) * len(items)):
            same = [
                index
                for index in by_name.get(name, ())
                if name and torch.allclose(examples.rows[index], rows[i].to(examples.rows), atol=1e-4)
            ]
            known = [self.classes[int(examples.labels[index])] for index in same]
            if known and labels[i] not in known:
                raise UserError(
                    f"{name} is an example of the class {known[0]} already, not of {labels[i]}; correct its"
                    " label with relabel, or leave it out."
                )
            if not known:
                new.append(i)
        return new

    def relabel(self, which: Sequence[Any], labels: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier in which some examples have other labels.

        which: examples by index, or by name (see `names`); labels: one for each, of known or new classes
        """
        examples = self.task.require_examples()
        indices = examples.find(list_of_examples(which))
        listed = one_per_item(labels, len(indices), "examples")
        classes = self._classes_with(listed)
        changed = self._recoded(examples, classes).relabel(indices, class_indices(listed, classes))
        return self._without_empty_classes(changed, classes)

    def remove(self, which: Sequence[Any]) -> "FewShotClassifier":
        """Return a classifier without some examples, given by index or by name; see `names`.

        A class without any examples left is removed.
        """
        examples = self.task.require_examples()
        remaining = examples.remove(examples.find(list_of_examples(which)))
        return self._without_empty_classes(remaining, self.classes.tolist())

    def to(self, device: str | torch.device) -> "FewShotClassifier":
        """Move to another device, in place, and return itself."""
        self.model.to(device)
        self.task = self.task.to(device)
        return self

    def save(
        self, file: str | Path, *, support: bool = True, names: bool = True, graph: bytes | None = None
    ) -> None:
        """Write one safetensors file.

        support: keep the examples; without them nothing can be added, relabelled or removed later
        names: keep what the examples are called, such as the paths of pictures
        graph: what `gpldla.export.graph_of` returns, from which `gpldla predict` answers sooner
        """
        from gpldla.classifier.file import save_classifier

        save_classifier(self, Path(file), support=support, names=names, graph=graph)

    @classmethod
    def load(cls, file: str | Path, *, backbone: str | Backbone | None = None) -> "FewShotClassifier":
        """Read what `save` wrote.

        backbone: the name or the network itself, if its folder has moved or it was given as an object
        """
        from gpldla.classifier.file import load_classifier

        return load_classifier(Path(file), backbone=backbone)

    def save_pretrained(
        self, folder: str | Path, *, name: str = "USER/NAME", license: str | None = None, **kept: Any
    ) -> None:
        """Write a folder with the classifier and a model card; `push_to_hub` uploads it.

        kept: `support` and `names` of `save`; names, which may be private, are left out unless asked for
        """
        from gpldla.classifier.card import classifier_card

        self.save(Path(folder) / CLASSIFIER, **{"names": False, **kept})
        write_atomically(Path(folder) / CARD, classifier_card(self, name, license).encode())

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        backbone: str | Backbone | None = None,
    ) -> "FewShotClassifier":
        """Load a folder by `save_pretrained`, or USER/NAME of the Hugging Face Hub, which is downloaded."""
        folder = shared_folder(name_or_folder, revision, token)
        return cls.load(folder / CLASSIFIER, backbone=backbone)

    def _embed(self, items: Sequence[Any], **options: Any) -> Tensor:
        return self.model.embed(_non_empty(items, self.model), **options)

    def _require(self, capability: bool) -> None:
        if not capability and self.class_names is not None:
            raise UserError(
                "With names as a prior this needs an example of every class; add some, or fit without the"
                " names."
            )
        if not capability:
            raise UserError(
                f"The head {self.model.head_name!r} does not support this; use a model with 'gpldla-auto'."
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
        names = label_array([classes[old] for old in kept])
        return self._of(self.model, names, examples.recode(new_index), self.task.unlabelled, self.class_names)


def _non_empty(items: Any, model: FewShotModel) -> list[Any]:
    if listed := list_items(items, model.backbone.reads):
        return listed
    raise UserError(f"There are no {model.backbone.reads}; give at least one.")


def _names(items: list[Any]) -> tuple[str, ...] | None:
    """Return the names of items: paths and texts are names, pictures in memory have none."""
    if any(isinstance(item, (str, Path)) for item in items):
        return tuple(printable(item) if isinstance(item, (str, Path)) else "" for item in items)
    return None
