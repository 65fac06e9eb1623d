"""`gpldla cache`: it counts and removes what the package has written, and nothing else."""

import json
import re

import pytest

from tests.classifier.test_answers import write_pictures


@pytest.fixture
def cache(run, tmp_path):
    """A cache with features and a packed data set, and files of somebody else's in the same folder."""
    photos, folder = write_pictures(tmp_path / "photos"), tmp_path / "cache"
    arguments = ["--model", "pixels", "--device", "cpu", "--cache", folder]
    assert run("fit", photos, "-o", tmp_path / "c", *arguments)[0] == 0
    name = f"folder:{photos},split=novel"
    assert run("data", "prepare", name, "--side", 8, "--cache", folder)[0] == 0
    for other in ("notes.txt", "features/mine.csv", "photos-0123456789/1.jpg"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("mine")
    (folder / "graphs").mkdir(exist_ok=True)
    (folder / "graphs" / "abc-1.onnx").write_bytes(bytes(1_500_000))
    return folder


@pytest.fixture
def parts(run, cache):
    def measured():
        code, out, _ = run("cache", "size", "--json", "--cache", cache)
        assert code == 0
        return {name: part["bytes"] for name, part in json.loads(out)["parts"].items()}

    return measured


def test_the_size_is_that_of_its_own_files(run, cache, parts):
    files = [path for path in cache.rglob("*") if path.is_file() and path.read_bytes() != b"mine"]
    assert sum(parts().values()) == sum(file.stat().st_size for file in files)
    assert all(parts().values())
    code, out, _ = run("cache", "size", "--cache", cache)
    assert code == 0
    assert str(cache) in out
    assert re.search(r"graphs +│ +1 │ +1\.5 MB", out)


def test_clearing_keeps_packed_data_sets_unless_they_are_named(run, cache, parts):
    before = parts()
    code, out, err = run("cache", "clear", "--cache", cache)
    assert (code, out) == (0, "")
    assert err.startswith("Removed 1.5 MB of features and graphs from")
    assert parts() == {"features": 0, "graphs": 0, "stores": before["stores"]}
    assert run("cache", "clear", "all", "--cache", cache)[0] == 0
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert left == ["features/mine.csv", "notes.txt", "photos-0123456789/1.jpg"]


def test_it_is_filled_again(run, cache, tmp_path):
    assert run("cache", "clear", "all", "--cache", cache)[0] == 0
    assert run("predict", tmp_path / "c", tmp_path / "photos", "--cache", cache)[0] == 0
    assert list((cache / "features").glob("*.sqlite"))


def test_an_unknown_part_and_an_empty_cache(refused, run, tmp_path):
    assert "no part 'feature'; did you mean 'features'?" in refused("cache", "clear", "feature")
    assert run("cache", "clear", "--cache", tmp_path / "none") == (
        0,
        "",
        f"Removed 0 bytes of features and graphs from {tmp_path / 'none'}.\n",
    )
