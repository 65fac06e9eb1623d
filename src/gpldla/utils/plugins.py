"""Code from outside the package: entry points of installed distributions, and modules that a user names.

A plugin registers its heads, backbones and data sets with the same decorators as the package itself. Entry
points are loaded only when a registry meets a name that it does not know, or lists its names.
"""

import importlib
import os
import sys
import threading
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from gpldla.utils.errors import UserError

IMPORT_VARIABLE = "GPLDLA_IMPORT"  # modules named by --import, for child processes; separated like PATH

_lock = threading.RLock()
_loaded: set[str] = set()  # entry point groups, and IMPORT_VARIABLE
_faults: dict[tuple[str, str], str] = {}  # by group and name: what a user hears who asks for that name


def import_plugin(name: str) -> None:
    """Import a module by its name, or a Python file by its path, here and in all child processes.

    Modules in the current folder are found, too, after those that are installed.
    """
    module = _import(name, f"--import {name}")
    known = os.environ.get(IMPORT_VARIABLE, "").split(os.pathsep)
    file = Path(name if _is_file(name) else f"{name}.py").absolute()
    # A file's path rather than its name: child processes may run in another folder.
    by_path = _is_file(name) or getattr(module, "__file__", None) == str(file)
    entry = str(file) if by_path else name
    if entry not in known:
        os.environ[IMPORT_VARIABLE] = os.pathsep.join([*filter(None, known), entry])


def load_plugins(group: str) -> None:
    """Import the modules in GPLDLA_IMPORT and the entry points of a group, each once per process.

    An entry point that fails gives a warning and leaves the others alone.
    """
    with _lock:
        if IMPORT_VARIABLE not in _loaded:
            for name in filter(None, os.environ.get(IMPORT_VARIABLE, "").split(os.pathsep)):
                _import(name, f"{IMPORT_VARIABLE}={name}")
            _loaded.add(IMPORT_VARIABLE)
        if group not in _loaded:
            _loaded.add(group)  # first: a plugin may look names up while it is imported
            for entry_point in entry_points(group=group):
                _load(entry_point)


def plugin_fault(group: str, name: str) -> str | None:
    """Return why an entry point of this name, if there is one, has registered nothing under it."""
    return _faults.get((group, name))


def _load(entry_point: EntryPoint) -> None:
    distribution = entry_point.dist
    owner = "an unknown package" if distribution is None else f"{distribution.name} {distribution.version}"
    plugin = f"Plugin {entry_point.name!r} ({entry_point.group}) of {owner}"
    key = (entry_point.group, entry_point.name)
    try:
        entry_point.load()
    except Exception as error:  # whatever the code of a stranger raises
        _faults[key] = f"{plugin} cannot be loaded ({_describe(error)}); upgrade or uninstall that package."
        warnings.warn(_faults[key], stacklevel=2)
    else:
        _faults[key] = (
            f"{plugin} registers nothing under that name; in {entry_point.value}, give the name of the entry"
            " point to the decorator that registers it."
        )


def _is_file(name: str) -> bool:
    return name.endswith(".py")


def _import(name: str, asked: str) -> ModuleType:
    file = Path(name).absolute() if _is_file(name) else None
    if file is not None and not file.is_file():
        raise UserError(f"{asked}: there is no file {file}; name a module or a Python file.")
    folder = str(Path.cwd() if file is None else file.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name if file is None else file.stem)
    except UserError as error:
        raise UserError(f"{asked}: {error}") from None
    except Exception as error:  # whatever the code of a stranger raises
        raise UserError(
            f"{asked}: the module cannot be imported ({_describe(error)}); correct it, or name a module that"
            " is installed or lies in the current folder."
        ) from None
    found = getattr(module, "__file__", None)
    if file is not None and (found is None or not file.samefile(found)):
        raise UserError(f"{asked}: Python knows another module {file.stem!r} ({found}); rename the file.")
    return module


def _describe(error: Exception) -> str:
    first_line = str(error).strip().split("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
