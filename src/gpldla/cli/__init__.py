"""The command `gpldla`: thin, one function per command; the work is done elsewhere."""

from gpldla.cli.app import main

__all__ = ["main"]
