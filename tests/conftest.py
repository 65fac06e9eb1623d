"""What all tests share: one cache for embedded data, and one thread, for two processes share two cores."""

import os

import pytest
import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


@pytest.fixture(autouse=True, scope="session")
def shared_cache(tmp_path_factory):
    """Render the embedded data once, outside the user's own cache folder."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the folder that the workers share
    os.environ["GPLDLA_CACHE"] = str(base / "gpldla-cache")
