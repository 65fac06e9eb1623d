"""Where a measured number comes from."""

import platform
import subprocess

import torch


def provenance() -> dict[str, str]:
    """Return the commit and the device, for the JSON in results/."""
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "commit": answer.stdout.strip() or "unknown",
        "device": f"{_device()}, torch {torch.__version__}",
    }


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU threads, {platform.machine()}"
