"""A classifier of photographs from a few examples per class, saved to one file and loaded again.

    python examples/photographs.py FOLDER    # a folder of class folders, such as photos/wren/1.jpg
    python examples/photographs.py           # crops of two photographs that come with scikit-learn

Needs the extra: pip install 'gpldla[vision]'
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from gpldla import FewShotClassifier, FewShotModel


def class_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the pictures in each class folder, with the name of the folder as label."""
    pictures = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in {".jpg", ".jpeg", ".png"})
    return pictures, [path.parent.name for path in pictures]


def crops() -> tuple[list[Image.Image], list[str]]:
    """Return square crops of a photograph of a temple and of one of a flower."""
    random = np.random.default_rng(0)
    pictures, labels = [], []
    for name, photograph in zip(("temple", "flower"), load_sample_images().images):
        for _ in range(12):
            top, left = random.integers(0, [photograph.shape[0] - 200, photograph.shape[1] - 200])
            pictures.append(Image.fromarray(photograph[top : top + 200, left : left + 200]))
            labels.append(name)
    return pictures, labels


pictures, labels = class_folders(Path(sys.argv[1])) if len(sys.argv) > 1 else crops()
order = np.random.default_rng(0).permutation(len(pictures))
known, new = order[: len(order) // 2], order[len(order) // 2 :]  # half as examples, half to predict

model = FewShotModel("efficientnet-lite0", head="gpldla-auto")
classifier = model.adapt([pictures[i] for i in known], [labels[i] for i in known])

with tempfile.TemporaryDirectory() as folder:
    classifier.save(Path(folder) / "mine.safetensors")
    classifier = FewShotClassifier.load(Path(folder) / "mine.safetensors")

probabilities = classifier.predict_proba([pictures[i] for i in new])
unknown = classifier.none_of_these([pictures[i] for i in new], prevalence=0.1)
right = 0
for i, p, none in zip(new, probabilities, unknown):
    answer = classifier.classes[p.argmax()]
    right += answer == labels[i]
    print(f"{labels[i]:12} predicted as {answer:12} p = {p.max():.2f}   none of these: {none:.2f}")
print(f"{right} of {len(new)} are right; {probabilities.max(1).sum():.1f} were expected to be.")
