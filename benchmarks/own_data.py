"""One's own pictures and texts: GPLDLAClassifier beside scikit-learn's classifiers, on the same features.

    python -m benchmarks.own_data [--features FILE.npz] [--only photographs text beyond] [--episodes SCALE]
    python -m benchmarks.own_data --render

Photographs: CUB through EfficientNet-Lite0, tasks of its 50 novel classes; the base classes serve `meta_fit`
alone. Text: the categories of ICD-10-CM by chapter (PyPI package simple-icd-10-cm) through MiniLM. Beyond:
"none of these", abstaining, and the full covariance beside the diagonal one. Saves after every cell, and a
part keeps its numbers while another is measured. --render writes the tables to docs/own-data.md and runs
nothing.

FILE.npz holds X, float32 [n, d], and names [n], paths whose parent folder is the class. Where there is no
such file, the images of the data root are embedded, in ten minutes on two cores, and written to it.
"""

import argparse
import io
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
import sklearn
import torch
from PIL import Image
from rich.console import Console
from scipy.spatial.distance import cdist, pdist
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestCentroid
from torch import Tensor

import gpldla
from gpldla import AbstainingClassifier, GPLDLAClassifier, ImageEmbedder, TextEmbedder
from gpldla.classifier.calibration import reliability
from gpldla.data.catalog import find_set
from gpldla.data.paths import DataPaths
from gpldla.data.sets.base import ImageFileSet
from gpldla.data.source_files import read_tree
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_json, write_atomically, write_json
from gpldla.utils.progress import SILENT, Reporter
from gpldla.utils.provenance import provenance

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "own-data.md"
PARTS = ("photographs", "text", "beyond")
SEED = 0
SHOTS = (1, 2, 5, 10)
PHOTOGRAPHS, TEXTS = {5: 200, 50: 10}, {5: 200, 20: 40}  # tasks by the number of classes
QUERIES = 15  # a class
FLOOR = 1e-12  # probabilities below it count as it: some classifiers answer 0
MAX_ERROR = 0.05  # of an answer, for AbstainingClassifier
MOST_BASE_WAYS = 40  # of a task in `meta_fit`: half of the base classes are 50, and some must stay unknown
FEWEST_TEXTS = 30  # of a chapter
OURS, META = "GPLDLA", "GPLDLA, meta-fitted"
LOGISTIC = "logistic regression"
PLACE = re.compile(r"(?P<begin><!-- own_data: (?P<name>.*?) -->)\n.*?(?P<end><!-- end -->)", re.S)

Numbers = dict[str, Any]


# --- The features ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Features [n, d] and the numbers of their classes [n]; base: the same of other classes, or None."""

    features: np.ndarray
    labels: np.ndarray
    base: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def facts(self) -> Numbers:
        """What the results say about it."""
        n, d = self.features.shape
        base = 0 if self.base is None else len(np.unique(self.base[1]))
        return {"examples": n, "features": d, "classes": len(np.unique(self.labels)), "base_classes": base}


def photographs(file: Path, reporter: Reporter = SILENT) -> Data:
    """Return the novel classes of CUB, every fourth of the sorted folders; base: every other."""
    if not file.exists():
        embed_photographs(file, reporter)
    with np.load(file) as stored:
        features, names = stored["X"], stored["names"]
    folders = [PurePosixPath(str(name)).parent.name for name in names]
    labels = np.unique(folders, return_inverse=True)[1]
    base, novel = labels % 2 == 0, labels % 4 == 3  # the rest, 1, is for validation and not looked at here
    return Data(features[novel], labels[novel], (features[base], labels[base]))


def embed_photographs(file: Path, reporter: Reporter) -> None:
    """Write the features of all images of CUB in the data root, by the default embedder with its cache."""
    cub = find_set("cub")
    assert isinstance(cub, ImageFileSet)
    folder = cub.locate(DataPaths().root)
    if folder is None:
        raise UserError(f"There is no CUB in {DataPaths().root}; get it from {cub.get}, or give --features.")
    files = cub.listing(read_tree(folder)).files_of_class
    embedder, names, features = ImageEmbedder(), [], []
    with reporter.bar("features of photographs", sum(map(len, files.values()))) as advance:
        for name, own in files.items():
            features.append(embedder.transform([Image.open(io.BytesIO(image.read())) for image in own]))
            names += [f"{name}/{image.name}" for image in own]
            advance(len(own))
    content = io.BytesIO()
    np.savez(content, X=np.concatenate(features), names=np.array(names))
    write_atomically(file, content.getvalue())


def chapters() -> Data:
    """Return the descriptions of ICD-10-CM's categories, such as A00, by chapter; small chapters left out."""
    try:
        icd = import_module("simple_icd_10_cm")
    except ImportError:
        raise UserError(
            "The texts need simple-icd-10-cm; pip install simple-icd-10-cm, or leave text out with --only."
        ) from None
    codes = [code for code in icd.get_all_codes() if icd.is_category(code) and len(code) == 3]
    chapter_of = {icd.get_description(code): icd.get_ancestors(code)[-1] for code in codes}
    names, counts = np.unique(list(chapter_of.values()), return_counts=True)
    large = set(names[counts >= FEWEST_TEXTS])
    texts = sorted(text for text, chapter in chapter_of.items() if chapter in large)
    labels = np.unique([chapter_of[text] for text in texts], return_inverse=True)[1]
    return Data(TextEmbedder().transform(texts), labels)


@dataclass(frozen=True)
class Task:
    """Numbers of rows, class by class; `outside` are of as many classes that the task does not know."""

    support: np.ndarray
    query: np.ndarray
    outside: np.ndarray


def draw_tasks(labels: np.ndarray, ways: int, shots: int, count: int, outside: int = 0) -> list[Task]:
    """Draw tasks one after another: the first few are the same however many are wanted."""
    rng = np.random.default_rng([SEED, ways, shots])
    classes = np.unique(labels)
    tasks = []
    for _ in range(count):
        chosen = rng.choice(classes, ways + outside, replace=False)
        drawn = [rng.permutation(np.flatnonzero(labels == c))[: shots + QUERIES] for c in chosen]
        rest = [rows[shots:] for rows in drawn[ways:]] or [np.empty(0, dtype=int)]
        support, query = (
            np.concatenate([rows[part] for rows in drawn[:ways]])
            for part in (slice(shots), slice(shots, None))
        )
        tasks.append(Task(support, query, np.concatenate(rest)))
    return tasks


# --- The classifiers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A classifier and where it is measured.

    make:         from the support [n, d] and the shots to a classifier with `predict_proba`
    fewest_shots: below which it cannot be fitted
    shares:       of the tasks that it meets, with few classes and with many; 0 leaves it out
    why_less:     the reason
    """

    title: str
    make: Callable[[np.ndarray, int], Any]
    fewest_shots: int = 1
    shares: tuple[float, float] = (1.0, 1.0)
    why_less: str = ""


class CentroidSoftmax(NearestCentroid):
    """Probabilities that agree with `predict`: softmax of minus the distances to the class means."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return them, [n, C]."""
        return scipy.special.softmax(-cdist(X, self.centroids_), axis=1)


def rivals() -> list[Method]:
    """Return scikit-learn's classifiers, each in a form that is fair to it."""

    def centroid(_: np.ndarray, __: int) -> Any:
        return CentroidSoftmax()

    def centroid_as_it_is(_: np.ndarray, __: int) -> Any:
        return NearestCentroid()

    def logistic(_: np.ndarray, __: int) -> Any:
        return LogisticRegression(max_iter=1000)

    def logistic_chosen(support: np.ndarray, shots: int) -> Any:
        # Five values of C instead of ten where there are many examples. The default score is accuracy, which
        # ties with so few and leaves the smallest C: nearly flat probabilities.
        return LogisticRegressionCV(
            Cs=10 if len(support) <= 50 else 5, cv=min(shots, 5), scoring="neg_log_loss", max_iter=1000
        )

    def lda(_: np.ndarray, __: int) -> Any:
        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")

    def process(_: np.ndarray, __: int) -> Any:
        return GaussianProcessClassifier(random_state=SEED)

    def process_fitted(support: np.ndarray, _: int) -> Any:
        kernel = ConstantKernel(1.0) * RBF(float(np.median(pdist(support))))  # where the search begins
        return GaussianProcessClassifier(kernel, random_state=SEED)

    # Measured on validation classes, 50-way 10-shot: half a minute a task, with the search nearly two.
    one_against_rest = "one classifier a class, and work for each that grows with the cube of the examples"
    return [
        Method("nearest centroid, softmax of −distance", centroid),
        Method("nearest centroid, its own probabilities", centroid_as_it_is, fewest_shots=2),
        Method(LOGISTIC, logistic),
        Method("logistic regression, C by cross-validation", logistic_chosen, 2, (0.3, 0.5), "slow"),
        Method("LDA, Ledoit-Wolf", lda, 2, (0.15, 1.0), "slow"),
        Method("Gaussian process, default kernel", process, 1, (0.3, 0.0), one_against_rest),
        Method("Gaussian process, RBF fitted", process_fitted, 1, (0.3, 0.0), one_against_rest),
    ]


def meta_fitted(data: Data, ways: int, shots: int, scale: float) -> GPLDLAClassifier | None:
    """Learn the prior on the base classes, with fewer tasks in a trial; None where there are none."""
    if data.base is None:
        return None
    classes = len(np.unique(data.base[1]))
    ways = min(ways, MOST_BASE_WAYS, classes // 2 - 1)
    prior = GPLDLAClassifier(random_state=SEED)
    episodes = _scaled(200, min(1.0, scale))
    return prior.meta_fit(*data.base, shots=shots, ways=ways, episodes=episodes, progress=False)


# --- Tasks of known classes ------------------------------------------------------------------------------


@dataclass
class Answers:
    """What a method said in its tasks, log p [q, C] each, and how long it took."""

    log_prob: list[Tensor]
    seconds: list[float]
    unconverged: int = 0

    def numbers(self, truth: Tensor, tasks: int | None = None) -> dict[str, np.ndarray | float]:
        """Return accuracy in percent and NLL, one a task, and the ECE in percent of the first few tasks."""
        log_prob = torch.stack(self.log_prob[:tasks])  # [E, q, C]
        labels = truth.expand(log_prob.shape[:-1])
        own = log_prob.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return {
            "accuracy": 100 * (log_prob.argmax(-1) == labels).double().mean(-1).numpy(),
            "nll": -own.mean(-1).numpy(),
            "ece": reliability(log_prob.flatten(0, 1), labels.flatten()).error,
        }


def measure_cell(
    data: Data, ways: int, shots: int, tasks: int, scale: float, *, many: bool, reporter: Reporter = SILENT
) -> tuple[list[Numbers], list[Numbers]]:
    """Return one row a method, and what was left out and why; the methods take turns in each task."""
    tasks = _scaled(tasks, scale)
    started = time.perf_counter()
    prior = meta_fitted(data, ways, shots, scale)
    meta_seconds = time.perf_counter() - started
    methods = [Method(OURS, lambda _, __: GPLDLAClassifier())]
    if prior is not None:
        methods.append(Method(META, lambda _, __: prior))
    left_out = []
    for method in rivals():
        if shots < method.fewest_shots:
            left_out.append({"method": method.title, "reason": f"needs {method.fewest_shots} shots"})
        elif not method.shares[many]:
            left_out.append({"method": method.title, "reason": method.why_less})
        else:
            methods.append(method)

    counts = {method.title: _scaled(tasks, method.shares[many]) for method in methods}
    answers = {method.title: Answers([], []) for method in methods}
    truth = np.repeat(np.arange(ways), QUERIES)
    with reporter.bar(f"{ways}-way {shots}-shot", tasks) as advance:
        for number, task in enumerate(draw_tasks(data.labels, ways, shots, tasks)):
            for method in methods:
                if number < counts[method.title]:
                    answer_task(method, data.features, task, ways, shots, answers[method.title])
            advance(1)

    rows = []
    for method in methods:
        row = {"ways": ways, "shots": shots, "method": method.title}
        row |= compared(answers[method.title], answers[OURS], torch.from_numpy(truth))
        if method.title == META:
            row["meta_fit_seconds"] = round(meta_seconds, 1)
        rows.append(row)
    where = {"ways": ways, "shots": shots}
    return rows, [{**where, **facts} for facts in left_out]


def answer_task(
    method: Method, features: np.ndarray, task: Task, ways: int, shots: int, answers: Answers
) -> None:
    """Fit a method to the task, ask for its probabilities, and note them with the time of both."""
    support, query = features[task.support], features[task.query]
    labels = np.repeat(np.arange(ways), shots)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        started = time.perf_counter()
        proba = method.make(support, shots).fit(support, labels).predict_proba(query)
        answers.seconds.append(time.perf_counter() - started)
    answers.unconverged += any(issubclass(warning.category, ConvergenceWarning) for warning in warned)
    answers.log_prob.append(torch.from_numpy(np.log(np.maximum(proba.astype(np.float64), FLOOR))))


def compared(own: Answers, ours: Answers, truth: Tensor) -> Numbers:
    """Return a method's numbers, and their difference to GPLDLA's in the same tasks."""
    tasks = len(own.log_prob)
    numbers, reference = own.numbers(truth), ours.numbers(truth, tasks)
    row: Numbers = {"tasks": tasks}
    for key, digits in (("accuracy", 2), ("nll", 4)):
        row |= _with_interval(key, np.asarray(numbers[key]), digits)
        row |= _with_interval(f"{key}_difference", np.asarray(numbers[key]) - reference[key], digits)
    row["ece"], row["ece_difference"] = (
        round(float(value), 2) for value in (numbers["ece"], float(numbers["ece"]) - float(reference["ece"]))
    )
    seconds = [float(np.median(times)) for times in (own.seconds, ours.seconds[:tasks])]
    row["milliseconds"] = float(f"{1000 * seconds[0]:.3g}")
    row["time_ratio"] = float(f"{seconds[0] / seconds[1]:.3g}")
    row["unconverged_tasks"] = own.unconverged
    return row


# --- Beyond a class --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beyond:
    """Tasks with queries of as many classes that they do not know."""

    data: Data
    ways: int
    shots: int
    tasks: int

    def draw(self) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield support [n, d], its labels [n], queries [q, d] and queries of other classes [u, d]."""
        labels = np.repeat(np.arange(self.ways), self.shots)
        for task in draw_tasks(self.data.labels, self.ways, self.shots, self.tasks, outside=self.ways):
            support, query, outside = (
                self.data.features[rows] for rows in (task.support, task.query, task.outside)
            )
            yield support, labels, query, outside

    @property
    def facts(self) -> Numbers:
        """What the rows say about it."""
        return {"ways": self.ways, "shots": self.shots, "tasks": self.tasks}

    @property
    def truth(self) -> np.ndarray:
        """The classes of the queries [q]."""
        return np.repeat(np.arange(self.ways), QUERIES)


def measure_unknown(
    cell: Beyond, scale: float, reporter: Reporter = SILENT
) -> tuple[list[Numbers], list[Numbers]]:
    """Return how well unknown classes are noticed, a row a score, and what abstaining gives, a row each."""
    prior = meta_fitted(cell.data, cell.ways, cell.shots, scale)
    classifiers = {OURS: GPLDLAClassifier(), META: prior, LOGISTIC: LogisticRegression(max_iter=1000)}
    scores: dict[tuple[str, str], list[np.ndarray]] = {}  # known queries, then unknown ones
    kept: dict[str, list[np.ndarray]] = {title: [] for title in classifiers}  # [answered, right, sure] × q
    with reporter.bar(f"none of these, {cell.ways}-way {cell.shots}-shot", cell.tasks) as advance:
        for support, labels, query, outside in cell.draw():
            both = np.concatenate([query, outside])
            for title, classifier in classifiers.items():
                if classifier is None:
                    continue
                classifier.fit(support, labels)
                if isinstance(classifier, GPLDLAClassifier):
                    scores.setdefault((title, "none_of_these"), []).append(classifier.none_of_these(both))
                doubt = 1 - classifier.predict_proba(both).max(1)
                scores.setdefault((title, "1 − largest probability"), []).append(doubt)
                careful = AbstainingClassifier(classifier, max_error=MAX_ERROR)
                proba = classifier.predict_proba(query)
                right = proba.argmax(1) == cell.truth
                kept[title].append(np.stack([careful.answered(query), right, proba.max(1)]))
            advance(1)
    return _unknown_rows(cell, scores), _abstaining_rows(cell, kept)


def _unknown_rows(cell: Beyond, scores: Mapping[tuple[str, str], list[np.ndarray]]) -> list[Numbers]:
    rows = []
    is_unknown = np.repeat([0, 1], len(cell.truth))
    for (title, score), values in scores.items():
        area = np.array([100 * roc_auc_score(is_unknown, own) for own in values])
        row = {**cell.facts, "method": title, "score": score, **_with_interval("auroc", area, 2)}
        if score == "none_of_these":
            p = torch.from_numpy(np.concatenate(values).astype(np.float64)).clamp(FLOOR, 1 - FLOOR)
            truth = torch.from_numpy(np.tile(is_unknown, len(values)))
            row["ece"] = round(reliability(torch.stack([1 - p, p], -1).log(), truth).error, 2)
        rows.append(row)
    return rows


def _abstaining_rows(cell: Beyond, kept: Mapping[str, list[np.ndarray]]) -> list[Numbers]:
    rows = []
    for title, parts in kept.items():
        if parts:
            answered, right, sure = np.concatenate(parts, axis=1)
            of_answered = answered > 0
            rows.append(
                {
                    **cell.facts,
                    "method": title,
                    "max_error": MAX_ERROR,
                    "answered": round(100 * float(answered.mean()), 2),
                    "accuracy": _percent(right[of_answered]),
                    "expected_accuracy": _percent(sure[of_answered]),
                    "accuracy_of_all": _percent(right),
                }
            )
    return rows


def measure_covariance(
    name: str, cell: Beyond, settings: Mapping[str, Any], reporter: Reporter = SILENT
) -> list[Numbers]:
    """Return a row for the diagonal covariance and one for the full, which has the differences too."""
    measured: dict[str, dict[str, list[float]]] = {"diag": {}, "full": {}}
    with reporter.bar(f"covariances, {name}", cell.tasks) as advance:
        for support, labels, query, outside in cell.draw():
            for covariance, numbers in measured.items():
                classifier = GPLDLAClassifier(covariance=covariance, **settings).fit(support, labels)  # type: ignore[arg-type]
                for key, value in _uncertainty_numbers(classifier, query, outside, cell.truth).items():
                    numbers.setdefault(key, []).append(value)
            advance(1)
    rows = []
    for covariance, numbers in measured.items():
        row = {"data": name, **cell.facts, "settings": dict(settings), "covariance": covariance}
        for key, values in numbers.items():
            digits = 4 if key == "nll" else 2
            row |= _with_interval(key, np.array(values), digits)
            if covariance == "full":
                difference = np.array(values) - np.array(measured["diag"][key])
                row |= _with_interval(f"{key}_difference", difference, digits)
        rows.append(row)
    return rows


def _uncertainty_numbers(
    classifier: GPLDLAClassifier, query: np.ndarray, outside: np.ndarray, truth: np.ndarray
) -> dict[str, float]:
    proba = classifier.predict_proba(query)
    right = proba.argmax(1) == truth
    known, unknown = classifier.uncertainty(query), classifier.uncertainty(outside)
    is_unknown = np.repeat([0, 1], [len(query), len(outside)])
    numbers = {
        "accuracy": 100 * float(right.mean()),
        "nll": -float(np.log(np.maximum(proba[np.arange(len(truth)), truth], FLOOR)).mean()),
    }
    for kind in ("total", "epistemic"):
        inside, beyond = getattr(known, kind), getattr(unknown, kind)
        numbers[f"auroc_{kind}"] = 100 * float(roc_auc_score(is_unknown, np.concatenate([inside, beyond])))
        numbers[f"rejection_{kind}"] = rejection_area(right, inside)
    return numbers


def rejection_area(right: np.ndarray, doubt: np.ndarray) -> float:
    """Return the accuracy in percent among the queries kept, averaged over how many are kept."""
    kept = right[np.argsort(doubt, kind="stable")]
    return 100 * float((np.cumsum(kept) / np.arange(1, len(kept) + 1)).mean())


# --- The parts -------------------------------------------------------------------------------------------

Save = Callable[[Numbers], None]


def measure_tables(
    data: Data, ways: Mapping[int, int], scale: float, save: Save, reporter: Reporter = SILENT
) -> None:
    """Measure all cells of a data set; `ways`: the number of tasks by the number of classes, few to many."""
    part: Numbers = {"data": data.facts, "rows": [], "left_out": []}
    classes = data.facts["classes"]
    for wanted, tasks in ways.items():
        few = wanted == min(ways)
        for shots in SHOTS:
            rows, left_out = measure_cell(
                data, min(wanted, classes), shots, tasks, scale, many=not few, reporter=reporter
            )
            part["rows"] += rows
            part["left_out"] += left_out
            save(part)
            best = ", ".join(
                f"{row['method']} {row['accuracy']:.1f} % NLL {row['nll']:.3f}" for row in rows[:3]
            )
            reporter.say(f"{rows[0]['ways']}-way {shots}-shot: {best}")


def measure_beyond(data: Data, scale: float, save: Save, reporter: Reporter = SILENT) -> None:
    """Measure what goes beyond a class: unknown classes, abstaining, kinds of uncertainty."""
    part: Numbers = {"data": data.facts, "unknown": [], "abstaining": [], "covariance": []}
    most = data.facts["classes"] // 2
    cells = [
        Beyond(data, min(ways, most), shots, _scaled(tasks, scale))
        for ways, shots, tasks in ((5, 5, 100), (10, 10, 40))
    ]
    for cell in cells:
        unknown, abstaining = measure_unknown(cell, scale, reporter)
        part["unknown"] += unknown
        part["abstaining"] += abstaining
        save(part)
    digits = Data(*load_digits(return_X_y=True))
    pixels = Beyond(digits, 5, 5, _scaled(100, scale))
    compared_settings: list[tuple[str, Beyond, dict[str, Any]]] = [
        *(("CUB", cell, {}) for cell in cells),
        ("digits", pixels, {}),
        *(("digits", pixels, {"map_steps": 5, "beta": beta}) for beta in (1.0, 4.0)),
    ]
    for name, cell, settings in compared_settings:
        part["covariance"] += measure_covariance(name, cell, settings, reporter)
        save(part)


def measure(
    parts: Sequence[str], features: Path, scale: float, json_file: Path, command: str, reporter: Reporter
) -> Numbers:
    """Measure parts, saving as it goes; the numbers of other parts in the file stay."""
    photos = photographs(features, reporter) if {"photographs", "beyond"} & set(parts) else None
    texts = chapters() if "text" in parts else None
    # One thread for everybody: libraries that wait for each other's threads would spoil the times.
    torch.set_num_threads(1)
    import_module("threadpoolctl").threadpool_limits(1)

    old = read_json(json_file).get("parts", {}) if json_file.exists() else {}
    facts: Numbers = {"command": command, **provenance("cpu"), "version": gpldla.__version__}
    facts |= {"scikit_learn": sklearn.__version__, "seeds": [SEED], "scale": scale}
    results: Numbers = {**facts, "queries": QUERIES, "floor": FLOOR, "parts": old}
    for name in parts:
        started = time.monotonic()

        def save(part: Numbers, *, name: str = name, started: float = started) -> None:
            part_facts = {**facts, "finished": False, "seconds": round(time.monotonic() - started, 1)}
            measured = {**results["parts"], name: {**part_facts, **part}}
            results["parts"] = {key: measured[key] for key in PARTS if key in measured}
            write_json(json_file, results)

        if name == "photographs" and photos is not None:
            measure_tables(photos, PHOTOGRAPHS, scale, save, reporter)
        elif name == "text" and texts is not None:
            measure_tables(texts, TEXTS, scale, save, reporter)
        elif name == "beyond" and photos is not None:
            measure_beyond(photos, scale, save, reporter)
        results["parts"][name] |= {"finished": True, "seconds": round(time.monotonic() - started, 1)}
        write_json(json_file, results)
    return results


def _scaled(tasks: int, scale: float) -> int:
    return max(2, round(tasks * scale))  # an interval needs two


def _percent(values: np.ndarray) -> float | None:
    return round(100 * float(values.mean()), 2) if len(values) else None


def _with_interval(key: str, values: np.ndarray, digits: int) -> Numbers:
    """Return the mean over tasks and half of its 95 % interval (Student's, as there may be few)."""
    spread = values.std(ddof=1) / len(values) ** 0.5
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1) * spread)
    return {key: round(float(values.mean()), digits), f"{key}_interval": round(half, digits)}


# --- The tables ------------------------------------------------------------------------------------------


def method_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the lines of one number of classes, the best NLL first for every number of shots."""
    lines = [
        "| shots | method | tasks | accuracy, % | NLL | ECE, % | accuracy − GPLDLA's | NLL − GPLDLA's"
        " | time, × GPLDLA |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(rows, key=lambda row: (row["shots"], row["nll"])):
        ours = row["method"] == OURS
        differences = (
            " | "
            if ours
            else f"{_signed(row, 'accuracy_difference', 1)} | {_signed(row, 'nll_difference', 3)}"
        )
        lines.append(
            f"| {row['shots']} | {_title(row['method'])} | {row['tasks']}"
            f" | {row['accuracy']:.1f} ± {row['accuracy_interval']:.1f} | {row['nll']:.3f} | {row['ece']:.1f}"
            f" | {differences} | {row['time_ratio']:.2g} |"
        )
    return lines


def left_out_list(facts: Sequence[Numbers]) -> list[str]:
    """Return a line a method that was left out somewhere: where, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        where = f"{fact['ways']}-way {fact['shots']}-shot"
        reasons.setdefault((fact["method"], fact["reason"]), []).append(where)
    return [f"- {method}, {', '.join(where)}: {reason}." for (method, reason), where in reasons.items()]


def unknown_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the lines of how well unknown classes are noticed."""
    lines = ["| task | classifier | score | AUROC, % | ECE, % |", "|---|---|---|--:|--:|"]
    for row in rows:
        ece = f"{row['ece']:.1f}" if "ece" in row else ""
        score = f"`{row['score']}`" if row["score"] == "none_of_these" else row["score"]
        lines.append(
            f"| {_task(row)} | {_title(row['method'])} | {score}"
            f" | {row['auroc']:.1f} ± {row['auroc_interval']:.1f} | {ece} |"
        )
    return lines


def abstaining_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the lines of what comes of answering only where the expected error is small."""
    lines = [
        "| task | classifier | answered, % | right among these, % | expected, % | right of all, % |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        among = " | ".join(
            "" if row[key] is None else f"{row[key]:.1f}" for key in ("accuracy", "expected_accuracy")
        )
        lines.append(
            f"| {_task(row)} | {_title(row['method'])} | {row['answered']:.1f} | {among}"
            f" | {row['accuracy_of_all']:.1f} |"
        )
    return lines


def covariance_table(rows: Sequence[Numbers]) -> list[str]:
    """Return the lines of both covariances, with the difference of the full one to the diagonal."""
    keys = ("auroc_total", "auroc_epistemic", "rejection_total", "rejection_epistemic")
    lines = [
        "| data | settings | covariance | accuracy, % | NLL | AUROC, total | AUROC, epistemic"
        " | kept, total | kept, epistemic |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        settings = ", ".join(f"`{key}={value:g}`" for key, value in row["settings"].items()) or "defaults"
        cells = [_with_difference(row, "accuracy", 1), _with_difference(row, "nll", 3)]
        cells += [_with_difference(row, key, 1) for key in keys]
        lines.append(
            f"| {row['data']}, {_task(row)} | {settings} | `{row['covariance']}` | {' | '.join(cells)} |"
        )
    return lines


def tables(results: Numbers) -> dict[str, list[str]]:
    """Return all tables that the results have numbers for, by the names of their places on the page."""
    found: dict[str, list[str]] = {}
    for part in ("photographs", "text"):
        numbers = results["parts"].get(part)
        if numbers:
            for ways in dict.fromkeys(row["ways"] for row in numbers["rows"]):
                own = [row for row in numbers["rows"] if row["ways"] == ways]
                found[f"{part} {ways}-way"] = method_table(own)
            found[f"{part} left out"] = left_out_list(numbers["left_out"])
    beyond = results["parts"].get("beyond")
    if beyond:
        found["unknown"] = unknown_table(beyond["unknown"])
        found["abstaining"] = abstaining_table(beyond["abstaining"])
        found["covariance"] = covariance_table(beyond["covariance"])
    return {name: lines for name, lines in found.items() if lines}


def render(page: str, results: Numbers) -> str:
    """Return the page with the tables between their marks, <!-- own_data: NAME --> and <!-- end -->."""
    found = tables(results)

    def filled(match: re.Match[str]) -> str:
        lines = found.get(match["name"])
        return "\n".join([match["begin"], *lines, match["end"]]) if lines else match[0]

    return PLACE.sub(filled, page)


def _title(method: str) -> str:
    return f"**{method}**" if method == OURS else method


def _task(row: Numbers) -> str:
    return f"{row['ways']}-way {row['shots']}-shot"


def _signed(row: Numbers, key: str, digits: int) -> str:
    shown = f"{row[key]:+.{digits}f}".replace("-", "−")
    shown = shown if shown.strip("+−0.") else shown[1:]  # no sign of nothing
    return f"{shown} ± {row[f'{key}_interval']:.{digits}f}"


def _with_difference(row: Numbers, key: str, digits: int) -> str:
    difference = f"{key}_difference"
    shown = f"{row[key]:.{digits}f}"
    return f"{shown} ({_signed(row, difference, digits)})" if difference in row else shown


def main() -> None:
    """Measure, or render the page; print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_features = DataPaths().cache / "own_data_cub.npz"
    parser.add_argument("--features", type=Path, help=f"of photographs; default: {default_features}")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--episodes", type=float, default=1.0, help="times as many tasks as usual")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "own_data.json")
    parser.add_argument("--render", action="store_true", help="only write the tables to the page")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="what --render fills; default: docs/own-data.md"
    )
    arguments = parser.parse_args()
    try:
        if arguments.render:
            results = read_json(arguments.json)
            page = render(arguments.page.read_text("utf-8"), results)
            write_atomically(arguments.page, page.encode())
            return
        options = "" if arguments.only == list(PARTS) else f" --only {' '.join(arguments.only)}"
        options += f" --episodes {arguments.episodes:g}" if arguments.episodes != 1 else ""
        results = measure(
            arguments.only,
            arguments.features or default_features,
            arguments.episodes,
            arguments.json,
            f"python -m benchmarks.own_data{options}",
            Reporter(Console(stderr=True)),
        )
    except UserError as error:
        parser.exit(2, f"{error}\n")
    for name, lines in tables(results).items():
        print(f"{name}\n\n" + "\n".join(lines), end="\n\n")
    print(", ".join(f"{name} {part['seconds']:.0f} s" for name, part in results["parts"].items()))


if __name__ == "__main__":
    main()
