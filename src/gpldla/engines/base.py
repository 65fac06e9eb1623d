"""The interface of an engine."""

from typing import Protocol

import numpy as np


class Engine(Protocol):
    """Computes features on a device of its own choice, in evaluation mode.

    parallel: whether threads may compute several batches at once, each in one thread
    """

    parallel: bool

    def features(self, *inputs: np.ndarray) -> np.ndarray:
        """Return float32 [n, feature_dim].

        inputs: of pictures the pixels, uint8 [n, resized, resized, channels]; of texts the tokens and the
            mask, int64 [n, longest] each
        """
        ...
