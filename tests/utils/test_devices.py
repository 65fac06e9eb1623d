import pytest
import torch

from gpldla.utils.devices import torch_device
from gpldla.utils.errors import UserError


@pytest.fixture
def gpus(monkeypatch):
    """Let torch report so many GPUs, and no Apple GPU."""

    def report(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    return report


@pytest.mark.parametrize(("count", "auto"), [(0, "cpu"), (2, "cuda")])
def test_auto_is_a_gpu_if_there_is_one(gpus, count, auto):
    gpus(count)
    assert torch_device("auto") == torch.device(auto)


def test_a_named_device_is_that_device(gpus):
    gpus(2)
    for name in ("cpu", "cuda", "cuda:1", torch.device("cuda:1")):
        assert torch_device(name) == torch.device(name)


@pytest.mark.parametrize(
    ("count", "name", "usable"),
    [
        (0, "tpu", "auto or cpu"),
        (0, "cuda", "auto or cpu"),
        (0, None, "auto or cpu"),
        (0, "meta", "auto or cpu"),
        (0, "mps", "auto or cpu"),
        (1, "cuda:1", "auto, cpu or cuda"),
        (2, "gpu", "auto, cpu, cuda or cuda:1"),
    ],
)
def test_a_device_that_is_not_usable_is_named_with_those_that_are(gpus, count, name, usable):
    gpus(count)
    with pytest.raises(UserError) as error:
        torch_device(name)
    assert str(error.value) == f"There is no device {name!r} here; use {usable}."


def test_apples_gpu_is_taken_only_when_asked_for(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert torch_device("auto") == torch.device("cpu")
    assert torch_device("mps") == torch.device("mps")
    with pytest.raises(UserError, match=r"use auto, cpu or mps\.$"):
        torch_device("cuda")
