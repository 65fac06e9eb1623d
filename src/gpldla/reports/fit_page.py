"""The page of a fitted classifier: how good it is, which labels to look at, and what to label next."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gpldla import __version__
from gpldla.classifier.abstention import MAX_ERROR
from gpldla.classifier.answers import FitSummary, Measurement
from gpldla.classifier.expected_accuracy import USES_OF_A_PAIR
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.review import Review
from gpldla.data.user_files import printable
from gpldla.reports.html import write_fit_report
from gpldla.reports.plots import trust_plot
from gpldla.reports.shown_items import ShownItem, shown_item

SUSPECTS, LEAST_SURE, SUREST, NEXT = 12, 12, 6, 12  # items shown
MATRIX_CLASSES = 25  # of a confusion matrix that can be read
PAIRS = 12  # of classes, where there are more
THRESHOLDS = (0.5, 1 - MAX_ERROR, 0.9)
Z = 1.64  # of a 90 % interval


@dataclass(frozen=True)
class FittedClassifier:
    """A classifier that was just fitted, and what the page says of it.

    items: the examples in order; file: where it was written to; source: what it was fitted to
    tests: measurements on held-out parts, by name
    pool: items without labels, and what the network made of them [m, ...]; None: none were given
    remarks: sentences that the command prints, too
    """

    classifier: FewShotClassifier
    summary: FitSummary
    items: Sequence[Any]
    file: Path
    source: str
    tests: dict[str, Measurement] = field(default_factory=dict)
    pool: tuple[Sequence[Any], Tensor] | None = None
    remarks: Sequence[str] = ()


def write_fit_page(path: Path, fitted: FittedClassifier) -> None:
    """Write the page as one self-contained file."""
    classifier, summary = fitted.classifier, fitted.summary
    review = summary.review or Review.of(classifier)
    reads = classifier.model.backbone.reads
    write_fit_report(
        path,
        {
            "version": __version__,
            "title": fitted.file.stem,
            "file": shlex.quote(str(fitted.file)),
            "source": fitted.source,
            "reads": reads,
            "thing": reads[:-1],
            "network": classifier.model.backbone_name,
            "head": classifier.model.head_name,
            "n_examples": sum(summary.counts.values()),
            "n_classes": len(summary.counts),
            "summary": summary,
            "tests": fitted.tests,
            "remarks": list(fitted.remarks),
            "suspects": _suspects(fitted, review),
            "n_suspects": len(review.suspects()),
            "classes": _class_rows(summary, review),
            "matrix": _matrix(review),
            "pairs": review.confused()[:PAIRS],
            "trust": _trust(review),
            "least_sure": _gallery(fitted, review, review.by_confidence()[:LEAST_SURE]),
            "surest": _gallery(fitted, review, _surest(review)),
            "next": suggested_items(classifier, *fitted.pool) if fitted.pool else [],
            "has_pool": fitted.pool is not None,
            "singles": [printable(name) for name, count in summary.counts.items() if count == 1],
        },
    )


def _gallery(fitted: FittedClassifier, review: Review, rows: np.ndarray) -> list[ShownItem]:
    reads = fitted.classifier.model.backbone.reads
    return [
        shown_item(
            fitted.items[review.indices[row]],
            review.proba[row],
            review.classes,
            reads=reads,
            note=f"labelled {printable(review.classes[review.truth[row]])}",
            truth=int(review.truth[row]),
        )
        for row in rows.tolist()
    ]


def _suspects(fitted: FittedClassifier, review: Review) -> list[tuple[ShownItem, str]]:
    """Return each suspect with the command that corrects it."""
    rows = review.suspects()[:SUSPECTS]
    commands = []
    for row in rows.tolist():
        item, label = fitted.items[review.indices[row]], review.classes[review.guess[row]]
        arguments = [str(fitted.file), printable(item), printable(label)]
        commands.append(shlex.join(["gpldla", "relabel", *arguments]))
    return list(zip(_gallery(fitted, review, rows), commands))


def _surest(review: Review) -> np.ndarray:
    """Return the surest right answers, one per class in turn, so that they are not all of one."""
    order = review.by_confidence()[::-1]
    order = order[review.right[order]]
    seen: dict[int, int] = {}
    turn = []
    for c in review.truth[order].tolist():
        seen[c] = seen.get(c, 0) + 1
        turn.append(seen[c])
    chosen: np.ndarray = order[np.argsort(turn, kind="stable")][:SUREST]
    return chosen


def _class_rows(summary: FitSummary, review: Review) -> list[dict[str, Any]]:
    """Return one row per class, those that are most often mistaken first."""
    rows = []
    for c, name in enumerate(review.classes):
        own = review.truth == c
        wrong = review.guess[own & ~review.right]
        other = int(np.bincount(wrong).argmax()) if len(wrong) else None
        rows.append(
            {
                "name": printable(name),
                "count": summary.counts[name],
                "tested": int(own.sum()),
                "right": int((own & review.right).sum()),
                "confidence": float(review.confidence[own].mean()) if own.any() else None,
                "taken_for": "" if other is None else printable(review.classes[other]),
                "times": 0 if other is None else int((wrong == other).sum()),
            }
        )
    return sorted(rows, key=lambda row: row["right"] / row["tested"] if row["tested"] else 2)


def _matrix(review: Review) -> list[list[dict[str, Any]]] | None:
    """Return the cells of the confusion matrix with their shares of the row; None where it is too large."""
    if not len(review) or len(review.classes) > MATRIX_CLASSES:
        return None
    counts = review.confusion()
    totals = counts.sum(1).clip(1)
    return [
        [
            {"count": int(count), "share": count / totals[i], "right": i == j}
            for j, count in enumerate(row.tolist())
        ]
        for i, row in enumerate(counts)
    ]


def _trust(review: Review) -> dict[str, Any] | None:
    """Return the reliability plot, what it says in words, and what thresholds would cost."""
    if not len(review):
        return None
    said, right = float(review.confidence.mean()), float(review.right.mean())
    # Were it calibrated, the mean of the right answers would scatter around the confidence by so much.
    variance = (review.confidence * (1 - review.confidence)).mean()
    scatter = Z * np.sqrt(variance / (len(review) / USES_OF_A_PAIR))
    if abs(said - right) <= scatter:
        verdict = f"As far as {len(review)} examples can tell, its probabilities can be taken at their word."
    elif said > right:
        verdict = "It is surer of itself than it should be."
    else:
        verdict = "It is less sure of itself than it could be."
    rows = []
    for threshold in THRESHOLDS:
        sure = review.confidence >= threshold
        rows.append(
            {
                "threshold": threshold,
                "answered": int(sure.sum()),
                "right": int(review.right[sure].sum()),
            }
        )
    return {"plot": trust_plot(review.bins()), "said": said, "right": right, "verdict": verdict, "rows": rows}


def suggested_items(
    classifier: FewShotClassifier, items: Sequence[Any], represented: Tensor, count: int = NEXT
) -> list[ShownItem]:
    """Return the items to label next; none where the head or the file of the classifier cannot say."""
    if not len(items) or classifier.task.examples is None or not classifier.posterior.has_representation:
        return []
    chosen = classifier.suggestions(represented, count)
    proba = classifier.probabilities(represented[chosen.indices.copy()])
    reads, classes = classifier.model.backbone.reads, classifier.classes.tolist()
    return [
        shown_item(items[i], p, classes, reads=reads, note=f"teaches {100 * gain:.1f} %")
        for i, p, gain in zip(chosen.indices.tolist(), proba, chosen.gain)
    ]
