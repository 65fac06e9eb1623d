import sys
from pathlib import Path

import pytest

from gpldla.data.paths import DataPaths

VARIABLES = ("GPLDLA_DATA", "GPLDLA_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder, and an environment that names no place."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def both(places):
    return places.root, places.cache


class TestOrder:
    def test_what_was_chosen_comes_first(self, monkeypatch):
        monkeypatch.setenv("GPLDLA_DATA", "/environment/data")
        monkeypatch.setenv("GPLDLA_CACHE", "/environment/cache")
        assert both(DataPaths("/chosen/data", Path("/chosen/cache"))) == (
            Path("/chosen/data"),
            Path("/chosen/cache"),
        )

    def test_the_environment_comes_second(self, monkeypatch):
        monkeypatch.setenv("GPLDLA_DATA", "/environment/data")
        monkeypatch.setenv("GPLDLA_CACHE", "/environment/cache")
        monkeypatch.setenv("XDG_DATA_HOME", "/xdg/data")
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg/cache")
        assert both(DataPaths()) == (Path("/environment/data"), Path("/environment/cache"))

    def test_root_and_cache_are_chosen_apart(self, monkeypatch):
        monkeypatch.setenv("GPLDLA_CACHE", "/environment/cache")
        assert both(DataPaths("/chosen/data")) == (Path("/chosen/data"), Path("/environment/cache"))

    def test_an_empty_variable_counts_as_none(self, monkeypatch, home):
        for name in VARIABLES:
            monkeypatch.setenv(name, "")
        assert both(DataPaths()) == (home / ".local/share/gpldla", home / ".cache/gpldla")

    def test_the_environment_is_asked_when_the_place_is(self, monkeypatch):
        places = DataPaths()
        monkeypatch.setenv("GPLDLA_DATA", "/later")
        assert places.root == Path("/later")

    def test_a_tilde_is_the_home_folder(self, monkeypatch, home):
        monkeypatch.setenv("GPLDLA_DATA", "~/data")
        assert both(DataPaths(chosen_cache="~/cache")) == (home / "data", home / "cache")

    def test_asking_creates_nothing(self, home):
        both(DataPaths())
        assert list(home.iterdir()) == []


class TestPlatforms:
    def test_linux(self, home):
        assert both(DataPaths()) == (home / ".local/share/gpldla", home / ".cache/gpldla")

    def test_linux_with_folders_of_ones_own(self, monkeypatch):
        monkeypatch.setenv("XDG_DATA_HOME", "/xdg/data")
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg/cache")
        assert both(DataPaths()) == (Path("/xdg/data/gpldla"), Path("/xdg/cache/gpldla"))

    def test_macos(self, monkeypatch, home):
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setenv("XDG_DATA_HOME", "/not/asked")
        assert both(DataPaths()) == (
            home / "Library/Application Support/gpldla",
            home / "Library/Caches/gpldla",
        )

    def test_windows(self, monkeypatch, home):
        monkeypatch.setattr(sys, "platform", "win32")
        assert both(DataPaths()) == (home / "AppData/Local/gpldla/data", home / "AppData/Local/gpldla/cache")
        monkeypatch.setenv("LOCALAPPDATA", "/local")
        assert both(DataPaths()) == (Path("/local/gpldla/data"), Path("/local/gpldla/cache"))
