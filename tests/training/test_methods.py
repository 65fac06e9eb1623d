import tomllib

import pytest
import torch

from gpldla.classifier.model import FewShotModel
from gpldla.heads import Head, head_class, list_heads
from gpldla.heads import base as heads_base
from gpldla.training.methods import FILE, find_method, methods
from gpldla.training.recipe import SHIPPED, flatten, list_recipes, read_recipe
from gpldla.utils.errors import UserError

every_method = pytest.mark.parametrize("name", methods())


@pytest.fixture
def own_recipe(tmp_path):
    """Write a recipe; return its path."""

    def write(text):
        path = tmp_path / "own.toml"
        path.write_text(text)
        return path

    return write


@every_method
@pytest.mark.parametrize("recipe", list_recipes())
def test_every_method_goes_with_every_recipe(name, recipe):
    made = flatten(read_recipe(recipe, method=name).as_dict())
    preset = tomllib.loads(FILE.read_text("utf-8"))[name]
    title, variants = preset.pop("title"), preset.pop("backbone", {})
    preset = flatten(preset)
    assert find_method(name).title == title
    assert made.items() >= preset.items()
    own = flatten(tomllib.loads((SHIPPED / f"{recipe}.toml").read_text("utf-8")))
    of_its_head = {key for key in own if key.startswith("head.")}
    kept = {key: own[key] for key in own.keys() - preset.keys() - of_its_head}
    kept["backbone"] = variants.get(own["backbone"], own["backbone"])
    if head_class(preset["head.name"]).consumes != "features":
        kept.pop("mirrored", None)
    assert made.items() >= kept.items()


@every_method
def test_every_method_makes_a_model(name):
    recipe = read_recipe("demo", method=name)
    model = FewShotModel(recipe.backbone, recipe.head.name, head_options=recipe.head.options)
    support, query = torch.rand(10, 1, 28, 28), torch.rand(3, 1, 28, 28)
    with torch.no_grad():
        posterior = model.eval().posterior(model.represent(support), torch.arange(5).repeat(2), 5)
        probabilities = posterior.log_prob(model.represent(query)).exp()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3), rtol=1e-4, atol=1e-4)


def test_every_head_is_used():
    assert {method.head for method in methods().values()} == set(list_heads())


def test_titles_are_unique():
    titles = [method.title for method in methods().values()]
    assert sorted({*titles}) == sorted(titles)


def test_methods_of_one_head_differ_in_what_makes_the_model():
    made = [(m.head, *sorted(o for o in m.settings.items() if "head." in o[0])) for m in methods().values()]
    assert len({*made}) == len(made)


@pytest.mark.parametrize(
    ("backbone", "variant"),
    [("conv4", "conv4np"), ("conv4s", "conv4snp"), ("resnet18-84", "resnet18-84"), ("conv4np", "conv4np")],
)
def test_relationnet_wants_larger_maps(own_recipe, backbone, variant):
    recipe = own_recipe(f'backbone = "{backbone}"\n')
    assert read_recipe(recipe, method="relationnet").backbone == variant
    assert read_recipe(recipe, method="protonet").backbone == backbone


def test_relationnet_wants_larger_maps_of_the_default_network_too(own_recipe):
    assert read_recipe(own_recipe("shots = 5\n"), method="relationnet").backbone == "conv4snp"


def test_a_network_that_is_asked_for_is_taken():
    assert read_recipe("cub", {"backbone": "conv4"}, method="relationnet").backbone == "conv4"


@pytest.mark.parametrize("head", ["relationnet", "maml", "protonet"])
def test_mirror_images_are_for_heads_that_see_features(own_recipe, head):
    path, sees_features = own_recipe("mirrored = true\n"), head == "protonet"
    assert read_recipe(path, method=head).mirrored is sees_features
    assert read_recipe(path, {"head.name": head}).mirrored is sees_features
    assert read_recipe(path, {"mirrored": True}, method=head).mirrored, "which says so when it is trained"


def test_options_of_the_head_of_the_recipe_are_dropped(own_recipe):
    path = own_recipe('head_learning_rate = 0.3\n[head]\nname = "gpldla"\nbeta = 2.0\nnormalize = true\n')
    recipe = read_recipe(path, method="protonet")
    assert (recipe.head.name, recipe.head.options) == ("protonet", {})
    assert recipe.head_learning_rate == 0.3, "which is none of them"
    assert read_recipe(path, method="gpldla").head.options == {}
    assert read_recipe(path).head.options == {"beta": 2.0, "normalize": True}


def test_settings_of_the_method_win_over_the_recipe_and_overrides_over_both(own_recipe):
    path = own_recipe("learning_rate = 0.5\nepisodes_per_update = 9\nshots = 3\n")
    assert find_method("maml-first-order").settings["episodes_per_update"] == 4
    recipe = read_recipe(path, {"learning_rate": 0.25, "head.steps": 2}, method="maml-first-order")
    assert (recipe.learning_rate, recipe.episodes_per_update, recipe.shots) == (0.25, 4, 3)
    assert recipe.head.options == {"first_order": True, "steps": 2}


def test_without_a_method_the_recipe_stays_as_it_is(own_recipe):
    recipe = read_recipe(own_recipe('learning_rate = 0.5\n[head]\nname = "relationnet"\n'))
    assert (recipe.head.name, recipe.backbone, recipe.learning_rate) == ("relationnet", "conv4s", 0.5)


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("protonets", "protonet"),
        ("baseline", "baseline++"),
        ("MAML", "maml"),
        ("simpleshot", "simpleshot-un"),
    ],
)
def test_an_unknown_method_suggests_the_nearest(wrong, nearest):
    with pytest.raises(UserError) as error:
        read_recipe("demo", method=wrong)
    assert str(error.value) == f"There is no method {wrong!r}; did you mean {nearest!r}?"


class Own(Head):
    def __init__(self, feature_dim=None, *, colour="red"):
        super().__init__()

    def adapt(self, support, labels, n_way, *, backbone=None):
        raise NotImplementedError


def test_a_head_without_a_preset_is_a_method_itself(own_recipe, monkeypatch):
    path = own_recipe("ways = 7\n[head]\nbeta = 2.0\n")
    monkeypatch.setitem(heads_base._HEADS, "own", Own)
    assert find_method("own").title == "own"
    recipe = read_recipe(path, {"head.colour": "blue"}, method="own")
    assert (recipe.head.name, recipe.ways, recipe.head.options) == ("own", 7, {"colour": "blue"})
    monkeypatch.undo()
    with pytest.raises(UserError, match="There is no method 'own'"):
        find_method("own")
