"""Where images come from, and which classes make a benchmark."""

from gpldla.data.catalog import Access, list_protocols, list_sets, load_protocol, load_set
from gpldla.data.paths import DataPaths
from gpldla.data.protocols import Part, Protocol
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
]
