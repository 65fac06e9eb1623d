"""The commands that measure: `gpldla bench` and what follows it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say

bench_app = typer.Typer()

messages = Console(stderr=True)
TABLE_WIDTH = 160  # of tables that do not go to a terminal
EPISODE_ROUNDS = 11

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often each is timed.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file, too.")]


def _wide_console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)  # a file or a pipe has no edge
    return console


@bench_app.callback(invoke_without_command=True)
def bench_episode(
    context: typer.Context,
    device: Device = "auto",
    rounds: Rounds = EPISODE_ROUNDS,
    output: JsonFile = None,
) -> None:
    """Speed side by side, in one run: one episode, by GPLDLA and by what else one would use.

    Example: gpldla bench --device cpu
    """
    if context.invoked_subcommand is not None:
        if (device, rounds, output) != ("auto", EPISODE_ROUNDS, None):
            raise UserError(f"Options of gpldla bench {context.invoked_subcommand} come after its name.")
        return
    import torch

    from gpldla.bench.episode import bench_episode, episode_table, estimator_line
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_output, write_json

    if output is not None:
        check_output(output)
    results = bench_episode(torch.device(torch_device(device)), rounds=rounds, reporter=Reporter(messages))
    if output is not None:
        write_json(output, results)
    console = _wide_console()
    console.print(episode_table(results))
    say(console, estimator_line(results))


@bench_app.command("heads")
def bench_heads(
    device: Device = "auto",
    batches: Annotated[str, typer.Option(help="Episodes at once, separated by commas.")] = "",
    rounds: Rounds = 5,
    output: JsonFile = None,
) -> None:
    """Time GPLDLA and its rivals: from features of an episode to the probabilities of its queries.

    Example: gpldla bench heads --device cpu --batches 1,16,256
    """
    import torch

    from gpldla.bench.heads import BATCHES, bench_heads, heads_tables
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_output, write_json

    try:
        sizes = tuple(int(size) for size in batches.split(",")) if batches else BATCHES
    except ValueError:
        raise UserError(f"--batches {batches!r} must be whole numbers separated by commas.") from None
    if min(sizes) < 1:
        raise UserError("--batches must be at least 1.")
    if output is not None:
        check_output(output)
    results = bench_heads(
        torch.device(torch_device(device)), batches=sizes, rounds=rounds, reporter=Reporter(messages)
    )
    if output is not None:
        write_json(output, results)
    console = _wide_console()
    for table in heads_tables(results):
        console.print(table)


@bench_app.command("training")
def bench_training(device: Device = "auto", rounds: Rounds = 5, output: JsonFile = None) -> None:
    """Time meta-training on generated photographs, beside what the hardware allows.

    Example: gpldla bench training --device cuda
    """
    import torch

    from gpldla.bench.training import bench_training, training_table
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_output, write_json

    if output is not None:
        check_output(output)
    results = bench_training(torch.device(torch_device(device)), rounds=rounds, reporter=Reporter(messages))
    if output is not None:
        write_json(output, results)
    _wide_console().print(training_table(results))


@bench_app.command("scaling")
def bench_scaling(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the numbers and the picture.")
    ] = Path("bench-scaling"),
    device: Device = "auto",
    rounds: Rounds = 5,
    fast: Annotated[bool, typer.Option("--fast", help="Every second size only.")] = False,
) -> None:
    """Measure how time and memory grow with classes, examples, features and queries.

    Example: gpldla bench scaling --fast -o bench-scaling
    """
    import torch

    from gpldla.bench.scaling import bench_scaling, scaling_table, size_line, write_scaling
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_writable

    check_writable(output)
    results = bench_scaling(
        torch.device(torch_device(device)), fast=fast, rounds=rounds, reporter=Reporter(messages)
    )
    write_scaling(output, results)
    console = _wide_console()
    console.print(scaling_table(results))
    say(console, size_line(results))
    say(console, f"Wrote {output / 'scaling.json'} and {output / 'scaling.png'}.")
