"""Few-shot classification with calibrated probabilities, in closed form."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "AbstainingClassifier",
    "FewShotClassifier",
    "FewShotModel",
    "GPLDLAClassifier",
    "ImageEmbedder",
    "TextEmbedder",
    "__version__",
]

if TYPE_CHECKING:
    from gpldla.classifier.abstaining import AbstainingClassifier
    from gpldla.classifier.embedders import ImageEmbedder, TextEmbedder
    from gpldla.classifier.estimator import GPLDLAClassifier
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.classifier.model import FewShotModel

_MODULE_OF = {
    "AbstainingClassifier": "gpldla.classifier.abstaining",
    "FewShotClassifier": "gpldla.classifier.few_shot",
    "FewShotModel": "gpldla.classifier.model",
    "GPLDLAClassifier": "gpldla.classifier.estimator",
    "ImageEmbedder": "gpldla.classifier.embedders",
    "TextEmbedder": "gpldla.classifier.embedders",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: importing torch takes seconds, which `gpldla --help` should not."""
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _compute_in_one_thread() -> None:
    """Use one thread after a fork: torch would wait forever for OpenMP threads that a fork does not copy."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_compute_in_one_thread)
