"""`python -m gpldla` is the command `gpldla`."""

from gpldla.cli import main

main()
