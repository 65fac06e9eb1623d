"""Where images come from, and which classes make a benchmark."""

from gpldla.data.protocols import Part, Protocol, list_protocols, list_sets, load_protocol, load_set
from gpldla.data.store import ImageSet, cache_folder

__all__ = [
    "ImageSet",
    "Part",
    "Protocol",
    "cache_folder",
    "list_protocols",
    "list_sets",
    "load_protocol",
    "load_set",
]
