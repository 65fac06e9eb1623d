"""Typed wrappers of two functions that Triton and torch leave untyped."""

from collections.abc import Callable
from typing import Any, cast

import torch
import triton
from torch import Tensor


def jit(function: Callable[..., Any]) -> Any:
    """Compile a kernel, to be launched as `kernel[grid](...)`, or a function that kernels call."""
    return triton.jit(function)


def apply_function(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """Call a differentiable function that returns one tensor."""
    return cast(Tensor, cast(Any, function).apply(*arguments))
