"""The same answers on a GPU, where there is one."""

import pytest
import torch

from gpldla import training
from gpldla.episodes import EpisodeSampler
from gpldla.heads import create_head
from gpldla.training import train

from .heads.head_contract import random_episode
from .helpers import tiny_protocol, tiny_recipe, tiny_set, whole
from .test_training import StopAfter

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", ["gpldla", "protonet"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_heads_agree_with_the_cpu(name, dtype, tolerance):
    support, labels, query, query_labels = random_episode([1, 4, 2, 2, 3], 5, 6, 64, batch=(7,), dtype=dtype)
    head = create_head(name).eval()
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
