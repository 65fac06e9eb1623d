"""Which device to compute on."""

import torch

from gpldla.utils.errors import UserError


def torch_device(name: str | torch.device) -> torch.device:
    """Return the device that a user names: auto, cpu, cuda, cuda:1 or mps.

    auto is a GPU with CUDA if there is one, else the CPU; never Apple's GPU (mps), which has no float64.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device: torch.device | None
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or not _is_usable(device):
        *others, last = _usable_names()
        raise UserError(f"There is no device {name!r} here; use {', '.join(others)} or {last}.")
    return device


def _is_usable(device: torch.device) -> bool:
    # Asked without creating a tensor: each process of a training would take memory on the first GPU.
    if device.type == "cuda":
        return (device.index or 0) < _gpu_count()
    return device.type == "cpu" or (device.type == "mps" and torch.backends.mps.is_available())


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _usable_names() -> list[str]:
    gpus = [f"cuda:{index}" for index in range(_gpu_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ["auto", "cpu", *(["cuda", *gpus[1:]] if gpus else []), *mps]
