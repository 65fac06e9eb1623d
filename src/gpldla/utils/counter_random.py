"""Counter-based random numbers: each follows from a key alone, on any device, in any order and process.

The generator has no state, so nothing needs to be stored or sent to draw the same numbers again.
"""

import hashlib

import torch
from torch import Tensor


def stream(*words: object) -> int:
    """Return the first counter of one stream of random numbers, such as that of (seed, split); 64 bits."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def splitmix64(x: Tensor) -> Tensor:
    """Scramble int64 one to one by splitmix64, which turns consecutive counters into random keys.

    Multiplications wrap around; shifts are made logical by masking the sign.
    """
    x = x * -7046029254386353131  # the odd constant 0x9E3779B97F4A7C15 spreads consecutive counters
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685  # 0x94D049BB133111EB
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def uniforms(keys: Tensor, count: int) -> Tensor:
    """Return `count` numbers from [0, 1) for each key: int64 [...] → float32 [..., count]."""
    counters = torch.arange(count, device=keys.device)
    bits = splitmix64(splitmix64(keys).unsqueeze(-1) + counters)
    return ((bits >> 40) & 0xFFFFFF).float() * 2.0**-24
