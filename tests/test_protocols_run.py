"""Every protocol is one name on the command line: a few episodes of training, one repeat of evaluation."""

import json
import os

import pytest

from gpldla.data import list_protocols
from gpldla.training.recipe import list_recipes, read_recipe
from tests.data.trees import REAL_ROOT, write_root

EMBEDDED = {"glyphs", "digits", "glyphs-digits"}
PROTOCOLS = sorted(set(list_protocols()) - EMBEDDED)
SHORT = {
    "ways": 5,
    "episodes": 2,
    "queries": 2,
    "validation.episodes": 2,
    "validation.queries": 2,
    "validation.temperature_episodes": 2,
    "log_every": 1,
}
BACKBONE = {protocol: "conv4s" if protocol == "omniglot-emnist" else "conv4" for protocol in PROTOCOLS}
NEEDED = {"cub": "cub", "omniglot-emnist": "emnist", "tinyimagenet-mini": "tinyimagenet-mini"}


@pytest.fixture(scope="module")
def small_root(tmp_path_factory):
    """All data sets in their own layouts, small."""
    return write_root(tmp_path_factory.mktemp("data"), classes_per_part=6, images_per_class=8, side=20)


def train_and_eval(run, root, cache, folder, recipe, *settings, ways=5):
    places = ("--data-root", root, "--cache", cache)
    overrides = [f"--set={key}={value}" for key, value in SHORT.items()]
    overrides += [f"--set={setting}" for setting in settings]
    code, _, err = run("train", recipe, "-o", folder, *overrides, *places)
    assert code == 0, err
    code, out, err = run(
        *("eval", folder, "--ways", ways, "--queries", "2", "--episodes", "2", "--repeats", "1", "--json"),
        *places,
    )
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_recipe_of_the_same_name_trains_and_is_evaluated(
    run, small_root, tmp_path_factory, tmp_path, protocol
):
    cache = tmp_path_factory.getbasetemp() / "small-cache"
    # A residual network takes longer, and has a test of its own.
    numbers = train_and_eval(
        run, small_root, cache, tmp_path / "run", protocol, "backbone=" + BACKBONE[protocol]
    )
    assert numbers["dataset"] == protocol
    assert 0 <= numbers["accuracy"] <= 100


@pytest.mark.parametrize("backbone", ["resnet10", "resnet18", "resnet18-84"])
def test_residual_networks_train_too(run, small_root, tmp_path, backbone):
    small = (f"backbone={backbone}", "episodes=1", "ways=2", "validation.ways=2", "queries=1")
    numbers = train_and_eval(run, small_root, tmp_path / "cache", tmp_path / "run", "cub", *small, ways=2)
    assert numbers["ways"] == 2


def test_a_folder_of_class_folders_trains_too(run, small_root, tmp_path):
    dataset = f'dataset="folder:{small_root / "pets"},seed=1"'
    numbers = train_and_eval(run, small_root, tmp_path / "cache", tmp_path / "run", "cub", dataset)
    assert numbers["dataset"].startswith("folder:")


def test_there_is_a_recipe_for_every_protocol():
    assert set(PROTOCOLS) <= set(list_recipes())
    for protocol in PROTOCOLS:
        assert read_recipe(protocol).dataset == protocol


@pytest.mark.parametrize("protocol", sorted(NEEDED))
def test_real_data_trains_and_is_evaluated(run, tmp_path, protocol):
    if not (REAL_ROOT / NEEDED[protocol]).is_dir():
        pytest.skip(f"{NEEDED[protocol]} is not in the data root {REAL_ROOT}")
    numbers = train_and_eval(run, REAL_ROOT, f"{os.environ['GPLDLA_CACHE']}/real", tmp_path / "run", protocol)
    assert numbers["seeds"] == [0]
