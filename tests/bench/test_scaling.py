import io
import json
import math
from dataclasses import asdict

import pytest
import torch
from PIL import Image
from rich.console import Console

from gpldla.bench import scaling
from gpldla.bench.scaling import SWEEPS, Allocations, Sweep, Task, growth_exponent, record_memory
from gpldla.utils import timing

CPU = torch.device("cpu")
SMALL = (
    Sweep("classes", "9 examples", (2, 3, 4), lambda C: Task(C, 9, 4, 17)),
    Sweep("examples, full", "3 classes", (3, 6, 9), lambda n: Task(3, n, 4, 17), 3, 2, "full"),
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(scaling, "SWEEPS", SMALL)
    monkeypatch.setattr(timing, "MEASURED_SECONDS", 0.001)
    monkeypatch.setattr(timing, "WARMUP_SECONDS", 0.0)


def memory_of(task, covariance="diag"):
    head = scaling.HEADS[covariance]().eval()
    return record_memory(scaling.prediction(head, task, CPU), task, CPU)


class TestAllocations:
    def test_counts_what_is_alive_at_once(self):
        with Allocations(features=7) as seen:
            a = torch.ones(100)
            b = a + 1
            del a
            c = b * 2  # takes the place of a
            del b, c
            torch.ones(150)
        assert seen.peak == 4 * 200

    def test_views_and_what_was_there_before_are_free(self):
        given = torch.ones(1000)
        with Allocations(features=7) as seen:
            given.view(10, 100).mT[:5].unsqueeze(0).expand(8, -1, -1)
            given.add_(1)
        assert (seen.peak, seen.largest) == (0, ())

    def test_what_composed_operations_create_counts(self):
        a, b = torch.ones(3, 1, 50), torch.ones(4, 50)
        with torch.no_grad(), Allocations(features=50) as seen:
            (a - b).square().sum(-1)
        assert seen.peak >= 2 * 4 * 3 * 4 * 50
        assert seen.largest == (3, 4, 50)

    @pytest.mark.parametrize(
        ("shape", "rows"), [((20, 50), 20), ((50, 50), 50), ((3, 4, 50), 12), ((3, 200), 12), ((20, 49), 0)]
    )
    def test_knows_rows_of_features_however_they_lie(self, shape, rows):
        with Allocations(features=50) as seen:
            torch.zeros(shape)
        assert seen.most_rows == rows


class TestDefaultPath:
    @pytest.mark.parametrize(
        "task",
        [
            Task(ways=7, examples=21, queries=45, features=4096),
            Task(ways=130, examples=130, queries=45, features=1024),
            Task(ways=5, examples=500, queries=45, features=1024),
            Task(ways=5, examples=25, queries=900, features=1024),
        ],
    )
    def test_nothing_of_queries_by_classes_by_features_or_features_squared(self, task):
        facts = memory_of(task)
        rows = max(task.ways, task.examples, task.queries)
        assert 0 < facts["rows_of_features"] <= facts["rows_needed"] == rows
        largest = math.prod(facts["largest"])
        assert largest < task.features**2
        assert largest < max(task.examples, task.queries) * task.ways * task.features

    @pytest.mark.parametrize(
        "waste",
        [
            lambda support, query: query.unsqueeze(-2) * support[:3],  # [q, C, d]
            lambda support, query: support.mT @ support,  # [d, d]
            lambda support, query: torch.randn(10, 3, support.shape[-1]),  # draws of weights, [M, C, d]
        ],
    )
    def test_a_head_that_forms_them_would_be_found(self, waste):
        task = Task(ways=3, examples=6, queries=9, features=128)
        head = scaling.HEADS["diag"]().eval()
        drawn = scaling.draw_episode(*asdict(task).values())

        def call():
            waste(drawn.support, drawn.query)
            return head.adapt(drawn.support, drawn.labels, 3).log_prob(drawn.query)

        facts = record_memory(call, task, CPU)
        assert facts["rows_of_features"] > facts["rows_needed"]

    @pytest.mark.parametrize(
        "sweep", [sweep for sweep in SWEEPS if sweep.memory_order == 1], ids=lambda sweep: sweep.quantity
    )
    def test_memory_grows_at_most_linearly(self, sweep):
        sizes = sweep.sizes[-3:]
        used = [memory_of(sweep.task(size))["bytes"] for size in sizes]
        slopes = [
            math.log(used[i + 1] / used[i]) / math.log(sizes[i + 1] / sizes[i]) for i in range(len(sizes) - 1)
        ]
        assert max(slopes) <= 1.1
        assert used[-1] > used[0], "there is something that grows"


def test_full_covariance_keeps_one_block_a_class():
    facts = memory_of(Task(ways=3, examples=40, queries=5, features=16), "full")
    assert facts["largest"] == [3, 40, 40]


class TestSweeps:
    @pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.quantity)
    def test_what_stays_does_stay(self, sweep):
        tasks = [asdict(sweep.task(size)) for size in sweep.sizes]
        growing = {name for name in tasks[0] if len({task[name] for task in tasks}) > 1}
        expected = {
            "classes": {"ways"},
            "examples per class": {"examples"},
            "features d": {"features"},
            "queries": {"queries"},
            "classes, 5 examples each": {"ways", "examples"},
            "examples n, full covariance": {"examples"},
        }
        assert growing == expected[sweep.quantity]
        assert list(sweep.sizes) == sorted(sweep.sizes)

    @pytest.mark.parametrize(
        ("quantity", "first", "last"),
        [
            ("classes", 2, 1000),
            ("examples per class", 1, 100),
            ("features d", 64, 4096),
            ("queries", 10, 10_000),
        ],
    )
    def test_sizes_cover_the_range_in_full_and_fast(self, quantity, first, last):
        sizes = next(sweep.sizes for sweep in SWEEPS if sweep.quantity == quantity)
        assert (sizes[0], sizes[-1]) == (sizes[::2][0], sizes[::2][-1]) == (first, last)

    def test_no_other_axis_is_taken_for_features(self):
        for sweep in SWEEPS:
            for size in sweep.sizes:
                task = sweep.task(size)
                assert all(n % task.features for n in (task.ways, task.examples, task.queries))


class TestExponent:
    @pytest.mark.parametrize("power", [0, 1, 2.5])
    def test_powers_are_found(self, power):
        sizes = [1, 3, 10, 30]
        assert growth_exponent(sizes, [5 * size**power for size in sizes]) == pytest.approx(power)

    def test_small_sizes_do_not_count(self):
        assert growth_exponent([1, 2, 4, 8], [100.0, 7.0, 16.0, 64.0]) == pytest.approx(2)
        assert growth_exponent([1, 2, 4, 8, 16], [9.0, 5.0, 4.0, 8.0, 16.0]) == pytest.approx(1)


class TestCommand:
    def test_writes_numbers_and_picture_and_prints_the_table(self, run, small, tmp_path):
        folder = tmp_path / "new" / "scaling"
        code, out, _ = run("bench", "scaling", "--device", "cpu", "--rounds", "1", "-o", folder)
        assert code == 0
        results = json.loads((folder / "scaling.json").read_text("utf-8"))
        assert {"commit", "device"} <= results.keys()
        assert results["command"] == "gpldla bench scaling --device cpu --rounds 1"
        assert [[row["size"] for row in sweep["rows"]] for sweep in results["sweeps"]] == [
            [2, 3, 4],
            [3, 6, 9],
        ]
        for sweep in results["sweeps"]:
            assert all(row["ms"] > 0 and row["bytes"] > 0 for row in sweep["rows"])
            assert sweep["quantity"] in out
        assert "No tensor has more rows of features" in out
        with Image.open(folder / "scaling.png") as picture:
            assert picture.format == "PNG"
            assert picture.width > picture.height > 300

    def test_fast_takes_every_second_size(self, small):
        results = scaling.bench_scaling(CPU, fast=True, rounds=1)
        assert [row["size"] for row in results["sweeps"][0]["rows"]] == [2, 4]
        assert "--fast" in results["command"]

    def test_threads_are_as_before_afterwards(self, small):
        with timing.cpu_threads(2):
            assert scaling.bench_scaling(CPU, rounds=1)["device"].startswith("1 CPU")
            assert torch.get_num_threads() == 2

    def test_the_help_has_an_example(self, run):
        assert "Example: gpldla bench scaling" in run("bench", "scaling", "--help")[1]

    def test_an_unknown_device_is_refused(self, refused, tmp_path):
        assert "There is no device 'tpu'" in refused("bench", "scaling", "--device", "tpu", "-o", tmp_path)

    def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(self, refused, tmp_path):
        (tmp_path / "file").write_text("here already")
        assert str(tmp_path / "file") in refused("bench", "scaling", "-o", tmp_path / "file" / "scaling")


def made_up(**changed):
    row = {"size": 10, "ms": 1.0, "bytes": 2e6, "largest": [5, 7], "rows_of_features": 5, "rows_needed": 5}
    sweep = {"quantity": "queries", "stays": "all else", "order": 1, "memory_order": 1}
    sweep |= {"exponent": 0.987, "memory_exponent": 1.234, "covariance": "diag"}
    rows = [row, {**row, "size": 1000, "ms": 34.0, **changed}]
    return {"device": "a machine", "sweeps": [{**sweep, "rows": rows}]}


def test_the_table_has_ranges_exponents_and_the_largest_tensor():
    console = Console(width=200, file=io.StringIO())
    console.print(scaling.scaling_table(made_up(bytes=25e6, largest=[1000, 1600])))
    printed = console.file.getvalue()
    for part in ("10  1,000", "1.0 → 34", "0.99 (1)", "2.0 → 25", "1.23 (1)", "1,000 × 1,600", "a machine"):
        assert part in printed


def test_what_is_too_large_is_named():
    assert "none is of size" in scaling.size_line(made_up())
    assert "queries = 1,000 (6 rows of features)" in scaling.size_line(made_up(rows_of_features=6))
