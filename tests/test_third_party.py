"""A small package with a head, a backbone and a data set, installed and used through the command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SOURCE = Path(__file__).parents[1] / "src"
NAME, VERSION = "blobworld", "0.3"
ENTRY_POINTS = """
[gpldla.heads]
nearest-blob = blobworld.head
[gpldla.backbones]
thumbnails = blobworld.backbone:Thumbnails
[gpldla.datasets]
blobs = blobworld.blobs
"""
HEAD = '''
"""The nearest class mean, with a learned scale."""

import torch
from torch import nn

from gpldla.heads import Head, Posterior, register_head
from gpldla.heads.base import check_episode, class_one_hot


class BlobPosterior(Posterior):
    def __init__(self, means, empty, scale):
        self.means, self.empty, self.scale = means, empty, scale

    def log_prob(self, query):
        distances = (query.unsqueeze(-2) - self.means.unsqueeze(-3)).square().mean(-1)
        logits = (-self.scale * distances).masked_fill(self.empty.unsqueeze(-2), -torch.inf)
        return logits.log_softmax(-1)


@register_head("nearest-blob")
class NearestBlob(Head):
    def __init__(self, feature_dim=None, *, scale=5.0):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(float(scale)).log())

    def adapt(self, support, labels, n_way, *, backbone=None):
        check_episode(support, labels, n_way)
        members = class_one_hot(labels, n_way, support.dtype)
        counts = members.sum(-2).unsqueeze(-1)
        means = members.transpose(-1, -2) @ support / counts.clamp(min=1)
        return BlobPosterior(means, counts.squeeze(-1) == 0, self.log_scale.exp())
'''
BACKBONE = '''
"""Images reduced to 7 × 7 pixels."""

from typing import ClassVar

import torch
from torch import nn

from gpldla.backbones import Backbone, Preprocessing, register_backbone


@register_backbone("thumbnails")
class Thumbnails(Backbone):
    pretrained: ClassVar[bool] = True
    preprocessing = Preprocessing(28, 1, (0.5,), (0.5,), interpolation="bicubic")
    feature_dim = 49
    map_shape = (1, 7, 7)

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def maps(self, images):
        return self.scale * nn.functional.avg_pool2d(images, 4)

    def forward(self, images):
        return self.maps(images).flatten(1)
'''
DATASET = '''
"""Blobs of one position per class."""

import numpy as np

from gpldla.data import register_dataset, register_protocol
from gpldla.data.sets import BundledSet
from gpldla.data.store import image_set_from_classes


@register_dataset
class Blobs(BundledSet):
    name = "blobs"
    default_size = 28
    drawing = {"version": 1}

    def make(self):
        rng = np.random.default_rng(0)
        images = rng.integers(0, 60, (16, 12, 1, 32, 32), dtype=np.uint8)
        for index, of_class in enumerate(images):
            row, column = divmod(index, 4)
            of_class[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 150
        return image_set_from_classes("blobs", [f"blob {i}" for i in range(16)], list(images))


register_protocol("glyphs-blobs", base=("glyphs", "base"), novel=("blobs", "novel"))
'''
SPLITS = {"base": range(8), "validation": range(8, 12), "novel": range(12, 16)}
SHORT = {
    "dataset": "blobs",
    "backbone": "thumbnails",
    "ways": 4,
    "queries": 2,
    "validation.episodes": 2,
    "validation.ways": 4,
    "validation.queries": 2,
    "validation.temperature_episodes": 2,
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder that the package is installed in: its modules, its class lists and its metadata."""
    folder = tmp_path_factory.mktemp("site-packages")
    (folder / NAME / "splits").mkdir(parents=True)
    modules = {"__init__": "", "head": HEAD, "backbone": BACKBONE, "blobs": DATASET}
    for module, code in modules.items():
        (folder / NAME / f"{module}.py").write_text(code)
    for part, indices in SPLITS.items():
        lines = "".join(f"blob {i}\n" for i in indices)
        (folder / NAME / "splits" / f"blobs-{part}.txt").write_text(lines)
    info = folder / f"{NAME}-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory, package):
    """A folder with one module that imports the same, without metadata: what --import is for."""
    folder = tmp_path_factory.mktemp("by-hand")
    shutil.copytree(package / NAME, folder / NAME)
    (folder / "blobs_by_hand.py").write_text(f"import {NAME}.head, {NAME}.backbone, {NAME}.blobs\n")
    return folder


def gpldla(*arguments, path=None, folder=None, environment=None):
    """Run the command in a process of its own; return its code, output and messages."""
    source = str(SOURCE)
    search = os.pathsep.join([source, *([str(path)] if path else [])])
    done = subprocess.run(
        [sys.executable, "-m", "gpldla", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": search, **(environment or {})},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def train(output, *more, episodes=4, **where):
    settings = [f"--set={key}={value}" for key, value in SHORT.items()]
    command = ("train", "glyphs", "-o", output, "--method", "nearest-blob", "--episodes", episodes)
    code, _, err = gpldla(*command, *settings, "--device", "cpu", *more, **where)
    assert code == 0, err


@pytest.fixture(scope="module")
def trained(tmp_path_factory, package):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, path=package)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name, grey in (("dark", 40), ("light", 200)):
        (folder / name).mkdir()
        for i in range(4):
            pixels = rng.integers(grey - 30, grey + 30, (32, 32), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


class TestInstalled:
    def test_a_model_is_trained_and_names_what_it_is_made_of(self, trained):
        config = json.loads((trained / "config.json").read_text())
        assert (config["head"], config["backbone"]) == ("nearest-blob", "thumbnails")
        assert config["preprocessing"]["interpolation"] == "bicubic"

    def test_it_is_evaluated_on_the_package_s_classes(self, trained, package):
        command = ("eval", trained, "--ways", 4, "--queries", 2, "--episodes", 5, "--repeats", 1, "--json")
        code, out, err = gpldla(*command, "--device", "cpu", path=package)
        assert code == 0, err
        numbers = json.loads(out)
        assert numbers["dataset"] == "blobs"
        assert numbers["accuracy"] == 100

    def test_its_data_set_and_protocols_are_listed(self, package):
        code, out, err = gpldla("data", "list", "--json", path=package)
        assert code == 0, err
        inventory = json.loads(out)
        assert inventory["sets"]["blobs"]["images"] == 16 * 12
        parts = inventory["protocols"]["blobs"]
        assert [parts[part]["classes"] for part in SPLITS] == [8, 4, 4]
        assert inventory["protocols"]["glyphs-blobs"]["novel"]["set"] == "blobs"

    def test_a_classifier_is_fitted_and_used(self, trained, package, photos, tmp_path):
        for name, model in (("trained", trained), ("backbone", "thumbnails")):
            file = tmp_path / f"{name}.safetensors"
            code, out, err = gpldla("fit", photos, "--model", model, "-o", file, "--json", path=package)
            assert code == 0, err
            code, out, err = gpldla("predict", file, photos / "dark", "--json", path=package)
            assert code == 0, err
            assert "dark" in out
        code, _, err = gpldla("predict", file, photos / "dark")  # the package is not installed any more
        assert code == 2
        assert "There is no backbone 'thumbnails'" in err
        assert "If another package has this backbone, install that package" in err

    def test_a_model_without_the_package_says_what_is_missing(self, trained):
        code, _, err = gpldla("eval", trained)
        assert code == 2
        assert "There is no backbone 'thumbnails'" in err
        assert "install that package or name its module with --import" in err

    def test_a_broken_package_does_not_break_others(self, package, tmp_path):
        broken = tmp_path / "broken-1.0.dist-info"
        broken.mkdir()
        (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        (broken / "entry_points.txt").write_text("[gpldla.datasets]\nstars = missing_module\n")
        both = os.pathsep.join([str(tmp_path), str(package)])
        code, out, err = gpldla("data", "list", "--json", path=both)
        assert code == 0, err
        assert "blobs" in json.loads(out)["sets"]
        assert "Plugin 'stars' (gpldla.datasets) of broken 1.0 cannot be loaded" in err
        code, _, err = gpldla("data", "show", "stars", path=both)
        assert code == 2
        assert "upgrade or uninstall that package" in err


class TestImported:
    """The same without installing anything."""

    def test_child_processes_know_it_by_the_environment(self, by_hand, tmp_path):
        environment = {"GPLDLA_IMPORT": "blobs_by_hand"}
        train(tmp_path / "run", "--devices", 2, folder=by_hand, environment=environment)
        assert json.loads((tmp_path / "run" / "config.json").read_text())["head"] == "nearest-blob"

    def test_from_python_a_child_process_knows_it_too(self, by_hand, tmp_path):
        code = (
            "import subprocess, sys\n"
            "from gpldla.utils.plugins import import_plugin\n"
            f"import_plugin({str(by_hand / 'blobs_by_hand.py')!r})\n"
            "from gpldla.heads import list_heads\n"
            "print('nearest-blob' in list_heads(), flush=True)\n"
            "child = 'from gpldla.data import list_protocols; print(list_protocols())'\n"
            "subprocess.run([sys.executable, '-c', child], check=True)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == "True"
        assert "glyphs-blobs" in second

    def test_the_option_of_the_command_line(self, by_hand, tmp_path):
        option = ("--import", "blobs_by_hand")
        code, out, err = gpldla(*option, "data", "list", "--json", folder=by_hand)
        assert code == 0, err
        assert "blobs" in json.loads(out)["sets"]
        code, _, err = gpldla("--import", "no_such_module", "data", "list", folder=by_hand)
        assert code == 2
        assert err.startswith("gpldla: --import no_such_module: the module cannot be imported")
