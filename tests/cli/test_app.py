import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from PIL import Image

import gpldla.data
from gpldla import __version__
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.model_files import read_model_files, write_model_files
from gpldla.cli.data import FAULTS_SHOWN
from gpldla.data import Protocol
from gpldla.data.sets import SETS
from gpldla.heads.base import _HEADS
from gpldla.reports import demo
from gpldla.training import run as training
from gpldla.utils.plugins import IMPORT_VARIABLE
from tests.data.test_catalog import SmallGlyphs
from tests.data.trees import write_cub, write_folder, write_omniglot
from tests.helpers import call, tiny_protocol

COMMANDS = [
    ["demo"],
    ["train"],
    ["eval"],
    ["data", "list"],
    ["data", "prepare"],
    ["data", "check"],
    ["data", "show"],
]
TINY_TRAINING = [
    *("--episodes", "4", "--set", "ways=3", "--set", "queries=2", "--set", "validation.ways=3"),
    *(
        "--set",
        "validation.queries=3",
        "--set",
        "validation.episodes=2",
        "--set",
        "validation.temperature_episodes=2",
    ),
    *("--device", "cpu"),
]
TINY_EVALUATION = ["--ways", "3", "--queries", "3", "--episodes", "4", "--repeats", "2", "--device", "cpu"]


def use_tiny_data(patch):
    """Let tiny images stand in for every data set."""

    def load(name, **options):
        return Protocol(name, tiny_protocol().parts)

    for user in (gpldla.data, training, demo):
        patch.setattr(user, "load_protocol", load)


@pytest.fixture
def tiny_data(monkeypatch):
    use_tiny_data(monkeypatch)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_data(patch)
        assert call("train", "demo", "-o", folder, *TINY_TRAINING) == 0
    return folder


@pytest.fixture
def trained(trained_once, tiny_data):
    """The folder of a model that the command has trained."""
    return trained_once


def test_runs_as_a_module():
    command = [sys.executable, "-m", "gpldla", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"gpldla {__version__}\n"
    assert done.stderr == ""


def test_help_answers_without_loading_torch():
    code = (
        "import sys; from gpldla.cli.app import main; sys.argv = ['gpldla', 'train', '--help']\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a module that can be imported; return its name."""
    monkeypatch.setenv(IMPORT_VARIABLE, "")
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, content=""):
        (tmp_path / f"{name}.py").write_text(content)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


class TestImport:
    def test_modules_are_imported_before_the_command_runs(self, run, plugin):
        names = [plugin("first_plugin"), plugin("second_plugin")]
        code, out, err = run("--import", names[0], "--import", names[1], "models", "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)
        assert {*names} <= sys.modules.keys()

    def test_a_head_from_outside_can_be_trained(self, run, plugin, tiny_data, tmp_path, request):
        request.addfinalizer(lambda: _HEADS.pop("outside", None))
        content = """
            from gpldla.heads import register_head
            from gpldla.heads.protonet import ProtoNet

            @register_head("outside")
            class Outside(ProtoNet):
                pass
        """
        name = plugin("plugin_with_head", textwrap.dedent(content))
        command = ["train", "demo", "-o", tmp_path / "run", *TINY_TRAINING, "--set", "head.name=outside"]
        code, _, err = run("--import", name, *command)
        assert code == 0, err
        assert json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))["head"] == "outside"

    @pytest.mark.parametrize("content", [None, "import nothing_of_that_name", "1 / 0"])
    def test_a_module_that_cannot_be_imported_is_named(self, refused, plugin, content):
        name = "missing_plugin" if content is None else plugin("broken_plugin", content)
        assert refused("--import", name, "models").startswith(f"gpldla: --import {name}: ")

    def test_child_processes_import_it_too(self, run, plugin):
        name = plugin("plugin_for_children")
        assert run("--import", name, "models")[0] == 0
        assert os.environ[IMPORT_VARIABLE].split(os.pathsep)[-1] == name

    def test_help_answers_without_loading_torch(self):
        code = (
            "import sys; from gpldla.cli.app import main\n"
            "sys.argv = ['gpldla', '--import', 'json', '--help']\n"
            "try: main()\n"
            "finally: assert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert "--import MODULE" in done.stdout


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_every_command_has_an_example(self, run, command):
        code, out, err = run(*command, "--help")
        assert code == 0
        assert f"Example: gpldla {' '.join(command)}" in out
        assert err == ""

    def test_lists_the_commands(self, run):
        code, out, _ = run("--help")
        assert code == 0
        assert {"demo", "train", "eval", "data"} <= set(out.split())

    @pytest.mark.parametrize("arguments", [[], ["data"]], ids=["nothing", "data"])
    def test_is_shown_when_no_command_is_given(self, run, arguments):
        code, out, err = run(*arguments)
        assert code == 2
        assert (out + err).startswith("Usage: gpldla")


class TestWrongUsage:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["trian"], "trian"),
            (["train", "demo", "-o", "x", "--colour", "red"], "--colour"),
            (["train", "demo"], "--output"),
            (["eval"], "Missing argument"),
            (["eval", "x", "--episodes", "many"], "--episodes"),
            (["data", "show", "digits", "--classes", "0"], "--classes"),
            (["data", "show", "digits", "--samples", "-3"], "--samples"),
            (["data", "show", "digits", "--samples", "1000000"], "--samples"),
            (["data", "show", "digits", "--seed", "-1"], "--seed"),
            (["data", "shwo", "digits"], "shwo"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_is_named_in_one_line(self, refused, arguments, named):
        assert named in refused(*arguments)


@pytest.fixture
def root(tmp_path):
    """A data root with a few birds, a few characters and eight kinds of pets."""
    write_cub(tmp_path / "root" / "cub")
    write_omniglot(tmp_path / "root" / "omniglot")
    write_folder(tmp_path / "root" / "pets", images_per_class=6)
    return tmp_path / "root"


class TestDataList:
    @pytest.fixture(autouse=True)
    def few_letters(self, monkeypatch):
        monkeypatch.setitem(SETS, "glyphs", SmallGlyphs())

    @pytest.fixture
    def facts(self, run, root, tmp_path):
        code, out, _ = run("data", "list", "--json", "--data-root", root, "--cache", tmp_path / "cache")
        assert code == 0
        return json.loads(out)

    def test_as_json_has_places_sets_and_protocols(self, facts, root, tmp_path):
        assert set(facts) == {"data_root", "cache", "sets", "protocols"}
        assert facts["data_root"] == str(root)
        assert facts["cache"] == str(tmp_path / "cache")
        assert {"glyphs", "digits", "cub", "omniglot", "emnist"} <= set(facts["sets"])
        assert {"glyphs-digits", "mini-cub", "omniglot-emnist"} <= set(facts["protocols"])

    def test_as_json_counts_what_is_there(self, facts):
        glyphs, birds = facts["sets"]["glyphs"], facts["sets"]["cub"]
        assert (glyphs["found"], glyphs["embedded"], glyphs["complete"]) == (True, True, True)
        assert (glyphs["classes"], glyphs["images"]) == (12, 36)
        assert (birds["found"], birds["embedded"], birds["complete"]) == (True, False, False)
        assert (birds["classes"], birds["images"]) == (6, 18)
        assert facts["protocols"]["glyphs-digits"]["validation"] == {
            "set": "glyphs",
            "classes": 2,
            "classes_found": 2,
            "images": 6,
        }
        assert facts["protocols"]["cub"]["novel"] == {
            "set": "cub",
            "classes": 50,
            "classes_found": 2,
            "images": 6,
        }

    def test_as_json_says_what_is_missing_and_where_to_get_it(self, facts):
        assert facts["sets"]["emnist"]["found"] is False
        assert facts["sets"]["emnist"]["get"]
        assert facts["sets"]["emnist"]["put"]
        assert "98 of 100 base classes are missing." in facts["sets"]["cub"]["faults"]

    def test_as_a_table(self, run, root, tmp_path):
        code, out, _ = run("data", "list", "--data-root", root, "--cache", tmp_path / "cache")
        assert code == 0
        lines = out.splitlines()
        assert f"  put {SETS['emnist'].put} into {root / 'emnist'}." in lines
        assert "cub: 98 of 100 base classes are missing." in lines
        assert not any(line.startswith("omniglot: get it") for line in lines)
        assert lines[-1] == "Any folder of class folders is a data set too: folder:PATH."

    def test_many_faults_are_shortened(self, run, root, tmp_path):
        for number in range(101, 109):
            (root / "cub" / f"{number}.Empty").mkdir()
        _, out, _ = run("data", "list", "--data-root", root, "--cache", tmp_path / "cache")
        assert out.count("\ncub: ") == FAULTS_SHOWN + 1
        assert "cub: 7 more; see --json." in out.splitlines()

    def test_leaves_the_data_alone(self, facts, root):
        assert sorted(path.name for path in root.iterdir()) == ["cub", "omniglot", "pets"]


class TestDataCheck:
    def test_says_which_stores_are_whole_and_which_are_damaged(self, run, refused, root, tmp_path):
        cache = ["--cache", tmp_path / "packed"]
        for name in ("digits", f"folder:{root / 'pets'}"):
            run("data", "prepare", name, *cache)
        digits = next((tmp_path / "packed").glob("digits-*"))
        code, out, _ = run("data", "check", *cache)
        assert code == 0
        assert f"{digits}: 1,797 images of 32 × 32 pixels, whole\n" in out
        assert len(out.splitlines()) == 2
        with (digits / "images.u8").open("r+b") as file:
            file.seek(700_000)
            file.write(b"other")
        code, out, err = run("data", "check", *cache)
        assert code == 2
        assert len(out.splitlines()) == 1
        first, last = err.splitlines()
        assert first.startswith(f"{digits} is damaged: ")
        assert "delete it and it is packed again" in first
        assert last.startswith("gpldla: 1 of 2 packed stores cannot be used")
        assert run("data", "check", f"folder:{root / 'pets'}", *cache)[0] == 0


class TestDataPrepare:
    def test_packs_the_data_and_says_where(self, run, tmp_path):
        code, out, err = run("data", "prepare", "digits", "--cache", tmp_path / "packed")
        assert code == 0
        assert out == "digits novel: 10 classes, 1,797 of the 1,797 images of 32 × 32 pixels in digits\n"
        assert err.startswith(f"Preparing digits in {tmp_path / 'packed'}")
        assert len(err.splitlines()) == 1
        assert len(list((tmp_path / "packed").iterdir())) == 1

    def test_prints_a_line_a_part(self, run, root, tmp_path):
        name = f"folder:{root / 'pets'}"
        code, out, _ = run("data", "prepare", name, "--cache", tmp_path / "packed")
        assert code == 0
        rest = f"of the 48 images of 16 × 16 pixels in {name}"
        assert out.splitlines() == [
            f"{name} base: 4 classes, 24 {rest}",
            f"{name} validation: 2 classes, 12 {rest}",
            f"{name} novel: 2 classes, 12 {rest}",
        ]

    def test_a_set_that_is_no_protocol(self, run, root, tmp_path):
        places = ["--data-root", root, "--cache", tmp_path / "packed"]
        code, out, _ = run("data", "prepare", "omniglot", *places)
        assert code == 0
        assert out == "omniglot: 4 classes, 12 images of 32 × 32 pixels\n"

    def test_a_backbone_with_larger_inputs_gets_larger_images(self, run, root, tmp_path):
        places = ["--data-root", root, "--cache", tmp_path / "packed"]
        code, out, _ = run("data", "prepare", "omniglot", "--backbone", "conv4", *places)
        assert code == 0
        assert out == "omniglot: 4 classes, 12 images of 96 × 96 pixels\n"

    def test_an_unknown_backbone_suggests_the_nearest(self, refused):
        line = refused("data", "prepare", "digits", "--backbone", "conv5")
        assert line == "gpldla: There is no backbone 'conv5'; did you mean 'conv4'?"

    def test_a_bad_image_is_named_with_the_way_out(self, run, root, tmp_path):
        bad = root / "pets" / "kind-03" / "2.png"
        bad.write_bytes(b"no image")
        command = ["data", "prepare", f"folder:{root / 'pets'}", "--cache", tmp_path / "packed"]
        code, out, err = run(*command)
        assert (code, out) == (2, "")
        assert str(bad) in err.splitlines()[-1]
        assert "--skip-bad" in err.splitlines()[-1]
        assert list((tmp_path / "packed").iterdir()) == []

        code, out, err = run(*command, "--skip-bad")
        assert code == 0
        assert out.count("of the 47 images") == 3
        assert str(bad) in err

    def test_what_is_missing_is_named_with_where_to_put_it(self, refused, root):
        line = refused("data", "prepare", "emnist", "--data-root", root)
        assert f"into {root / 'emnist'}" in line

    @pytest.mark.parametrize("command", [["list"], ["prepare", "cub"], ["show", "cub"]], ids=" ".join)
    def test_a_data_root_that_is_none_is_named(self, refused, tmp_path, command):
        line = refused("data", *command, "--data-root", tmp_path / "none")
        assert line.startswith(f"gpldla: There is no folder {tmp_path / 'none'};")

    def test_a_cache_with_brackets_in_its_name(self, run, tmp_path):
        code, _, err = run("data", "prepare", "digits", "--cache", tmp_path / "[/b]")
        assert code == 0
        assert str(tmp_path / "[" / "b]") in err

    def test_a_cache_that_is_a_file_is_named(self, run, tmp_path):
        (tmp_path / "file").write_text("here already")
        code, _, err = run("data", "prepare", "digits", "--cache", tmp_path / "file")
        assert code == 2
        assert "cannot be written" in err.splitlines()[-1]
        assert "Traceback" not in err
        assert (tmp_path / "file").read_text() == "here already"


class TestDataShow:
    def test_writes_a_picture(self, run, tmp_path):
        code, out, _ = run("data", "show", "digits", "-o", tmp_path / "sheet.png")
        assert code == 0
        assert str(tmp_path / "sheet.png") in out
        with Image.open(tmp_path / "sheet.png") as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 300

    def test_names_the_picture_after_the_data(self, run, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert run("data", "show", "digits", "--classes", "2", "--samples", "3")[0] == 0
        assert [path.name for path in tmp_path.iterdir()] == ["digits.png"]

    @pytest.mark.parametrize("command", ["show", "prepare"])
    def test_a_wrong_name_suggests_the_nearest(self, refused, command):
        assert refused("data", command, "digit") == (
            "gpldla: There is no data set 'digit'; did you mean 'digits'?"
        )

    @pytest.mark.parametrize("name", ["sheet.jpg", "sheet", "none/sheet.png", "folder.png"])
    def test_a_picture_that_cannot_be_written_is_named(self, refused, tmp_path, name):
        (tmp_path / "folder.png").mkdir()
        assert str(tmp_path / name) in refused("data", "show", "digits", "-o", tmp_path / name)
        assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]

    def test_shows_sets_protocols_and_folders(self, run, root, tmp_path):
        heights = {}
        for name in ("omniglot", "cub", f"folder:{root / 'pets'}"):
            places = ["--data-root", root, "--cache", tmp_path / "packed"]
            code, _, _ = run("data", "show", name, "-o", tmp_path / "sheet.png", "--classes", "1", *places)
            assert code == 0
            with Image.open(tmp_path / "sheet.png") as picture:
                heights[name] = picture.height
        assert heights["cub"] > 2 * heights["omniglot"], "a section a part"

    def test_names_the_picture_of_a_folder_after_it(self, run, root, tmp_path, monkeypatch):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        for path in (root / "pets", "pets"):
            places = ["--data-root", root, "--cache", tmp_path / "packed"]
            assert run("data", "show", f"folder:{path}", *places)[0] == 0
        assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["folder-pets.png"]


class TestTrain:
    def test_leaves_a_model(self, trained):
        model = FewShotModel.from_pretrained(trained)
        assert model.info["recipe"]["ways"] == 3
        assert model.info["episodes"] == 4

    def test_says_where_the_model_is_and_how_good(self, run, trained):
        code, out, err = run("train", "demo", "-o", trained, *TINY_TRAINING)
        assert code == 0
        assert out == ""
        assert "Validation accuracy" in err
        assert str(trained) in err

    def test_overrides_reach_the_recipe(self, run, tiny_data, tmp_path):
        overrides = [
            "--seed",
            "3",
            "--set",
            "head.n_samples=7",
            "--set",
            "episodes=9",
            "--set",
            "augment=none",
        ]
        assert run("train", "demo", "-o", tmp_path / "run", *TINY_TRAINING, *overrides)[0] == 0
        recipe = FewShotModel.from_pretrained(tmp_path / "run").info["recipe"]
        assert (recipe["seed"], recipe["head"]["n_samples"], recipe["augment"]) == (3, 7, "none")
        assert recipe["episodes"] == 4, "--episodes wins over --set"

    def test_a_recipe_file(self, run, tiny_data, tmp_path):
        (tmp_path / "own.toml").write_text("shots = 2\n")
        assert run("train", tmp_path / "own.toml", "-o", tmp_path / "run", *TINY_TRAINING)[0] == 0
        assert FewShotModel.from_pretrained(tmp_path / "run").info["recipe"]["shots"] == 2

    def test_another_method_than_the_recipe_has(self, run, tiny_data, tmp_path):
        command = ["train", "demo", "--method", "protonet", "-o", tmp_path / "run", *TINY_TRAINING]
        assert run(*command, "--set", "head.normalize=true")[0] == 0
        config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
        assert (config["head"], config["head_options"]) == ("protonet", {"normalize": True})
        assert config["info"]["recipe"]["augment"] == "characters", "the rest is the recipe's"

    def test_a_method_with_a_base_stage(self, run, tiny_data, tmp_path):
        command = ["train", "demo", "--method", "simpleshot-l2n", "-o", tmp_path / "run", *TINY_TRAINING]
        code, _, err = run(*command, "--set", "base.epochs=2")
        assert code == 0
        assert "base batch 2: validation accuracy" in err
        config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
        assert (config["head"], config["head_options"]) == ("simpleshot", {"transform": "l2n"})

    def test_an_unknown_method_suggests_the_nearest(self, refused, tiny_data, tmp_path):
        line = refused("train", "demo", "--method", "protonets", "-o", tmp_path / "run", *TINY_TRAINING)
        assert line == "gpldla: There is no method 'protonets'; did you mean 'protonet'?"
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_with_brackets_in_its_name(self, run, tiny_data, tmp_path):
        folder = tmp_path / "run [a][/b]"
        code, _, err = run("train", "demo", "-o", folder, *TINY_TRAINING)
        assert code == 0
        assert str(folder) in err

    @pytest.mark.parametrize("augment", ["none", "characters", "photographs"])
    def test_images_of_another_size_and_colour_than_the_network_wants(
        self, run, tiny_data, tmp_path, augment
    ):
        settings = ["--set", "backbone=conv4", "--set", f"augment={augment}", "--episodes", "1"]
        assert run("train", "demo", "-o", tmp_path / "run", *TINY_TRAINING, *settings)[0] == 0

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("way=3", "There is no recipe setting 'way'; did you mean 'ways'?"),
            ("head.n_sample=3", "'head.n_sample' with head 'gpldla'; did you mean 'head.n_samples'?"),
            ("head_power=0.7", "head_power is written head.power now: [head] power = 0.7."),
            ("turns=6", "turns is written folds now: folds = 6."),
            ("ways", "'ways' is not an override; write key=value."),
            ("ways=three", "ways = 'three' must be of type int."),
            ("ways=1", "ways must be at least 2, not 1."),
            ("shots=-1", "shots must be at least 1, not -1."),
            ("ways=5", "An episode of 5 ways needs 5 classes"),
            ("queries=6", "Class 'class 0' has 6 images, fewer than 1 shots + 6 queries"),
            ("validation.ways=5", "An episode of 5 ways needs 5 classes"),
            ("validation.queries=0", "queries must be at least 1, not 0."),
            ("separate_groups=true", "has no groups"),
            ("learning_rate=-0.1", "learning_rate = -0.1 must be positive."),
            ("backbone=conv5", "There is no backbone 'conv5'; did you mean 'conv4'?"),
            ("head.name=gplda", "There is no head 'gplda'; did you mean 'gpldla'?"),
            ("head.n_samples=0", "n_samples must be a whole number of at least 1, not 0."),
            ("head.predictive=mcc", "There is no predictive 'mcc'; did you mean 'mc'?"),
            ("head.priors=some", "priors must be 'uniform' or one positive number per class, not 'some'."),
            ('head.priors=["a", 1]', "priors must be 'uniform' or one positive number per class"),
            ("precision=half", "precision = 'half' must be one of 32-true, bf16-mixed, 64-true."),
            ("seed=99999999999999999999", "seed must be a number of at most 64 bits."),
        ],
    )
    def test_a_wrong_setting_is_refused_before_anything_is_written(
        self, refused, tiny_data, tmp_path, setting, message
    ):
        assert message in refused("train", "demo", "-o", tmp_path / "run", *TINY_TRAINING, "--set", setting)
        assert list(tmp_path.iterdir()) == []

    def test_nothing_to_learn_is_refused(self, refused, tiny_data, tmp_path):
        settings = ["--set", "backbone=pixels", "--set", "head.name=protonet"]
        line = refused("train", "demo", "-o", tmp_path / "run", *TINY_TRAINING, *settings)
        assert "'pixels' with head 'protonet' has nothing to learn" in line

    def test_a_negative_number_of_episodes_is_refused(self, refused, tmp_path):
        line = refused("train", "demo", "-o", tmp_path / "run", "--episodes", "-5")
        assert line == "gpldla: Recipe setting episodes = -5 must be at least 1."

    @pytest.mark.parametrize(
        ("recipe", "message"),
        [("dem", "did you mean 'demo'?"), ("none.toml", "There is no recipe file none.toml.")],
    )
    def test_a_missing_recipe_is_named(self, refused, tmp_path, recipe, message):
        assert message in refused("train", recipe, "-o", tmp_path / "run")

    def test_a_data_set_without_base_classes_is_refused(self, run, refused, tmp_path):
        assert run("data", "prepare", "digits")[0] == 0  # which says so, the first time
        line = refused("train", "demo", "-o", tmp_path / "run", "--set", "dataset=digits")
        assert "Data set 'digits' has no validation classes, only novel" in line

    @pytest.mark.parametrize("below", ["", "run"])
    def test_a_file_in_the_way_is_named_and_kept(self, refused, tiny_data, tmp_path, below):
        (tmp_path / "file").write_text("here already")
        line = refused("train", "demo", "-o", tmp_path / "file" / below, *TINY_TRAINING)
        assert f"{tmp_path / 'file'} is not a folder" in line
        assert (tmp_path / "file").read_text() == "here already"

    def test_a_folder_without_permission_is_named(self, refused, tiny_data, tmp_path, monkeypatch):
        monkeypatch.setattr("os.access", lambda path, mode: False)
        line = refused("train", "demo", "-o", tmp_path / "run", *TINY_TRAINING)
        assert f"{tmp_path} is not writable" in line

    def test_other_settings_in_the_same_folder_are_refused(self, refused, trained):
        before = (trained / "model.safetensors").read_bytes()
        line = refused("train", "demo", "-o", trained, *TINY_TRAINING, "--set", "shots=2")
        assert "other settings: shots (1, now 2)" in line
        assert (trained / "model.safetensors").read_bytes() == before

    @pytest.mark.parametrize("device", ["tpu", "gpu"])
    def test_an_unknown_device_is_named(self, refused, tmp_path, device):
        line = refused("train", "demo", "-o", tmp_path / "run", "--device", device)
        assert line.startswith(f"gpldla: There is no device '{device}' here; use auto")


class TestEval:
    def test_json_alone_is_printed(self, run, trained):
        code, out, _ = run("eval", trained, *TINY_EVALUATION, "--json")
        assert code == 0
        numbers = json.loads(out)
        assert numbers["model"] == str(trained)
        assert numbers["seeds"] == [0, 1]
        for suffix in ("", "_model_temperature", "_classifier", "_val_temperature"):
            for name in ("accuracy", "interval", "nll", "ece"):
                assert numbers[name + suffix] >= 0

    def test_data_set_and_shots_are_those_of_training_unless_given(self, run, trained):
        numbers = json.loads(run("eval", trained, *TINY_EVALUATION, "--json")[1])
        assert (numbers["dataset"], numbers["shots"], numbers["ways"]) == ("glyphs", 1, 3)
        given = ["--dataset", "glyphs-digits", "--shots", "2"]
        numbers = json.loads(run("eval", trained, *TINY_EVALUATION, "--json", *given)[1])
        assert (numbers["dataset"], numbers["shots"]) == ("glyphs-digits", 2)

    def test_the_same_command_gives_the_same_numbers(self, run, trained):
        assert run("eval", trained, *TINY_EVALUATION, "--json") == run(
            "eval", trained, *TINY_EVALUATION, "--json"
        )

    def test_monte_carlo(self, run, trained):
        sampled = [*TINY_EVALUATION, "--json", "--predictive", "mc", "--samples", "10"]
        code, out, _ = run("eval", trained, *sampled)
        assert code == 0
        numbers, default = json.loads(out), json.loads(run("eval", trained, *TINY_EVALUATION, "--json")[1])
        assert (numbers["predictive"], default["predictive"]) == ("mc", "default")
        assert numbers["nll"] != default["nll"]
        assert run("eval", trained, *sampled)[1] == out

    def test_a_table_without_json(self, run, trained):
        code, out, _ = run("eval", trained, *TINY_EVALUATION)
        assert code == 0
        assert "glyphs, 3-way 1-shot" in out
        assert "±" in out

    def test_leaves_the_model_alone(self, run, trained):
        before = {path: path.read_bytes() for path in trained.glob("*.*")}
        run("eval", trained, *TINY_EVALUATION, "--predictive", "probit")
        assert {path: path.read_bytes() for path in trained.glob("*.*")} == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--episodes", "1", "--repeats", "1"], "One task has no interval"),
            (["--seed", str(2**63)], "--seed must be a 64-bit integer"),
            (["--shots", "0"], "shots must be at least 1, not 0."),
            (["--shots", "-1"], "shots must be at least 1, not -1."),
            (["--ways", "1"], "ways must be at least 2, not 1."),
            (["--ways", "99"], "An episode of 99 ways needs 99 classes"),
            (["--queries", "-3"], "queries must be at least 1, not -3."),
            (["--episodes", "0"], "--episodes must be at least 1, not 0."),
            (["--repeats", "-2"], "--repeats must be at least 1, not -2."),
            (["--samples", "0"], "n_samples must be a whole number of at least 1, not 0."),
            (["--predictive", "mcmc"], "There is no predictive 'mcmc'"),
            (["--separate-groups"], "has no groups"),
            (["--device", "tpu"], "There is no device 'tpu'"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_impossible_numbers_are_named(self, refused, trained, arguments, message):
        assert message in refused("eval", trained, *TINY_EVALUATION, *arguments)

    def test_an_unknown_data_set_suggests_the_nearest(self, refused, trained_once):
        line = refused("eval", trained_once, "--dataset", "digit")
        assert line == "gpldla: There is no data set 'digit'; did you mean 'digits'?"

    @pytest.mark.parametrize("name", ["none", "file"])
    def test_what_is_no_model_is_named(self, refused, tmp_path, name):
        (tmp_path / "file").write_text("text")
        assert f"{tmp_path / name} is not a model" in refused("eval", tmp_path / name)

    def test_a_model_that_does_not_say_its_data_needs_a_name(self, refused, tmp_path):
        FewShotModel("conv4s").save(tmp_path)
        assert "names no data set; name one with --dataset" in refused("eval", tmp_path)

    def test_options_that_a_head_lacks_are_named(self, refused, tmp_path):
        FewShotModel("conv4s", "protonet").save(tmp_path)
        assert "Head 'protonet' has no option 'predictive'" in refused("eval", tmp_path, "--predictive", "mc")


def test_training_and_testing_on_a_folder_of_photographs(run, root, tmp_path):
    """From image files to numbers, with nothing standing in."""
    places = ["--data-root", root, "--cache", tmp_path / "packed"]
    settings = ["--set", "dataset=folder:pets", "--set", "augment=photographs", "--set", "ways=2"]
    settings += ["--set", "validation.ways=2", "--set", "backbone=conv4", "--episodes", "2"]
    code, _, err = run("train", "demo", "-o", tmp_path / "run", *TINY_TRAINING, *settings, *places)
    assert code == 0, err
    code, out, _ = run("eval", tmp_path / "run", *TINY_EVALUATION, "--ways", "2", "--json", *places)
    assert code == 0
    assert json.loads(out)["dataset"] == "folder:pets"
    assert len(list((tmp_path / "packed").iterdir())) == 1, "one store for both"


def test_a_demo_that_cannot_be_written_is_refused(refused, tiny_data, tmp_path):
    (tmp_path / "file").write_text("here already")
    assert "is not a folder" in refused("demo", "--fast", "-o", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "here already"


def test_ctrl_c_ends_with_code_130_and_without_a_traceback(run, monkeypatch, tmp_path):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpldla.training.run.train", interrupt)
    code, _, err = run("train", "demo", "-o", tmp_path)
    assert code == 130
    assert err == ""


@pytest.mark.parametrize("recipe", ["x", {"dataset": 5}, {"shots": "a"}])
def test_a_model_with_a_recipe_that_is_none(refused, trained, tmp_path, recipe):
    shutil.copytree(trained, tmp_path / "model")
    weights, config = read_model_files(tmp_path / "model")
    config["info"]["recipe"] = recipe
    write_model_files(tmp_path / "model", weights, config)
    assert "The recipe in the config.json of" in refused("eval", tmp_path / "model", *TINY_EVALUATION)
