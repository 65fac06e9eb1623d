"""Few-shot classification with calibrated probabilities, in closed form."""

__version__ = "0.1.0"
