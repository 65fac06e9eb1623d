"""Associative alignment: which base images are related, and the fit against torch's own modules."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpldla import FewShotModel
from gpldla.heads import create_head
from gpldla.heads.assoc_align import related_images
from gpldla.testing import HeadContract, random_episode
from gpldla.training import run as training
from gpldla.training.run import train
from gpldla.utils.errors import UserError
from tests.helpers import tiny_protocol, tiny_recipe, tiny_set

BRIEF = {"rounds": 3, "first_steps": 40, "related": 2, "images": 3, "step_size": 0.05}


class TestAssociativeAlignment(HeadContract):
    name = "assoc-align"
    options = {"rounds": 20, "first_steps": 20, "step_size": 0.02}


def test_related_classes_are_those_with_the_largest_shares():
    predicted = torch.tensor([0, 0, 1, 1, 1, 1, 1, 0, 2, 2, 0, 1])
    base_labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4])
    present = torch.tensor([True, True, False])
    of_first, of_second = related_images(predicted, base_labels, present, related=2)
    # Class 0 has two thirds of base class 0 and half of base classes 2 and 4, of which the first is taken;
    # class 1 then has all of base class 1 and half of base class 4.
    assert of_first.tolist() == [0, 1, 7]
    assert of_second.tolist() == [3, 4, 5, 11]


def test_new_classes_share_few_base_classes():
    shares = related_images(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 3]), torch.ones(2).bool(), 10)
    assert [r.tolist() for r in shares] == [[0, 1], [2, 3]]
    none = related_images(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.ones(2).bool(), 10)
    assert [r.tolist() for r in none] == [[], []]


def layer_loss(features, weight, labels, scale):
    """Return the cross-entropy of cosines, the angle of the true class widened by 0.001."""
    cosine = F.cosine_similarity(features.unsqueeze(1), weight, dim=-1)
    total = 0.0
    for row, y in zip(cosine, labels.tolist()):
        angle = torch.acos(row[y])
        true = torch.cos(angle + 0.001) if row[y] > 0 else row[y]
        total = total + torch.cat([row[:y], true[None], row[y + 1 :]]).mul(scale).log_softmax(0)[y]
    return -total / len(labels)


def adam_step(loss, *optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def test_without_base_images_a_layer_is_fitted_by_adam():
    support, labels, query, _ = random_episode([1, 2, 3], 3, 2, 5, nonnegative=False)
    weight = F.pad(math.sqrt(1 / 3) * torch.eye(3).double(), (5, 0)).requires_grad_()
    optimizer, padded = torch.optim.Adam([weight], 0.05), F.pad(support, (0, 3))
    for step in range(40 + 3):
        adam_step(layer_loss(padded, weight, labels, 5.0 if step < 40 else 15.0), optimizer)
    expected = 15 * F.cosine_similarity(F.pad(query, (0, 3)).unsqueeze(1), weight, dim=-1)
    ours = create_head("assoc-align", 5, **BRIEF).double().adapt(support, labels, 3).log_prob(query)
    torch.testing.assert_close(ours, expected.log_softmax(-1).detach(), atol=1e-6, rtol=0)


@pytest.fixture
def model():
    """An untrained network in float64, with images of four base classes that look like the new ones."""
    torch.manual_seed(0)
    model = FewShotModel("conv4s", "assoc-align", head_options=BRIEF).double()
    support, _, _ = images_episode()
    alike = support[::2].repeat_interleave(4, 0).repeat(2, 1, 1, 1) + torch.randn(16, 1, 28, 28)
    model.head.base_images = (128 + 30 * alike).clamp(0, 255).to(torch.uint8)
    model.head.base_labels = torch.arange(4).repeat_interleave(4)
    return model


def images_episode():
    support, labels, query, _ = random_episode(2, 2, 3, 28 * 28, nonnegative=False)
    return support.unflatten(-1, (1, 28, 28)), labels, query.unflatten(-1, (1, 28, 28))


def test_related_images_pull_the_network_and_the_layer(model):
    support, labels, query = images_episode()
    base = (model.head.base_images / 255.0 - 0.485) / 0.229
    network = copy.deepcopy(model.backbone).eval()
    weight = F.pad(math.sqrt(1 / 3) * torch.eye(2).double(), (64, 0)).requires_grad_()
    of_layer = torch.optim.Adam([weight], 0.05)
    of_network = torch.optim.Adam(network.parameters(), 0.05)

    def features(x):
        return F.pad(network(x.double()), (0, 2))

    for _ in range(40):
        adam_step(layer_loss(features(support).detach(), weight, labels, 5.0), of_layer)
    predicted = F.cosine_similarity(features(base).unsqueeze(1), weight, dim=-1).argmax(-1)
    related = related_images(predicted, model.head.base_labels, torch.ones(2).bool(), 2)
    count, generator = min(*map(len, related), 3), torch.Generator().manual_seed(0)
    assert count > 0
    for _ in range(3):
        drawn = torch.cat([r[torch.randperm(len(r), generator=generator)[:count]] for r in related])
        y = torch.arange(2).repeat_interleave(count)
        network.train()
        together = network(torch.cat([support, base[drawn]]).double())
        network.eval()
        means = torch.stack([together[:4][labels == j].mean(0) for j in range(2)])
        adam_step(F.cross_entropy(-(torch.cdist(together[4:], means) ** 2), y), of_network)
        adam_step(layer_loss(features(base[drawn]).detach(), weight, y, 15.0), of_layer)
        network.train()
        on_support = F.pad(network(support), (0, 2))
        network.eval()
        adam_step(layer_loss(on_support, weight, labels, 15.0), of_layer, of_network)
    expected = 15 * F.cosine_similarity(features(query).unsqueeze(1), weight, dim=-1)
    with torch.no_grad():
        ours = model.posterior(support, labels, 2).log_prob(query)
    torch.testing.assert_close(ours, expected.log_softmax(-1).detach(), atol=1e-4, rtol=0)


def test_the_network_of_the_model_stays_as_it_was(model):
    before = copy.deepcopy(model.state_dict())
    support, labels, query = images_episode()
    first, second = (model.posterior(support, labels, 2).log_prob(query) for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(isinstance(m, nn.BatchNorm2d) and m.training for m in model.modules())


def test_a_trained_model_keeps_images_of_the_base_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    options = {f"head.{name}": value for name, value in (BRIEF | {"rounds": 30, "step_size": 0.001}).items()}
    options |= {"base.epochs": 3, "base.batch": 16, "base.validate_every": 0}
    result = train(tiny_recipe("assoc-align", **options), tmp_path, accelerator="cpu", show_progress=False)
    loaded = FewShotModel.from_pretrained(tmp_path)
    assert loaded.head.base_images.shape == (12, 1, 28, 28)
    assert loaded.head.base_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert torch.equal(loaded.head.base_images, result.model.head.base_images)
    kept = [0, 1, 2, 6, 7, 8, 13, 14, 15, 21, 22, 23]
    seen = loaded.embed([tiny_set((6, 7, 8, 9), seed=0).images[i, 0] for i in kept])
    standardised = loaded.head.standardised_base(loaded.backbone)
    torch.testing.assert_close(standardised, seen, atol=0.5 / 255 / 0.2, rtol=0)
    pictures = [image[0] for image in tiny_set((9, 9, 9), seed=5).images]
    classifier = loaded.adapt(pictures[::9], ["a", "b", "c"])
    assert (classifier.predict(pictures) == [*("a" * 9), *("b" * 9), *("c" * 9)]).mean() > 0.8


def test_wrong_options_are_named():
    with pytest.raises(UserError, match="rounds must be a whole number of at least 1"):
        create_head("assoc-align", 5, rounds=0)
