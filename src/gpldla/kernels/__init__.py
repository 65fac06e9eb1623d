"""GPU kernels for what plain operations do too slowly; each has a plain version that gives the same.

The modules here import Triton, so they are imported where they are used, and only if `usable_for(...)`.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
_failures: list[str] = []


def usable_for(tensor: Tensor) -> bool:
    """Say whether kernels can work on this tensor: Triton is there and has not failed yet."""
    return (
        tensor.is_cuda
        and not torch.compiler.is_compiling()
        and not _failures
        and find_spec("triton") is not None
    )


def try_or_fall_back(launch: Callable[[], Result]) -> Result | None:
    """Run a kernel; None where Triton cannot build it, for want of a compiler mostly."""
    try:
        return launch()
    except torch.cuda.OutOfMemoryError:  # no fault of Triton's
        raise
    except Exception as error:  # whatever Triton ran into, plain operations give the same answer
        _failures.append(str(error))  # its traceback would keep the tensors of the failed call alive
        warnings.warn(f"Triton failed ({error}); plain operations take its place, slower.", stacklevel=3)
        return None
