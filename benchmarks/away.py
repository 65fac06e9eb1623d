"""Shipped models away from home: accuracy, NLL and ECE without temperature, with the stored one, as answered.

    python -m benchmarks.away [MODEL ...] [--write results/away.json]
    python -m benchmarks.away --table results/away.json

5-way tasks with 1, 2 and 5 shots and 10 queries per class. Each domain contributes at most 50 classes
with at most 40 pictures each. The standard deviation of an ECE comes from a bootstrap over tasks. A model may
be a shipped one or a folder, such as `demo/model`. Rows of a model that is measured again are replaced.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpldla.backbones import backbone_preprocessing
from gpldla.classifier.calibration import reliability
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.shipped import shipped_models
from gpldla.data import ImageSet, Part, load_protocol, load_set
from gpldla.data.store import image_set_from_classes
from gpldla.evaluation import PartEvaluator, Predictions, Task, measure
from gpldla.utils.files import read_json, write_json

MOST_CLASSES, MOST_PICTURES = 50, 40
SHOTS, QUERIES = (1, 2, 5), 10
# Data set and part of it, by domain. A model's own novel classes are the domain "home".
DOMAINS = {
    "birds": ("cub", "novel"),
    "miniImageNet": ("miniimagenet", "novel"),
    "Omniglot": ("omniglot", "all"),
    "EMNIST": ("omniglot-emnist", "novel"),
    "glyphs": ("glyphs", "novel"),
    "digits": ("glyphs-digits", "novel"),
}
HOME = {"cub": ("birds",), "omniglot-emnist": ("Omniglot", "EMNIST"), "glyphs": ("glyphs",)}


def domains_of(model: FewShotModel) -> Iterator[tuple[str, str, Part]]:
    """Yield name, "home" or "away", and pictures of each domain for a model."""
    trained_on = str(model.info["recipe"]["dataset"])
    size = backbone_preprocessing(model.backbone_name).size
    yield trained_on, "home", _few(load_protocol(trained_on, size=size).part("novel"))
    for name, (source, part) in DOMAINS.items():
        if name not in HOME.get(trained_on, ()):
            yield name, "away", _few(_pictures(source, part, size))


def _pictures(source: str, part: str, size: int) -> Part:
    if source == "omniglot":  # every twentieth character of all alphabets
        characters = load_set("omniglot", size=28)
        return Part(characters, tuple(range(0, len(characters.class_names), 20)))
    return load_protocol(source, size=28 if "glyphs" in source or "emnist" in source else size).part(part)


def _few(part: Part) -> Part:
    """Return the part with fewer classes and pictures, so that few have to be represented."""
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permutation(len(part.classes))[:MOST_CLASSES])
    ends = np.cumsum(part.counts)
    pictures = []
    for c in chosen.tolist():
        order = np.sort(rng.permutation(part.counts[c])[:MOST_PICTURES])
        pictures.append(part.read(ends[c] - part.counts[c] + order))
    names = [part.class_names[c] for c in chosen.tolist()]
    few: ImageSet = image_set_from_classes(part.image_set.name, names, pictures)
    return Part(few, tuple(range(len(names))))


def rows_of(name: str, episodes: int) -> list[dict[str, Any]]:
    """Return the rows of a model."""
    model, rows = FewShotModel.from_pretrained(name), []
    for domain, where, part in domains_of(model):
        evaluator = PartEvaluator(model, part)
        for shots in SHOTS:
            if part.counts.min() < shots + QUERIES:
                continue
            task = Task(min(5, len(part.classes)), shots, QUERIES)
            predictions = evaluator.predict(task, episodes=episodes, seed=0, split="away")
            answers = evaluator.answer(task, predictions, seed=0, split="away")
            facts: dict[str, Any] = {"model": Path(name).name, "domain": domain, "where": where}
            facts |= {"shots": shots, "episodes": episodes}
            ways = {
                "none": measure(predictions),
                "stored": measure(predictions, temperature=model.temperature),
                "classifier": measure(answers.predictions),
            }
            for label, numbers in ways.items():
                facts |= {f"{what}_{label}": numbers[what] for what in ("accuracy", "nll", "ece")}
            facts["ece_classifier_deviation"] = _deviation(answers.predictions)
            facts["temperature"] = answers.temperatures.median().item()
            facts["own_prior_share"] = answers.shares.mean().item()
            rows.append(facts)
            print(_line(facts), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    cell = f"{row['model']:30} {row['domain']:16} {row['where']:5}{row['shots']:3} shots"
    kinds = ("none", "stored", "classifier")
    pairs = [f"{kind} {row['nll_' + kind]:.3f} {row['ece_' + kind]:4.1f}" for kind in kinds]
    accuracy = f"{row['accuracy_none']:5.1f} → {row['accuracy_classifier']:.1f} %"
    return f"{cell} {accuracy}  NLL, ECE  {'  '.join(pairs)} ± {row['ece_classifier_deviation']:.1f}"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows with one and five shots as Markdown."""
    lines = [
        "| model | domain | shots | own prior | right, %: model, classifier"
        " | NLL: none, stored, classifier | ECE: none, stored, classifier |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        if row["shots"] in (1, 5):
            nll, ece = (
                [f"{row[f'{name}_{kind}']:.{digits}f}" for kind in ("none", "stored", "classifier")]
                for name, digits in (("nll", 2), ("ece", 1))
            )
            domain = "novel classes (home)" if row["where"] == "home" else row["domain"]
            lines.append(
                f"| {row['model']} | {domain} | {row['shots']} | {row['own_prior_share']:.2f}"
                f" | {row['accuracy_none']:.0f}, {row['accuracy_classifier']:.0f}"
                f" | {', '.join(nll)} | {', '.join(ece)} |"
            )
    return "\n".join(lines)


def _deviation(predictions: Predictions, samples: int = 50) -> float:
    """Return the standard deviation of the ECE over bootstrap samples of the tasks."""
    log_prob = predictions.log_prob
    generator, errors = torch.Generator().manual_seed(0), []
    for _ in range(samples):
        chosen = torch.randint(len(log_prob), (len(log_prob),), generator=generator)
        errors.append(reliability(*Predictions(log_prob[chosen], predictions.labels).flat).error)
    return float(np.std(errors))


def main() -> None:
    """Measure the models that are named, or all shipped ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: all shipped ones")
    parser.add_argument("--episodes", type=int, default=600, help="of each cell")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print what was written, as Markdown")
    options = parser.parse_args()
    if options.table:
        print(table(read_json(options.table)["rows"]))
        return
    for name in options.models or shipped_models():
        rows = rows_of(name, options.episodes)
        if options.write:
            before = read_json(options.write)["rows"] if options.write.exists() else []
            kept = [row for row in before if row["model"] != Path(name).name]
            write_json(options.write, {"command": "python -m benchmarks.away", "rows": kept + rows})


if __name__ == "__main__":
    main()
