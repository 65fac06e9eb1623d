"""What is odd about a list of labels: sentences for the user, who may mean it as it is."""

from collections import defaultdict
from collections.abc import Sequence

MANY = 20  # labels, from which on almost as many classes are suspicious
OWN_LABEL = 0.8  # the share of distinct labels from which on they look like ids
LISTED = 5  # pairs of classes that a sentence names at most


def label_warnings(labels: Sequence[str], column: str | None = None, known: Sequence[str] = ()) -> list[str]:
    """Return sentences on classes that differ in case or spaces only, and on labels that look like ids.

    column: where the labels come from; known: classes that there are already
    """
    found = []
    if alike := _written_alike([*known, *labels]):
        pairs = ", ".join(" and ".join(map(repr, names)) for names in alike[:LISTED])
        more = f" and {len(alike) - LISTED} more" if len(alike) > LISTED else ""
        found.append(f"classes differ in case or spaces only: {pairs}{more}. They are kept apart.")
    distinct = len(set(labels))
    if len(labels) >= MANY and distinct >= OWN_LABEL * len(labels):
        where = f"the column {column!r}" if column else "the folder"
        found.append(
            f"almost every example has a label of its own ({distinct} among {len(labels)}): does {where} hold"
            " ids instead of classes?"
        )
    return found


def _written_alike(labels: Sequence[str]) -> list[list[str]]:
    """Return groups of different labels that are the same without case and repeated spaces."""
    groups: dict[str, set[str]] = defaultdict(set)
    for label in labels:
        groups[" ".join(str(label).casefold().replace("_", " ").split())].add(str(label))
    return [sorted(group) for group in groups.values() if len(group) > 1]
