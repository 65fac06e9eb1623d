"""What to label next among items that a client sends."""

from dataclasses import dataclass

import numpy as np
import torch

from gpldla.classifier.few_shot import FewShotClassifier


@dataclass(frozen=True)
class Ranked:
    """An item without a label; gain: the share of the pool's uncertainty that its label would remove."""

    index: int
    gain: float
    guess: str
    probability: float


def rank(classifier: FewShotClassifier, rows: np.ndarray) -> list[Ranked]:
    """Return all items with these features [n, d], the most informative first."""
    represented = torch.from_numpy(rows).to(classifier.model.device)
    chosen = classifier.suggestions(represented, len(rows))
    proba = classifier.probabilities(represented)
    names = [str(name) for name in classifier.classes.tolist()]
    return [
        Ranked(index, gain, names[int(proba[index].argmax())], float(proba[index].max()))
        for index, gain in zip(chosen.indices.tolist(), chosen.gain.tolist())
    ]
