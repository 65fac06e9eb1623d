"""`python -m gpldla` is the command `gpldla`."""

from gpldla.cli.app import main

main()
