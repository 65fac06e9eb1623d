import pytest
import torch
from torch import nn

from gpldla.training.checkpoint import optimizer_tensors, restore_optimizer


class Model(nn.Module):
    """Weights that lie channels last, and a number in float64, as GPLDLA's β is."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.log_beta = nn.Parameter(torch.zeros((), dtype=torch.float64))


def take_steps(model, optimizer, count):
    for number in range(count):
        for parameter in model.parameters():
            generator = torch.Generator().manual_seed(number)
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter.ndim == 4:
                parameter.grad = parameter.grad.contiguous(memory_format=torch.channels_last)
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True], ids=["", "fused"])
def test_an_optimizer_goes_on_as_if_it_had_not_stopped(fused):
    torch.manual_seed(0)
    whole, parts = Model(), Model()
    parts.load_state_dict(whole.state_dict())
    one, first = (torch.optim.Adam(model.parameters(), 0.1, fused=fused) for model in (whole, parts))
    take_steps(whole, one, 3)
    take_steps(parts, first, 3)
    stored = {name: tensor.contiguous() for name, tensor in optimizer_tensors(first).items()}
    second = torch.optim.Adam(parts.parameters(), 0.1, fused=fused)
    restore_optimizer(second, stored)
    for parameter, moments in second.state.items():
        assert moments["step"].dtype == torch.float32, "whatever the parameter is"
        assert moments["exp_avg"].stride() == parameter.stride()
    take_steps(whole, one, 2)
    take_steps(parts, second, 2)
    for ours, theirs in zip(parts.parameters(), whole.parameters()):
        assert torch.equal(ours, theirs)
