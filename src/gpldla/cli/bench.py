"""The commands that measure speed: `gpldla bench` and its subcommands."""

from pathlib import Path
from typing import Annotated

import typer

from gpldla.cli.options import DEFAULT_DEVICE, Device, messages
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter, say
from gpldla.utils.terminal import wide_console

bench_app = typer.Typer()

EPISODE_ROUNDS = 11

Rounds = Annotated[int, typer.Option("--rounds", min=1, help="How often each method is timed.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the results to this file, too.")
]


@bench_app.callback(invoke_without_command=True)
def bench_episode(
    context: typer.Context,
    device: Device = DEFAULT_DEVICE,
    rounds: Rounds = EPISODE_ROUNDS,
    output: JsonFile = None,
) -> None:
    """Measure speed: time one episode with GPLDLA and with other classifiers, side by side.

    Example: gpldla bench --device cpu
    """
    if context.invoked_subcommand is not None:
        if (device, rounds, output) != (DEFAULT_DEVICE, EPISODE_ROUNDS, None):
            raise UserError(f"Options of gpldla bench {context.invoked_subcommand} come after its name.")
        return
    from gpldla.bench.episode import bench_episode, episode_table, estimator_line
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_output, write_json

    if output is not None:
        check_output(output)
    results = bench_episode(torch_device(device), rounds=rounds, reporter=Reporter(messages))
    if output is not None:
        write_json(output, results)
    console = wide_console()
    console.print(episode_table(results))
    say(console, estimator_line(results))


@bench_app.command("heads", short_help="Time the heads of several methods.")
def bench_heads(
    device: Device = DEFAULT_DEVICE,
    batches: Annotated[
        str, typer.Option(help="Numbers of episodes computed together, separated by commas.")
    ] = "",
    rounds: Rounds = 5,
    output: JsonFile = None,
) -> None:
    """Time GPLDLA and other methods, from the features of an episode to the probabilities of its queries.

    Example: gpldla bench heads --device cpu --batches 1,16,256
    """
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
    results = bench_heads(torch_device(device), batches=sizes, rounds=rounds, reporter=Reporter(messages))
    if output is not None:
        write_json(output, results)
    console = wide_console()
    for table in heads_tables(results):
        console.print(table)


@bench_app.command("training", short_help="Time meta-training.")
def bench_training(device: Device = DEFAULT_DEVICE, rounds: Rounds = 5, output: JsonFile = None) -> None:
    """Time meta-training on generated photographs, beside the limit of the hardware.

    Example: gpldla bench training --device cuda
    """
    from gpldla.bench.training import bench_training, training_table
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_output, write_json

    if output is not None:
        check_output(output)
    results = bench_training(torch_device(device), rounds=rounds, reporter=Reporter(messages))
    if output is not None:
        write_json(output, results)
    wide_console().print(training_table(results))


@bench_app.command("scaling", short_help="Measure growth of time and memory.")
def bench_scaling(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the results and the plot.")
    ] = Path("bench-scaling"),
    device: Device = DEFAULT_DEVICE,
    rounds: Rounds = 5,
    fast: Annotated[bool, typer.Option("--fast", help="Measure every second size only.")] = False,
) -> None:
    """Measure how time and memory grow with the numbers of classes, examples, features and queries.

    Example: gpldla bench scaling --fast -o bench-scaling
    """
    from gpldla.bench.scaling import bench_scaling, scaling_table, size_line, write_scaling
    from gpldla.utils.devices import torch_device
    from gpldla.utils.files import check_writable

    check_writable(output)
    results = bench_scaling(torch_device(device), fast=fast, rounds=rounds, reporter=Reporter(messages))
    write_scaling(output, results)
    console = wide_console()
    console.print(scaling_table(results))
    say(console, size_line(results))
    say(console, f"Wrote {output / 'scaling.json'} and {output / 'scaling.png'}.")
