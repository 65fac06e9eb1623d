import pytest
import torch
import torch.nn.functional as F

from gpldla.backbones import create_backbone

# Convolutions and BatchNorms counted by hand: a 3×3 block from a to b channels has 9ab + 9b² + 4b parameters.
BLOCK = {(a, b): 9 * a * b + 9 * b * b + 4 * b for a in (64, 128, 256, 512) for b in (64, 128, 256, 512)}
SHORTCUTS = sum(a * b + 2 * b for a, b in ((64, 128), (128, 256), (256, 512)))
FIRST = BLOCK[64, 64] + BLOCK[64, 128] + BLOCK[128, 256] + BLOCK[256, 512]
SECOND = sum(BLOCK[c, c] for c in (64, 128, 256, 512))
STEM, SMALL_STEM = 3 * 64 * 49 + 128, 3 * 64 * 9 + 128


@pytest.mark.parametrize(
    ("name", "size", "map_size", "parameters"),
    [
        ("resnet10", 224, 7, STEM + FIRST + SHORTCUTS),
        ("resnet18", 224, 7, STEM + FIRST + SECOND + SHORTCUTS),
        ("resnet18-84", 84, 11, SMALL_STEM + FIRST + SECOND + SHORTCUTS),
    ],
)
def test_sizes(name, size, map_size, parameters):
    backbone = create_backbone(name).eval()
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        assert backbone.maps(images).shape == (2, 512, map_size, map_size)
        features = backbone(images)
    assert features.shape == (2, backbone.feature_dim) == (2, 512)
    assert (features >= 0).all()
    assert backbone.preprocessing.size == size


def test_resnet18_has_the_well_known_number_of_parameters():
    assert sum(p.numel() for p in create_backbone("resnet18").parameters()) == 11_176_512


def test_a_block_is_its_formula():
    torch.manual_seed(0)
    block = create_backbone("resnet10").blocks[1].eval()
    x = torch.randn(2, 64, 8, 8)
    conv1, bn1, _, conv2, bn2 = block.residual
    down, bn3 = block.shortcut
    inner = F.relu(bn1(F.conv2d(x, conv1.weight, stride=2, padding=1)))
    expected = F.relu(bn2(F.conv2d(inner, conv2.weight, padding=1)) + bn3(F.conv2d(x, down.weight, stride=2)))
    torch.testing.assert_close(block(x), expected)
