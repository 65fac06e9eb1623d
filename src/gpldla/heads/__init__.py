"""Few-shot methods, one per file; importing this package registers all of them."""

from importlib import import_module
from pkgutil import iter_modules

from gpldla.heads.base import (
    Head,
    Posterior,
    create_head,
    head_class,
    head_options,
    list_heads,
    register_head,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Head", "Posterior", "create_head", "head_class", "head_options", "list_heads", "register_head"]
