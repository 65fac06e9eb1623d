"""Updates as CUDA graphs: what of it can be seen on a CPU. tests/test_cuda.py compares the real ones."""

import json
import shutil
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch.utils._python_dispatch import TorchDispatchMode

from gpldla import kernels
from gpldla.classifier.model import FewShotModel
from gpldla.data.protocols import Protocol
from gpldla.data.store import image_set_from_classes
from gpldla.heads import create_head, list_heads
from gpldla.heads.base import head_class
from gpldla.heads.gp import predictive
from gpldla.training import checkpoint, episode_stage
from gpldla.training import run as training
from gpldla.training.compiled_loss import compile_loss
from gpldla.training.episode_stage import EpisodeStage
from gpldla.training.graphed_update import WARMUP_UPDATES, GraphedUpdate
from gpldla.training.metrics import METRICS
from gpldla.training.run import train
from gpldla.training.stage import Acceleration, StageContext
from gpldla.utils.errors import UserError
from tests.backbones.test_episode_blocks import stand_ins  # noqa: F401 (a fixture)
from tests.helpers import tiny_recipe, whole
from tests.training.test_run import StopAfter


class FakeGraph:
    """Does again what was recorded, with the gradients where they were."""

    def pool(self):
        return self

    def replay(self):
        self.again()


class FakeGPU:
    """Graphs on a CPU: recording leaves all numbers as they were, and replaying does the work again."""

    def __init__(self, patch):
        self.updates, self.seeds = [], []
        make = GraphedUpdate.__init__

        def made(update, model, *others, **options):
            make(update, model, *others, **options)
            self.updates.append(update)

        stream = SimpleNamespace(wait_stream=lambda other: None)
        patch.setattr(GraphedUpdate, "__init__", made)
        patch.setattr(
            GraphedUpdate, "is_supported", staticmethod(lambda model, device: model.head.capturable())
        )
        patch.setattr(torch.cuda, "Stream", lambda device: stream)
        patch.setattr(torch.cuda, "current_stream", lambda: stream)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
        patch.setattr(torch.cuda, "graph", self.record)
        patch.setattr(torch.cuda, "manual_seed", torch.manual_seed)

    @contextmanager
    def record(self, graph, *, stream, pool=None):
        update = self.updates[-1]
        tensors = self._tensors(update)
        before = [t.detach().clone() for t in tensors]
        with torch.random.fork_rng():
            yield
        with torch.no_grad():
            for tensor, value in zip(tensors, before):
                tensor.copy_(value)
        if pool is None:
            gradients = [(p, p.grad) for p in update._model.parameters() if p.grad is not None]
            graph.again = lambda: self._compute_again(update, gradients)
        else:
            assert pool is update._gradient_graph, "the step reads what the gradients' graph wrote"
            graph.again = update._take_step

    def _tensors(self, update):
        state = update._optimizer.state_dict()["state"]
        average = update._take_step.__self__.average
        averaged = [] if average is None else [*average.model.state_dict().values()]
        moments = [t for of_one in state.values() for t in of_one.values()]
        return [*update._model.state_dict().values(), *averaged, *moments, update._loss_sum]

    def _compute_again(self, update, gradients):
        for parameter, _ in gradients:
            parameter.grad = None
        update._compute_gradients()
        for parameter, gradient in gradients:
            gradient.copy_(parameter.grad)
            parameter.grad = gradient


def noisy_set(seed):
    """Return images of four classes that are hard to tell apart, so that losses stay away from zero."""
    rng = np.random.default_rng(seed)
    pictures = [128 + 20 * rng.normal(size=(1, 1, 32, 32)) for _ in range(4)]
    images = [
        np.clip(picture + 50 * rng.normal(size=(9, 1, 32, 32)), 0, 255).astype(np.uint8)
        for picture in pictures
    ]
    return image_set_from_classes("noisy", list("abcd"), images, None)


def noisy_protocol(*args, **options):
    """Stands in for load_protocol."""
    names = ("base", "validation", "novel")
    return Protocol("noisy", {name: whole(noisy_set(seed)) for seed, name in enumerate(names)})


@pytest.fixture(autouse=True)
def noisy_data(monkeypatch):
    monkeypatch.setattr(training, "load_protocol", noisy_protocol)


@pytest.fixture
def gpu(monkeypatch):
    return FakeGPU(monkeypatch)


@pytest.fixture
def kernels_serve(request, monkeypatch):
    """Let plain operations stand in for the network's kernels, and for no others."""
    monkeypatch.setattr(predictive, "_use_kernel", lambda mean, var: False)
    return request.getfixturevalue("stand_ins")


def run(recipe, folder):
    return train(recipe, folder, accelerator="cpu", show_progress=False)


def metrics(folder, key):
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [row for row in rows if key in row]


def losses(folder):
    return [row["loss"] for row in metrics(folder, "loss")]


def assert_same_state(folder, expected, tolerance=1e-5, without=("nothing",)):
    """Compare the last weights and averages of two trainings; those that were kept may be the first ones."""
    ours, theirs = (checkpoint.TrainingState.read(f).tensors for f in (folder, expected))
    for group in ("model", "averaged"):
        assert ours.get(group, {}).keys() == theirs.get(group, {}).keys()
        for name, tensor in theirs.get(group, {}).items():
            if not name.endswith(without):
                torch.testing.assert_close(ours[group][name], tensor, rtol=0, atol=tolerance)


def recipe_for(head="gpldla", episodes_per_update=1, updates=10, precision="64-true", **settings):
    """Return a training in float64: Adam turns rounding errors of float32 into steps of its own."""
    if head in ("gpldla", "laplace", "lda") and episodes_per_update > 1:
        settings["head.predictive"] = "probit"  # noise is drawn for all episodes of an update at once
    return tiny_recipe(
        head=head,
        episodes_per_update=episodes_per_update,
        episodes=updates * episodes_per_update,
        log_every=2 * episodes_per_update,
        validation__every=4 * episodes_per_update,
        checkpoint_every=4 * episodes_per_update,
        precision=precision,
        **settings,
    )


def make_stage(head="protonet", *, frozen=False, acceleration=None, **settings):
    recipe = tiny_recipe(head=head, **settings)
    torch.manual_seed(0)
    model = FewShotModel(recipe.backbone, recipe.head.name, head_options=recipe.head.options)
    fabric = Fabric(accelerator="cpu", devices=1)
    part = noisy_protocol().part("base")
    return EpisodeStage(
        StageContext(recipe, model, part, fabric, acceleration or Acceleration()), frozen_backbone=frozen
    )


# ---- whole trainings


@pytest.mark.parametrize("head", ["gpldla", "laplace", "lda", "gpdkt", "protonet"])
@pytest.mark.parametrize(("episodes_per_update", "ema"), [(1, 0.5), (3, 0.5), (3, 0.0)])
def test_graphed_training_is_plain_training(tmp_path, monkeypatch, head, episodes_per_update, ema):
    recipe = recipe_for(head, episodes_per_update, ema=ema, augment="characters")
    run(recipe, tmp_path / "plain")
    fake = FakeGPU(monkeypatch)
    run(recipe, tmp_path / "graphed")
    assert fake.updates[0]._updates == 10
    assert losses(tmp_path / "graphed") == pytest.approx(losses(tmp_path / "plain"), rel=1e-6)
    assert [row["learning_rate"] for row in metrics(tmp_path / "graphed", "loss")] == pytest.approx(
        [row["learning_rate"] for row in metrics(tmp_path / "plain", "loss")], rel=1e-6
    )
    assert_same_state(tmp_path / "graphed", tmp_path / "plain")


@pytest.mark.parametrize("head", ["gpldla", "laplace", "lda", "gpdkt", "protonet"])
@pytest.mark.parametrize("episodes_per_update", [1, 3])
def test_episodes_that_are_computed_together_train_as_one_by_one(
    tmp_path, monkeypatch, request, head, episodes_per_update
):
    recipe = recipe_for(head, episodes_per_update, precision="32-true", learning_rate=1e-4)
    run(recipe, tmp_path / "plain")
    FakeGPU(monkeypatch)
    stand_ins = request.getfixturevalue("kernels_serve")  # noqa: F811
    run(recipe, tmp_path / "graphed")
    assert len(stand_ins.calls) == 4 * (10 + 1), "four blocks, ten updates, and once more to record them"
    assert losses(tmp_path / "graphed") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)
    # BatchNorm takes the bias of a convolution away; what Adam makes of its rounding is noise.
    noise = ("0.bias", "running_mean", "num_batches_tracked")
    assert_same_state(tmp_path / "graphed", tmp_path / "plain", 1e-3, without=noise)


@pytest.mark.parametrize("stop_after", [2, 5])
@pytest.mark.parametrize(("head", "episodes_per_update"), [("gpldla", 1), ("protonet", 3)])
def test_resuming_ends_with_the_same_weights(
    tmp_path, monkeypatch, gpu, head, episodes_per_update, stop_after
):
    recipe = recipe_for(head, episodes_per_update)
    run(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(training, "stop_signals", lambda: StopAfter(stop_after))
        part = run(recipe, tmp_path / "parts")
    assert part.episodes == stop_after * episodes_per_update
    resumed = run(recipe, tmp_path / "parts")
    assert resumed.finished
    assert_same_state(tmp_path / "parts", tmp_path / "whole")
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-6)


def test_a_state_goes_from_a_cpu_to_a_gpu_and_back(tmp_path, monkeypatch):
    recipe = recipe_for("protonet")
    with monkeypatch.context() as patch:
        patch.setattr(training, "stop_signals", lambda: StopAfter(4))
        run(recipe, tmp_path / "parts")
    with monkeypatch.context() as patch:
        FakeGPU(patch)
        patch.setattr(training, "stop_signals", lambda: StopAfter(4))
        run(recipe, tmp_path / "parts")
    resumed = run(recipe, tmp_path / "parts")
    assert resumed.finished
    run(recipe, tmp_path / "whole")
    assert_same_state(tmp_path / "parts", tmp_path / "whole")


def test_a_last_update_of_fewer_episodes_goes_the_plain_way(tmp_path, monkeypatch):
    recipe = replace(recipe_for("protonet", 3, updates=5), episodes=13)
    run(recipe, tmp_path / "plain")
    ways = []
    update_plainly = EpisodeStage._update_eagerly
    monkeypatch.setattr(
        EpisodeStage,
        "_update_eagerly",
        lambda self, local, size: ways.append((list(local), size)) or update_plainly(self, local, size),
    )
    fake = FakeGPU(monkeypatch)
    run(recipe, tmp_path / "graphed")
    assert ways == [([12], 1)]
    assert fake.updates[0]._updates == 4
    assert losses(tmp_path / "graphed") == pytest.approx(losses(tmp_path / "plain"), rel=1e-6)
    assert_same_state(tmp_path / "graphed", tmp_path / "plain")


def test_of_several_processes_all_go_the_plain_way_when_an_update_is_smaller(gpu):
    """Of three episodes for two processes, two are the first one's, as many as of four."""
    stage = make_stage(episodes=7, episodes_per_update=4)
    processes = SimpleNamespace(
        world_size=2,
        is_first=True,
        local_indices=lambda count: range(0, count, 2),
        all_reduce_sum=lambda tensors: None,
    )
    stage.context.processes = processes
    stage._graphed = stage._make_graphed()
    assert stage._graphed.episodes == 2
    ways = []
    stage._graphed.update = lambda images, augmentations, seed: ways.append(len(images))
    stage._update_eagerly = lambda local, size: ways.append((list(local), size))
    stage.update()
    stage.update()
    assert ways == [2, ([4, 6], 3)]


def test_a_loss_that_is_no_number_is_noticed_at_the_next_report(tmp_path, gpu):
    recipe = tiny_recipe(head="protonet", learning_rate=1e30, episodes=12, log_every=6, checkpoint_every=4)
    with pytest.raises(
        UserError,
        match="The loss is not finite after 4 episodes; use a smaller learning_rate or another",
    ):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / checkpoint.FILE).exists(), "what is broken is not kept"


def test_metrics_have_the_mean_loss_and_an_accuracy(tmp_path, monkeypatch, gpu):
    seen = []
    loss = FewShotModel.forward
    monkeypatch.setattr(
        FewShotModel, "forward", lambda self, *a, **k: seen.append(loss(self, *a, **k)) or seen[-1]
    )
    run(tiny_recipe(head="protonet", episodes=6, log_every=6, learning_rate=0.02), tmp_path)
    (row,) = metrics(tmp_path, "loss")
    del seen[WARMUP_UPDATES]  # the one that was recorded, which on a GPU computes nothing
    assert row["loss"] == pytest.approx(sum(loss.item() for loss, _ in seen) / 6, rel=1e-5)
    assert 0 <= row["accuracy"] <= 100


# ---- one stage


class TestUpdate:
    def test_losses_are_fetched_once(self, gpu):
        stage = make_stage(episodes=30, episodes_per_update=3)
        for _ in range(2):
            stage.update()
        total, count = stage._graphed.fetch_losses()
        assert count == 6
        assert 0.2 < total / count < 50
        assert stage._graphed.fetch_losses() == (0.0, 0)

    def test_what_the_head_saw_is_an_episode(self, gpu, kernels_serve):
        stage = make_stage(episodes=30, episodes_per_update=3)
        for _ in range(WARMUP_UPDATES + 2):
            stage.update()
            assert stage._graphed.represented.shape == (9, 64)
            assert not stage._graphed.represented.requires_grad

    def test_the_network_is_left_as_it_was(self, gpu, kernels_serve):
        stage = make_stage(episodes=30, episodes_per_update=3)
        stage.update()
        assert {block.episodes for block in stage.context.model.backbone.blocks} == {0}

    def test_where_triton_cannot_build_kernels_plain_operations_train(self, gpu, kernels_serve, monkeypatch):
        monkeypatch.setattr(kernels, "USE", kernels.KernelUse())
        monkeypatch.setattr(kernels, "usable_for", lambda tensor: kernels.USE.allowed)
        monkeypatch.setattr(sys.modules["gpldla.kernels.first_block"], "convolve_normalise_relu_pool", fails)
        stage = make_stage(episodes=30, episodes_per_update=3)
        with pytest.warns(UserWarning, match=r"Triton failed \(no C\+\+ compiler\)"):
            stage.update()
        for _ in range(WARMUP_UPDATES):
            stage.update()
        total, count = stage._graphed.fetch_losses()
        assert total > 0
        assert count == 3 * (WARMUP_UPDATES + 1)
        assert kernels_serve.calls == []

    def test_rates_are_where_a_graph_reads_them(self, gpu):
        stage = make_stage("gpldla", episodes=30)
        rates = [group["lr"] for group in stage.optimizer.param_groups]
        stage.update()
        first = [float(rate) for rate in rates]
        for _ in range(9):
            stage.update()
        assert all(rate is group["lr"] for rate, group in zip(rates, stage.optimizer.param_groups))
        assert all(float(rate) < before for rate, before in zip(rates, first))


class TestServes:
    @pytest.mark.parametrize("name", list_heads())
    def test_heads_say_whether_they_can_be_recorded(self, name):
        model = FewShotModel("conv4s-mixture" if name == "meta-mixture" else "conv4s", name)
        assert GraphedUpdate.is_supported(model, torch.device("cuda")) == model.head.capturable()
        assert not GraphedUpdate.is_supported(model, torch.device("cpu"))

    def test_a_head_that_cannot_takes_the_plain_path(self, gpu, monkeypatch):
        monkeypatch.setattr(head_class("protonet"), "capturable", lambda head: False)
        stage = make_stage()
        assert stage._graphed is None
        assert isinstance(stage.optimizer.param_groups[0]["lr"], float)
        stage.update()
        assert stage.window.sums["loss"][1] == 1

    def test_without_graphs_it_takes_the_plain_path(self, gpu):
        assert make_stage(acceleration=Acceleration(graphs=False))._graphed is None

    def test_a_frozen_network_takes_the_plain_path(self, gpu):
        assert make_stage("gpldla", frozen=True)._graphed is None


class NoLook(TorchDispatchMode):
    """Refuses what a graph cannot hold: numbers that go from the tensors to Python, or there from it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.index.Tensor:
            assert all(index is None or index.is_meta for index in args[1]), "indices from the CPU"
        if function is torch.ops.aten._to_copy.default:
            assert args[0].is_meta, "numbers from the CPU"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpldla", {}),
        ("gpldla", {"predictive": "mc"}),
        ("gpldla", {"predictive": "probit", "normalize": False}),
        ("gpldla", {"priors": "uniform"}),
        pytest.param("gpldla", {"predictive": "quadrature"}),
        pytest.param("gpldla", {"predictive": "qmc"}),
        pytest.param("gpldla-auto", {}),
        ("lda", {}),
        ("laplace", {}),
        ("gpdkt", {}),
        ("gpdkt", {"kernel": "linear"}),
        ("protonet", {}),
        ("protonet", {"normalize": True}),
    ],
)
def test_what_can_be_recorded_looks_at_no_value(name, options):
    """Tensors without values stand in for those on a GPU that is recording."""
    head = create_head(name, 8, **options).to("meta").train()
    if not head.capturable():
        return
    support, query = torch.empty(3, 6, 8, device="meta"), torch.empty(3, 9, 8, device="meta")
    labels, query_labels = (torch.empty(3, n, device="meta", dtype=torch.int64) for n in (6, 9))
    with NoLook():
        head.loss(support.requires_grad_(), labels, query.requires_grad_(), query_labels, 3).backward()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"predictive": "probit"}) for name in ("gpldla", "laplace", "lda")),
        ("gpdkt", {}),
        ("protonet", {}),
    ],
)
def test_the_loss_of_a_batch_is_the_mean_of_its_losses(name, options):
    head = create_head(name, 8, **options).train()
    support, query, labels, query_labels = episodes_of_features(3)
    together = head.loss(support, labels, query, query_labels, 3)
    alone = [head.loss(*episode, 3) for episode in zip(support, labels, query, query_labels)]
    torch.testing.assert_close(together, torch.stack(alone).mean())


# ---- the compiled loss


def episodes_of_features(count, d=8):
    generator = torch.Generator().manual_seed(0)
    support, query = (torch.randn(count, n, d, generator=generator).relu() for n in (6, 9))
    labels, query_labels = (torch.arange(3).repeat_interleave(n).expand(count, -1) for n in (2, 3))
    return support, query, labels, query_labels


def fails(*args, **kwargs):
    raise RuntimeError("no C++ compiler")


class TestCompiledLoss:
    def test_a_stage_trains_with_it_and_the_head_keeps_its_own(self, gpu, monkeypatch):
        calls = []

        def compile_loss_counted(head, *others):
            return lambda *args, **options: calls.append(args) or head.loss(*args, **options)

        monkeypatch.setattr(episode_stage, "compile_loss", compile_loss_counted)
        stage = make_stage(acceleration=Acceleration(compile_from_updates=0), episodes=30)
        stage.update()
        assert len(calls) == 1
        assert "loss" not in vars(stage.context.model.head)

    def assert_untouched(self, head):
        assert "loss" not in vars(head)
        assert all(p.grad is None for p in head.parameters())

    def test_a_failure_leaves_the_head_as_it_was(self, monkeypatch):
        monkeypatch.setattr(torch, "compile", lambda function, **options: fails)
        head = create_head("gpldla")
        _, _, labels, query_labels = episodes_of_features(3)
        with pytest.warns(
            UserWarning, match=r"loss could not be compiled \(no C\+\+ compiler\); it runs without"
        ):
            assert compile_loss(head, labels, query_labels, 3, (8,)) == head.loss
        self.assert_untouched(head)

    def test_a_python_that_cannot_compile_leaves_the_head_as_it_was(self, monkeypatch):
        monkeypatch.setattr(torch, "compile", fails)
        head = create_head("gpldla")
        _, _, labels, query_labels = episodes_of_features(3)
        with pytest.warns(UserWarning, match="could not be compiled"):
            assert compile_loss(head, labels, query_labels, 3, (8,)) == head.loss
        self.assert_untouched(head)

    @pytest.mark.parametrize("count", [None, 3])
    def test_it_is_tried_on_what_is_to_come(self, monkeypatch, count):
        seen = []

        def compile_(function, *, dynamic):
            assert not dynamic
            return lambda *args, **kwargs: (
                seen.append([t.shape for t in args[:4]]) or function(*args, **kwargs)
            )

        monkeypatch.setattr(torch, "compile", compile_)
        head = create_head("gpldla", predictive="probit")
        support, query, labels, query_labels = (t if count else t[0] for t in episodes_of_features(3))
        before = head.loss(support, labels, query, query_labels, 3)
        compiled = compile_loss(head, labels, query_labels, 3, (8,))
        assert seen == [[t.shape for t in (support, labels, query, query_labels)]]
        assert torch.equal(compiled(support, labels, query, query_labels, 3), before)
        assert len(seen) == 2
        self.assert_untouched(head)

    @pytest.mark.long
    @pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
    @pytest.mark.parametrize(("name", "options"), [("gpldla", {"predictive": "probit"}), ("protonet", {})])
    def test_it_gives_the_same_loss_and_gradient(self, name, options):
        head = create_head(name, 8, **options).train()
        support, query, labels, query_labels = episodes_of_features(3)

        def loss_and_gradients(function):
            head.zero_grad()
            inputs = [t.clone().requires_grad_() for t in (support, query)]
            loss = function(inputs[0], labels, inputs[1], query_labels, 3, backbone=None)
            loss.backward()
            return [loss.detach(), *(t.grad.clone() for t in (*inputs, *head.parameters()))]

        plain = loss_and_gradients(head.loss)
        compiled = compile_loss(head, labels, query_labels, 3, (8,))
        assert compiled != head.loss
        for ours, expected in zip(loss_and_gradients(compiled), plain, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(("updates", "compiled"), [(9, False), (10, True)])
    @pytest.mark.parametrize("episodes_per_update", [1, 3])
    def test_long_trainings_compile(self, gpu, monkeypatch, episodes_per_update, updates, compiled):
        calls = []
        monkeypatch.setattr(episode_stage, "compile_loss", lambda *args: calls.append(args))
        make_stage(
            acceleration=Acceleration(compile_from_updates=10),
            episodes=updates * episodes_per_update,
            episodes_per_update=episodes_per_update,
        )
        batch = () if episodes_per_update == 1 else (3,)
        found = [(labels.shape, query_labels.shape, *rest) for _, labels, query_labels, *rest in calls]
        assert found == [((*batch, 3), (*batch, 6), 3, (64,))] * compiled


def test_a_full_memory_is_no_fault_of_triton(monkeypatch):
    monkeypatch.setattr(kernels, "USE", kernels.KernelUse())

    def full():
        raise torch.cuda.OutOfMemoryError("no room")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        kernels.try_or_fall_back(full)
    assert kernels.USE.failure is None
