"""Tests that every head must pass, for other packages too, and random episodes for them; needs pytest.

Inherit from `HeadContract` and set `name`:

    from gpldla.testing import HeadContract

    class TestNearest(HeadContract):
        name = "nearest"
"""

try:
    import pytest
except ImportError:
    raise ImportError("gpldla.testing needs pytest, which is not installed; pip install pytest.") from None

pytest.register_assert_rewrite("gpldla.testing.head_contract")  # so that failures show values

from gpldla.testing.episodes import random_episode  # noqa: E402
from gpldla.testing.head_contract import HeadContract  # noqa: E402

__all__ = ["HeadContract", "random_episode"]
