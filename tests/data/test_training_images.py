import pytest
import torch

from gpldla.backbones import backbone_preprocessing
from gpldla.data.training_images import TRAINING_TRANSFORMS
from gpldla.data.transforms import evaluation_images

CONV4 = backbone_preprocessing("conv4")


def stored(channels=3, side=64):
    return torch.randint(0, 256, (4, channels, side, side), dtype=torch.uint8)


@pytest.mark.parametrize("name", TRAINING_TRANSFORMS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shapes", [None, torch.tensor([[90.0, 200.0]]).expand(4, 2)], ids=["square", "wide"])
def test_images_become_what_the_network_wants(name, channels, shapes):
    images = TRAINING_TRANSFORMS[name](stored(channels), CONV4, shapes)
    assert images.shape == (4, 3, 84, 84)
    assert images.dtype == torch.float32
    assert images.min() < 0 < images.max()


def test_photographs_are_cropped_by_their_true_shapes():
    images = stored()

    def prepared(shapes):
        torch.manual_seed(0)
        return TRAINING_TRANSFORMS["photographs"](images, CONV4, shapes)

    same, wide = torch.tensor([[64.0, 64.0]]).expand(4, 2), torch.tensor([[64.0, 200.0]]).expand(4, 2)
    assert torch.equal(prepared(None), prepared(same))
    assert not torch.equal(prepared(None), prepared(wide))


def test_none_is_what_evaluation_does():
    images = stored()
    assert torch.equal(TRAINING_TRANSFORMS["none"](images, CONV4, None), evaluation_images(images, CONV4))
