"""The origin of measured numbers: commit and device."""

import platform
import subprocess
from pathlib import Path

import torch

from gpldla.utils.devices import torch_device


def provenance(device: str | torch.device | None = None) -> dict[str, str]:
    """Return the commit and the device, for the JSON in results/; by default CUDA where there is one."""
    where = _device(torch_device(device or "auto"))
    return {"commit": _commit(), "device": f"{where}, torch {torch.__version__}"}


def _commit() -> str:
    """Return the commit of this code, if it is in a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:  # no git
        return "unknown"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads, {platform.machine()}"
