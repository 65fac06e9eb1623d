"""The processes that train one model together: starting them, and summing over them.

Each works on episodes of its own. Gradients and statistics are summed once per update, in one message, so
that it does not matter what a head did in between. For that reason the model is not wrapped in DDP.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning_fabric.utilities.distributed import _set_num_threads_if_needed
from torch import Tensor, nn

from gpldla.utils.errors import RunError, UserError

POLL_SECONDS = 0.5  # between checks of the processes that were started
# At least one is set where a launcher or scheduler connects machines.
CLUSTER_VARIABLES = (
    "SLURM_NTASKS",
    "MASTER_ADDR",
    "NODE_RANK",
    "GROUP_RANK",
    "LSB_JOBID",
    "KUBERNETES_PORT",
    "OMPI_COMM_WORLD_SIZE",
)
PARENT_PID_VARIABLE = "GPLDLA_STARTED_BY"  # set by the first process of a node for those that it starts

_run_ended = threading.Event()  # stops the watching threads: this process may end at any time


class ProcessGroup:
    """The processes of a run, from the view of one of them."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.world_size, self.rank = fabric.world_size, fabric.global_rank

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0

    def local_indices(self, count: int) -> range:
        """Return which of 0 .. count - 1 this process works on."""
        return range(self.rank, count, self.world_size)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all processes; one message per dtype."""
        if self.world_size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # in the same order everywhere
            same_dtype = [tensor for tensor in tensors if tensor.dtype == dtype]
            message = torch.cat([tensor.detach().reshape(-1) for tensor in same_dtype])
            message = cast(Tensor, self._fabric.all_reduce(message, reduce_op="sum"))
            sizes = [tensor.numel() for tensor in same_dtype]
            for tensor, part in zip(same_dtype, torch.split(message, sizes)):
                tensor.detach().copy_(part.view_as(tensor))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process; all of them must call this."""
        if self.world_size == 1:
            return flag  # without waiting for a GPU
        total = torch.tensor([float(flag)], device=self._fabric.device)
        self.all_reduce_sum([total])
        return bool(total.item() > 0)


def make_fabric(device: torch.device, devices: int, nodes: int, precision: str) -> Fabric:
    """Return Fabric for one process, or for many: started here, or by torchrun or SLURM."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it logs each step of its own
    devices, nodes = _as_launched(devices, nodes)
    settings: dict[str, Any] = {"accelerator": device.type, "precision": precision}
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise UserError(f"--devices {devices} is more than the {torch.cuda.device_count()} GPUs here.")
    numbered = device.type == "cuda" and device.index is not None
    if devices * nodes == 1:
        return Fabric(devices=[device.index] if numbered else 1, **settings)
    if numbered:
        raise UserError(f"--device {device} is a single GPU; use --device cuda with --devices or --nodes.")
    return Fabric(devices=devices, num_nodes=nodes, strategy=_UnwrappedDDPStrategy(), **settings)


def _as_launched(devices: int, nodes: int) -> tuple[int, int]:
    """Return devices per node and nodes: as requested, or as torchrun has started processes."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        if nodes > 1 and not any(name in os.environ for name in CLUSTER_VARIABLES):
            raise UserError(
                f"--nodes {nodes} needs srun or torchrun to start it on every machine, or MASTER_ADDR and"
                " NODE_RANK in the environment of each; see docs/training.md."
            )
        return devices, nodes
    here, all_ = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if (devices, nodes) not in ((1, 1), (here, all_ // here)):
        raise UserError(
            f"torchrun has started {here} processes on each of {all_ // here} nodes;"
            f" leave out --devices {devices} and --nodes {nodes}."
        )
    return here, all_ // here


class _UnwrappedDDPStrategy(DDPStrategy):
    """Fabric's processes and messages, without wrapping the model."""

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        return module

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = _Launcher(self.cluster_environment, self.num_processes, self.num_nodes)


class _Launcher(_SubprocessScriptLauncher):
    """Starts the same command for every other process of this node; ends when one of them is lost."""

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            os.environ[PARENT_PID_VARIABLE] = str(os.getpid())
            self._call_children_scripts()
            threading.Thread(target=_watch_children, args=(self.procs,), daemon=True).start()
        elif os.environ.get(PARENT_PID_VARIABLE, str(os.getpid())) != str(os.getpid()):
            first = int(os.environ[PARENT_PID_VARIABLE])
            threading.Thread(target=_watch_parent, args=(first,), daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


def _watch_children(processes: list[subprocess.Popen[bytes]]) -> None:
    """End this process as soon as one that it started has failed: the others may wait for it forever."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [(code, number) for number, code in enumerate(codes, 1) if code]
        if failed:
            code, number = min(failed)  # a signal comes before processes that only lost the connection
            print(
                f"gpldla: Process {number} of {len(processes) + 1} ended with"
                f" {f'signal {-code}' if code < 0 else f'code {code}'}, so the run ends;"
                " the same command goes on from the last checkpoint.",
                file=sys.stderr,
                flush=True,
            )
            for other in processes:
                other.kill()
            os._exit(1)
        if None not in codes:
            return
        time.sleep(POLL_SECONDS)


def _watch_parent(process: int) -> None:
    """End this process soon after the one that started it: before they are connected, nothing else would."""
    while os.getppid() == process:
        if _run_ended.wait(POLL_SECONDS):
            return
    if _run_ended.wait(6 * POLL_SECONDS):  # it may end by itself
        return
    print(
        f"gpldla: Process {os.environ['LOCAL_RANK']} has lost the one that started it, so the run ends;"
        " the same command goes on from the last checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


@contextmanager
def report_lost_processes(fabric: Fabric) -> Iterator[None]:
    """Turn the failure of a message between processes into a sentence, and end their group at the end."""
    try:
        yield
        if fabric.world_size > 1:
            fabric.barrier()  # the first one is still writing
            torch.distributed.destroy_process_group()  # else the process may abort at its end
            _run_ended.set()
    except RuntimeError as error:
        if fabric.world_size == 1 or not _is_communication_error(error):
            raise
        time.sleep(
            4 * POLL_SECONDS if fabric.local_rank == 0 else 0
        )  # the watching thread has a better message
        raise RunError(
            f"Process {fabric.global_rank} of {fabric.world_size} cannot reach the others any more;"
            " the same command goes on from the last checkpoint."
        ) from None


@contextmanager
def report_errors_once(fabric: Fabric) -> Iterator[None]:
    """Let one process per node report wrong input that all of them find."""
    try:
        yield
    except UserError:
        if fabric.local_rank == 0:
            raise
        _run_ended.set()
        time.sleep(4 * POLL_SECONDS)  # else the watching thread may take this for a lost process
        raise SystemExit(2) from None


def _is_communication_error(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, torch.distributed.DistError) or any(
        word in text for word in ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Connection reset")
    )
