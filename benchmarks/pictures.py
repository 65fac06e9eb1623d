"""Pictures per second from files to probabilities on a CPU, beside the best bare combination of libraries.

    python -m benchmarks.pictures [--rounds 5] [--growth 100 1000 10000] [--json results/pictures.json]

All ways take turns in each round, so that other load affects all of them: `fit`, `transform` of an
ImageEmbedder, `predict_proba`, `gpldla predict -o`, and bare loops that decode with Pillow (JPEGs at a
reduced scale) and run the network's graph in ONNX Runtime, written here without gpldla. The best of the bare
loops is 1.00. Pictures are those of CUB if the data root has it, else drawn: as JPEGs of about 224 pixels,
and enlarged to 12 megapixels as phones take them. `--growth` runs `gpldla predict -o` on more and more
pictures and records time and memory.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from gpldla import FewShotClassifier, ImageEmbedder
from gpldla.bulk.job import Settings
from gpldla.bulk.scoring import score_in_bulk
from gpldla.classifier.resolve import resolve_model
from gpldla.data import Access, DataPaths
from gpldla.data.catalog import find_set
from gpldla.data.sets import StoredSet
from gpldla.data.source_files import read_tree
from gpldla.engines.choice import prepare
from gpldla.engines.network_graph import make_graph
from gpldla.export import graph_of
from gpldla.utils.process import prepare_process
from gpldla.utils.provenance import provenance

CLASSES = 10
SMALL, PHONE = 192, 24  # different pictures of each kind
PHONE_SIZE = (4000, 3000)
OURS = ("fit", "transform", "predict", "predict -o")
Pass = Callable[[], int]
"""Handles all pictures once, or some; returns how many."""


@dataclass(frozen=True)
class Case:
    """Pictures of one kind, each of them several times; side: to which they are resized before the crop."""

    label: str
    files: list[Path]
    side: int

    def decoded(self, file: Path) -> np.ndarray:
        """Decode a picture with Pillow alone, uint8 [side, side, 3]."""
        with Image.open(file) as opened:
            opened.draft("RGB", (2 * self.side, 2 * self.side))
            return np.asarray(opened.convert("RGB").resize((self.side, self.side), Image.Resampling.BILINEAR))


def originals(data_paths: DataPaths) -> Iterator[Image.Image]:
    """Yield photographs of birds spread over all species, else drawn pictures."""
    data_set = find_set("cub")
    assert isinstance(data_set, StoredSet)
    source = data_set.locate(data_paths.root)
    if source is None:
        rng = np.random.default_rng(0)
        for _ in range(SMALL):
            small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
            yield small.resize((320, 240), Image.Resampling.BICUBIC)
        return
    files = list(read_tree(source).images.values())
    for number in np.linspace(0, len(files) - 1, SMALL).astype(int):
        with Image.open(BytesIO(files[number].read())) as opened:
            yield opened.convert("RGB")


def write_pictures(folder: Path, small: int, phone: int, side: int) -> list[Case]:
    """Write the pictures of both kinds, and links to them up to the wanted numbers."""
    rng = np.random.default_rng(0)
    kinds: dict[str, list[Path]] = {"small": [], "phone": []}
    for number, picture in enumerate(originals(DataPaths())):
        path = folder / f"original-{number}.jpg"
        picture.save(path, quality=90)
        kinds["small"].append(path)
        if number < PHONE:
            large = np.asarray(picture.resize(PHONE_SIZE, Image.Resampling.BICUBIC), np.int16)
            grain = rng.integers(-6, 7, large.shape, dtype=np.int16)  # as sensors have: files of some 5 MB
            path = folder / f"phone-{number}.jpg"
            Image.fromarray((large + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
            kinds["phone"].append(path)
    return [
        Case("224 pixels", linked(kinds["small"], folder / "small", small), side),
        Case("12 megapixels", linked(kinds["phone"], folder / "phone", phone), side),
    ]


def linked(files: list[Path], folder: Path, count: int) -> list[Path]:
    """Link files into a folder again and again, until there are so many."""
    folder.mkdir()
    links = [folder / f"{number:06}.jpg" for number in range(count)]
    for link, file in zip(links, itertools.cycle(files)):
        os.link(file, link)
    return links


def session_of(graph: bytes, threads: int) -> Any:
    """Return a session of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def bare_ways(graph: bytes, case: Case, threads: int) -> dict[str, Pass]:
    """Return loops without gpldla: all in one thread pool, and decoders beside a session with all threads."""
    alone, wide, files, decoded = session_of(graph, 1), session_of(graph, threads), case.files, case.decoded

    def batches(size: int) -> list[list[Path]]:
        return [files[start : start + size] for start in range(0, len(files), size)]

    def together(size: int) -> int:
        def work(batch: list[Path]) -> None:
            alone.run(None, {"pixels": np.stack([decoded(file) for file in batch])})

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, batches(size)))
        return len(files)

    def beside(size: int, session: Any) -> int:
        with ThreadPoolExecutor(threads) as pool:
            pictures = pool.map(decoded, files)
            for batch in batches(size):
                session.run(None, {"pixels": np.stack([next(pictures) for _ in batch])})
        return len(files)

    ways: dict[str, Pass] = {f"one pool, batches of {size}": partial(together, size) for size in (1, 4)}
    for size in (1, 8):
        ways[f"decoders beside a session of {threads} threads, batches of {size}"] = partial(
            beside, size, wide
        )
    return ways


def parts(graph: bytes, case: Case, threads: int) -> dict[str, Pass]:
    """Return what the work consists of: decoding alone, and the network alone."""
    files, decoded, session = case.files, case.decoded, session_of(graph, 1)
    pixels = np.stack([decoded(file) for file in files[:4]])

    def decoding() -> int:
        with ThreadPoolExecutor(threads) as pool:
            return len(list(pool.map(lambda file: decoded(file).shape, files)))

    def network() -> int:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: session.run(None, {"pixels": pixels}), range(64)))
        return 64 * len(pixels)

    return {"decoding alone": decoding, "network alone": network}


def our_ways(model: str, classifier: FewShotClassifier, files: list[Path], folder: Path) -> dict[str, Pass]:
    """Return what a user calls; features are not taken from the cache."""
    embedder = ImageEmbedder(model, cache=False)
    labels = [number % CLASSES for number in range(len(files))]
    saved, numbers = folder / "classifier.safetensors", itertools.count()
    classifier.save(saved)

    def fit() -> int:
        classifier.model.adapt(files, labels).save(folder / "fitted.safetensors")
        return len(files)

    def bulk() -> int:
        quiet = Console(file=open(os.devnull, "w"))  # noqa: PTH123, SIM115 (kept open by the console)
        output = folder / f"scores-{next(numbers)}"
        score_in_bulk(
            saved, list(map(str, files)), output, Settings(), access=Access(DataPaths()), console=quiet
        )
        return len(files)

    return {
        "fit": fit,
        "transform": lambda: len(embedder.transform(files)),
        "predict": lambda: len(classifier.predict_proba(files)),
        "predict -o": bulk,
    }


def rate(handle: Pass, seconds: float) -> float:
    """Return pictures per second of whole passes."""
    done, started = 0, time.perf_counter()
    while True:
        done += handle()
        spent = time.perf_counter() - started
        if spent >= seconds:
            return done / spent


def milliseconds(ways: dict[str, Callable[[int], object]], times: int) -> dict[str, float]:
    """Call each way in turn with 0, 1, ...; return the median of each."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(times):
        for name, call in ways.items():
            started = time.perf_counter()
            call(number)
            spent[name].append(time.perf_counter() - started)
    return {name: round(1000 * statistics.median(values), 2) for name, values in spent.items()}


def single_answers(classifier: FewShotClassifier, graph: bytes, case: Case) -> dict[str, float]:
    """Return the milliseconds of one answer in a process that has loaded a classifier, and of bare calls."""
    session, files, decoded = session_of(graph, 1), case.files[:50], case.decoded
    pixels = [decoded(file)[None] for file in files]
    return milliseconds(
        {
            "the network in ONNX Runtime": lambda k: session.run(None, {"pixels": pixels[k % len(files)]}),
            "and decoding": lambda k: session.run(None, {"pixels": decoded(files[k % len(files)])[None]}),
            "predict_proba of one picture": lambda k: classifier.predict_proba([files[k % len(files)]]),
        },
        3 * len(files),
    )


BARE_ANSWER = """
import sys
import numpy, onnxruntime
from PIL import Image
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
side = int(sys.argv[3])
session.run(None, {"pixels": numpy.asarray(Image.open(sys.argv[2]).resize((side, side)))[None]})
"""


def first_answers(classifier: FewShotClassifier, graph: bytes, case: Case, times: int) -> dict[str, float]:
    """Return the milliseconds of whole processes: imports alone, a bare answer, and the command's."""
    folder, file = case.files[0].parent.parent, case.files[0]
    plain, stored, bare = (folder / name for name in ("plain.safetensors", "stored.safetensors", "bare.onnx"))
    classifier.save(plain)
    classifier.save(stored, graph=graph_of(classifier))
    bare.write_bytes(graph)

    def run(*arguments: object) -> Callable[[int], object]:
        command = [sys.executable, *map(str, arguments)]
        return lambda _: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    return milliseconds(
        {
            "python -c 'import onnxruntime, PIL'": run("-c", "import onnxruntime, PIL"),
            "and the network's graph, run once": run("-c", BARE_ANSWER, bare, file, case.side),
            "gpldla predict, file with its graph": run("-m", "gpldla", "predict", stored, file),
            "gpldla predict, file without": run("-m", "gpldla", "predict", plain, file),
        },
        times,
    )


def measured(case: Case, ways: dict[str, Pass], seconds: float, rounds: int) -> dict[str, list[float]]:
    """Return the rate of each way in each round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for handle in ways.values():
        handle()
    for _ in range(rounds):
        for name, handle in ways.items():
            rates[name].append(round(rate(handle, seconds), 1))
            print(f"{case.label}: {name}: {rates[name][-1]:,.1f} pictures/s", flush=True)
    return rates


GROWN = """
from pathlib import Path
from gpldla.cli import main
try:
    main()
finally:
    print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def growth(saved: Path, files: list[Path], counts: list[int], folder: Path) -> list[dict[str, Any]]:
    """Run `gpldla predict -o` on so many pictures in a process of its own; return time and memory.

    Memory is what Linux calls VmHWM; the maximum that `wait` returns counts the parent, too.
    """
    rows = []
    for count in counts:
        pictures = folder / f"growth-{count}"
        linked(files, pictures, count)
        command = [sys.executable, "-c", GROWN, "predict", str(saved), str(pictures)]
        command += ["-o", str(folder / f"grown-{count}")]
        started = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        seconds = round(time.perf_counter() - started, 2)
        rows.append({"pictures": count, "seconds": seconds, "megabytes": round(int(done.stdout) / 1024)})
        print(rows[-1], flush=True)
    return rows


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all ways on both kinds of pictures."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = resolve_model(options.model)
        cases = write_pictures(folder, options.small, options.phone, model.preprocessing.resized)
        prepare(model.backbone)
        graph = make_graph(model.backbone)
        examples = cases[0].files[: 5 * CLASSES]
        classifier = model.adapt(examples, [number % CLASSES for number in range(len(examples))])
        if classifier.has_novelty:
            classifier.calibrate_novelty()  # as `gpldla fit` does
        saved, files = folder / "saved.safetensors", cases[0].files[:SMALL]
        classifier.save(saved)
        grown = growth(saved, files, options.growth, folder)
        if options.growth_only:
            return {"growth": grown}
        results: dict[str, Any] = {"threads": threads, "cases": [], "growth": grown}
        for case in cases:
            bare = bare_ways(graph, case, threads)
            own = our_ways(options.model, classifier, case.files, Path(tempfile.mkdtemp(dir=folder)))
            ways = {**bare, **parts(graph, case, threads), **own}
            rates = measured(case, ways, options.seconds, options.rounds)
            best = max(bare, key=lambda way: statistics.median(rates[way]))
            ratios = {
                way: round(statistics.median(ours / raw for ours, raw in zip(rates[way], rates[best])), 2)
                for way in ways
            }
            single = single_answers(classifier, graph, case)
            print(case.label, single, flush=True)
            results["cases"].append(
                {"pictures": case.label, "count": len(case.files), "best": best, "ratios": ratios}
                | {"rates": rates, "single_ms": single}
            )
        results["first_answer_ms"] = first_answers(classifier, graph, cases[0], 2 * options.rounds + 1)
    return results


def table(results: dict[str, Any]) -> list[str]:
    """Return the table of the documentation: ratios only, as rates depend on the machine."""
    cases = results["cases"]
    lines = [
        f"| pictures per second | {' | '.join(case['pictures'] for case in cases)} |",
        "|---|" + "--:|" * len(cases),
    ]
    for way in cases[0]["ratios"]:
        label = f"**`{way}`**" if way in OURS else way
        lines.append(f"| {label} | {' | '.join(format(case['ratios'][way], '.2f') for case in cases)} |")
    return lines


def answers_table(results: dict[str, Any]) -> list[str]:
    """Return the table of single answers: in a process that has loaded a classifier, and in a new one."""
    lines = ["| one answer | relative time |", "|---|--:|"]
    for times in (results["cases"][0]["single_ms"], results["first_answer_ms"]):
        first = next(iter(times.values()))
        lines += [f"| {name} | {milliseconds / first:.2f} |" for name, milliseconds in times.items()]
    return lines


def growth_table(results: dict[str, Any]) -> list[str]:
    """Return the table of `predict -o` with more and more pictures."""
    first = results["growth"][0]
    lines = ["| pictures | × the time of the first row | memory, MB |", "|--:|--:|--:|"]
    for row in results["growth"]:
        times = row["seconds"] / first["seconds"]
        lines.append(f"| {row['pictures']:,} | {times:.1f} | {row['megabytes']:,} |")
    return lines


def main() -> None:
    """Measure, print, and save the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, at least")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="efficientnet-lite0", help="one for colour pictures")
    parser.add_argument("--small", type=int, default=1920, help="small pictures in a pass")
    parser.add_argument("--phone", type=int, default=192, help="pictures of a phone in a pass")
    parser.add_argument("--growth", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--growth-only", action="store_true", help="replace the growth in the JSON file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = " ".join(map(str, options.growth))
    command = f"python -m benchmarks.pictures --seconds {options.seconds:g} --rounds {options.rounds}"
    if options.growth_only:
        before = json.loads(options.json.read_text("utf-8"))
        again = {"growth_command": f"python -m benchmarks.pictures --growth-only --growth {counts}"}
        options.json.write_text(json.dumps(before | again | measure(options), indent=1) + "\n", "utf-8")
        return
    results = {
        "command": f"{command} --model {options.model} --small {options.small} --phone {options.phone}"
        f" --growth {counts}",
        **provenance("cpu"),
        **measure(options),
    }
    print("\n".join([*table(results), "", *answers_table(results), "", *growth_table(results)]))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # which the command line sets, but torch must not be loaded yet
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.pictures", *sys.argv[1:]])
    prepare_process()
    main()
