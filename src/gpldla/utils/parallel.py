"""Work in threads whose results come in order, with a bound on what waits."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_threads(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, threads: int, ahead: int
) -> Iterator[Result]:
    """Yield work(task) of each task, in the order of the tasks; the first error is raised in its place.

    `tasks` may be endless: it is read in the calling thread, and only as far as needed.

    ahead: the most tasks that are begun before their result is asked for, at least `threads`; so memory
        does not grow with the number of tasks
    """
    begun: deque[Future[Result]] = deque()
    coming = iter(tasks)
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                while len(begun) < max(ahead, threads):
                    try:
                        task = next(coming)
                    except StopIteration:
                        break
                    begun.append(pool.submit(work, task))
                if not begun:
                    return
                yield begun.popleft().result()
        finally:  # an error, or nobody wants the rest
            for future in begun:
                future.cancel()
