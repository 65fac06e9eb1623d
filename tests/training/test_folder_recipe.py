"""The recipe for a folder of the user's own pictures: one that its classes can be trained by."""

import numpy as np
import pytest
from PIL import Image

from gpldla.data.paths import DataPaths
from gpldla.training.folder_recipe import FEWEST_EPISODES, MOST_EPISODES, _rounded, folder_recipe
from gpldla.training.recipe import read_recipe
from gpldla.utils.errors import UserError


def write(folder, counts, *, side=40, colour=True):
    """One class folder per count, of noise."""
    rng = np.random.default_rng(0)
    for number, count in enumerate(counts):
        (folder / f"class {number}").mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (side, side, 3) if colour else (side, side), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class {number}" / f"{i}.png")
    return f"folder:{folder}"


def chosen(name):
    return read_recipe(folder_recipe(name, DataPaths()).settings)


def test_its_tasks_fit_the_smallest_class(tmp_path):
    name = write(tmp_path / "photos", [3] * 12)
    recipe = chosen(name)
    assert (recipe.dataset, recipe.backbone, recipe.augment) == (name, "conv4", "photographs")
    assert (recipe.ways, recipe.shots, recipe.queries) == (6, 1, 2)  # half of the classes are base
    assert (recipe.validation.ways, recipe.validation.queries) == (3, 2)
    assert recipe.episodes == FEWEST_EPISODES


def test_small_grey_pictures_are_taken_for_characters(tmp_path):
    assert chosen(write(tmp_path / "grey", [2] * 8, colour=False)).backbone == "conv4s"
    assert chosen(write(tmp_path / "large", [2] * 8, colour=False, side=300)).backbone == "conv4"
    assert chosen(write(tmp_path / "colour", [2] * 8)).backbone == "conv4"


def test_episodes_grow_with_the_pictures_and_are_bounded():
    assert [_rounded(n) for n in (10, 12_345, 1e9)] == [FEWEST_EPISODES, 12_000, MOST_EPISODES]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([3] * 5, "5 classes, too few .*use `gpldla fit`, which needs no training"),
        ([3] * 7 + [1] * 9, "has 1 picture; add another, or remove the class"),
        ([3] * 7, r"has 3 base and 2 validation classes, and training needs at least 4 and 2"),
    ],
)
def test_folders_that_are_too_small_are_refused(tmp_path, counts, said):
    with pytest.raises(UserError, match=said):
        folder_recipe(write(tmp_path / "photos", counts), DataPaths())


def test_the_command_trains_by_it(run, tmp_path):
    name = write(tmp_path / "grey", [4] * 10, side=28, colour=False)
    few = ["--episodes", 2, "--set", "validation.episodes=2", "--set", "validation.temperature_episodes=2"]
    code, _, err = run("train", name, "-o", tmp_path / "run", "--device", "cpu", *few)
    assert code == 0, err
    assert "taken for drawings of characters. The recipe is omniglot-emnist with ways=6" in err
    assert (tmp_path / "run" / "model.safetensors").is_file()
    code, _, err = run("train", f"folder:{tmp_path / 'none'}", "-o", tmp_path / "other")
    assert (code, "There is no folder" in err) == (2, True)
