"""What all tests share: one cache, one thread (two processes share two cores), and the command line."""

import os

import pytest
import torch

from tests.helpers import call

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


@pytest.fixture(autouse=True, scope="session")
def shared_cache(tmp_path_factory):
    """Render the embedded data once, outside the user's own cache folder."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the folder that the workers share
    os.environ["GPLDLA_CACHE"] = str(base / "gpldla-cache")


@pytest.fixture
def run(capsys):
    """Run the command; return its exit code, what it printed and what it complained about."""

    def run_command(*arguments):
        capsys.readouterr()
        code = call(*arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_command


@pytest.fixture
def refused(run):
    """Run a command that must end with code 2 and one line; return that line."""

    def run_command(*arguments):
        code, out, err = run(*arguments)
        assert code == 2, err
        assert out == ""
        assert err.startswith("gpldla: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        return err.rstrip()

    return run_command


@pytest.fixture
def figures(monkeypatch):
    """Collect the figures that are saved, to look at what is in them."""
    from matplotlib.figure import Figure

    saved, save = [], Figure.savefig

    def collected(figure, *arguments, **options):
        saved.append(figure)
        return save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", collected)
    return saved
