"""Data sets, and the protocols that say which of their classes are base, validation and novel."""

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
