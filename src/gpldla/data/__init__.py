"""Data sets, and the protocols that say which of their classes are base, validation and novel."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpldla.data.catalog import Access, list_protocols, list_sets, load_protocol, load_set
    from gpldla.data.paths import DataPaths
    from gpldla.data.protocols import Part, Protocol, register_protocol
    from gpldla.data.sets import register_dataset
    from gpldla.data.store import ImageSet

__all__ = [
    "Access",
    "DataPaths",
    "ImageSet",
    "Part",
    "Protocol",
    "list_protocols",
    "list_sets",
    "load_protocol",
    "load_set",
    "register_dataset",
    "register_protocol",
]

_MODULE_OF = {
    "Access": "catalog",
    "DataPaths": "paths",
    "ImageSet": "store",
    "Part": "protocols",
    "Protocol": "protocols",
    "list_protocols": "catalog",
    "list_sets": "catalog",
    "load_protocol": "catalog",
    "load_set": "catalog",
    "register_dataset": "sets",
    "register_protocol": "protocols",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: decoding a picture should not wait for torch, which sets need."""
    if name in _MODULE_OF:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
