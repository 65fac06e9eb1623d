"""Honest away from home: GPLDLAClassifier and its rivals with few examples per class, in many domains.

    python -m benchmarks.honesty [--only NAME ...] [--shots 1 2 5 10] [--tasks SCALE] [--features FOLDER]
    python -m benchmarks.honesty --times
    python -m benchmarks.honesty --novelty [--only NAME ...] [--tasks SCALE] [--features FOLDER]
    python -m benchmarks.honesty --render

Domains: birds, ImageNet classes, characters, digits and printed letters through EfficientNet-Lite0,
birds and characters through networks that were trained on others, texts through MiniLM, and raw pixels.
The features of a domain are computed once and kept in FOLDER. Tasks have 5 classes, or 20 where a
domain has as many; besides, there are two classes, unequal shots and a duplicated example. Results are
saved after every domain; --render writes the tables to docs/methods/gpldla-auto.md and docs/own-data.md
and measures nothing.
"""
