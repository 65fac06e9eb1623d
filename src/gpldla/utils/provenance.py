"""The origin of measured numbers: commit and device."""

import platform
import subprocess
from pathlib import Path

import torch


def provenance(device: str | torch.device | None = None) -> dict[str, str]:
    """Return the commit and the device, for the JSON in results/; by default CUDA if available."""
    kind = torch.device(device).type if device else ("cuda" if torch.cuda.is_available() else "cpu")
    return {"commit": _commit(), "device": f"{_device(kind)}, torch {torch.__version__}"}


def _commit() -> str:
    """Return the commit of this code, if it is in a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:  # no git
        return "unknown"


def _device(kind: str) -> str:
    if kind == "cuda":
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU threads, {platform.machine()}"
