"""Write the files of this release that later versions must read, with what they said: for a new format only.

python -m tests.golden.make 0.2
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel
from gpldla.data.store import write_store
from gpldla.training import run as training
from gpldla.training.checkpoint import FILE
from tests.helpers import tiny_protocol, tiny_recipe, tiny_set

HERE = Path(__file__).parent
PICTURES = list(tiny_set((3, 3), size=32, seed=5).images[:, 0])  # of the task that the model is given
SETTINGS = {"backbone": "pixels", "episodes": 8, "validation.every": 4, "checkpoint_every": 4}
LABELS = ["cat"] * 3 + ["dog"] * 3
QUERIES = list(tiny_set((2, 2), size=32, seed=5).images[:, 0])


def store_content():
    """Return the image set that the store holds."""
    return tiny_set((2, 3), size=8, groups=[np.array([0, 1]), np.array([2, 3, 4])], seed=1)


def answers_of(folder: Path) -> dict:
    """Return what the model and the classifier in a folder answer."""
    model = FewShotModel.from_pretrained(folder / "model")
    classifier = FewShotClassifier.load(folder / "classifier.safetensors")
    return {
        "model": model.adapt(PICTURES, LABELS).predict_proba(QUERIES).tolist(),
        "temperature": model.temperature,
        "classifier": classifier.predict_proba(QUERIES).tolist(),
        "none_of_these": classifier.none_of_these(QUERIES).tolist(),
    }


def main(version: str) -> None:
    """Write the files of a version."""
    folder = HERE / version
    folder.mkdir()
    training.load_protocol = tiny_protocol
    torch.set_num_threads(1)
    recipe = tiny_recipe("gpldla", **SETTINGS)
    training.train(recipe, folder / "model", accelerator="cpu", show_progress=False)
    shutil.rmtree(folder / "model" / "tensorboard")
    (folder / FILE).write_bytes((folder / "model" / FILE).read_bytes())
    (folder / "model" / FILE).unlink()
    FewShotModel("pixels", "gpldla-auto").adapt(PICTURES, LABELS).save(folder / "classifier.safetensors")
    write_store(folder / "store", store_content(), {"seed": 1})
    (folder / "answers.json").write_text(json.dumps(answers_of(folder), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
