import io
import re

import pytest
from rich.console import Console

from gpldla.progress import TrainingProgress


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_bar_shows_everything_in_a_narrow_window(width):
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=width, color_system=None)
    numbers = {"loss": 0.6493, "accuracy": 85.25, "beta": 1.58, "beta_b": 0.472}
    with TrainingProgress(60_000, 0, console) as progress:
        progress.update(12_345, numbers)
        progress._bar.refresh()
    last = buffer.getvalue()
    for text in ("12345/60000", "/s", "loss 0.649", "acc % 85.2", "β 1.58", "β_b 0.472"):
        assert text in last
    assert "…" not in last
    assert re.search(r"\d:\d\d:\d\d|-:--:--", last)
