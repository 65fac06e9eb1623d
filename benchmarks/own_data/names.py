"""Names of classes as a prior, beside the same without names and rivals that know them.

    python -m benchmarks.own_data.names --write results/names.json

Texts by all-MiniLM-L6-v2 in four domains: the diseases of ICD-10-CM by the titles of their chapters,
sentences of docstrings by the name of their module (two domains), and names of characters by the name of
their script, which says nothing about them. "Wrong names" gives each class the name of another one. 0, 1, 2,
5 and 10 examples per class.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.special import log_softmax

from benchmarks.honesty.domains import Classes, character_names, diseases, modules, standard_library
from benchmarks.own_data.common import SEED, Numbers, scaled, with_interval
from benchmarks.own_data.known_classes import Predictions
from benchmarks.own_data.names_rivals import rivals, unit
from gpldla import TextEmbedder
from gpldla.heads.gpldla_auto import GPLDLAAuto
from gpldla.heads.gpldla_names import GPLDLANames
from gpldla.utils.files import read_json, write_atomically, write_json
from gpldla.utils.progress import Reporter
from gpldla.utils.provenance import provenance

OURS, WITHOUT, WRONG = "GPLDLA, names", "GPLDLA, no names", "GPLDLA, wrong names"
QUERIES = 10  # per class, fewer than elsewhere, as some classes have 20 texts
SHOTS, CELLS = (0, 1, 2, 5, 10), ((5, 60), (15, 20))  # ways, tasks
PAGE = Path(__file__).parents[2] / "docs" / "names.md"


def titled_diseases() -> Classes:
    """Return the descriptions of diseases by the titles of their chapters, without the range of codes."""
    icd: Any = import_module("simple_icd_10_cm")
    return {str(icd.get_description(c)).rsplit(" (", 1)[0]: texts for c, texts in diseases().items()}


def worded(make: Callable[[], Classes]) -> Callable[[], Classes]:
    """Return classes with names in words: `numpy.linalg` becomes "numpy linalg"."""

    def named() -> Classes:
        return {name.replace(".", " ").replace("_", " ").strip().lower(): own for name, own in make().items()}

    return named


DOMAINS: dict[str, Callable[[], Classes]] = {
    "diseases": titled_diseases,
    "docstrings": worded(modules),
    "standard library": worded(standard_library),
    "names of characters": worded(character_names),
}


def measure_domain(name: str, scale: float, reporter: Reporter) -> list[Numbers]:
    """Return one row per cell and method."""
    embedder, least = TextEmbedder(), max(SHOTS) + QUERIES
    classes = {title: texts for title, texts in DOMAINS[name]().items() if len(texts) >= least}
    features = embedder.transform([text for own in classes.values() for text in own])
    names = embedder.transform(list(classes))
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in classes.values()])
    rows: list[Numbers] = []
    for ways, tasks in CELLS:
        for shots in SHOTS:
            drawn = draw(labels, ways, shots, scaled(tasks, scale))
            made: dict[str, Predictions] = {}
            with reporter.bar(f"{name}, {ways}-way {shots}-shot", len(drawn)) as advance:
                for own, support, query in drawn:
                    arrays = (features[support], names[own], features[query])
                    for title, log_prob in predict(*arrays, ways, shots).items():
                        made.setdefault(title, Predictions([], [])).log_prob.append(
                            torch.from_numpy(log_prob)
                        )
                    advance(1)
            truth = torch.from_numpy(np.repeat(np.arange(ways), QUERIES))
            where = {"domain": name, "ways": ways, "shots": shots}
            rows += [where | {"method": title} | _row(own, truth) for title, own in made.items()]
    return rows


def draw(
    labels: np.ndarray, ways: int, shots: int, tasks: int
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the classes [ways] of each task and the rows of its support and its query, class by class."""
    rng, drawn = np.random.default_rng([SEED, ways, shots]), []
    for _ in range(tasks):
        own = rng.permutation(labels.max() + 1)[:ways]
        rows = np.stack([rng.permutation(np.flatnonzero(labels == c))[: shots + QUERIES] for c in own])
        drawn.append((own, rows[:, :shots].ravel(), rows[:, shots:].ravel()))
    return drawn


def predict(
    support: np.ndarray, names: np.ndarray, query: np.ndarray, ways: int, shots: int
) -> dict[str, np.ndarray]:
    """Return log p [q, C] of every method, by its title."""
    y = np.repeat(np.arange(ways), shots)
    answers = {OURS: ours(support, y, query, names), WRONG: ours(support, y, query, np.roll(names, 1, 0))}
    if shots:
        answers[WITHOUT] = ours(support, y, query, None)
    X, T, Q = (unit(array) if len(array) else array for array in (support, names, query))
    for title, method in rivals(shots).items():
        answers[title] = log_softmax(method(X, y, T, Q), axis=1)
    return answers


def ours(support: np.ndarray, y: np.ndarray, query: np.ndarray, names: np.ndarray | None) -> np.ndarray:
    """Return log p [q, C] of GPLDLA with names, or without."""
    ways = int(y.max()) + 1 if names is None else len(names)
    head = GPLDLAAuto().eval() if names is None else GPLDLANames(prior_mean=torch.from_numpy(names)).eval()
    with torch.no_grad():
        posterior = head.adapt(torch.from_numpy(support), torch.from_numpy(y), ways)
        log_prob: np.ndarray = posterior.log_prob(torch.from_numpy(query)).double().numpy()
    return log_prob


def _row(predictions: Predictions, truth: torch.Tensor) -> Numbers:
    numbers = predictions.numbers(truth)
    row: Numbers = {"tasks": len(predictions.log_prob), "ece": round(float(numbers["ece"]), 2)}
    row |= with_interval("accuracy", np.asarray(numbers["accuracy"]), 2)
    return row | with_interval("nll", np.asarray(numbers["nll"]), 4)


def table(results: Numbers, ways: int) -> list[str]:
    """Return the lines of a table: NLL, accuracy and ECE of each method by domain and shots."""
    titles = [OURS, WITHOUT, WRONG, *rivals(1)]
    lines = [
        f"| {ways}-way: accuracy / NLL / ECE | shots | " + " | ".join(titles) + " |",
        "|---|--:|" + "---|" * len(titles),
    ]
    cells = {(r["domain"], r["shots"], r["method"]): r for r in results["rows"] if r["ways"] == ways}
    for domain in DOMAINS:
        for shots in SHOTS:
            own = [cells.get((domain, shots, title)) for title in titles]
            best = min(row["nll"] for row in own if row)
            lines.append(f"| {domain} | {shots} | " + " | ".join(_cell(row, best) for row in own) + " |")
    return lines


def _cell(row: Numbers | None, best: float) -> str:
    if row is None:
        return ""
    nll = f"{row['nll']:.2f}"
    return f"{row['accuracy']:.0f} / {f'**{nll}**' if row['nll'] == best else nll} / {row['ece']:.0f}"


def render(page: str, results: Numbers) -> str:
    """Return the page with its tables."""
    for ways, _ in CELLS:
        start, end = f"<!-- names: {ways}-way -->\n", "<!-- end -->"
        before, rest = page.split(start)
        page = before + start + "\n".join(table(results, ways)) + "\n" + end + rest.split(end, 1)[1]
    return page


def main() -> None:
    """Measure and write the results, or render the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=DOMAINS, default=list(DOMAINS))
    parser.add_argument("--episodes", type=float, default=1.0, help="factor of the number of tasks")
    parser.add_argument("--write", type=Path, help="file for the results")
    parser.add_argument("--render", type=Path, help="write the tables of these results to the page, and stop")
    arguments = parser.parse_args()
    if arguments.render is not None:
        write_atomically(PAGE, render(PAGE.read_text("utf-8"), read_json(arguments.render)).encode())
        return
    reporter = Reporter(Console(stderr=True))
    rows = [row for name in arguments.only for row in measure_domain(name, arguments.episodes, reporter)]
    results: Numbers = {"rows": rows, "seed": SEED}
    if arguments.write is not None:
        command = f"python -m benchmarks.own_data.names --write {arguments.write}"
        write_json(arguments.write, {"command": command, **provenance("cpu"), **results})
    for ways, _ in CELLS:
        print("\n".join(table(results, ways)), end="\n\n")


if __name__ == "__main__":
    main()
