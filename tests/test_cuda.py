"""The same answers on a GPU, where there is one."""

import pytest
import torch

from gpldla import training
from gpldla.episodes import EpisodeSampler
from gpldla.evaluation import PartEvaluator, Task
from gpldla.heads import create_head, list_heads, predictive
from gpldla.model import FewShotModel
from gpldla.training import train

from .heads.head_contract import random_episode
from .helpers import tiny_protocol, tiny_recipe, tiny_set, whole
from .test_training import StopAfter

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
        assert predictive._one_kernel_serves(mean.cuda(), var.cuda())
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
    assert not predictive._one_kernel_serves(mean, var)
    predictive.quadrature(mean, var).sum().backward()
    assert mean.grad.isfinite().all()


def test_images_that_are_all_known_are_not_represented_again():
    evaluator = PartEvaluator(FewShotModel("conv4s", "protonet").cuda(), whole(tiny_set((6, 7, 8, 9))))
    task = Task(3, 2, 3)
    first, again = (evaluator.predict(task, episodes=50, seed=0, split="novel") for _ in range(2))
    assert torch.equal(first.log_prob, again.log_prob)
