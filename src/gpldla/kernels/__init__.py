"""GPU kernels for slow sequences of plain operations; each has a plain version with the same results.

The modules here import Triton, so they are imported only where they are used, after `usable_for(...)`.
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
    """Return whether kernels can process this tensor: Triton is installed and has not failed yet."""
    return (
        tensor.is_cuda
        and not torch.compiler.is_compiling()
        and not _failures
        and find_spec("triton") is not None
    )


def try_or_fall_back(launch: Callable[[], Result]) -> Result | None:
    """Run a kernel; return None if Triton cannot build it, mostly for want of a compiler."""
    try:
        return launch()
    except torch.cuda.OutOfMemoryError:  # not a fault of Triton
        raise
    except Exception as error:  # whatever failed in Triton, plain operations give the same results
        _failures.append(str(error))  # its traceback would keep the tensors of the failed call alive
        warnings.warn(f"Triton failed ({error}); slower plain operations are used instead.", stacklevel=3)
        return None
