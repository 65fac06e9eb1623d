"""Exceptions whose message is shown to the user without a traceback."""

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

LONGEST = 3000  # characters of a message: it may quote a word of a damaged file, which has any length


class UserError(ValueError):
    """Wrong input: the message is one sentence that names the thing and the remedy.

    The command line prints the message alone and exits with code 2.
    """

    def __init__(self, message: object = "") -> None:
        text = str(message)
        half = LONGEST // 2  # what is wrong and the remedy are at the ends
        super().__init__(text if len(text) <= LONGEST else f"{text[:half]} … {text[-half:]}")


class RunError(RuntimeError):
    """A run ended for a reason other than wrong input: the message names it and how to continue.

    The command line prints the message alone and exits with code 1.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known word, else a list of the known words."""
    known = sorted(known)
    nearest = difflib.get_close_matches(word, known, n=1) or difflib.get_close_matches(
        word.lower(), known, n=1
    )
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known are {', '.join(known)}."


def require_positive(**settings: Any) -> None:
    """Raise an error for settings, given by name, that are not positive, finite numbers."""
    for name, value in settings.items():
        if not (_is_number(value, Real) and 0 < value < math.inf):
            raise UserError(f"{name} must be a positive number, not {value!r}.")


def require_count(**settings: Any) -> None:
    """Raise an error for settings, given by name, that are not whole numbers of at least 1."""
    for name, value in settings.items():
        if not (_is_number(value, Integral) and value >= 1):
            raise UserError(f"{name} must be a whole number of at least 1, not {value!r}.")


def require_flag(**settings: Any) -> None:
    """Raise an error for settings, given by name, that are neither True nor False."""
    for name, value in settings.items():
        if not isinstance(value, bool) and type(value).__name__ != "bool":  # that of NumPy
            raise UserError(f"{name} must be True or False, not {value!r}.")


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def first_line(error: Exception) -> str:
    """Return the first line of what another library says, to stand in brackets in a sentence."""
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
