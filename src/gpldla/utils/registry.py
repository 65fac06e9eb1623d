"""Names for things that users choose by name."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

from gpldla.utils.errors import UserError, did_you_mean
from gpldla.utils.plugins import load_plugins, plugin_fault

Thing = TypeVar("Thing")


class UnknownNameError(UserError):
    """Nothing is registered under a name; `kind` and `name` say what was asked for."""

    def __init__(self, message: str, *, kind: str = "", name: str = "") -> None:  # defaults: for pickle
        super().__init__(message)
        self.kind, self.name = kind, name


class Registry(MutableMapping[str, Thing]):
    """Things of one kind by name, such as heads or backbones; a wrong name suggests the nearest.

    group: entry points of this name register more of them; they are loaded when an unknown name is looked up
           or the names are listed
    """

    def __init__(self, kind: str, *, group: str) -> None:
        self._kind, self._group = kind, group
        self._things: dict[str, Thing] = {}

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """Return a decorator that registers a thing under `name`, which must not be taken."""

        def remember(thing: Thing) -> Thing:
            if name in self._things and not _same_definition(self._things[name], thing):
                raise UserError(f"There is a {self._kind} {name!r} already; choose another name for yours.")
            self._things[name] = thing
            return thing

        return remember

    def find(self, name: str) -> Thing:
        """Return what is registered under `name`, or raise a sentence."""
        if name in self:
            return self[name]
        if fault := plugin_fault(self._group, name):
            raise UserError(fault)
        message = f"There is no {self._kind} {name!r}{did_you_mean(str(name), self)}"
        raise UnknownNameError(message, kind=self._kind, name=str(name))

    def __getitem__(self, name: str) -> Thing:
        """Return what is registered under `name`, after loading plugins if it is unknown."""
        if name not in self._things:
            load_plugins(self._group)
        return self._things[name]

    def __setitem__(self, name: str, thing: Thing) -> None:
        """Replace what is registered under a name."""
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        """Remove a name."""
        del self._things[name]

    def __iter__(self) -> Iterator[str]:
        """List all names, those of plugins included."""
        load_plugins(self._group)
        return iter(self._things)

    def __len__(self) -> int:
        """Count all names, those of plugins included."""
        load_plugins(self._group)
        return len(self._things)


def _same_definition(first: object, second: object) -> bool:
    """Return whether two things come from one definition, as after a module was imported a second time."""
    if first == second:
        return True
    first_class, second_class = (x if isinstance(x, type) else type(x) for x in (first, second))
    return first_class.__module__ != "builtins" and (
        (first_class.__module__, first_class.__qualname__)
        == (second_class.__module__, second_class.__qualname__)
    )
