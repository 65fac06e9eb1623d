"""Names of classes as a prior of GPLDLAClassifier, from no examples on."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch

from gpldla.classifier.examples import Examples
from gpldla.classifier.labels import check_labels, merge_classes
from gpldla.heads.gpldla_names import GPLDLANames
from gpldla.utils.errors import UserError

FIXED = {"center": True, "normalize": True, "covariance": "diag", "map_steps": 0, "metric": None}


class WithNames:
    """The part of `GPLDLAClassifier` that takes class names as the mean of its prior."""

    @classmethod
    def from_prior(cls, prior_mean: Any, classes: Any, **parameters: Any) -> Self:
        """Return a classifier that knows the names of its classes only: zero-shot classification.

        `partial_fit` adds examples; a class keeps its name. `fit` starts again, with the names.

        Parameters
        ----------
        prior_mean : array-like of shape (n_classes, n_features)
            The embedding of each class's name, by the encoder of the rows, or by the text encoder of a
            text-image model whose image encoder makes the rows. Their lengths do not matter.
        classes : array-like of shape (n_classes,)
            The label of each row.
        parameters
            Other parameters, such as `prior_scale`.

        Returns
        -------
        classifier : GPLDLAClassifier
        """
        labels = np.asarray(classes)
        if labels.ndim != 1 or len(np.unique(labels)) != len(labels) or len(labels) < 2:
            raise UserError("classes must be two or more different labels, one per row of prior_mean.")
        check_labels(labels)
        means = np.asarray(prior_mean)
        if means.ndim != 2 or len(means) != len(labels):
            raise UserError(
                f"prior_mean must be one row per class, [{len(labels)}, n_features], not {list(means.shape)}."
            )
        named = dict(zip(labels.tolist(), means))
        classifier: Self = cls(prior_mean=named, **parameters)._without_examples(labels)  # type: ignore[call-arg]
        return classifier

    def _without_examples(self, labels: np.ndarray) -> Self:
        classes = merge_classes([labels])
        rows = prior_rows(self.prior_mean, classes)  # type: ignore[attr-defined]
        self.n_features_in_ = rows.shape[1]
        self._check_settings()  # type: ignore[attr-defined]
        nothing = Examples(rows[:0], torch.empty(0, dtype=torch.int64))
        fitted: Self = self._adapt(nothing, classes, None)  # type: ignore[attr-defined]
        return fitted


def names_head(prior_mean: Any, scale: Any, classes: np.ndarray, options: dict[str, Any]) -> GPLDLANames:
    """Return the head for classes with names, or some of them; options: those of the head without names."""
    strange = [name for name, value in FIXED.items() if options.pop(name) != value]
    if options.pop("predictive") not in ("auto", "quadrature"):
        strange.append("predictive")
    options.pop("n_samples")
    if strange:
        raise UserError(f"prior_mean goes with the default of {', '.join(strange)} only; leave it out.")
    return GPLDLANames(prior_mean=prior_rows(prior_mean, classes), name_scale=scale, **options).eval()


def prior_rows(prior_mean: Any, classes: np.ndarray) -> torch.Tensor:
    """Return the embedding of the name of each class [C, d], zeros for a class without one.

    prior_mean: by class, or an array in the order of `classes`
    """
    if isinstance(prior_mean, Mapping):
        vectors = [np.asarray(prior_mean[c]) if c in prior_mean else None for c in classes.tolist()]
        sizes = {vector.shape for vector in vectors if vector is not None}
        if len(sizes) != 1 or len(next(iter(sizes))) != 1:
            raise UserError("prior_mean must have one vector of n_features numbers per class with a name.")
        rows = np.stack([np.zeros(next(iter(sizes))) if vector is None else vector for vector in vectors])
        dtypes = {vector.dtype for vector in vectors if vector is not None}
        rows = rows.astype(np.float32) if dtypes == {np.dtype(np.float32)} else rows
    else:
        rows = np.asarray(prior_mean)
        if rows.ndim != 2 or len(rows) != len(classes):
            raise UserError(
                f"prior_mean has the shape {list(rows.shape)}; give one row for each of the {len(classes)}"
                " classes in their sorted order, or a dictionary from labels to vectors."
            )
    if rows.dtype.kind not in "iuf" or not np.isfinite(rows).all():
        raise UserError("prior_mean must be finite numbers.")
    return torch.from_numpy(np.array(rows, dtype=np.float32 if rows.dtype == np.float32 else np.float64))


def named_classes(prior_mean: Any) -> list[np.ndarray]:
    """Return the labels that have names, as arrays to merge with others; only a dictionary knows them."""
    return [np.array(list(prior_mean))] if isinstance(prior_mean, Mapping) and prior_mean else []
