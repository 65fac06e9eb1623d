"""Names for things that users choose by name."""

from collections.abc import Callable
from typing import TypeVar

from gpldla.utils.errors import UserError, did_you_mean

Thing = TypeVar("Thing")


class Registry(dict[str, Thing]):
    """Things of one kind by name, such as heads or backbones; a wrong name suggests the nearest."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """Return a decorator that makes a thing known under `name`."""

        def remember(thing: Thing) -> Thing:
            self[name] = thing
            return thing

        return remember

    def find(self, name: str) -> Thing:
        """Return what is known under `name`."""
        if name not in self:
            raise UserError(f"There is no {self._kind} {name!r}{did_you_mean(str(name), self)}")
        return self[name]
