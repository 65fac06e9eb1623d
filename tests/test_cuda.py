"""The same answers on a GPU, where there is one."""

import json
import statistics
from contextlib import nullcontext

import pytest
import torch

from gpldla import kernels
from gpldla.backbones.episode_blocks import EpisodeBatches
from gpldla.classifier.model import FewShotModel
from gpldla.data.episodes import EpisodeSampler
from gpldla.evaluation import PartEvaluator, Task
from gpldla.heads import create_head, list_heads
from gpldla.heads.base import head_class
from gpldla.heads.gp import predictive
from gpldla.testing import random_episode
from gpldla.training import checkpoint
from gpldla.training import run as training
from gpldla.training.checkpoint import TrainingState
from gpldla.training.compiled_loss import compile_loss
from gpldla.training.episode_stage import EpisodeStage
from gpldla.training.graphed_update import GraphedUpdate
from gpldla.training.metrics import METRICS
from gpldla.training.run import train
from gpldla.training.stage import Acceleration
from gpldla.utils.errors import UserError
from tests.helpers import tiny_protocol, tiny_recipe, tiny_set, whole
from tests.training.test_graphed_update import episodes_of_features, noisy_protocol
from tests.training.test_run import StopAfter

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", list_heads())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_heads_agree_with_the_cpu(name, dtype, tolerance):
    support, labels, query, query_labels = random_episode([1, 4, 2, 2, 3], 5, 6, 64, batch=(7,), dtype=dtype)
    head = create_head(name, feature_dim=64).to(dtype).eval()
    on_cpu = head.adapt(support, labels, 5).log_prob(query).exp()
    head.cuda()
    inputs = [t.cuda() for t in (support, labels, query)]
    on_gpu = head.adapt(inputs[0], inputs[1], 5).log_prob(inputs[2]).exp()
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=tolerance, rtol=0)
    head.train().loss(*inputs, query_labels.cuda(), 5)


def test_episodes_are_the_same_on_every_device():
    part = whole(tiny_set((6, 7, 8, 9)))
    settings = {"ways": 3, "shots": 2, "queries": 3, "seed": 0, "split": "novel"}
    on_cpu = EpisodeSampler(part, **settings).draw(0, 500)
    on_gpu = EpisodeSampler(part, **settings, device="cuda").draw(0, 500)
    assert torch.equal(on_gpu.support.cpu(), on_cpu.support)
    assert torch.equal(on_gpu.query.cpu(), on_cpu.query)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_runs_and_resumes(tmp_path, monkeypatch, precision):
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    recipe = tiny_recipe(precision=precision, augment="characters")
    monkeypatch.setattr(training, "stop_signals", lambda: StopAfter(5))
    assert not train(recipe, tmp_path, accelerator="cuda", show_progress=False).finished
    monkeypatch.undo()
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    result = train(recipe, tmp_path, accelerator="cuda", show_progress=False)
    assert result.finished
    assert result.episodes == recipe.episodes
    assert all(t.isfinite().all() for t in result.model.state_dict().values())


@pytest.mark.parametrize("C", [2, 3, 5, 20, 64])
@pytest.mark.parametrize("log_var", [(-9.0, -8.0), (-1.0, 1.0), (2.0, 5.0), (-6.0, 5.0)])
def test_the_kernel_integrates_as_the_plain_operations_do(C, log_var):
    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(C)
    for scale in (0.5, 4.0, 20.0):
        mean = scale * torch.randn(1000, C, generator=generator)
        var = torch.empty(1000, C).uniform_(*log_var, generator=generator).exp()
        if C > 2:
            mean[::7, 1] = -torch.inf
        assert predictive._use_kernel(mean.cuda(), var.cuda())
        plain = predictive.quadrature(mean.double(), var.double())
        ours = predictive.quadrature(mean.cuda(), var.cuda()).cpu().double()
        assert (ours.exp() - plain.exp()).abs().max() < 2e-5
        likely = plain.exp() > 1e-4
        assert (ours - plain)[likely].abs().max() < 2e-3
        assert torch.equal(ours.isneginf(), plain.isneginf())
        torch.testing.assert_close(ours.exp().sum(-1), torch.ones(1000).double(), atol=1e-5, rtol=0)


def test_the_kernel_answers_each_query_by_itself():
    pytest.importorskip("triton")
    mean, var = torch.randn(77, 5).cuda() * 5, torch.rand(77, 5).cuda() * 9 + 0.01
    together = predictive.quadrature(mean, var)
    alone = torch.cat([predictive.quadrature(m, v) for m, v in zip(mean.split(1), var.split(1))])
    assert torch.equal(together, alone)
    assert torch.equal(predictive.quadrature(mean.view(7, 11, 5), var.view(7, 11, 5)).view(77, 5), together)


def test_gradients_go_through_plain_operations():
    mean, var = torch.randn(9, 5).cuda().requires_grad_(), torch.rand(9, 5).cuda() + 0.1
    assert not predictive._use_kernel(mean, var)
    predictive.quadrature(mean, var).sum().backward()
    assert mean.grad.isfinite().all()


def test_images_that_are_all_known_are_not_represented_again():
    evaluator = PartEvaluator(FewShotModel("conv4s", "protonet").cuda(), whole(tiny_set((6, 7, 8, 9))))
    task = Task(3, 2, 3)
    first, again = (evaluator.predict(task, episodes=50, seed=0, split="novel") for _ in range(2))
    assert torch.equal(first.log_prob, again.log_prob)


# ---- training by CUDA graphs


@pytest.fixture
def exact(monkeypatch):
    """Noisy images, so that losses stay away from zero, and float32 that is float32, the same every time."""
    monkeypatch.setattr(training, "load_protocol", noisy_protocol)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def recorded(monkeypatch):
    """Count the updates that were recorded, or done so."""
    updates = []
    update = GraphedUpdate.update
    monkeypatch.setattr(
        GraphedUpdate, "update", lambda self, *args: updates.append(len(args[0])) or update(self, *args)
    )
    return updates


def graphed_recipe(head="protonet", episodes_per_update=1, updates=10, **settings):
    if head in ("gpldla", "laplace", "lda") and episodes_per_update > 1:
        settings = {"head.predictive": "probit", **settings}  # noise is drawn for all episodes at once
    defaults = {
        "head": head,
        "episodes_per_update": episodes_per_update,
        "episodes": updates * episodes_per_update,
        "log_every": episodes_per_update,
        "validation.every": 5 * episodes_per_update,
        "checkpoint_every": 4 * episodes_per_update,
        "learning_rate": 1e-4,  # Adam turns rounding errors into steps of this size
    }
    return tiny_recipe(**{**defaults, **settings})


def on_gpu(recipe, folder, **options):
    return train(recipe, folder, accelerator="cuda", show_progress=False, **options)


def plainly(recipe, folder, nudge=0.0):
    """Train on the GPU, one operation after the other, from weights changed by so much of themselves."""
    start = FewShotModel.__init__

    def start_nudged(model, *args, **options):
        start(model, *args, **options)
        with torch.no_grad():
            for weights in model.backbone.parameters():
                weights.mul_(1 + nudge * torch.randn_like(weights))

    with pytest.MonkeyPatch.context() as patch:
        if nudge:
            patch.setattr(FewShotModel, "__init__", start_nudged)
        return on_gpu(recipe, folder, acceleration=Acceleration(graphs=False))


def assert_same_losses(graphed, plain, recipe, tolerance=1e-3):
    """Compare the losses of two trainings in folders.

    Adam makes a step of full length of a gradient that is all rounding, so even plain training leaves its own
    path by percents within ten updates when its weights start 1e-7 away. The first two losses, which come
    before and after one step, must be the same; all of them nearer than three times that distance.
    """
    ours, expected = losses(graphed), losses(plain)
    assert ours[:2] == pytest.approx(expected[:2], rel=tolerance)
    if recipe.precision == "64-true":  # whose rounding is too small for that
        assert ours == pytest.approx(expected, rel=tolerance)
    elif ours != pytest.approx(expected, rel=tolerance):
        own_distances = []
        for nudge in (1e-7, 1e-6):
            plainly(recipe, plain / f"nudged-{nudge}", nudge)
            nudged = losses(plain / f"nudged-{nudge}")
            own_distances += [abs(other / loss - 1) for other, loss in zip(nudged, expected, strict=True)]
        assert ours == pytest.approx(expected, rel=3 * max(own_distances))


def recorded_rows(folder, key):
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [row for row in rows if key in row]


def losses(folder):
    return [row["loss"] for row in recorded_rows(folder, "loss")]


def last_weights(folder, group="model"):
    return TrainingState.read(folder).tensors[group]


@pytest.mark.parametrize("backbone", ["conv4s", "conv4", "resnet10"])
@pytest.mark.parametrize("head", ["gpldla", "protonet"])
@pytest.mark.parametrize(("episodes_per_update", "ema"), [(1, 0.5), (3, 0.5), (3, 0.0)])
def test_graphed_training_is_plain_training(
    tmp_path, exact, recorded, backbone, head, episodes_per_update, ema
):
    recipe = graphed_recipe(head, episodes_per_update, backbone=backbone, ema=ema)
    plainly(recipe, tmp_path / "plain")
    assert recorded == []
    on_gpu(recipe, tmp_path / "graphed")
    assert recorded == [episodes_per_update] * 10
    expected = losses(tmp_path / "plain")
    assert len(set(expected)) == 10
    assert_same_losses(tmp_path / "graphed", tmp_path / "plain", recipe)
    for group in ("model", "averaged") if ema else ("model",):
        ours, theirs = (last_weights(tmp_path / way, group) for way in ("graphed", "plain"))
        assert ours.keys() == theirs.keys()
        for name in (name for name in theirs if name.endswith("running_var")):
            assert (ours[name] - theirs[name]).norm() < 1e-2 * theirs[name].norm(), name


@pytest.mark.parametrize("head", ["laplace", "lda", "gpdkt"])
def test_graphed_training_of_other_heads_is_plain_training(tmp_path, exact, recorded, head):
    recipe = graphed_recipe(head, episodes_per_update=2)
    plainly(recipe, tmp_path / "plain")
    on_gpu(recipe, tmp_path / "graphed")
    assert recorded == [2] * 10
    assert_same_losses(tmp_path / "graphed", tmp_path / "plain", recipe)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.1},
        {"folds": 2},
        {"head.power": 0.7},
        {"head.power": 0.7, "head.training_power": 1.0},
    ],
)
def test_graphed_training_with_options_is_plain_training(tmp_path, exact, recorded, settings):
    recipe = graphed_recipe("gpldla", episodes_per_update=2, **settings)
    plainly(recipe, tmp_path / "plain")
    on_gpu(recipe, tmp_path / "graphed")
    assert recorded == [2] * 10
    assert_same_losses(tmp_path / "graphed", tmp_path / "plain", recipe)


@pytest.mark.parametrize(("backbone", "size"), [("conv4", 84), ("resnet10", 32)])
def test_gradients_by_kernels_are_as_exact_as_plain_ones(exact, backbone, size):
    """In the median: a ReLU or a pooling that rounding tips over changes a gradient far more than that."""

    def gradient(model, images, labels, by_kernels=False):
        model.zero_grad()
        with EpisodeBatches(model.train().backbone).of(1) if by_kernels else nullcontext():
            support, query = model.backbone(images).split([6, 12])
            model.head.loss(support, labels[:6], query, labels[6:], 3).backward()
        # Nothing reaches a bias before BatchNorm.
        return torch.cat([p.grad.double().flatten() for p in model.backbone.parameters() if p.ndim > 1])

    errors = {"kernels": [], "plain": []}
    labels = torch.arange(3).repeat_interleave(2).repeat(3).cuda()
    for seed in range(9):
        torch.manual_seed(seed)
        model = FewShotModel(backbone, "protonet").cuda()
        images = torch.randn(3, 3, size, size)[labels.cpu()].add(1.5 * torch.randn(18, 3, size, size)).cuda()
        for way, of_way in errors.items():
            of_way.append(gradient(model, images, labels, by_kernels=way == "kernels"))
        reference = gradient(model.double(), images.double(), labels)
        for of_way in errors.values():
            of_way[-1] = ((of_way[-1] - reference).norm() / reference.norm()).item()
    assert statistics.median(errors["kernels"]) < max(1e-5, 3 * statistics.median(errors["plain"]))


@pytest.mark.parametrize("augment", ["none", "characters", "photographs"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_graphed_training_is_plain_training_in_every_precision(tmp_path, exact, recorded, precision, augment):
    recipe = graphed_recipe(episodes_per_update=2, backbone="conv4", precision=precision, augment=augment)
    plainly(recipe, tmp_path / "plain")
    on_gpu(recipe, tmp_path / "graphed")
    assert recorded == [2] * 10
    tolerance = {"32-true": 1e-3, "bf16-mixed": 5e-2, "64-true": 1e-6}[precision]
    assert_same_losses(tmp_path / "graphed", tmp_path / "plain", recipe, tolerance)


@pytest.mark.parametrize("stop_after", [2, 5, 8])
@pytest.mark.parametrize(("backbone", "episodes_per_update"), [("conv4s", 1), ("conv4", 3), ("resnet10", 2)])
def test_graphed_training_resumes(
    tmp_path, monkeypatch, exact, recorded, backbone, episodes_per_update, stop_after
):
    recipe = graphed_recipe(episodes_per_update=episodes_per_update, backbone=backbone)
    on_gpu(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(training, "stop_signals", lambda: StopAfter(stop_after))
        part = on_gpu(recipe, tmp_path / "parts")
    assert part.episodes == stop_after * episodes_per_update
    assert on_gpu(recipe, tmp_path / "parts").finished
    assert len(recorded) == 20
    for group in ("model", "averaged"):
        ours, theirs = (last_weights(tmp_path / way, group) for way in ("parts", "whole"))
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-6, msg=name)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_a_last_update_of_fewer_episodes_goes_the_plain_way(tmp_path, monkeypatch, exact, recorded):
    recipe = graphed_recipe(episodes_per_update=3, episodes=14)
    ways = []
    plain_update = EpisodeStage._update_eagerly
    monkeypatch.setattr(
        EpisodeStage,
        "_update_eagerly",
        lambda self, local, size: ways.append((list(local), size)) or plain_update(self, local, size),
    )
    on_gpu(recipe, tmp_path / "graphed")
    assert recorded == [3] * 4
    assert ways == [([12, 13], 2)]
    plainly(recipe, tmp_path / "plain")
    assert losses(tmp_path / "graphed") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)


@pytest.mark.parametrize("backbone", ["conv4s", "resnet10"])
def test_a_loss_that_is_no_number_is_noticed_at_the_next_report(tmp_path, exact, backbone):
    recipe = graphed_recipe(
        backbone=backbone, learning_rate=1e30, log_every=6, checkpoint_every=10, validation__every=0
    )
    with pytest.raises(UserError, match="The loss is not finite after 6 episodes; use a smaller"):
        on_gpu(recipe, tmp_path)
    assert not (tmp_path / checkpoint.FILE).exists()


def test_metrics_of_graphed_training(tmp_path, exact):
    recipe = graphed_recipe(episodes_per_update=2, updates=12, log_every=8)
    on_gpu(recipe, tmp_path / "seldom")
    on_gpu(graphed_recipe(episodes_per_update=2, updates=12), tmp_path / "often")
    often, seldom = losses(tmp_path / "often"), losses(tmp_path / "seldom")
    assert seldom == pytest.approx([sum(often[i : i + 4]) / 4 for i in (0, 4, 8)], rel=1e-5)
    accuracies = [row["accuracy"] for row in recorded_rows(tmp_path / "seldom", "accuracy")]
    assert len(accuracies) == 3
    assert all(0 <= accuracy <= 100 for accuracy in accuracies)


@pytest.mark.parametrize(
    ("head", "options"),
    [
        *((name, {}) for name in list_heads()),
        ("gpldla", {"head.predictive": "mc"}),
        ("gpldla", {"head.predictive": "qmc"}),
        ("gpldla", {"head.predictive": "quadrature"}),
        ("gpldla", {"head.priors": "uniform"}),
        ("gpldla", {"head.priors": [1.0, 2.0, 3.0]}),
        ("gpldla-auto", {"base.classifier": "none"}),
        ("protonet", {"head.normalize": True}),
    ],
)
def test_every_head_trains(tmp_path, exact, head, options):
    """Whether recorded or not; also past the update that records."""
    recipe = graphed_recipe(head, 2, updates=6, base__epochs=1, base__batch=16, **options)
    result = on_gpu(recipe, tmp_path)
    assert result.finished
    assert all(t.isfinite().all() for t in result.model.state_dict().values())


def test_a_head_that_cannot_be_recorded_takes_the_plain_path(tmp_path, monkeypatch, exact, recorded):
    monkeypatch.setattr(head_class("protonet"), "capturable", lambda head: False)
    on_gpu(graphed_recipe(), tmp_path)
    assert recorded == []


def test_where_triton_fails_plain_operations_train(tmp_path, monkeypatch, exact, recorded):
    pytest.importorskip("triton")
    from gpldla.kernels import first_block

    def broken(*args, **kwargs):
        raise RuntimeError("no C compiler")

    plainly(graphed_recipe(), tmp_path / "plain")
    monkeypatch.setattr(kernels, "USE", kernels.KernelUse())
    monkeypatch.setattr(first_block, "convolve_normalise_relu_pool", broken)
    with pytest.warns(UserWarning, match=r"Triton failed \(no C compiler\)"):
        on_gpu(graphed_recipe(), tmp_path / "graphed")
    assert len(recorded) == 10
    assert losses(tmp_path / "graphed") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)


@pytest.mark.parametrize("count", [None, 3])
@pytest.mark.parametrize(("name", "options"), [("gpldla", {"predictive": "probit"}), ("protonet", {})])
def test_the_compiled_loss_is_the_loss(name, options, count):
    head = create_head(name, 8, **options).cuda().train()
    inputs = [(t if count else t[0]).cuda() for t in episodes_of_features(3)]
    labels, query_labels = inputs[2:]

    def loss_and_gradients(function):
        head.zero_grad()
        support, query = (t.clone().requires_grad_() for t in inputs[:2])
        loss = function(support, labels, query, query_labels, 3, backbone=None)
        loss.backward()
        return [loss.detach(), *(t.grad.clone() for t in (support, query, *head.parameters()))]

    plain = loss_and_gradients(head.loss)
    compiled = compile_loss(head, labels, query_labels, 3, (8,))
    assert compiled != head.loss
    for ours, expected in zip(loss_and_gradients(compiled), plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("folds", [1, 2])
def test_training_with_a_compiled_loss_is_training(tmp_path, exact, recorded, folds):
    recipe = graphed_recipe("gpldla", 3, folds=folds)
    on_gpu(recipe, tmp_path / "plain")
    on_gpu(recipe, tmp_path / "compiled", acceleration=Acceleration(compile_from_updates=1))
    assert len(recorded) == 20
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)
