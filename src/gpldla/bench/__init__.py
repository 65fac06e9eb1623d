"""Benchmarks of speed, run by `gpldla bench`."""
