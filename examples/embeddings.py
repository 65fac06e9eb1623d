"""Existing embeddings: classes are added one after another, and the classifier reports its uncertainty.

    python examples/embeddings.py

The features are the pixels of scikit-learn's digits; any array of shape (n, d) can be used.
"""

import numpy as np
from sklearn.datasets import load_digits

from gpldla import GPLDLAClassifier

X, y = load_digits(return_X_y=True)
new = np.arange(1000, len(X))
classifier = GPLDLAClassifier()

for digit in range(10):
    examples = np.flatnonzero(y[:1000] == digit)[:5]  # five examples of one more class
    classifier.partial_fit(X[examples], y[examples])
    if digit == 0:
        continue  # a single class cannot be confused with another one
    known = new[y[new] <= digit]
    accuracy = 100 * classifier.score(X[known], y[known])
    uncertainty = classifier.uncertainty(X[known])
    line = (
        f"{digit + 1:2} classes   accuracy {accuracy:5.1f} %   β {classifier.beta_:.2f}"
        f"   uncertainty {uncertainty.total.mean():.2f} bits, of which epistemic"
        f" {uncertainty.epistemic.mean():.2f}"
    )
    unknown = new[y[new] > digit]
    if len(unknown):
        line += f"   none of these: {classifier.none_of_these(X[unknown]).mean():.2f} for unknown classes"
        line += f", {classifier.none_of_these(X[known]).mean():.2f} for known classes"
    print(line)
