"""Running times: the paper's, and ours on a GPU, for single episodes and batches, and on a CPU."""

from pathlib import Path
from typing import Any

from gpldla.bench.heads import TIMED
from gpldla.reports.paper_tables.layout import Entry, ResultTable
from gpldla.reports.paper_tables.paper import PaperTable
from gpldla.reports.paper_tables.side_by_side import NOT_YET, row_title
from gpldla.training.methods import methods
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_json


def times_table(table: PaperTable, folder: Path) -> ResultTable:
    """Return one table of all times; CPU times are multiples of GPLDLA's."""
    gpu, cpu = ({"rows": [], "device": "GPU"} | read_times(folder).get(d, {}) for d in ("cuda", "cpu"))
    labels = {_method_of(label): label for label in TIMED}
    most = max((row["batch"] for row in gpu["rows"]), default=1)
    rows = []
    for number, column in enumerate(table.columns):
        shots = column["shots"]
        for method, paper in table.rows.items():
            label = labels.get(method)
            entries = [
                str(shots),
                paper[number],
                _time(gpu, (label, shots, 1), "us_an_episode", 1e-3),
                _time(gpu, (label, shots, most), "us_an_episode"),
                _time(cpu, (label, shots, 1), "ratio"),
            ]
            rows.append((row_title(method), [Entry(text) for text in entries]))
    device = gpu["device"].split(",")[0]
    head = [
        ("", "shots"),
        ("paper", "ms"),
        (device, "single, ms"),
        (device, f"batch of {most:,}, µs"),
        ("CPU", "× GPLDLA"),
    ]
    features = f", d = {gpu['features']}" if "features" in gpu else ""
    return ResultTable(table.title + features, head, rows, _notes(gpu, cpu, rows))


def _notes(gpu: dict[str, Any], cpu: dict[str, Any], rows: list[tuple[str, list[Entry]]]) -> list[str]:
    notes = ["The paper's times were measured on other hardware, so none is marked as better."]
    notes.append("ms and µs are per episode; CPU: single episodes, as a multiple of GPLDLA's time.")
    for one in (gpu, cpu):
        if one["rows"]:
            notes.append(
                f"Measured by `{one['command']}` on {one['device']}, commit {one.get('commit', 'unknown')}."
            )
        if "note" in one:
            notes.append(one["note"])
    if any(entry.text == NOT_YET for _, entries in rows for entry in entries):
        notes.append(f"{NOT_YET}: not measured yet.")
    return notes


def read_times(folder: Path) -> dict[str, Any]:
    """Return the results of `gpldla bench heads` for each kind of device that has any."""
    files = {device: folder / f"bench_heads_{device}.json" for device in ("cuda", "cpu")}
    return {device: read_rows(file) for device, file in files.items() if file.is_file()}


def read_rows(path: Path) -> dict[str, Any]:
    """Read measured rows with their command and device."""
    results = read_json(path)
    if not isinstance(results, dict) or not {"rows", "device", "command"} <= results.keys():
        raise UserError(f"{path} does not hold results; measure them again or remove it.")
    return results


def _time(results: dict[str, Any], wanted: tuple[str | None, int, int], key: str, factor: float = 1) -> str:
    for row in results["rows"]:
        if (row["method"], row["shots"], row["batch"]) == wanted:
            return f"{row[key] * factor:.2f}"
    return NOT_YET


def _method_of(label: str) -> str | None:
    """Return the method whose defaults a timed head has, if any."""
    head, options = TIMED[label]
    if options.get("predictive"):
        return None
    wanted = {"head.name": head, **{f"head.{key}": value for key, value in options.items()}}
    for method in methods().values():
        own = {key: value for key, value in method.settings.items() if key in wanted}
        if own == wanted:
            return method.name
    return None
