"""What to label next: `suggest` against random and margin sampling, on real data.

    python -m benchmarks.suggest [--repeats N] [--only NAME ...] [--features FOLDER]
    python -m benchmarks.suggest --render

A task has ten classes with one labelled example each and a pool of unlabelled examples of them. Ten rounds
follow. In each a rule chooses as many examples of the pool as there are classes, their labels are revealed,
and the classifier is fitted again and measured on examples that were never in the pool. All rules get the
same tasks, so differences are paired. "Half unknown" starts with examples of five of the ten classes and
chooses five per round. Results are saved after every domain; --render writes the tables to docs/correcting.md
and measures nothing.
"""

import argparse
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.honesty.domains import (
    Labelled,
    birds,
    diseases,
    embedded,
    emnist,
    features,
    imagenet,
)
from gpldla import GPLDLAClassifier, ImageEmbedder, TextEmbedder
from gpldla.data.paths import DataPaths
from gpldla.utils.files import read_json, write_atomically
from gpldla.utils.progress import Reporter
from gpldla.utils.provenance import provenance

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "correcting.md"
PER_CLASS = 60
CLASSES, ROUNDS, TEST = 10, 10, 15  # of a task; TEST examples per class
REPEATS = 60
OURS, MARGIN, RANDOM = "suggest", "smallest margin", "random"
Z = 1.96  # of a 95 % interval

Numbers = dict[str, Any]
Rule = Callable[[GPLDLAClassifier, np.ndarray, int, np.random.Generator], np.ndarray]

DOMAINS: dict[str, Callable[[], Labelled]] = {
    "diseases": lambda: embedded(TextEmbedder(), partial(diseases, PER_CLASS)),
    "EMNIST": lambda: embedded(ImageEmbedder(), partial(emnist, PER_CLASS)),
    "ImageNet classes": lambda: embedded(ImageEmbedder(), partial(imagenet, PER_CLASS)),
    "birds": lambda: embedded(ImageEmbedder(), partial(birds, PER_CLASS)),
}


def at_random(_: GPLDLAClassifier, pool: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Choose n rows of the pool [q, d] blindly."""
    return rng.permutation(len(pool))[:n]


def by_margin(clf: GPLDLAClassifier, pool: np.ndarray, n: int, _: np.random.Generator) -> np.ndarray:
    """Choose the rows whose two most probable classes are closest to each other."""
    ranked = np.sort(clf.predict_proba(pool), axis=1)
    return np.argsort(ranked[:, -1] - ranked[:, -2], kind="stable")[:n]


def by_suggest(clf: GPLDLAClassifier, pool: np.ndarray, n: int, _: np.random.Generator) -> np.ndarray:
    """Choose with GPLDLAClassifier.suggest."""
    return clf.suggest(pool, n)


RULES: dict[str, Rule] = {RANDOM: at_random, MARGIN: by_margin, OURS: by_suggest}


def label_in_rounds(
    X: np.ndarray, y: np.ndarray, rule: Rule, known: int, seed: int
) -> list[tuple[float, float, int]]:
    """Return accuracy (percent), NLL and the number of known classes after each round of one task."""
    rng = np.random.default_rng([0, seed])
    start, pool, test = [], [], []
    for place, c in enumerate(rng.choice(np.unique(y), CLASSES, replace=False)):
        rows = rng.permutation(np.flatnonzero(y == c))
        test.append(rows[:TEST])
        pool.append(rows[TEST + 1 :] if place < known else rows[TEST:])
        start += [rows[TEST]] if place < known else []
    labelled, rest, queries = np.array(start), np.concatenate(pool), np.concatenate(test)
    clf, reached = GPLDLAClassifier().fit(X[labelled], y[labelled]), []
    for _ in range(ROUNDS):
        chosen = rule(clf, X[rest], min(known, len(rest)), rng)
        labelled = np.concatenate([labelled, rest[chosen]])
        rest = np.delete(rest, chosen)
        clf = GPLDLAClassifier().fit(X[labelled], y[labelled])
        proba = clf.predict_proba(X[queries])
        right = clf.classes_[proba.argmax(1)] == y[queries]
        own = (proba * (clf.classes_ == y[queries][:, None])).sum(1)  # 0 for a class that is not known yet
        reached.append((100 * right.mean(), -np.log(own.clip(1e-6)).mean(), len(clf.classes_)))
    return reached


def measure(X: np.ndarray, y: np.ndarray, known: int, repeats: int, reporter: Reporter) -> list[Numbers]:
    """Return one row per rule and round, with the paired difference to random labels."""
    counts = {c: (y == c).sum() for c in np.unique(y)}
    kept = np.isin(y, [c for c, count in counts.items() if count >= PER_CLASS // 2])
    X, y = X[kept], y[kept]
    reached = {}
    for name, rule in RULES.items():
        with reporter.bar(name, repeats) as advance:
            runs = []
            for seed in range(repeats):
                runs.append(label_in_rounds(X, y, rule, known, seed))
                advance(1)
        reached[name] = np.array(runs)  # [repeats, rounds, 3]
    rows = []
    for name, runs_of_rule in reached.items():
        gain = runs_of_rule[:, :, 0] - reached[RANDOM][:, :, 0]
        half_width = Z * gain.std(0, ddof=1) / np.sqrt(repeats)
        for k in range(ROUNDS):
            accuracy, nll, classes = runs_of_rule[:, k].mean(0)
            rows.append(
                {
                    "rule": name,
                    "labels_per_class": (k + 1),
                    "accuracy": round(float(accuracy), 2),
                    "nll": round(float(nll), 4),
                    "classes": round(float(classes), 2),
                    "gain": round(float(gain[:, k].mean()), 2),
                    "half_width": round(float(half_width[k]), 2),
                }
            )
    return rows


def tables(results: Numbers) -> dict[str, list[str]]:
    """Return the lines of each table by name."""
    rows = results["rows"]
    lines = ["| domain | start | rule |" + "".join(f" {k} |" for k in range(1, ROUNDS + 1))]
    lines.append("|---|---|---|" + "--:|" * ROUNDS)
    kinds = sorted({(row["domain"], row["start"]) for row in rows}, key=lambda kind: (kind[1], kind[0]))
    for domain, start in kinds:
        for rule in RULES:
            own = [row for row in rows if (row["domain"], row["start"], row["rule"]) == (domain, start, rule)]
            cells = [
                f" {row['accuracy']:.1f} |"
                if rule == RANDOM
                else f" {row['gain']:+.1f} ± {row['half_width']:.1f} |".replace("-", "−")
                for row in own
            ]
            lines.append(f"| {domain} | {start} | {rule} |" + "".join(cells))
    how = f"`{results['command']}`, commit {results['commit']}, {results['repeats']} tasks per row."
    return {"gains": lines, "how": [how]}


def render(page: str, results: Numbers) -> str:
    """Return a page with the tables between its markers `<!-- suggest: NAME -->` and `<!-- end -->`."""
    found = tables(results)

    def fill(match: re.Match[str]) -> str:
        return f"<!-- suggest: {match[1]} -->\n" + "\n".join(found[match[1]]) + "\n<!-- end -->"

    return re.sub(r"<!-- suggest: ([^>]+?) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


def main() -> None:
    """Measure, or render the page; print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=Path, default=DataPaths().cache / "suggest")
    parser.add_argument("--only", nargs="+", choices=[*DOMAINS], default=[*DOMAINS])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "suggest.json")
    parser.add_argument("--render", action="store_true", help="write the tables to the page; measure nothing")
    options = parser.parse_args()
    if options.render:
        write_atomically(PAGE, render(PAGE.read_text("utf-8"), read_json(options.json)).encode())
        return
    command = "python -m benchmarks.suggest"
    command += "" if options.repeats == REPEATS else f" --repeats {options.repeats}"
    rows: list[Numbers] = []
    reporter = Reporter(Console(stderr=True))
    where = provenance("cpu")
    results: Numbers = {}
    for name in options.only:
        X, y = features(name, options.features, DOMAINS)
        for start, known in (("all known", CLASSES), ("half unknown", CLASSES // 2)):
            measured = measure(X, y, known, options.repeats, reporter)
            rows += [{"domain": name, "start": start, **row} for row in measured]
        results = {"command": command, **where, "repeats": options.repeats, "rows": rows}
        write_atomically(options.json, (json.dumps(results, indent=1) + "\n").encode())
    for name, lines in tables(results).items():
        print(f"{name}\n\n" + "\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
