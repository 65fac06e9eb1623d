import io
import re

import pytest
from rich.console import Console

from gpldla.utils import progress
from gpldla.utils.progress import SILENT, CountProgress, Reporter


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_bar_shows_everything_in_a_narrow_window(width):
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=width, color_system=None)
    numbers = {"loss": 0.6493, "accuracy": 85.25, "beta": 1.58, "beta_b": 0.472}
    with CountProgress(60_000, 0, console) as progress:
        progress.update(12_345, numbers)
        progress._bar.refresh()
    last = buffer.getvalue()
    for text in ("12345/60000", "/s", "loss 0.649", "acc % 85.2", "β 1.58", "β_b 0.472"):
        assert text in last
    assert "…" not in last
    assert re.search(r"\d:\d\d:\d\d|-:--:--", last)


class TestReporter:
    @pytest.fixture
    def log(self):
        return io.StringIO()

    def reporter(self, log, **options):
        return Reporter(Console(file=log, width=60, color_system=None, **options))

    def test_says_a_line_as_it_is(self, log):
        self.reporter(log).say("[/b] in " + 20 * "/a long path")
        assert log.getvalue() == "[/b] in " + 20 * "/a long path" + "\n"

    def test_shows_a_bar_on_a_terminal(self, log):
        with self.reporter(log, force_terminal=True).bar("Packing birds", 100) as advance:
            advance(30)
            advance(12)
        last = log.getvalue().split("\r")[-1]
        assert "Packing birds" in last
        assert "42/100" in last

    def test_shows_a_line_now_and_then_elsewhere(self, log, monkeypatch):
        now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: now)
        with self.reporter(log).bar("Packing birds", 5000) as advance:
            for _ in range(25):
                advance(100)
                now += 1.0
        assert log.getvalue().splitlines() == [
            "Packing birds: 1,100 of 5,000",
            "Packing birds: 2,100 of 5,000",
        ]

    def test_says_nothing_of_what_is_soon_done(self, log):
        with self.reporter(log).bar("Packing birds", 2) as advance:
            advance(2)
        assert log.getvalue() == ""

    @pytest.mark.parametrize("terminal", [True, False])
    def test_an_error_within_a_bar_comes_out(self, log, terminal):
        with (
            pytest.raises(ZeroDivisionError),
            self.reporter(log, force_terminal=terminal).bar("Packing birds", 2),
        ):
            raise ZeroDivisionError

    def test_is_silent_without_a_console(self, capsys):
        SILENT.say("something")
        with SILENT.bar("Packing birds", 2) as advance:
            advance(2)
        assert capsys.readouterr() == ("", "")
