import os
import pickle
import sys
import textwrap

import pytest

from gpldla.utils import plugins
from gpldla.utils.errors import UserError
from gpldla.utils.plugins import IMPORT_VARIABLE, import_plugin
from gpldla.utils.registry import Registry, UnknownNameError

GROUP = "gpldla.test-things"
SHAPES: Registry[object] = Registry("shape", group=GROUP)  # what the plugins of these tests register in


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing registered, nothing loaded, an empty current folder."""
    monkeypatch.setattr(plugins, "_loaded", set())
    monkeypatch.setattr(plugins, "_faults", {})
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv(IMPORT_VARIABLE, "")  # so that what is set later is gone after the test
    monkeypatch.chdir(tmp_path)
    for name in list(SHAPES):
        del SHAPES[name]
    plugins._loaded.clear()


@pytest.fixture
def module(tmp_path):
    """Write a module that registers a shape; its name is a new one in each test."""

    def write(name, code="", *, shape="hexagon"):
        lines = [f"from {__name__} import SHAPES", f"SHAPES.register({shape!r})(object())", code]
        (tmp_path / f"{name}.py").write_text("\n".join(lines))
        return name

    return write


@pytest.fixture
def distribution(monkeypatch, tmp_path_factory):
    """Install a distribution with entry points of the group, and modules."""

    def install(name, entry_points, **modules):
        folder = tmp_path_factory.mktemp(name)
        info = folder / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{key} = {value}" for key, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        for module, code in modules.items():
            (folder / f"{module}.py").write_text(f"from {__name__} import SHAPES\n{textwrap.dedent(code)}")
        monkeypatch.syspath_prepend(str(folder))

    return install


class TestRegistry:
    def test_finds_what_is_registered(self):
        square = object()
        SHAPES.register("square")(square)
        assert SHAPES.find("square") is square
        assert list(SHAPES) == ["square"]
        assert len(SHAPES) == 1

    def test_an_unknown_name_suggests_the_nearest(self):
        SHAPES.register("square")(object())
        with pytest.raises(
            UnknownNameError, match=r"There is no shape 'sqare'; did you mean 'square'\?"
        ) as error:
            SHAPES.find("sqare")
        copy = pickle.loads(pickle.dumps(error.value))
        assert (copy.kind, copy.name, str(copy)) == ("shape", "sqare", str(error.value))

    def test_a_taken_name_is_refused(self):
        SHAPES.register("square")(object)
        with pytest.raises(UserError, match="is a shape 'square' already; choose another name"):
            SHAPES.register("square")(dict)
        assert SHAPES["square"] is object

    def test_a_definition_may_be_registered_again(self):
        def define():
            class Square:
                pass

            return Square

        SHAPES.register("square")(define())
        again = SHAPES.register("square")(define())
        assert SHAPES["square"] is again


class TestEntryPoints:
    def test_are_loaded_when_a_name_is_unknown(self, distribution):
        distribution("round", {"circle": "round_things"}, round_things="SHAPES.register('circle')(1)")
        SHAPES.register("square")(object())
        assert SHAPES["square"]
        assert GROUP not in plugins._loaded
        assert SHAPES.find("circle") == 1

    def test_are_loaded_when_names_are_listed(self, distribution):
        distribution("round2", {"oval": "oval_things"}, oval_things="SHAPES.register('oval')(1)")
        assert "oval" in sorted(SHAPES)

    def test_may_look_names_up_themselves(self, distribution):
        code = "SHAPES.register('ring')(1)\nassert 'unknown' not in SHAPES"
        distribution("rings", {"ring": "ring_things"}, ring_things=code)
        assert SHAPES.find("ring") == 1

    def test_a_broken_one_is_named_and_leaves_others_alone(self, distribution):
        distribution("broken", {"star": "star_things"}, star_things="import missing_module_of_stars")
        distribution("whole", {"arc": "arc_things"}, arc_things="SHAPES.register('arc')(1)")
        message = (
            r"Plugin 'star' \(gpldla.test-things\) of broken 1.2 cannot be loaded \(ModuleNotFoundError: No"
            r" module named 'missing_module_of_stars'\); upgrade or uninstall that package."
        )
        with pytest.warns(UserWarning, match=message):
            assert SHAPES.find("arc") == 1
        with pytest.raises(UserError, match=message):
            SHAPES.find("star")

    def test_a_taken_name_is_refused(self, distribution):
        SHAPES.register("square")(object())
        distribution("thief", {"square": "thieving"}, thieving="SHAPES.register('square')(1)")
        with pytest.warns(UserWarning, match="cannot be loaded .* There is a shape 'square' already"):
            assert list(SHAPES) == ["square"]
        assert SHAPES["square"] != 1

    def test_one_that_registers_another_name_is_named(self, distribution):
        distribution("misnamed", {"disc": "disc_things"}, disc_things="SHAPES.register('disk')(1)")
        with pytest.raises(UserError, match=r"of misnamed 1\.2 registers nothing under that name"):
            SHAPES.find("disc")


class TestImport:
    def test_of_a_module_in_the_current_folder(self, module):
        import_plugin(module("shapes_in_folder"))
        assert "hexagon" in SHAPES

    def test_of_a_file(self, module, tmp_path, monkeypatch):
        module("shapes_in_file")
        monkeypatch.chdir("/")
        import_plugin(str(tmp_path / "shapes_in_file.py"))
        assert "hexagon" in SHAPES

    def test_child_processes_import_it_too(self, module, tmp_path):
        import_plugin(module("shapes_for_children"))
        import_plugin(module("more_for_children", shape="octagon"))
        import_plugin("more_for_children")
        files = [str(tmp_path / f"{name}.py") for name in ("shapes_for_children", "more_for_children")]
        assert os.environ[IMPORT_VARIABLE].split(os.pathsep) == files

    def test_an_installed_module_keeps_its_name(self):
        import_plugin("textwrap")
        assert os.environ[IMPORT_VARIABLE] == "textwrap"

    def test_a_registry_imports_what_the_environment_names(self, module, monkeypatch):
        monkeypatch.setenv(IMPORT_VARIABLE, module("shapes_by_environment"))
        assert "hexagon" in SHAPES

    def test_a_wrong_environment_is_named_each_time(self, monkeypatch):
        monkeypatch.setenv(IMPORT_VARIABLE, "no_such_shapes")
        for _ in range(2):
            with pytest.raises(UserError, match="GPLDLA_IMPORT=no_such_shapes: the module cannot"):
                SHAPES.find("hexagon")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no_such_module", "--import no_such_module: the module cannot be imported .ModuleNotFoundError"),
            (
                "no_such_file.py",
                "--import no_such_file.py: there is no file .*; name a module or a Python file",
            ),
            ("json.py", "--import json.py: Python knows another module 'json'"),
            (
                "faulty",
                r"faulty: the module cannot be imported \(ZeroDivisionError: division by zero\)",
            ),
            ("", "cannot be imported"),
        ],
    )
    def test_what_cannot_be_imported_is_one_sentence(self, tmp_path, name, message):
        (tmp_path / "json.py").touch()
        (tmp_path / "faulty.py").write_text("1 / 0")
        with pytest.raises(UserError, match=message) as error:
            import_plugin(name)
        assert "\n" not in str(error.value)
        assert not os.environ[IMPORT_VARIABLE]

    def test_a_taken_name_is_refused(self, module):
        SHAPES.register("hexagon")(dict)
        with pytest.raises(UserError, match="--import shapes_taken: There is a shape 'hexagon' already"):
            import_plugin(module("shapes_taken"))
