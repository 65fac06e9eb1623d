"""Training by many processes: real commands where processes are started, forked ones where numbers matter.

Both kinds run `in_a_process` below: the command line on tiny data, with orders from the environment.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save_file
from torch import nn

from gpldla.classifier.model import FewShotModel
from gpldla.cli import app as cli
from gpldla.data import Part, Protocol
from gpldla.training import process_group, stage
from gpldla.training import run as training
from gpldla.training.base_stage import BaseStage
from gpldla.training.batch_norm import BatchNormSchedule
from gpldla.training.checkpoint import FILE, TrainingState
from gpldla.training.episode_stage import EpisodeStage
from gpldla.training.metrics import METRICS
from gpldla.training.process_group import CLUSTER_VARIABLES, ProcessGroup
from gpldla.training.recipe import flatten
from gpldla.training.stage import StageContext
from gpldla.training.weight_average import WeightAverage
from gpldla.utils.counter_random import splitmix64, stream, uniforms
from gpldla.utils.errors import RunError
from tests.helpers import call, tiny_protocol, tiny_recipe

ROOT = Path(__file__).parents[2]
ORDERS = "GPLDLA_TEST_ORDERS"  # JSON: what `in_a_process` is to do beside the command
MARK = "GPLDLA_TEST_MARK"  # by which processes are found again, whoever started them
PATIENCE = 150  # seconds: the machine may be busy
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.training.test_many_processes"])
DRIVER = "from tests.training.test_many_processes import in_a_process\n\nin_a_process()\n"

SETTINGS = {
    "episodes": 40,
    "validation.every": 20,
    "validation.episodes": 5,
    "validation.temperature_episodes": 5,
    "log_every": 4,
    "checkpoint_every": 8,
    "precision": "64-true",
    "augment": "characters",
}  # the head of the recipe draws noise in training
BASE_STAGE = {"base.epochs": 4, "base.batch": 8, "base.validate_every": 2, "augment": "none"}
BASE_STAGE |= {"episodes": 8}


def half_noise(*args, **options):
    """Stands in for load_protocol: base classes are easy, validation classes nobody gets quite right."""
    protocol = tiny_protocol()
    part = protocol.part("validation")
    noise = np.random.default_rng(0).integers(0, 256, part.image_set.images.shape)
    images = (0.4 * part.image_set.images + 0.6 * noise).astype(np.uint8)
    noisy = Part(replace(part.image_set, images=images), part.classes)
    return Protocol("tiny", {**protocol.parts, "validation": noisy})


# ---- what a process does


def in_a_process():
    """Run sys.argv as a command on little data; may run into a signal, and leaves what it had at the end.

    stop:   [number, updates, signal, ...]: process `number` sends itself these signals after so many updates;
            after -1 before it meets the others, after 0 at the end; number null is all of them
    freeze: BatchNorm keeps its statistics, so that shares of a batch are as good as the whole
    traces: the folder for what each process ended with, and for the files that it wrote
    real_data: what the recipe names
    """
    orders = json.loads(os.environ.get(ORDERS, "{}"))
    number = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", os.environ.get("NODE_RANK", 0))))
    if not orders.get("real_data"):
        training.load_protocol = half_noise
    if orders.get("freeze"):
        nn.BatchNorm2d.train = lambda layer, mode=True: nn.Module.train(layer, False)
    if "stop" in orders and orders["stop"][0] in (None, number):
        _send_signals_after(*orders["stop"][1:])
    if "traces" in orders:
        _leave_traces(Path(orders["traces"]), number)
    cli.main()


def _send_signals_after(updates, *signals):
    def send():
        for name in signals:
            os.kill(os.getpid(), getattr(signal, name))

    def start_the_others_and_send(launcher):
        start(launcher)
        send()

    start = process_group._Launcher._call_children_scripts
    if updates < 0 and "LOCAL_RANK" in os.environ:
        send()
    elif updates < 0:
        process_group._Launcher._call_children_scripts = start_the_others_and_send
    done, go = 0, training._Run.go

    def go_and_send(run, *args):
        finished = go(run, *args)
        send()
        return finished

    if updates == 0:
        training._Run.go = go_and_send

    def counted(update):
        def update_and_count(stage):
            nonlocal done
            update(stage)
            done += 1
            if done == updates:
                send()

        return update_and_count

    for kind in (BaseStage, EpisodeStage):
        kind.update = counted(kind.update)


def _leave_traces(folder, number):
    go = training._Run.go
    written = (folder / f"written-{number}.txt").open("a", buffering=1)

    def go_and_tell(run, *args):
        finished = go(run, *args)
        tensors = {name: tensor.contiguous() for name, tensor in run.model.state_dict().items()}
        save_file(tensors, folder / f"ended-{number}.safetensors")
        return finished

    def note(event, args):
        if event == "open" and isinstance(args[0], str) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.write(args[0] + "\n")

    training._Run.go = go_and_tell
    sys.addaudithook(note)


# ---- many of them


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def as_torchrun_sets(number, processes, port):
    """Return the environment of one of torchrun's processes on one node."""
    environment = {"RANK": number, "LOCAL_RANK": number, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    environment |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port}
    return {**environment, "TORCHELASTIC_RUN_ID": "test"}


def as_on_nodes(number, processes, port):
    """Return the environment of a command on one of several nodes, one process each."""
    return {"NODE_RANK": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


class Outcome:
    """How processes ended: exit codes, and what all of them complained about."""

    def __init__(self, codes, errors, seconds):
        self.codes, self.errors, self.seconds = codes, errors, seconds

    @property
    def sentences(self):
        return [line for line in self.errors.splitlines() if line.startswith("gpldla: ")]


def _forked(environment, arguments, errors):
    handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stderr = os.fdopen(handle, "w", buffering=1)
    os.environ.update({name: str(value) for name, value in environment.items()})
    sys.argv = ["gpldla", *arguments]
    torch.set_num_threads(1)
    in_a_process()


@pytest.fixture
def fork(tmp_path):
    """Run one command in some processes that are connected as torchrun would; return how they ended."""
    started = []

    def run_together(*arguments, processes=2, environments=as_torchrun_sets, **orders):
        port, traces = free_port(), tmp_path / uuid.uuid4().hex
        traces.mkdir()
        orders = {ORDERS: json.dumps({**orders, "traces": str(traces)})}
        begun = time.monotonic()
        group = [
            FORKS.Process(
                target=_forked,
                args=(
                    environments(number, processes, port) | orders,
                    [*map(str, arguments)],
                    str(traces / f"errors-{number}.txt"),
                ),
            )
            for number in range(processes)
        ]
        started.extend(group)
        for process in group:
            process.start()
        for process in group:
            process.join(max(0.0, begun + PATIENCE - time.monotonic()))
        errors = "".join(path.read_text() for path in sorted(traces.glob("errors-*.txt")))
        outcome = Outcome([process.exitcode for process in group], errors, time.monotonic() - begun)
        assert None not in outcome.codes, f"still running: {outcome.codes}\n{errors}"
        outcome.ended = [load_file(path) for path in sorted(traces.glob("ended-*.safetensors"))]
        outcome.written = [path.read_text().splitlines() for path in sorted(traces.glob("written-*.txt"))]
        return outcome

    yield run_together
    for process in started:
        process.kill()
        process.join()


def marked(mark):
    """Return the processes with this mark that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has just ended, or is not ours
            continue
    return found


@pytest.fixture
def command(tmp_path):
    """Run a command of its own, which starts its processes itself; return how it ended. None may be left."""
    (tmp_path / "driver.py").write_text(DRIVER)
    marks = []

    def run_command(*arguments, program=(), **orders):
        program = [*(program or (sys.executable,)), str(tmp_path / "driver.py")]
        return run_program(*program, *arguments, **orders)

    def run_program(*arguments, **orders):
        marks.append(uuid.uuid4().hex)
        python_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
        environment = {**os.environ, "PYTHONPATH": python_path, MARK: marks[-1], ORDERS: json.dumps(orders)}
        begun = time.monotonic()
        process = subprocess.Popen(
            [*map(str, arguments)],
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        _, errors = process.communicate(timeout=PATIENCE)  # returns when the last process has closed stderr
        deadline = time.monotonic() + 10
        while marked(marks[-1]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert marked(marks[-1]) == [], "processes are left behind"
        return Outcome([process.returncode], errors, time.monotonic() - begun)

    run_command.program = run_program
    yield run_command
    for mark in marks:
        for process in marked(mark):
            os.kill(process, signal.SIGKILL)


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2")


def arguments_of(folder, settings):
    """Return `train` with these settings of the tiny recipe."""
    overrides = [
        f"{name}={json.dumps(value)}"
        for name, value in flatten(tiny_recipe(**{**SETTINGS, **settings}).as_dict()).items()
    ]
    sets = [part for override in overrides for part in ("--set", override)]
    return ["train", "glyphs", "-o", str(folder), "--device", "cpu", *sets]


# ---- one process, to compare with


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Train in one process, once for the same settings; return the folder."""
    folders = {}

    def trained(**settings):
        key = json.dumps(settings, sort_keys=True)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("alone")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(training, "load_protocol", half_noise)
                recipe = tiny_recipe(**{**SETTINGS, **settings})
                training.train(recipe, folders[key], accelerator="cpu", show_progress=False)
        return folders[key]

    return trained


def metrics(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def assert_same_run(folder, expected, tolerance=1e-8):
    """Weights, statistics, moments, averages and recorded numbers."""
    found, wanted = TrainingState.read(folder), TrainingState.read(expected)
    assert found.values["done"] == wanted.values["done"]
    assert found.values["best_accuracy"] == pytest.approx(wanted.values["best_accuracy"])
    assert found.values["temperature"] == pytest.approx(wanted.values["temperature"], abs=1e3 * tolerance)
    assert found.tensors.keys() == wanted.tensors.keys()
    assert {"model", "optimizer", "best", "averaged"} <= found.tensors.keys()
    for group, tensors in wanted.tensors.items():
        torch.testing.assert_close(
            found.tensors[group], tensors, rtol=0, atol=tolerance, msg=lambda text, group=group: group + text
        )
    rows, wanted_rows = metrics(folder), metrics(expected)
    assert [row.keys() for row in rows] == [row.keys() for row in wanted_rows]
    for row, wanted_row in zip(rows, wanted_rows):
        assert row == pytest.approx(wanted_row, rel=0, abs=tolerance)


def assert_all_ended_alike(outcome, folder):
    """Every process has the very weights that were written."""
    written = TrainingState.read(folder).tensors["model"]
    for ended in outcome.ended:
        assert ended.keys() == written.keys()
        for name, tensor in written.items():
            assert torch.equal(ended[name], tensor), name


# ---- the same numbers


@pytest.mark.parametrize(
    ("processes", "episodes_per_update", "same_as", "settings"),
    [
        pytest.param(2, 1, 2, {}, id="2 x 1"),
        pytest.param(4, 1, 4, {"episodes": 80, "validation.every": 0}, id="4 x 1"),
        pytest.param(2, 3, 3, {"episodes": 25}, id="3 in 2"),
        pytest.param(4, 6, 6, {"episodes": 20}, id="6 in 4, and a last update with nothing for two of them"),
        pytest.param(2, 1, 2, {"episodes": 13, "head": "protonet"}, id="odd"),
    ],
)
def test_many_processes_learn_what_one_does(
    tmp_path, fork, alone, processes, episodes_per_update, same_as, settings
):
    arguments = arguments_of(tmp_path / "run", {**settings, "episodes_per_update": episodes_per_update})
    outcome = fork(*arguments, processes=processes)
    assert outcome.codes == [0] * processes, outcome.errors
    assert_same_run(tmp_path / "run", alone(**settings, episodes_per_update=same_as))
    assert len(outcome.ended) == processes
    assert_all_ended_alike(outcome, tmp_path / "run")


def test_the_numbers_would_not_be_the_same_by_chance(alone):
    """What the comparison above must be able to see."""
    one, two = (TrainingState.read(alone(episodes_per_update=count)).tensors for count in (1, 2))
    for group in ("model", "averaged", "optimizer"):
        apart = [(one[group][name] - tensor).abs().max() for name, tensor in two[group].items()]
        assert max(apart) > 1e-4
    quiet = TrainingState.read(alone(episodes_per_update=2, head__predictive="quadrature")).tensors["model"]
    assert max((quiet[name] - tensor).abs().max() for name, tensor in two["model"].items()) > 1e-4


@pytest.mark.parametrize("head", ["simpleshot", "metaqda"])
def test_a_base_stage_learns_in_many_processes(tmp_path, fork, head):
    """Each share of a batch has BatchNorm statistics of its own: not the same numbers as in one process."""
    outcome = fork(*arguments_of(tmp_path / "run", {**BASE_STAGE, "head": head, "precision": "32-true"}))
    assert outcome.codes == [0, 0], outcome.errors
    assert_all_ended_alike(outcome, tmp_path / "run")
    accuracies = [
        row["accuracy"] for row in metrics(tmp_path / "run") if {"accuracy", "base_batch"} <= row.keys()
    ]
    assert accuracies[-1] > accuracies[0] + 20


@pytest.mark.parametrize(
    ("processes", "settings"),
    [(2, {"head": "metaqda"}), (4, {"head": "simpleshot", "base.batch": 3, "base.learning_rate": 0.01})],
)
def test_without_statistics_of_a_batch_the_base_stage_is_the_same(tmp_path, fork, processes, settings):
    """In four processes some have nothing of a batch of three. The scores of a batch are float32 always."""
    settings = {**BASE_STAGE, "episodes_per_update": 2, **settings}
    many = fork(*arguments_of(tmp_path / "many", settings), processes=processes, freeze=True)
    one = fork(*arguments_of(tmp_path / "one", settings), processes=1, freeze=True)
    assert many.codes + one.codes == [0] * (processes + 1), many.errors + one.errors
    assert_same_run(tmp_path / "many", tmp_path / "one", 2e-6)
    assert_all_ended_alike(many, tmp_path / "many")


# ---- who draws, who writes


def test_one_process_writes(tmp_path, fork):
    outcome = fork(*arguments_of(tmp_path / "run", {"episodes": 8}))
    assert outcome.codes == [0, 0], outcome.errors
    first, second = ([name for name in names if str(tmp_path / "run") in name] for names in outcome.written)
    assert any(METRICS in name for name in first)
    assert any(FILE in name for name in first)
    assert second == []
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"config.json", "model.safetensors", METRICS, FILE, "tensorboard"}
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    lines = [(row["episode"], "loss" in row) for row in metrics(tmp_path / "run")]
    assert lines == [(4, True), (8, True), (8, False)]
    assert FewShotModel.from_pretrained(tmp_path / "run").info["episodes"] == 8


def test_one_process_talks(tmp_path, fork):
    outcome = fork(*arguments_of(tmp_path / "run", {"episodes": 8}))
    assert outcome.errors.count("validation accuracy") == 1
    assert outcome.errors.count("The model is in") == 1


class OneOf(ProcessGroup):
    """A process that believes to be one of several, and hears nothing from the others."""

    def __init__(self, number, count):
        self.rank, self.world_size = number, count

    def all_reduce_sum(self, tensors):
        pass


def stage_of(number, count, **settings):
    recipe = tiny_recipe(**{**SETTINGS, **settings})
    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ProcessGroup", lambda fabric: OneOf(number, count))
        model = FewShotModel("conv4s", "gpldla", head_options=recipe.head.options).double()
        context = StageContext(recipe, model, tiny_protocol().part("base"), fabric)
        return EpisodeStage(context, frozen_backbone=False)


def episodes_seen(number, count, **settings):
    """Return the episodes of each update, and the images of all."""
    stage = stage_of(number, count, **{"precision": "32-true", **settings})
    drawn, episode = [], stage._episode
    stage._episode = lambda number: drawn.append(number) or episode(number)
    updates = []
    while stage.done < stage.total:
        stage.update()
        updates.append([*drawn])
        drawn.clear()
    return updates, {number: tuple(episode(number)[0].tolist()) for update in updates for number in update}


def test_processes_draw_different_episodes_and_all_of_them():
    seen = [episodes_seen(number, 3, episodes=11, episodes_per_update=4) for number in range(3)]
    updates = [sorted(chain(*shares)) for shares in zip(*(updates for updates, _ in seen))]
    assert updates == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    everything = {number: images for _, images in seen for number, images in images.items()}
    assert len(set(everything.values())) == 11, "no two have the same images"
    assert everything == episodes_seen(0, 1, episodes=11)[1]


class NoGraph:
    """Stands in for CUDA graphs of updates on a fixed number of episodes."""

    episodes = 1

    def __init__(self):
        self.updates = 0

    def update(self, images, augmentations, seed):
        self.updates += 1


@pytest.mark.parametrize(("processes", "an_update", "number"), [(2, 2, 0), (2, 3, 1), (2, 3, 0)])
def test_a_recorded_update_is_not_used_for_a_smaller_one(processes, an_update, number):
    """A graph holds the weight of a process in a whole update; a last, smaller one has other weights."""
    stage = stage_of(number, processes, episodes=2 * an_update - 1, episodes_per_update=an_update)
    stage._graphed = NoGraph()
    stage._graphed.episodes = len(stage.context.processes.local_indices(an_update))
    stage.update()
    assert stage._graphed.updates == 1
    stage.update()
    assert stage.done == 2 * an_update - 1
    assert stage._graphed.updates == 1


# ---- stopping and going on


@pytest.mark.parametrize("stopped", [None, 0, 1], ids=["all", "first", "second"])
def test_a_stopped_run_goes_on_with_any_number_of_processes(tmp_path, fork, alone, stopped):
    settings, folder = {"episodes_per_update": 4}, tmp_path / "run"
    part = fork(*arguments_of(folder, settings), stop=[stopped, 3, "SIGTERM"])
    assert part.codes == [130, 0], part.errors
    assert "Stopped after 12 episodes; the same command goes on from here." in part.errors
    assert "Traceback" not in part.errors
    assert TrainingState.read(folder).values["done"] == 12
    processes = {None: 4, 0: 1, 1: 2}[stopped]
    rest = fork(*arguments_of(folder, settings), processes=processes)
    assert rest.codes == [0] * processes, rest.errors
    assert rest.errors.count(f"Going on in {folder} after 12 episodes.") == 1
    assert_same_run(folder, alone(episodes_per_update=4))
    assert_all_ended_alike(rest, folder)


def test_one_process_stopped_goes_on_in_two(tmp_path, fork, alone):
    folder = tmp_path / "run"
    part = fork(*arguments_of(folder, {"episodes_per_update": 4}), processes=1, stop=[0, 3, "SIGINT"])
    assert part.codes == [130]
    rest = fork(*arguments_of(folder, {"episodes_per_update": 4}))
    assert rest.codes == [0, 0], rest.errors
    assert_same_run(folder, alone(episodes_per_update=4))


def test_a_finished_run_stays_as_it_is(tmp_path, fork):
    folder, arguments = tmp_path / "run", arguments_of(tmp_path / "run", {"episodes": 4})
    assert fork(*arguments).codes == [0, 0]
    before = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    assert fork(*arguments, processes=3).codes == [0, 0, 0]
    assert {path.name: path.read_bytes() for path in folder.glob("*.*")} == before


# ---- commands that start their processes


def test_devices_and_torchrun_are_the_same(tmp_path, command, alone):
    """The second starts again where the first was stopped."""
    folder = tmp_path / "run"
    arguments = arguments_of(folder, {"episodes_per_update": 2})
    part = command(*arguments, "--devices", 2, stop=[None, 6, "SIGINT"])
    assert part.codes == [130], part.errors
    assert "Stopped after 12 episodes; the same command goes on from here." in part.errors
    assert "Traceback" not in part.errors
    rest = command(*arguments, program=TORCHRUN)
    assert rest.codes == [0], rest.errors
    assert_same_run(folder, alone(episodes_per_update=2))


def test_several_nodes(tmp_path, fork, alone):
    arguments = [*arguments_of(tmp_path / "run", {}), "--nodes", 2]
    outcome = fork(*arguments, environments=as_on_nodes)
    assert outcome.codes == [0, 0], outcome.errors
    assert_same_run(tmp_path / "run", alone(episodes_per_update=2))
    assert_all_ended_alike(outcome, tmp_path / "run")


@pytest.mark.long
def test_the_shipped_data_in_two_processes(tmp_path, command):
    """As a user calls it, with a cache where nothing is packed yet."""
    sizes = ["--episodes", 8, "--set", "validation.episodes=4", "--set", "validation.temperature_episodes=4"]
    options = ["-o", tmp_path / "run", "--device", "cpu", "--cache", tmp_path / "cache", *sizes]
    train = ["-m", "gpldla", "train", "demo", *options]
    assert command.program(sys.executable, *train, "--devices", 2).codes == [0]
    assert FewShotModel.from_pretrained(tmp_path / "run").info["episodes"] == 8
    again = command.program(*TORCHRUN, *train)
    assert again.codes == [0], again.errors


# ---- processes that are lost

LOST = "the same command goes on from the last checkpoint."


def assert_ended_with_a_sentence(outcome, *words):
    assert outcome.seconds < 90  # a message would wait for half an hour
    assert "Traceback" not in outcome.errors
    assert any(all(word in sentence for word in words) for sentence in outcome.sentences), outcome.errors
    assert all(sentence.endswith(LOST) for sentence in outcome.sentences)


def assert_goes_on(fork, arguments, folder, expected, done):
    assert TrainingState.read(folder).values["done"] == done
    assert FewShotModel.from_pretrained(folder).info["episodes"] == done
    rest = fork(*arguments, processes=1)
    assert rest.codes == [0], rest.errors
    assert_same_run(folder, expected)


def test_a_killed_process_ends_the_run(tmp_path, command, fork, alone):
    arguments = arguments_of(tmp_path / "run", {"episodes_per_update": 2})
    outcome = command(*arguments, "--devices", 2, stop=[1, 6, "SIGKILL"])
    assert outcome.codes == [1]
    assert_ended_with_a_sentence(outcome, "Process 1 of 2 ended with signal 9")
    assert_goes_on(fork, arguments, tmp_path / "run", alone(episodes_per_update=2), 8)


def test_a_killed_first_process_ends_the_others(tmp_path, command, fork, alone):
    arguments = arguments_of(tmp_path / "run", {"episodes_per_update": 2})
    outcome = command(*arguments, "--devices", 2, stop=[0, 6, "SIGKILL"])
    assert outcome.codes == [-signal.SIGKILL]
    assert_ended_with_a_sentence(outcome, "Process 1 of 2 cannot reach the others any more")
    assert_goes_on(fork, arguments, tmp_path / "run", alone(episodes_per_update=2), 8)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_node_ends_the_others(tmp_path, fork, killed):
    arguments = [*arguments_of(tmp_path / "run", {"episodes_per_update": 2}), "--nodes", 2]
    outcome = fork(*arguments, environments=as_on_nodes, stop=[killed, 6, "SIGKILL"])
    assert outcome.codes == [[-9, 1], [1, -9]][killed]
    assert_ended_with_a_sentence(outcome, f"Process {1 - killed} of 2 cannot reach the others any more")
    assert TrainingState.read(tmp_path / "run").values["done"] == 8


def test_a_kill_before_the_first_checkpoint_leaves_one(tmp_path, fork, alone):
    arguments = arguments_of(tmp_path / "run", {"episodes_per_update": 2, "checkpoint_every": 1_000})
    outcome = fork(*arguments, stop=[1, 2, "SIGKILL"])
    assert outcome.codes == [1, -9]
    assert_goes_on(fork, arguments, tmp_path / "run", alone(episodes_per_update=2, checkpoint_every=1_000), 0)


def test_a_process_that_is_lost_at_the_very_end(tmp_path, fork):
    arguments = arguments_of(tmp_path / "run", {"episodes": 4})
    outcome = fork(*arguments, stop=[1, 0, "SIGKILL"])
    assert outcome.codes == [1, -9], outcome.errors
    assert_ended_with_a_sentence(outcome, "Process 0 of 2 cannot reach the others any more")
    assert FewShotModel.from_pretrained(tmp_path / "run").info["episodes"] == 4
    assert fork(*arguments).codes == [0, 0]


def test_a_process_that_is_lost_before_it_has_met_the_others(tmp_path, command):
    outcome = command(*arguments_of(tmp_path / "run", {}), "--devices", 2, stop=[1, -1, "SIGKILL"])
    assert outcome.codes == [1]
    assert_ended_with_a_sentence(outcome, "Process 1 of 2 ended with signal 9")


@pytest.mark.long
def test_the_first_process_is_lost_before_it_has_met_the_others(tmp_path, command):
    outcome = command(*arguments_of(tmp_path / "run", {}), "--devices", 2, stop=[0, -1, "SIGKILL"])
    assert outcome.codes == [-9]
    assert_ended_with_a_sentence(outcome, "Process 1 ")


@pytest.mark.long
@pytest.mark.parametrize("killed", [2, 3])
def test_of_four_processes_the_killed_one_is_named(tmp_path, command, killed):
    arguments = arguments_of(tmp_path / "run", {"episodes_per_update": 4})
    outcome = command(*arguments, "--devices", 4, stop=[killed, 3, "SIGKILL"])
    assert outcome.codes == [1]
    assert_ended_with_a_sentence(outcome, f"Process {killed} of 4 ended with signal 9")


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_of_torchrun_is_killed(tmp_path, command, fork, alone, killed):
    arguments = arguments_of(tmp_path / "run", {"episodes_per_update": 2})
    outcome = command(*arguments, program=TORCHRUN, stop=[killed, 6, "SIGKILL"])
    assert outcome.codes == [1]
    assert outcome.seconds < 90
    assert "Signal 9 (SIGKILL)" in outcome.errors  # torchrun's own report
    assert_goes_on(fork, arguments, tmp_path / "run", alone(episodes_per_update=2), 8)


@pytest.mark.long
def test_torchrun_is_asked_to_stop(tmp_path, command):
    """It hands SIGTERM on to its processes, as one of them does here to all."""
    folder = tmp_path / "run"
    arguments = arguments_of(folder, {"episodes_per_update": 2})
    outcome = command(*arguments, program=TORCHRUN, stop=[None, 6, "SIGTERM"])
    assert outcome.codes == [1]
    assert "Stopped after 12 episodes; the same command goes on from here." in outcome.errors
    assert TrainingState.read(folder).values["done"] == 12


def test_processes_that_ended_well_are_no_loss(capfd):
    processes = [subprocess.Popen([sys.executable, "-c", ""]) for _ in range(2)]
    process_group._watch_children(processes)
    assert capfd.readouterr().err == ""


class Exited(BaseException):
    pass


@pytest.mark.parametrize("codes", [[3], [0, 3], [3, None], [None, 3, None]])
def test_whoever_watches_notices(monkeypatch, capfd, codes):
    """One that failed before the first look, too, and when it is the only one."""

    def leave(code):
        raise Exited(code)

    waits = "import time; time.sleep(60)"
    programs = [waits if code is None else f"raise SystemExit({code})" for code in codes]
    processes = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    monkeypatch.setattr(process_group.os, "_exit", leave)
    try:
        with pytest.raises(Exited, match="1"):
            process_group._watch_children(processes)
        assert all(process.wait(10) is not None for process in processes), "the others are ended"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    message = capfd.readouterr().err
    number = codes.index(3) + 1
    assert f"Process {number} of {len(codes) + 1} ended with code 3, so the run ends; {LOST}" in message


def test_other_errors_are_not_taken_for_a_lost_process():
    class TwoProcesses:
        world_size, global_rank, local_rank = 2, 1, 1

    with (
        pytest.raises(RuntimeError, match="shapes") as error,
        process_group.report_lost_processes(TwoProcesses()),
    ):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert not isinstance(error.value, RunError)
    with pytest.raises(RunError, match="Process 1 of 2"), process_group.report_lost_processes(TwoProcesses()):
        raise RuntimeError("[pair.cc:539] Connection closed by peer [127.0.0.1]:2345")


# ---- wrong input


@pytest.fixture
def nothing_started(monkeypatch):
    def start(*arguments, **options):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["glyphs", "--devices", "0"], "Invalid value for '--devices'"),
        (["glyphs", "--devices", "2", "--nodes", "0"], "Invalid value for '--nodes'"),
        (["glyphs", "--devices", "two"], "Invalid value for '--devices'"),
        (["glyps", "--devices", "2"], "There is no recipe 'glyps'; did you mean 'glyphs'?"),
        (["glyphs", "--devices", "2", "--set", "episodes=0"], "episodes = 0 must be at least 1"),
    ],
)
def test_wrong_input_is_a_sentence_before_anything_is_started(
    tmp_path, refused, nothing_started, arguments, words
):
    assert words in refused("train", *arguments, "-o", tmp_path / "run", "--device", "cpu")
    assert not (tmp_path / "run").exists()


def test_machines_that_nothing_tells_of_each_other(tmp_path, refused, nothing_started, monkeypatch):
    for name in CLUSTER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    sentence = refused("train", "glyphs", "-o", tmp_path / "run", "--device", "cpu", "--nodes", 2)
    assert "--nodes 2 needs srun or torchrun to start it on every machine" in sentence


def test_more_devices_than_there_are(tmp_path, refused, nothing_started, monkeypatch):
    train = ["train", "glyphs", "-o", tmp_path / "run", "--devices", 3, "--device", "cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "There is no device 'cuda' here; use auto or cpu." in refused(*train)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "--devices 3 is more than the 2 GPUs here." in refused(*train)


@pytest.mark.parametrize("options", [["--devices", 3], ["--nodes", 2], ["--devices", 2, "--nodes", 2]])
def test_torchrun_and_other_numbers_contradict(tmp_path, refused, nothing_started, monkeypatch, options):
    for name, value in as_torchrun_sets(0, 2, 1).items():
        monkeypatch.setenv(name, str(value))
    sentence = refused("train", "glyphs", "-o", tmp_path / "run", "--device", "cpu", *options)
    assert "torchrun has started 2 processes on each of 1 nodes; leave out --devices" in sentence


def test_torchrun_and_the_same_number_agree(tmp_path, fork):
    outcome = fork(*arguments_of(tmp_path / "run", {"episodes": 4}), "--devices", 2)
    assert outcome.codes == [0, 0], outcome.errors


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"ways": 5}, "An episode of 5 ways needs 5 classes"),
        ({"validation.ways": 9}, "An episode of 9 ways needs 9 classes"),
        ({"head": "simpleshot", "base.classifier": "none"}, "Head 'simpleshot' needs a network"),
        ({"dataset": "cub"}, "cub"),
    ],
)
def test_what_is_found_wrong_later_is_said_once(tmp_path, fork, fault, words):
    """All processes find the same fault of the input, and no process is to blame."""
    outcome = fork(
        *arguments_of(tmp_path / "run", fault), "--data-root", tmp_path, real_data="dataset" in fault
    )
    assert "Traceback" not in outcome.errors
    assert outcome.codes[0] == 2, outcome.errors
    assert 0 not in outcome.codes
    assert len(outcome.sentences) == 1, outcome.errors
    assert words in outcome.sentences[0]
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_a_number_ends_all(tmp_path, fork):
    """Here no process has a good loss; the first one does not wait for others."""
    outcome = fork(*arguments_of(tmp_path / "run", {"learning_rate": 1e300}))
    assert "Traceback" not in outcome.errors
    assert outcome.codes[0] == 2, outcome.errors
    assert 0 not in outcome.codes
    assert "The loss is not finite after 2 episodes" in outcome.sentences[0]


# ---- running statistics


class TestRunningStatistics:
    @pytest.mark.parametrize("momentum", [0.1, 0.5, 0.9, 1.0])
    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_all_episodes_of_an_update_count_the_same(self, momentum, count):
        torch.manual_seed(count)
        layer = nn.BatchNorm2d(3, momentum=momentum).double()
        nn.init.normal_(layer.running_mean)
        mean, var = layer.running_mean.clone(), layer.running_var.clone()
        episodes = torch.randn(count, 4, 3, 2, 2, dtype=torch.float64) * 3 + 1
        for place in torch.arange(count):
            with BatchNormSchedule(layer).episode(int(place), count):
                layer(episodes[place])
        of_episodes = episodes.transpose(1, 2).flatten(2)  # [episodes, channels, values]
        for found, before, now in (
            (layer.running_mean, mean, of_episodes.mean(-1)),
            (layer.running_var, var, of_episodes.var(-1)),
        ):
            torch.testing.assert_close(found, (1 - momentum) * before + momentum * now.mean(0))
        assert layer.momentum == momentum

    def test_the_momentum_comes_back_after_an_error(self):
        layer = nn.BatchNorm1d(2)
        with pytest.raises(ZeroDivisionError), BatchNormSchedule(layer).episode(0, 4):
            raise ZeroDivisionError
        assert layer.momentum == 0.1

    def test_every_layer_is_found_and_only_means_and_variances(self):
        model = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm2d(3)))
        assert [len(tensor) for tensor in BatchNormSchedule(model).running_statistics()] == [2, 2, 3, 3]
        untracked = nn.BatchNorm1d(2, track_running_stats=False)
        assert BatchNormSchedule(untracked).running_statistics() == []

    def test_batches_of_others_are_counted_unless_statistics_are_frozen(self):
        model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
        BatchNormSchedule(model).count_batches(3)
        assert [int(layer.num_batches_tracked) for layer in model] == [3, 0]


# ---- the average of the weights


class Mixed(nn.Module):
    """Weights of two kinds, statistics, and a count."""

    def __init__(self):
        super().__init__()
        self.single = nn.Parameter(torch.zeros(3))
        self.double_ = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.register_buffer("statistic", torch.zeros(2))
        self.register_buffer("count", torch.tensor(0))


class TestWeightAverage:
    @pytest.mark.parametrize("decay", [0.5, 0.98])
    def test_follows_the_formula(self, decay):
        model = Mixed()
        average, expected = WeightAverage(model, decay), {}
        torch.manual_seed(0)
        for step in range(5):
            for name, tensor in model.state_dict().items():
                if name == "count":
                    tensor.fill_(step + 10)
                    expected[name] = tensor.clone()
                else:
                    tensor.copy_(torch.randn(tensor.shape, dtype=tensor.dtype))
                    expected[name] = decay * expected[name] + (1 - decay) * tensor if step else tensor.clone()
            average.update()
        assert average.model.state_dict().keys() == expected.keys()
        for name, tensor in average.model.state_dict().items():
            assert tensor.dtype == expected[name].dtype
            rounding = 1e-14 if tensor.dtype == torch.float64 else 1e-6
            torch.testing.assert_close(tensor, expected[name], rtol=rounding, atol=rounding)
        assert not any(p.requires_grad for p in average.model.parameters())

    def test_a_restored_average_goes_on(self):
        model = Mixed()
        saved = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
        average = WeightAverage(model, 0.75)
        average.restore(saved)
        average.update()
        assert average.model.single.tolist() == [0.75] * 3
        assert average.model.count == 0

    def test_the_model_is_left_alone(self):
        model = nn.Linear(2, 2)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        WeightAverage(model, 0.5).update()
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert all(p.requires_grad for p in model.parameters())


# ---- random numbers by counters


@pytest.fixture(scope="module")
def drawn():
    return uniforms(splitmix64(torch.arange(20_000) + stream(0, "test")), 8)


class TestCounterRandom:
    def test_uniform_from_0_to_1(self, drawn):
        assert drawn.dtype == torch.float32
        assert 0 <= drawn.min() < 1e-4
        assert 1 - 1e-4 < drawn.max() < 1
        numbers = drawn.double()
        error = (1 / 12 / numbers.numel()) ** 0.5
        assert numbers.mean().item() == pytest.approx(0.5, abs=4 * error)
        assert numbers.var().item() == pytest.approx(1 / 12, rel=0.01)
        counts = torch.histc(numbers, 100, 0, 1)
        chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum().item()
        assert chi2 == pytest.approx(99, abs=5 * 198**0.5)

    def test_neighbours_have_nothing_to_do_with_each_other(self, drawn):
        centred = drawn.double() - 0.5
        for lag in (1, 2, 7):
            for one, other in ((centred[:-lag], centred[lag:]), (centred[:, :-lag], centred[:, lag:])):
                assert abs((one * other).mean().item() * 12) < 5 / one.numel() ** 0.5
        between = torch.corrcoef(drawn.T.double()) - torch.eye(8)
        assert between.abs().max() < 5 / len(drawn) ** 0.5

    def test_consecutive_keys_do_not_share_numbers(self):
        """Keys of images in an episode are consecutive."""
        drawn = uniforms(torch.arange(2_000) + stream(0, "places"), 8)
        assert len(drawn.unique(dim=0)) == 2_000
        centred = drawn.double() - 0.5
        for shift in range(1, 8):  # key k + shift at place p, and key k at place p + shift
            product = centred[shift:, : 8 - shift] * centred[:-shift, shift:]
            assert abs(product.mean().item() * 12) < 5 / product.numel() ** 0.5

    def test_a_number_follows_from_its_key_alone(self):
        keys = splitmix64(torch.arange(100) + stream(3, "x"))
        assert torch.equal(uniforms(keys, 5), torch.cat([uniforms(part, 5) for part in keys.split(7)]))
        assert torch.equal(uniforms(keys, 5)[:, :2], uniforms(keys, 2))
        assert torch.equal(uniforms(keys.view(10, 10), 3), uniforms(keys, 3).view(10, 10, 3))

    def test_known_numbers(self):
        """The finaliser of splitmix64 after the product, reckoned with Python's integers."""
        mask = 2**64 - 1
        for x in (0, 1, 2, 12345, 2**62, -1, -(2**63)):
            z = (x * 0x9E3779B97F4A7C15) & mask
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
            z ^= z >> 31
            assert int(splitmix64(torch.tensor(x))) & mask == z

    def test_no_two_keys_meet(self):
        assert len(splitmix64(torch.arange(100_000) + stream(0)).unique()) == 100_000

    def test_streams_differ_by_every_word(self):
        streams = [stream(0, "base"), stream(1, "base"), stream(0, "novel"), stream(0), stream(0, "base", 1)]
        assert len({*streams}) == len(streams)
        assert all(-(2**63) <= one < 2**63 for one in streams)
        one, other = (
            uniforms(splitmix64(torch.arange(5_000) + start), 2).double() - 0.5 for start in streams[:2]
        )
        assert abs((one * other).mean().item() * 12) < 5 / one.numel() ** 0.5


# ---- messages


class Echo:
    """Fabric of the first of two processes, where the other one has the same numbers."""

    world_size, global_rank, device = 2, 0, torch.device("cpu")

    def __init__(self):
        self.messages = []

    def all_reduce(self, message, reduce_op):
        assert reduce_op == "sum"
        self.messages.append(message)
        return message * 2


class TestProcessGroup:
    def test_one_process_sends_nothing(self):
        one = ProcessGroup(Fabric(accelerator="cpu", devices=1))
        assert (one.world_size, one.rank, one.is_first) == (1, 0, True)
        assert [*one.local_indices(3)] == [0, 1, 2]
        tensor = torch.ones(2)
        one.all_reduce_sum([tensor])
        assert tensor.tolist() == [1, 1]
        assert (one.any(True), one.any(False)) == (True, False)

    @pytest.mark.parametrize("count", [0, 1, 5, 8])
    def test_shares_are_fair_and_complete(self, count):
        shares = [[*OneOf(number, 3).local_indices(count)] for number in range(3)]
        assert sorted(chain(*shares)) == [*range(count)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1

    def test_sums_are_put_back_in_their_places(self):
        tensors = [torch.arange(6.0).view(2, 3).mT, torch.tensor(1.0, dtype=torch.float64), torch.ones(1, 2)]
        expected = [2 * tensor for tensor in tensors]
        fabric = Echo()
        ProcessGroup(fabric).all_reduce_sum(tensors)
        assert all(torch.equal(tensor, wanted) for tensor, wanted in zip(tensors, expected))
        assert len(fabric.messages) == 2, "one for each kind of number"

    def test_every_process_sends_kinds_of_numbers_in_the_same_order(self):
        """Not by where they lie in memory, which is another place in every process."""
        kinds = [torch.float64, torch.float32, torch.int64, torch.bfloat16, torch.int32, torch.float16]
        fabric = Echo()
        ProcessGroup(fabric).all_reduce_sum([torch.ones(1, dtype=kind) for kind in kinds])
        order = [message.dtype for message in fabric.messages]
        assert order in (kinds, sorted(kinds, key=str))

    def test_one_flag_is_enough(self):
        assert ProcessGroup(Echo()).any(True)
        assert not ProcessGroup(Echo()).any(False)


def test_the_command_in_this_process_starts_no_other(tmp_path, monkeypatch, nothing_started):
    monkeypatch.setattr(training, "load_protocol", half_noise)
    assert call(*arguments_of(tmp_path / "run", {"episodes": 2}), "--devices", 1) == 0
