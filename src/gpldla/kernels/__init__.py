"""GPU kernels for slow sequences of plain operations; each has a plain version with the same results.

The modules here import Triton, so they are imported only where they are used, after `usable_for(...)`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class KernelUse:
    """Whether this process uses kernels: one state for all of them, as what one lacks they all lack.

    failure: why a kernel could not be built; plain operations take the place of all from then on
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._disabled = False

    @property
    def allowed(self) -> bool:
        """Whether no kernel has failed and they are not disabled."""
        return self.failure is None and not self._disabled

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Use plain operations everywhere in this process for a while, such as to compare times."""
        before, self._disabled = self._disabled, True
        try:
            yield
        finally:
            self._disabled = before


USE = KernelUse()


def usable_for(tensor: Tensor) -> bool:
    """Return whether kernels can process this tensor: Triton is installed and has not failed yet."""
    return (
        tensor.is_cuda
        and not torch.compiler.is_compiling()
        and USE.allowed
        and find_spec("triton") is not None
    )


def try_or_fall_back(launch: Callable[[], Result]) -> Result | None:
    """Run a kernel; return None if Triton cannot build it, mostly for want of a compiler."""
    try:
        return launch()
    except torch.cuda.OutOfMemoryError:  # not a fault of Triton
        raise
    except Exception as error:  # whatever failed in Triton, plain operations give the same results
        USE.failure = str(error)  # its traceback would keep the tensors of the failed call alive
        warnings.warn(f"Triton failed ({error}); slower plain operations are used instead.", stacklevel=3)
        return None
