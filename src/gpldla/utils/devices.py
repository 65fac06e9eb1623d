"""Devices, by their names on the command line."""

import torch

from gpldla.utils.errors import UserError


def torch_device(name: str) -> str:
    """Return torch's name for auto (a GPU where there is one), cpu or cuda."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"There is no device {name!r}; use auto, cpu or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("There is no CUDA device on this machine; use --device cpu.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
