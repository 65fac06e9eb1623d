"""None of these: how well `none_of_these` tells unknown classes, and whether its probabilities hold."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from benchmarks.honesty.domains import SEED, features
from gpldla import GPLDLAClassifier
from gpldla.classifier.calibration import reliability
from gpldla.utils.progress import Reporter
from gpldla.utils.provenance import provenance

QUERIES = 10  # per class, at most
SHOTS = (1, 2, 5)
TASKS = {2: 200, 5: 200, 20: 40}  # by the number of classes; of 2 classes with one shot only
MIN_OUTSIDE = 2  # classes that are left for unknown queries
BOOTSTRAP = 200
OURS, OWN = "none_of_these", ("GPLDLA, 1 − largest p", "GPLDLA, entropy")  # all other scores are rivals'
MOST_ECE = 8.0  # percent, from which on a probability is called not calibrated

Numbers = dict[str, Any]


class OpenTask(NamedTuple):
    """Support rows [n, d] with labels [n], queries [q, d], and whether they are of unknown classes [q]."""

    support: np.ndarray
    labels: np.ndarray
    queries: np.ndarray
    unknown: np.ndarray


def draw_open(X: np.ndarray, y: np.ndarray, ways: int, shots: int, count: int) -> Iterator[OpenTask]:
    """Draw tasks with queries of the classes and of as many others, or of all others if there are fewer."""
    rng = np.random.default_rng([SEED, ways, shots])
    of_class = [rows for rows in (np.flatnonzero(y == c) for c in np.unique(y)) if len(rows) >= shots + 5]
    outside = min(ways, len(of_class) - ways)
    for _ in range(count if outside >= MIN_OUTSIDE else 0):
        chosen = [of_class[c] for c in rng.choice(len(of_class), ways + outside, replace=False)]
        rows = [rng.permutation(own)[: shots + QUERIES] for own in chosen]
        support = np.concatenate([own[:shots] for own in rows[:ways]])
        queries = [own[shots:] for own in rows]
        unknown = np.repeat(np.arange(len(rows)) >= ways, [len(own) for own in queries])
        yield OpenTask(X[support], np.repeat(np.arange(ways), shots), X[np.concatenate(queries)], unknown)


def scores_of(task: OpenTask) -> dict[str, np.ndarray]:
    """Return every score of the queries by its name, larger for those that look unknown."""
    found = {}
    classifiers = {
        "GPLDLA": (GPLDLAClassifier(), task.support, task.queries),
        "logistic regression": (LogisticRegression(max_iter=1000), task.support, task.queries),
        "logistic regression, unit rows × 30": (
            LogisticRegression(max_iter=1000),
            30 * normalize(task.support),
            30 * normalize(task.queries),
        ),
    }
    for name, (classifier, support, queries) in classifiers.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            proba = classifier.fit(support, task.labels).predict_proba(queries)
        if isinstance(classifier, GPLDLAClassifier):
            found[OURS] = classifier.none_of_these(queries)
        found |= _of_probabilities(name, proba)
    for name, scale in (("nearest centroid", np.asarray), ("nearest centroid of unit rows", normalize)):
        support, queries = scale(task.support), scale(task.queries)
        centroids = np.stack([support[task.labels == c].mean(0) for c in np.unique(task.labels)])
        distance = cdist(queries, centroids)
        found[f"{name}, distance"] = distance.min(1)
        found |= _of_probabilities(f"{name}, softmax", softmax(-distance, axis=1))
    return found


def _of_probabilities(name: str, proba: np.ndarray) -> dict[str, np.ndarray]:
    p = np.maximum(proba.astype(float), 1e-12)
    return {f"{name}, 1 − largest p": 1 - p.max(1), f"{name}, entropy": -(p * np.log(p)).sum(1)}


def measure_novelty(X: np.ndarray, y: np.ndarray, ways: int, shots: int, tasks: int) -> list[Numbers]:
    """Return one row per score: its AUROC in percent, and by how much that of `none_of_these` is larger.

    ahead_noise: standard deviation of this difference over bootstrap samples of tasks. The row of
    `none_of_these` has the ECE of the probability, known and unknown queries weighing the same.
    """
    areas: dict[str, list[float]] = {}
    answers: list[tuple[np.ndarray, np.ndarray]] = []
    for task in draw_open(X, y, ways, shots, tasks):
        for name, score in scores_of(task).items():
            areas.setdefault(name, []).append(auroc(score, task.unknown))
            if name == OURS:
                answers.append((score, task.unknown))
    rng = np.random.default_rng(SEED)
    samples = rng.integers(max(1, len(answers)), size=(BOOTSTRAP, len(answers)))
    rows: list[Numbers] = []
    for name, own in areas.items():
        ahead = np.array(areas[OURS]) - np.array(own)
        row = {"score": name, "tasks": len(own), "auroc": round(float(np.mean(own)), 2)}
        row["ahead"] = round(float(ahead.mean()), 2)
        row["ahead_noise"] = round(float(ahead[samples].mean(1).std()), 2)
        if name == OURS:
            row["ece"] = round(_ece(answers), 2)
            some = [_ece([answers[i] for i in sample]) for sample in samples[:20]]
            row["ece_noise"] = round(float(np.std(some)), 2)
        rows.append(row)
    return rows


def auroc(score: np.ndarray, unknown: np.ndarray) -> float:
    """Return the percentage of pairs in which the unknown query has the larger score."""
    n_unknown, n_known = int(unknown.sum()), int((~unknown).sum())
    ranks = rankdata(score)[unknown].sum() - n_unknown * (n_unknown + 1) / 2
    return 100 * float(ranks) / (n_unknown * n_known)


def _ece(answers: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the calibration error of p(none of these), in percent.

    Half of the queries are assumed to be unknown; where fewer are, these are repeated evenly.
    """
    p, unknown = (np.concatenate(part) for part in zip(*answers))
    known = np.flatnonzero(~unknown)
    evened = np.concatenate([known, np.resize(np.flatnonzero(unknown), len(known))])
    shown = torch.from_numpy(np.clip(p[evened].astype(float), 1e-12, 1 - 1e-12))
    log_prob = torch.stack([1 - shown, shown], -1).log()
    return float(reliability(log_prob, torch.from_numpy(unknown[evened].astype(np.int64))).error)


def measure_all(only: list[str], folder: Path, scale: float, reporter: Reporter) -> Numbers:
    """Return the rows of all domains, of whose numbers of tasks a factor is taken, and what they are of."""
    tasks = {ways: max(2, round(scale * count)) for ways, count in TASKS.items()}
    cells = [(2, 1)] + [(ways, shots) for ways in (5, 20) for shots in SHOTS]
    rows: list[Numbers] = []
    where = provenance("cpu")
    for name in only:
        X, y = features(name, folder)
        with reporter.bar(name, len(cells)) as advance:
            for ways, shots in cells:
                facts = {"domain": name, "ways": ways, "shots": shots}
                rows += [{**facts, **row} for row in measure_novelty(X, y, ways, shots, tasks[ways])]
                advance(1)
    command = "python -m benchmarks.honesty --novelty" + (f" --tasks {scale:g}" if scale != 1 else "")
    return {"command": command, **where, "tasks": [tasks[5], tasks[20]], "rows": rows}


def novelty_tables(results: Numbers) -> dict[str, list[str]]:
    """Return the lines of each table by name."""
    groups: dict[tuple[int, int], dict[str, list[Numbers]]] = {}
    for row in results["rows"]:
        groups.setdefault((row["ways"], row["shots"]), {}).setdefault(row["domain"], []).append(row)
    return {
        "none of these, how": [
            f"`{results['command']}`, commit {results['commit']}, {results['device']}: {results['tasks'][0]}"
            f" tasks of 2 or 5 classes and {results['tasks'][1]} of 20, with up to {QUERIES} queries of each"
            " class and of as many other classes, or of all others of the domain."
        ],
        "none of these": _summary(groups),
        "none of these, one shot": _one_shot(groups),
    }


def best_rival(rows: list[Numbers]) -> Numbers:
    """Return the row of the rivals' best score in this domain."""
    return max((row for row in rows if row["score"] not in (OURS, *OWN)), key=lambda row: row["auroc"])


def _of(rows: list[Numbers], score: str) -> Numbers:
    return next(row for row in rows if row["score"] == score)


def _verdict(rival: Numbers) -> str:
    noise = 2 * rival["ahead_noise"]
    return "ahead" if rival["ahead"] > noise else "behind" if rival["ahead"] < -noise else "level"


def _summary(groups: dict[tuple[int, int], dict[str, list[Numbers]]]) -> list[str]:
    lines = [
        "| task | domains | AUROC, % | largest p of GPLDLA | best rival of each domain | ahead, level, behind"
        " | ECE, mean | ECE above 8 |",
        "|---|--:|--:|--:|--:|---|--:|---|",
    ]
    for (ways, shots), domains in sorted(groups.items()):
        ours = [_of(rows, OURS) for rows in domains.values()]
        rivals = [best_rival(rows) for rows in domains.values()]
        verdicts = [_verdict(rival) for rival in rivals]
        counts = ", ".join(str(verdicts.count(word)) for word in ("ahead", "level", "behind"))
        largest_p = np.mean([_of(rows, OWN[0])["auroc"] for rows in domains.values()])
        wrong = [f"{name} {row['ece']:.0f}" for name, row in zip(domains, ours) if row["ece"] > MOST_ECE]
        lines.append(
            f"| {ways}-way {shots}-shot | {len(domains)} | {np.mean([row['auroc'] for row in ours]):.1f}"
            f" | {largest_p:.1f} | {np.mean([row['auroc'] for row in rivals]):.1f} | {counts}"
            f" | {np.mean([row['ece'] for row in ours]):.1f} | {', '.join(wrong) or 'none'} |"
        )
    return lines


def _one_shot(groups: dict[tuple[int, int], dict[str, list[Numbers]]]) -> list[str]:
    lines = [
        "| domain | ways | AUROC, % | best rival | its AUROC, % | difference | ECE, % |",
        "|---|--:|--:|---|--:|--:|--:|",
    ]
    for ways in (5, 20):
        for domain, rows in groups.get((ways, 1), {}).items():
            ours, rival = _of(rows, OURS), best_rival(rows)
            lines.append(
                f"| {domain} | {ways} | {ours['auroc']:.1f} | {rival['score']} | {rival['auroc']:.1f}"
                f" | {rival['ahead']:+.1f} ± {2 * rival['ahead_noise']:.1f} | {ours['ece']:.1f} |"
            )
    return lines
