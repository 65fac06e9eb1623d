"""Modules from outside the package, which register heads, backbones and data sets when imported."""

import os
from importlib import import_module

from gpldla.utils.errors import UserError

IMPORT_VARIABLE = "GPLDLA_IMPORT"  # modules named by --import, for child processes; separated like PATH


def import_plugin(name: str) -> None:
    """Import a module by its name, such as my_package.heads, here and in all child processes."""
    try:
        import_module(name)
    except Exception as error:  # whatever foreign code raises
        raise UserError(
            f"--import {name}: the module cannot be imported ({type(error).__name__}: {error});"
            " check its name and that it is on PYTHONPATH."
        ) from None
    known = os.environ.get(IMPORT_VARIABLE, "").split(os.pathsep)
    if name not in known:
        os.environ[IMPORT_VARIABLE] = os.pathsep.join([*filter(None, known), name])
