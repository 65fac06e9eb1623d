"""Views of a network that leave the network itself alone, so that threads may share it."""

import copy
from typing import TypeVar

import torch
from torch import nn

from gpldla.utils.errors import UserError

Module = TypeVar("Module", bound=nn.Module)


def shared_copy(module: Module) -> Module:
    """Copy a tree of modules but not its tensors: the copy has its own flags and the same parameters."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    try:
        return copy.deepcopy(module, tensors)
    except (RuntimeError, TypeError, NotImplementedError) as error:  # as torch says it for other tensors
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"{type(module).__name__} is in training mode and cannot be copied ({reason}); call its eval()."
        ) from None


def evaluating(module: Module) -> Module:
    """Return a module in evaluation mode: itself if all of it is, else a copy that shares its tensors.

    No flag of the module changes, not even for a moment: another thread may be using it.
    """
    if not any(part.training for part in module.modules()):
        return module
    return shared_copy(module).eval()


def device_of(module: nn.Module) -> torch.device:
    """Return where a module is: on the CPU if it has no parameters."""
    return next(module.parameters(), torch.empty(0)).device
