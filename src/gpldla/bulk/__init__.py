"""Scoring more items than fit in memory, in one process or many."""
