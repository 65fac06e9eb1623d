"""GPU kernels for what plain operations do too slowly; each has a plain version that gives the same.

The modules here import Triton, so they are imported where they are used, and only if `usable_for(...)`.
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
    """Say whether kernels can work on this tensor: Triton is there and has not failed yet."""
    return (
        tensor.is_cuda
        and not torch.compiler.is_compiling()
        and USE.allowed
        and find_spec("triton") is not None
    )


def try_or_fall_back(launch: Callable[[], Result]) -> Result | None:
    """Run a kernel; None where Triton cannot build it, for want of a compiler mostly."""
    try:
        return launch()
    except torch.cuda.OutOfMemoryError:  # no fault of Triton's
        raise
    except Exception as error:  # whatever Triton ran into, plain operations give the same answer
        USE.failure = str(error)  # its traceback would keep the tensors of the failed call alive
        warnings.warn(f"Triton failed ({error}); plain operations take its place, slower.", stacklevel=3)
        return None
