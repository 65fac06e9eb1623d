"""The checksum of a classifier's file. Nothing here needs torch."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

KIND, FORMAT = "gpldla classifier", 1
FORMAT_WITH_OWN_PRIOR = 2  # earlier versions, which would leave out the own prior, or class names, refuse it
CHECKSUM = "checksum"


def checksum(tensors: Iterable[tuple[str, str, list[int], memoryview]], info: dict[str, Any]) -> str:
    """Return a digest of everything in a file except the digest itself.

    tensors: name, type as torch writes it, shape and bytes of each, in any order
    """
    # Through JSON once, as in the file, where every key is a string.
    facts = json.loads(json.dumps({name: value for name, value in info.items() if name != CHECKSUM}))
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, dtype, shape, content in sorted(tensors, key=lambda tensor: tensor[0]):
        digest.update(f"\n{name} {dtype} {shape}\n".encode())
        digest.update(content)
    return digest.hexdigest()
