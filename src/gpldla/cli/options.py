"""Options and consoles that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gpldla.utils.errors import UserError
from gpldla.utils.progress import say

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.data import Access, DataPaths

# Modules that load torch are imported inside functions, so that --help answers at once.

DEFAULT_DEVICE = "auto"

messages = Console(stderr=True)

DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="Folder with the data sets, which is only read; default: GPLDLA_DATA, then the platform's.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Folder for packed data sets and computed features; default: GPLDLA_CACHE, then the platform's.",
    ),
]
Device = Annotated[
    str, typer.Option("--device", help="auto (a GPU if there is one), cpu, cuda or one GPU such as cuda:1.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="List pictures that cannot be read and leave them out.")
]

MaxError = Annotated[
    float,
    typer.Option("--max-error", min=0, max=1, help="Answer 'unsure' where the expected error is larger."),
]
Prevalence = Annotated[
    float, typer.Option("--prevalence", help="Assumed share of items of no known class, between 0 and 1.")
]
Report = Annotated[
    Path | None,
    typer.Option("--report", help="Also write a page to look at, such as report.html: one file."),
]


def data_paths(data_root: Path | None, cache: Path | None) -> "DataPaths":
    """Return where data sets and the cache are; a data root that is no folder is refused."""
    from gpldla.data.paths import DataPaths

    if data_root is not None and not data_root.is_dir():
        raise UserError(f"There is no folder {data_root}; name the folder that holds the data sets.")
    return DataPaths(data_root, cache)


def data_access(data_root: Path | None, cache: Path | None, *, skip_bad: bool = False) -> "Access":
    """Return what loads data sets and reports its progress on stderr."""
    from gpldla.data import Access
    from gpldla.utils.progress import Reporter

    return Access(data_paths(data_root, cache), Reporter(messages), skip_bad)


def say_where(report: Path | None) -> None:
    """Say what to do with a page that was written, if there is one."""
    if report is not None:
        say(messages, f"Open {report} in a browser.")


def load_classifier(file: Path, device: str = "cpu") -> "FewShotClassifier":
    """Return the classifier of a file by `gpldla fit`, on a device."""
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.utils.devices import torch_device

    return FewShotClassifier.load(file).to(torch_device(device))
