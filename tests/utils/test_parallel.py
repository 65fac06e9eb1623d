import threading
import time

import pytest

from gpldla.utils.parallel import map_in_threads


def test_results_come_in_order_whatever_takes_long():
    def work(number):
        time.sleep(0.02 if number % 3 == 0 else 0)
        return number**2

    assert list(map_in_threads(work, range(20), threads=4, ahead=6)) == [n**2 for n in range(20)]
    assert list(map_in_threads(work, [], threads=4, ahead=6)) == []


def test_an_endless_source_is_read_no_further_than_ahead():
    begun = []

    def numbers():
        while True:
            begun.append(len(begun))
            yield begun[-1]

    results = map_in_threads(str, numbers(), threads=2, ahead=5)
    assert [next(results) for _ in range(3)] == ["0", "1", "2"]
    assert len(begun) == 7
    results.close()


def test_threads_work_at_the_same_time():
    both = threading.Barrier(2, timeout=10)
    assert len(list(map_in_threads(lambda _: both.wait(), range(4), threads=2, ahead=2))) == 4


def test_an_error_comes_in_its_place_and_ends_the_work():
    done = []

    def work(number):
        if number == 3:
            raise ValueError("three")
        done.append(number)
        return number

    results = map_in_threads(work, range(1000), threads=2, ahead=4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert max(done) < 10
