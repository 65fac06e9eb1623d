"""Few-shot methods, one a file; importing this package registers them all."""

from gpldla.heads import gpldla, protonet
from gpldla.heads.base import Head, Posterior, create_head, head_options, list_heads, register_head

__all__ = [
    "Head",
    "Posterior",
    "create_head",
    "gpldla",
    "head_options",
    "list_heads",
    "protonet",
    "register_head",
]
