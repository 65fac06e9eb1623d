"""Labels of any type: as plain values, as classes in order, and as indices of classes."""

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from gpldla.utils.errors import UserError


def list_of_labels(labels: Sequence[Any] | np.ndarray) -> list[Any]:
    """Return labels as plain Python values; missing ones are refused."""
    listed = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise UserError("Give a list of labels, not a single one.")
    listed = [label.item() if isinstance(label, np.generic) else label for label in listed]
    for index, label in enumerate(listed):
        if label is None or (isinstance(label, float) and math.isnan(label)):
            raise UserError(f"labels[{index}] is missing ({label!r}); leave out items without a label.")
    return listed


def distinct_classes(labels: Iterable[Any]) -> list[Any]:
    """Return the classes among labels: sorted if they can be compared, else in order of appearance."""
    try:
        distinct = dict.fromkeys(labels)
    except TypeError:
        raise UserError("Labels must be values such as strings, numbers or tuples, one per image.") from None
    try:
        return sorted(distinct)
    except TypeError:  # such as a string and a number
        return list(distinct)


def label_array(labels: list[Any]) -> np.ndarray:
    """Return strings or numbers as an array of those, anything else as an array of objects."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1 and kinds <= {str, int, float, bool}:
        array = np.array(labels)
        if array.tolist() == labels:  # not so with numbers beyond 64 bits, or a string that ends in \0
            return array
    return np.fromiter(labels, dtype=object, count=len(labels))


def class_indices(labels: Iterable[Any], classes: Iterable[Any]) -> Tensor:
    """Return the index of each label among the classes, int64 [n]."""
    index_of = {label: index for index, label in enumerate(classes)}
    return torch.tensor([index_of[label] for label in labels], dtype=torch.int64)


def check_labels(y: np.ndarray) -> None:
    """Refuse what scikit-learn does not accept as class labels, such as fractions."""
    if y.dtype.kind in "biuUS":  # whole numbers and strings are all accepted
        return
    with warnings.catch_warnings():
        # Few examples per class are expected here.
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
        check_classification_targets(y)


def merge_classes(labels: list[np.ndarray]) -> np.ndarray:
    """Return the sorted classes among arrays of labels; refuse mixed kinds, which NumPy would convert."""
    kinds = {"number" if array.dtype.kind in "iuf" else array.dtype.kind for array in labels} - {"O"}
    try:
        if len(kinds) > 1:  # 1 and "1", or 1 and True
            raise TypeError
        return np.unique(np.concatenate(labels))
    except TypeError:
        raise UserError("The labels are of types that cannot be compared; give labels of one type.") from None


def one_per_item(labels: Sequence[Any], count: int, what: str = "images") -> list[Any]:
    """Return labels as a list, of which there must be `count`."""
    listed = list_of_labels(labels)
    if len(listed) != count:
        raise UserError(f"There are {count} {what} and {len(listed)} labels; give one label per image.")
    return listed
