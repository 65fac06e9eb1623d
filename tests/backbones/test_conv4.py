import math

import pytest
import torch
from torch import nn

from gpldla.backbones import create_backbone, list_backbones
from gpldla.errors import UserError

BLOCK = 64 * 64 * 9 + 64 + 2 * 64  # weights and biases of the convolution, scales and shifts of the BatchNorm


def images_for(backbone, n=4):
    size = backbone.preprocessing.size
    return torch.randn(
        n, backbone.preprocessing.channels, size, size, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize(("name", "dim", "side"), [("conv4", 1600, 5), ("conv4s", 64, 1)])
class TestOutput:
    def test_features_have_the_promised_number(self, name, dim, side):
        backbone = create_backbone(name)
        assert backbone.feature_dim == dim
        assert backbone(images_for(backbone)).shape == (4, dim)

    def test_features_are_the_flattened_maps(self, name, dim, side):
        backbone = create_backbone(name).eval()
        images = images_for(backbone)
        maps = backbone.maps(images)
        assert maps.shape == (4, 64, side, side)
        assert torch.equal(backbone(images), maps.flatten(1))

    def test_features_are_not_negative(self, name, dim, side):
        backbone = create_backbone(name)
        features = backbone(images_for(backbone))
        assert features.min() == 0
        assert features.max() > 0


@pytest.mark.parametrize(("name", "first"), [("conv4", 3 * 64 * 9), ("conv4s", 64 * 9)])
def test_number_of_parameters(name, first):
    count = sum(p.numel() for p in create_backbone(name).parameters())
    assert count == first + 64 + 2 * 64 + 3 * BLOCK
    assert count == {"conv4": 113_088, "conv4s": 111_936}[name]


def test_convolutions_start_with_the_deviation_of_the_literature():
    convolutions = [m for m in create_backbone("conv4").modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 4
    for convolution in convolutions:
        n = convolution.weight.numel()
        std = math.sqrt(2 / (9 * 64))
        assert convolution.weight.std().item() == pytest.approx(std, rel=4 / math.sqrt(2 * n))
        assert convolution.weight.mean().item() == pytest.approx(0, abs=4 * std / math.sqrt(n))


class Conventional(nn.Module):
    """The order of the literature, convolution, BatchNorm, ReLU, pooling, with the weights of a Conv4."""

    def __init__(self, backbone):
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(block[0], block[1], nn.ReLU(), nn.MaxPool2d(2)) for block in backbone.blocks)
        )

    def forward(self, images):
        return self.blocks(images).flatten(1)


@pytest.mark.parametrize("name", ["conv4", "conv4s"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_relu_after_the_pooling_gives_what_relu_before_it_gives(name, training):
    backbone = create_backbone(name).double().train(training)
    conventional = Conventional(backbone)
    images = images_for(backbone).double()
    target = torch.randn(4, backbone.feature_dim, dtype=torch.float64)

    def value_and_gradients(network):
        network.zero_grad()
        features = network(images)
        (features * target).sum().backward()
        return features.detach(), [p.grad.clone() for p in network.parameters()]

    ours, our_gradients = value_and_gradients(backbone)
    theirs, their_gradients = value_and_gradients(conventional)
    torch.testing.assert_close(ours, theirs)
    for mine, yours in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, yours)


def test_pixels_are_the_image_itself():
    backbone = create_backbone("pixels")
    images = images_for(backbone)
    assert torch.equal(backbone(images), images.flatten(1))
    assert backbone.feature_dim == 784
    assert list(backbone.parameters()) == []


def test_fresh_weights_follow_the_seed():
    def weights(seed):
        torch.manual_seed(seed)
        return create_backbone("conv4s").blocks[0][0].weight

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_the_shipped_backbones():
    assert list_backbones() == ["conv4", "conv4s", "pixels", "resnet10", "resnet18", "resnet18-84"]


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("conv-4s", "conv4s"), ("pixel", "pixels"), ("Conv4", "conv4")]
)
def test_an_unknown_backbone_suggests_the_nearest(wrong, nearest):
    with pytest.raises(UserError, match=f"There is no backbone '{wrong}'; did you mean '{nearest}'?"):
        create_backbone(wrong)
