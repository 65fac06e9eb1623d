import io
import json
import math
from importlib.util import find_spec
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from gpldla.bench import episode, heads
from gpldla.cli import bench as cli_bench
from gpldla.heads import create_head
from gpldla.utils import timing
from gpldla.utils.timing import cpu_threads, fastest_threads, seconds_per_call

CPU = torch.device("cpu")
BATCHES = (1, 2)


def make_small(patch):
    """Few features and queries, timed for a blink."""
    for module in (episode, heads):
        patch.setattr(module, "FEATURES", 16)
        patch.setattr(module, "QUERIES", 2)
    patch.setattr(timing, "MEASURED_SECONDS", 0.001)
    patch.setattr(timing, "WARMUP_SECONDS", 0.0)


@pytest.fixture
def small(monkeypatch):
    make_small(monkeypatch)


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return heads.bench_heads(CPU, batches=BATCHES, rounds=1)


def text(tables):
    console = Console(width=200, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.file.getvalue()


class TestTiming:
    @pytest.fixture
    def work(self, monkeypatch):
        """Return what makes calls that take as long as they say, on a clock of their own."""
        clock = SimpleNamespace(now=0.0, calls=[])
        monkeypatch.setattr(
            timing, "time", SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: clock.now)
        )

        def make(name, seconds):
            def call():
                clock.now += seconds
                clock.calls.append(name)

            return call

        make.clock = clock
        return make

    def test_one_number_a_round_is_the_time_of_a_call(self, work):
        measured = seconds_per_call({"a": work("a", 0.003), "b": work("b", 0.006)}, CPU, 4)
        assert measured == {"a": pytest.approx([0.003] * 4), "b": pytest.approx([0.006] * 4)}

    def test_twice_the_work_has_twice_the_time(self, work):
        measured = seconds_per_call({"once": work("once", 0.002), "twice": work("twice", 0.004)}, CPU, 3)
        assert median(measured["twice"]) / median(measured["once"]) == pytest.approx(2)

    def test_ways_are_timed_in_turn(self, work):
        seconds_per_call({"a": work("a", 0.01), "b": work("b", 0.01)}, CPU, 2)
        calls = work.clock.calls
        changes = [name for name, before in zip(calls, [None, *calls]) if name != before]
        assert changes == ["a", "b", "a", "b"]

    def test_fast_work_is_repeated_for_long_enough(self, work):
        seconds_per_call({"a": work("a", 1e-4)}, CPU, 1)
        assert work.clock.now >= timing.WARMUP_SECONDS + timing.MEASURED_SECONDS
        assert work.clock.now < 1.5 * (timing.WARMUP_SECONDS + timing.MEASURED_SECONDS)

    def test_slow_work_settles_once_and_gets_two_rounds(self, work):
        measured = seconds_per_call({"a": work("a", 30.0), "b": work("b", 1e-2)}, CPU, 5)
        assert {name: len(rounds) for name, rounds in measured.items()} == {"a": 2, "b": 2}
        assert work.clock.calls.count("a") == 1 + 2

    def test_every_way_has_its_own_threads(self):
        seen = {1: set(), 2: set()}
        ways = {count: lambda count=count: seen[count].add(torch.get_num_threads()) for count in (1, 2)}
        seconds_per_call(ways, CPU, 2, threads={1: 1, 2: 2})
        assert seen == {1: {1}, 2: {2}}

    def test_threads_are_as_before_afterwards(self):
        before = torch.get_num_threads()
        with cpu_threads(before + 1):
            assert torch.get_num_threads() == before + 1
        assert torch.get_num_threads() == before

    def test_the_number_of_threads_is_the_faster_one(self, work):
        def small():
            work("small", 0.001 * torch.get_num_threads())()

        def large():
            work("large", 0.010 / torch.get_num_threads())()

        with cpu_threads(4):
            assert fastest_threads({"small": small, "large": large}, CPU) == {"small": 1, "large": 4}

    def test_a_real_clock_sees_more_work(self, monkeypatch):
        monkeypatch.setattr(timing, "MEASURED_SECONDS", 0.005)
        monkeypatch.setattr(timing, "WARMUP_SECONDS", 0.001)
        ways = {n: lambda n=n: sum(range(n)) for n in (1_000, 50_000)}
        measured = seconds_per_call(ways, CPU, 3)
        assert median(measured[50_000]) > 2 * median(measured[1_000])


class TestHeads:
    def test_every_method_has_a_row_for_all_shots_and_batches(self, results):
        rows = {(row["method"], row["shots"], row["batch"]) for row in results["rows"]}
        ours = {(name, shots, batch) for name in heads.TIMED for shots in (1, 5) for batch in BATCHES}
        assert {row for row in rows if row[0] != heads.GPYTORCH} == ours
        assert len(rows) == len(results["rows"])

    @pytest.mark.skipif(find_spec("gpytorch") is None, reason="needs GPyTorch")
    def test_gpytorch_has_rows_for_the_batches_that_it_is_given(self, results):
        rows = [(row["shots"], row["batch"]) for row in results["rows"] if row["method"] == heads.GPYTORCH]
        assert rows == [(1, 1), (5, 1)]

    def test_without_gpytorch_the_others_are_timed(self, small, monkeypatch):
        monkeypatch.setattr(heads, "find_spec", lambda name: None)
        rows = heads.bench_heads(CPU, batches=(1,), rounds=1)["rows"]
        assert list(dict.fromkeys(row["method"] for row in rows)) == list(heads.TIMED)

    def test_times_are_compared_with_gpldla(self, results):
        assert {row["ratio"] for row in results["rows"] if row["method"] == "GPLDLA"} == {1}
        assert all(row["us_an_episode"] > 0 for row in results["rows"])

    def test_one_round_makes_ratios_of_the_times(self, results):
        times = {(row["method"], row["shots"], row["batch"]): row["us_an_episode"] for row in results["rows"]}
        for row in results["rows"]:
            ours = times["GPLDLA", row["shots"], row["batch"]]
            assert row["ratio"] == pytest.approx(row["us_an_episode"] / ours)

    def test_the_results_say_what_was_measured_where(self, results):
        assert {"commit", "device"} <= results.keys()
        assert (results["ways"], results["queries"], results["features"], results["rounds"]) == (5, 10, 16, 1)

    def test_a_table_a_number_of_shots_with_every_method(self, results):
        one, five = heads.heads_tables(results)
        assert "5-way 1-shot, 10 queries, d = 16" in one.title
        assert "5-way 5-shot" in five.title
        for table in (one, five):
            assert [column.header for column in table.columns] == ["method", "1", "2"]
            assert {*heads.TIMED} <= {*table.columns[0].cells}
            assert "(1.0)" in next(table.columns[1].cells)

    def test_a_batch_that_was_not_timed_is_left_empty(self, results):
        rows = [row for row in results["rows"] if (row["method"], row["batch"]) != ("MetaQDA, MAP", 2)]
        table = heads.heads_tables({**results, "rows": rows})[0]
        names = list(table.columns[0].cells)
        assert list(table.columns[2].cells)[names.index("MetaQDA, MAP")] == ""

    @pytest.mark.parametrize(
        ("time", "ratio", "cell"),
        [(1234.2, 0.456, "1,234 (0.46)"), (56.78, 10.4, "57 (10)"), (0.0123, 1.0, "0.012 (1.0)")],
    )
    def test_cells_have_the_digits_that_matter(self, results, time, ratio, cell):
        row = {"method": "GPLDLA", "shots": 1, "batch": 1, "us_an_episode": time, "ratio": ratio}
        assert cell in text(heads.heads_tables({**results, "rows": [row]}))

    def test_episodes_are_features_after_a_relu_and_the_same_every_time(self, small):
        first, second = (heads.random_episodes(3, 5, CPU) for _ in range(2))
        assert first.support.shape == (3, 25, 16)
        assert first.labels.shape == (3, 25)
        assert first.query.shape == (3, 10, 16)
        assert first.support.min() == 0
        assert torch.equal(first.query, second.query)
        assert not torch.equal(first.query[0], first.query[1])


@pytest.mark.parametrize("shots", [1, 5])
def test_gpytorch_answers_as_our_gpdkt(monkeypatch, shots):
    pytest.importorskip("gpytorch")
    from gpldla.bench.gpytorch_gps import predict_log_prob

    monkeypatch.setattr(heads, "FEATURES", 32)
    episodes = heads.random_episodes(3, shots, CPU)
    head = create_head("gpdkt", 32, kernel="cosine").eval()
    with torch.no_grad():
        head.log_scale.fill_(2 * math.log(math.log(2)))  # GPyTorch starts with two scales of softplus(0)
        ours = head.adapt(episodes.support, episodes.labels, 5).log_prob(episodes.query)
        theirs = predict_log_prob(episodes.support, episodes.labels, 5, episodes.query)
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)
    assert ours.std() > 0.01, "there is something to agree on"


@pytest.fixture(scope="module")
def full_size():
    """The episode that `gpldla bench` times, and the answers of all."""
    drawn = episode.draw_episode(5, 25, 75, 1600)
    return drawn, {name: call() for name, call in episode.timed_methods(drawn, CPU).items()}


@pytest.fixture(scope="module")
def episode_results():
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return episode.bench_episode(CPU, rounds=1)


class TestEpisode:
    def test_features_are_single_precision_after_a_relu_and_the_same_every_time(self, full_size):
        drawn, _ = full_size
        assert (drawn.support.shape, drawn.query.shape) == ((25, 1600), (75, 1600))
        assert drawn.support.dtype == torch.float32
        assert drawn.support.min() == 0
        assert drawn.labels.bincount().tolist() == [5] * 5
        assert drawn.query_labels.bincount().tolist() == [15] * 5
        assert torch.equal(drawn.query, episode.draw_episode(5, 25, 75, 1600).query)

    @pytest.mark.parametrize("name", [episode.HEAD, episode.GIVEN, episode.AUTO, episode.LOGISTIC])
    def test_the_task_is_neither_trivial_nor_hopeless(self, full_size, name):
        drawn, answers = full_size
        assert 85 <= episode._quality(answers[name], drawn.query_labels.numpy())["accuracy"] <= 98

    def test_the_estimator_with_a_given_prior_answers_as_the_head(self, full_size):
        _, answers = full_size
        np.testing.assert_allclose(answers[episode.GIVEN], answers[episode.HEAD].exp(), atol=1e-5)

    @pytest.mark.filterwarnings("error")
    def test_logistic_regression_converges(self, full_size):
        drawn, _ = full_size
        model = episode.ESTIMATORS[episode.LOGISTIC]().fit(drawn.support.numpy(), drawn.labels.numpy())
        assert model.n_iter_[0] < model.max_iter

    def test_all_answer_for_every_query(self, full_size):
        _, answers = full_size
        assert {*episode.ESTIMATORS, episode.HEAD} <= answers.keys()
        for answer in answers.values():
            p = answer.exp().numpy() if isinstance(answer, torch.Tensor) else answer
            np.testing.assert_allclose(p.sum(1), np.ones(75), atol=1e-5)

    def test_quality_is_that_of_probabilities_and_of_their_logs(self):
        p, labels = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]), np.array([0, 1, 1])
        quality = episode._quality(p, labels)
        assert quality["accuracy"] == pytest.approx(200 / 3)
        assert quality["nll"] == pytest.approx(-math.log(0.5 * 0.1 * 0.8) / 3)
        assert episode._quality(torch.from_numpy(p).log(), labels) == pytest.approx(quality)

    def test_times_are_compared_with_the_head(self, episode_results):
        times = {row["method"]: row["ms"] for row in episode_results["rows"]}
        assert next(iter(times)) == episode.HEAD
        for row in episode_results["rows"]:
            assert row["ratio"] == pytest.approx(times[row["method"]] / times[episode.HEAD])

    def test_the_results_say_what_was_measured_where(self, episode_results):
        assert {"commit", "device", "threads"} <= episode_results.keys()
        assert episode_results["command"] == "gpldla bench --device cpu --rounds 1"
        assert {"torch", "scikit-learn"} <= episode_results["versions"].keys()
        assert [episode_results[key] for key in ("ways", "shots", "queries", "features")] == [5, 5, 10, 16]

    def test_without_gpytorch_the_table_says_so(self, small, monkeypatch):
        monkeypatch.setattr(episode, "find_spec", lambda name: None)
        results = episode.bench_episode(CPU, rounds=1)
        assert [row["method"] for row in results["rows"]] == [episode.HEAD, *episode.ESTIMATORS]
        assert "gpytorch" not in results["versions"]
        lines = text([episode.episode_table(results)]).splitlines()
        assert "not installed" in next(line for line in lines if episode.GPYTORCH in line)

    def test_the_table_shows_time_and_quality(self, episode_results):
        row = {"method": episode.HEAD, "ms": 0.8765, "ratio": 1.0, "threads": 2}
        row |= {"accuracy": 94.67, "nll": 1.1072}
        printed = text([episode.episode_table({**episode_results, "rows": [row]})]).splitlines()
        cells = next(line for line in printed if episode.HEAD in line).split()
        assert cells[-5:] == ["0.88", "1.0", "2", "94.7", "1.107"]

    def test_the_estimator_is_compared_with_logistic_regression(self):
        times = {episode.GIVEN: 2.0, episode.AUTO: 5.0, episode.LOGISTIC: 9.0}
        line = episode.estimator_line({"rows": [{"method": name, "ms": ms} for name, ms in times.items()]})
        assert f"{episode.GIVEN} is 4.5 times as fast" in line
        assert f"{episode.AUTO} 1.8 times" in line


class TestEpisodeCommand:
    def test_writes_the_numbers_and_prints_the_table(self, run, small, tmp_path):
        target = tmp_path / "new" / "episode.json"
        code, out, _ = run("bench", "--device", "cpu", "--rounds", "1", "--json", target)
        assert code == 0
        for row in json.loads(target.read_text("utf-8"))["rows"]:
            assert row["method"] in out
        assert "times as fast as LogisticRegression()" in out

    def test_help_lists_the_subcommands_and_has_an_example(self, run):
        code, out, _ = run("bench", "--help")
        assert code == 0
        assert "Example: gpldla bench --device cpu" in out
        assert "heads " in out
        assert "scaling " in out

    def test_the_usual_number_of_rounds_is_that_of_the_module(self):
        assert cli_bench.EPISODE_ROUNDS == episode.ROUNDS  # so that the results name the right command

    def test_options_before_a_subcommand_are_refused_rather_than_ignored(self, refused):
        message = refused("bench", "--rounds", "2", "heads", "--device", "cpu")
        assert "Options of gpldla bench heads come after its name" in message

    def test_an_unknown_device_is_refused(self, refused):
        assert "There is no device 'tpu'" in refused("bench", "--device", "tpu")

    def test_a_file_that_cannot_be_written_is_named(self, refused, tmp_path):
        (tmp_path / "file").write_text("here already")
        target = tmp_path / "file" / "episode.json"
        assert str(tmp_path / "file") in refused("bench", "--device", "cpu", "--json", target)


class TestHeadsCommand:
    def test_writes_the_numbers_and_prints_the_tables(self, run, small, tmp_path):
        target = tmp_path / "new" / "heads.json"
        options = ["--device", "cpu", "--batches", "1,2", "--rounds", "1", "--json", target]
        code, out, _ = run("bench", "heads", *options)
        assert code == 0
        rows = json.loads(target.read_text("utf-8"))["rows"]
        assert {row["batch"] for row in rows} == {1, 2}
        for name in heads.TIMED:
            assert name in out

    @pytest.mark.parametrize("batches", ["1,x", "1,,2", "1.5", "0", "4,-1"])
    def test_wrong_batches_are_refused(self, refused, batches):
        assert "--batches" in refused("bench", "heads", "--device", "cpu", "--batches", batches)

    def test_an_unknown_device_is_refused(self, refused):
        assert "There is no device 'tpu'" in refused("bench", "heads", "--device", "tpu")

    def test_a_file_that_cannot_be_written_is_named(self, refused, small, tmp_path):
        (tmp_path / "file").write_text("here already")
        target = tmp_path / "file" / "heads.json"
        command = ["bench", "heads", "--device", "cpu", "--batches", "1", "--rounds", "1", "--json", target]
        assert str(tmp_path / "file") in refused(*command)
