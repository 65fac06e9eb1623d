"""Feature-wise transformation: random scales and shifts in training, nothing in evaluation."""

import pytest
import torch
from torch import nn

from gpldla.backbones import create_backbone
from gpldla.backbones.episode_blocks import EpisodeBatches
from gpldla.classifier.model import FewShotModel
from gpldla.training import run as training
from gpldla.training.feature_wise import transform_features
from gpldla.training.run import train
from gpldla.utils.errors import UserError
from tests.helpers import tiny_protocol, tiny_recipe

PAPER = {"feature_wise_scale": 0.3, "feature_wise_shift": 0.5}


def outputs_of(norm, *, training, seed=0):
    """Return what a block's BatchNorm gives before and after the transformation, for the same images."""
    images = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    plain, transformed = create_backbone("conv4s"), create_backbone("conv4s")
    transformed.load_state_dict(plain.state_dict())
    transform_features(transformed, 0.3, 0.5)
    seen = []
    for network in (plain, transformed):
        network.train(training).blocks[norm][1].register_forward_hook(lambda *args: seen.append(args[2]))
        torch.manual_seed(seed)
        network(images)
    return seen


def test_each_channel_has_one_scale_and_one_shift_for_the_whole_batch():
    before, after = outputs_of(0, training=True)
    torch.manual_seed(0)
    scale, shift = torch.randn(2, 64)  # the first draws of the batch
    for channel in range(64):
        expected = (1 + 0.3 * scale[channel]) * before[:, channel] + 0.5 * shift[channel]
        torch.testing.assert_close(after[:, channel], expected)
    _, others = outputs_of(0, training=True, seed=1)
    assert (after - others).abs().amax((0, 2, 3)).min() > 1e-4


def test_in_evaluation_nothing_changes():
    assert torch.equal(*outputs_of(3, training=False))


def test_a_resnet_is_transformed_where_its_blocks_end():
    network = create_backbone("resnet10")
    transform_features(network, 0.3, 0.5)
    found = {name for name, module in network.named_modules() if module._forward_hooks}
    first = {"blocks.0.residual.4"}  # which has no shortcut of its own
    assert found == first | {f"blocks.{i}.{part}" for i in (1, 2, 3) for part in ("residual.4", "shortcut.1")}


def test_kernels_that_would_leave_it_out_are_not_used(monkeypatch):
    monkeypatch.setattr("gpldla.kernels.usable_for", lambda weight: True)
    network = create_backbone("conv4s")
    assert EpisodeBatches(network).possible
    transform_features(network, 0.3, 0.5)
    assert not EpisodeBatches(network).possible


def test_a_network_without_blocks_is_refused():
    with pytest.raises(UserError, match="Sequential has no blocks whose features could be transformed"):
        transform_features(nn.Sequential(nn.Linear(2, 2)), 0.3, 0.5)


@pytest.mark.parametrize("head", ["gpldla", "maml", "relationnet", "baseline++"])
def test_any_head_trains_with_it_and_is_saved_without_it(head, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    settings = {"episodes": 2, "validation.every": 0, "base.epochs": 1, "base.batch": 16}
    weights = []
    for name, more in {"plain": {}, "transformed": PAPER}.items():
        result = train(tiny_recipe(head, **settings, **more), tmp_path / name, accelerator="cpu")
        loaded = FewShotModel.from_pretrained(tmp_path / name)
        assert not any(module._forward_hooks for module in loaded.modules())
        assert result.model.info["recipe"]["feature_wise_scale"] == more.get("feature_wise_scale", 0)
        weights.append(loaded.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
