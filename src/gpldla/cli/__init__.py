"""The command `gpldla`: thin, one function per command; the work is done elsewhere."""

import sys


def main() -> None:
    """Run the command; one that needs neither torch nor a parser for its options answers at once."""
    from gpldla.cli.quick import answered

    if not answered(sys.argv[1:]):
        from gpldla.cli.app import main as run

        run()


__all__ = ["main"]
