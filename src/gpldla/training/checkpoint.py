"""The state of a training run as one safetensors file: nothing that is loaded is code."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors, write_tensors

FILE = "training-state.safetensors"


@dataclass
class TrainingState:
    """Everything that resuming needs: named groups of tensors, and plain values as JSON."""

    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Replace the state that was written before, atomically."""
        flat = {f"{group}/{name}": t for group, named in self.tensors.items() for name, t in named.items()}
        write_tensors(folder / FILE, flat, self.values)

    @classmethod
    def read(cls, folder: Path) -> "TrainingState":
        """Read the state that `write` left."""
        flat, values = read_tensors(folder / FILE)
        if not isinstance(values, dict) or not isinstance(values.get("recipe"), dict):
            raise UserError(f"{folder / FILE} is not the state of a training; choose another folder.")
        tensors: dict[str, dict[str, Tensor]] = {}
        for full_name, tensor in flat.items():
            group, _, name = full_name.partition("/")
            tensors.setdefault(group, {})[name] = tensor
        return cls(tensors, values)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's moments as 'INDEX.NAME', with the index of the parameter."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value for index, moments in state.items() for name, value in moments.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore what `optimizer_tensors` returned; rates follow from the position and are not stored."""
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        index, _, name = full_name.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if name != "step" and moment.shape == parameter.shape:
                # Fused Adam walks through both in the order of their memory.
                moments[name] = torch.empty_like(parameter).copy_(moment)
