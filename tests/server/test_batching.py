"""Batches: bounds, order, errors of single items, and the end."""

import asyncio
import threading
import time

import numpy as np
import pytest

from gpldla.server.batching import LARGEST_BATCH, Batcher, Together
from gpldla.server.problems import Problem
from gpldla.utils.errors import UserError


class Network:
    """Squares numbers, one batch at a time, when it is let."""

    def __init__(self):
        self.batches, self.may_run = [], threading.Event()
        self.may_run.set()

    def __call__(self, items):
        self.may_run.wait(10)
        self.batches.append(list(items))
        if "bad" in items:
            raise UserError("a bad one")
        if "worse" in items:
            raise MemoryError
        return np.array([[item**2] for item in items], np.float32)


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def made():
    batchers = []

    def make(*args, **options):
        batchers.append(Batcher(*args, **{"most_waiting": 100, **options}))
        return batchers[-1]

    yield make
    for one in batchers:
        one.close()


def results(futures):
    return [future.result(10)[0] for future in futures]


def test_what_waits_goes_together(network, made):
    batcher = made(network)
    network.may_run.clear()
    first = batcher.submit([1])
    while not batcher._in_work:
        time.sleep(0.001)
    others = [batcher.submit([i, i + 1]) for i in range(2, 8)]
    network.may_run.set()
    assert results(first) == [1]
    assert [results(each) for each in others] == [[i**2, (i + 1) ** 2] for i in range(2, 8)]
    assert [len(batch) for batch in network.batches] == [1, 12]


def test_a_batch_is_bounded(network, made):
    batcher = made(network, most_waiting=500)
    network.may_run.clear()
    futures = batcher.submit([0])
    while not batcher._in_work:
        time.sleep(0.001)
    futures += batcher.submit(list(range(100)))
    network.may_run.set()
    results(futures)
    assert [len(batch) for batch in network.batches] == [1, LARGEST_BATCH, 100 - LARGEST_BATCH]


def test_past_the_bound_a_request_is_told_to_wait(network, made):
    batcher = made(network, most_waiting=4)
    network.may_run.clear()
    accepted = batcher.submit(list(range(10)))  # alone it is always taken
    with pytest.raises(Problem) as refused:
        batcher.submit([1])
    assert refused.value.status_code == 429
    assert int(refused.value.headers["Retry-After"]) >= 1
    network.may_run.set()
    results(accepted)
    time.sleep(0.05)
    assert results(batcher.submit([3])) == [9]


def test_a_bad_item_fails_alone(network, made):
    batcher = made(network)
    network.may_run.clear()
    before = batcher.submit([1])
    while not batcher._in_work:
        time.sleep(0.001)
    futures = batcher.submit([2, "bad", 3])
    network.may_run.set()
    assert results(before) == [1]
    assert results([futures[0], futures[2]]) == [4, 9]
    with pytest.raises(UserError, match="a bad one"):
        futures[1].result(10)
    (worse,) = batcher.submit(["worse"])
    with pytest.raises(MemoryError):
        worse.result(10)
    assert results(batcher.submit([4])) == [16]  # and the thread lives on


def test_who_has_gone_is_not_computed(network, made):
    batcher = made(network)
    network.may_run.clear()
    first = batcher.submit([1])
    while not batcher._in_work:
        time.sleep(0.001)
    (gone,), stays = batcher.submit([2]), batcher.submit([3])
    gone.cancel()
    network.may_run.set()
    assert results(first + stays) == [1, 9]
    assert network.batches == [[1], [3]]


def test_closing_finishes_what_waits(network):
    batcher = Batcher(network, most_waiting=100)
    futures = batcher.submit(list(range(70)))
    batcher.close()
    assert results(futures) == [i**2 for i in range(70)]
    with pytest.raises(Problem) as refused:
        batcher.submit([1])
    assert refused.value.status_code == 503


class TestTogether:
    """Requests that ask while another is answered are answered together."""

    @staticmethod
    def asked(function, numbers, run=asyncio.to_thread):
        """Ask for the answers of [number] and [number + 1] of each request at once; errors as texts."""
        together = Together(function)

        async def ask(number):
            rows = np.array([[number], [number + 1]])
            try:
                return await together.answer(run, rows, ["a", "b"], "".join)
            except (UserError, Problem) as error:
                return str(error)

        async def all_of_them():
            return await asyncio.wait_for(asyncio.gather(*map(ask, numbers)), 30)

        return asyncio.run(all_of_them())

    def test_each_gets_its_own_answers(self):
        sizes = []

        def function(rows, names):
            sizes.append(len(rows))
            time.sleep(0.01)
            return [f"{name}{row}" for name, (row,) in zip(names, rows.tolist())]

        numbers = range(0, 60, 3)
        assert self.asked(function, numbers) == [f"a{n}b{n + 1}" for n in numbers]
        assert sum(sizes) == 40
        assert len(sizes) <= 2

    def test_an_error_is_that_of_its_request_alone(self):
        def function(rows, names):
            if rows.max() > 90:
                raise UserError("a bad one")
            return [str(row) for (row,) in rows.tolist()]

        assert self.asked(function, [1, 99, 3]) == ["12", "a bad one", "34"]

    def test_where_no_thread_is_free_all_are_told(self):
        async def busy(*_):
            raise Problem(429, "Too many requests wait.")

        told = self.asked(lambda rows, names: names, [1, 2], busy)
        assert all("Too many requests wait." in one for one in told)
