"""Many trainings on one machine: order, needs, failures, the end of the time."""

import sys

import pytest
from benchmarks.job_queue import Job, run_jobs


@pytest.fixture
def job(tmp_path):
    """Make a job of one Python command, which writes the file that ends it unless told otherwise."""

    def make(name, *, needs=(), code=None):
        done = tmp_path / name
        code = f"open({str(done)!r}, 'w').close()" if code is None else code
        needed = tuple(tmp_path / other for other in needs)
        return Job(name, done, lambda: [[sys.executable, "-c", code]], needed)

    return make


@pytest.fixture
def run(tmp_path):
    """Run jobs; return whether all are done, and what was told."""

    def run(*jobs, at_once=2, **options):
        told = []
        return run_jobs(jobs, tmp_path / "logs", at_once=at_once, tell=told.append, **options), told

    return run


def test_what_is_needed_comes_first(job, run):
    complete, told = run(job("last", needs=["first"]), job("first"))
    assert complete
    assert [line.split(":")[0] for line in told] == ["first", "last"]


def test_what_is_done_is_not_done_again(job, run, tmp_path):
    (tmp_path / "one").touch()
    assert run(job("one", code="raise SystemExit(1)")) == (True, ["one: done before"])


def test_a_failure_is_told_and_what_needs_it_does_not_begin(job, run, tmp_path):
    complete, told = run(
        job("bad", code="raise SystemExit('no such data')"), job("after", needs=["bad"]), job("well")
    )
    assert not complete
    assert any(line.startswith("bad: failed: no such data") for line in told)
    assert told[-1] == "Not begun, because what they need failed: after."
    assert (tmp_path / "well").exists()
    assert not (tmp_path / "after").exists()


def test_a_command_that_does_not_write_its_file_has_failed(job, run):
    complete, told = run(job("empty", code="pass"))
    assert not complete
    assert "it did not write" in told[0]


def test_when_the_time_is_up_the_commands_are_asked_to_stop(job, run, tmp_path):
    stopped = tmp_path / "stopped"
    code = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(stopped)!r}).touch(), sys.exit(0)))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "time.sleep(60)\n"
    )
    complete, told = run(job("long", code=code), job("next"), at_once=1, seconds=2.0)
    assert not complete
    assert told[-1] == "Time is up: 1 under way, 1 not begun."
    assert stopped.exists() or not (tmp_path / "ready").exists()
    assert run(job("next"))[0]


def test_a_job_of_several_commands_runs_them_in_order(tmp_path, run):
    done = tmp_path / "done"
    code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    steps = [[sys.executable, "-c", code, str(done), word] for word in "abc"]
    assert run(Job("words", done, lambda: steps))[0]
    assert done.read_text() == "abc"
