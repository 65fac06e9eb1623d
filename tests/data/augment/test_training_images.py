import pytest
import torch

from gpldla.backbones import backbone_preprocessing
from gpldla.data.augment.training_images import TRAINING_TRANSFORMS, training_transform
from gpldla.data.augment.transforms import evaluation_images

CONV4 = backbone_preprocessing("conv4")


def prepared(name, images, shapes=None, seed=0):
    transform = TRAINING_TRANSFORMS[name]
    uniforms = torch.rand(len(images), transform.n_uniforms, generator=torch.Generator().manual_seed(seed))
    changes = transform.draw(uniforms, shapes, tuple(images.shape[2:]))
    assert len(changes) == len(images)
    return transform.apply(images, changes, CONV4)


def stored(channels=3, side=64):
    return torch.randint(0, 256, (4, channels, side, side), dtype=torch.uint8)


@pytest.mark.parametrize("name", TRAINING_TRANSFORMS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shapes", [None, torch.tensor([[90.0, 200.0]]).expand(4, 2)], ids=["square", "wide"])
def test_images_become_what_the_network_wants(name, channels, shapes):
    images = prepared(name, stored(channels), shapes)
    assert images.shape == (4, 3, 84, 84)
    assert images.dtype == torch.float32
    assert images.min() < 0 < images.max()


def test_photographs_are_cropped_by_their_true_shapes():
    images = stored()
    same, wide = torch.tensor([[64.0, 64.0]]).expand(4, 2), torch.tensor([[64.0, 200.0]]).expand(4, 2)
    without = prepared("photographs", images)
    assert torch.equal(without, prepared("photographs", images, same))
    assert not torch.equal(without, prepared("photographs", images, wide))


@pytest.mark.parametrize("name", ["characters", "strokes", "photographs"])
def test_the_random_numbers_alone_decide(name):
    images = stored()
    first = prepared(name, images)
    torch.manual_seed(5)
    assert torch.equal(first, prepared(name, images))
    assert not torch.equal(first, prepared(name, images, seed=1))


@pytest.mark.parametrize("name", ["characters", "strokes", "photographs"])
def test_changes_can_be_drawn_for_many_images_at_once(name):
    transform, images = TRAINING_TRANSFORMS[name], stored()
    uniforms = torch.rand(4, transform.n_uniforms)
    together = transform.draw(uniforms, None, (64, 64))
    alone = torch.cat([transform.draw(u, None, (64, 64)) for u in uniforms.split(1)])
    assert torch.equal(together, alone)
    parts = zip(images.split(1), together.split(1))
    one_by_one = torch.cat([transform.apply(image, change, CONV4) for image, change in parts])
    torch.testing.assert_close(transform.apply(images, together, CONV4), one_by_one)


def test_none_is_what_evaluation_does():
    images = stored()
    assert torch.equal(prepared("none", images), evaluation_images(images, CONV4))


@pytest.mark.parametrize(("smallest_crop", "colour_jitter"), [(0.08, 0.4), (0.5, 0.1), (1.0, 0.0)])
def test_photographs_change_as_much_as_asked_for(smallest_crop, colour_jitter):
    transform = training_transform("photographs", smallest_crop=smallest_crop, colour_jitter=colour_jitter)
    uniforms = torch.rand(2000, transform.n_uniforms, generator=torch.Generator().manual_seed(0))
    changes = transform.draw(uniforms, None, (100, 100))
    area, factors = changes[:, 2] * changes[:, 3] / 100**2, changes[:, 5:]
    assert area.min() == pytest.approx(smallest_crop, abs=0.02)
    assert (factors - 1).abs().max() == pytest.approx(colour_jitter, abs=0.01)


@pytest.mark.parametrize("name", ["none", "characters", "strokes"])
def test_nothing_of_that_concerns_other_images(name):
    assert training_transform(name, smallest_crop=0.5, colour_jitter=0.1) is TRAINING_TRANSFORMS[name]
