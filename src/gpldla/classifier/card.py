"""Model cards for the Hugging Face Hub: front matter and what a stranger must know."""

import json
from typing import TYPE_CHECKING, Any

from gpldla.classifier.sharing import CLASSIFIER

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.classifier.model import FewShotModel

TASKS = {"pictures": "image-classification", "texts": "text-classification"}
CLASSES_SHOWN = 100
HUB_MODELS = ("hf", "st")  # prefixes of backbones that are models of the hub themselves


def classifier_card(classifier: "FewShotClassifier", name: str, license: str | None = None) -> str:
    """Return the card of a classifier: its classes, how good it is, and how to use it.

    name: of its repository
    """
    facts = classifier.info()
    counts, classes = facts["examples"], facts["classes"]
    rows = [
        f"| {_cell(label)} | {counts[str(label)] if counts else ''} |" for label in classes[:CLASSES_SHOWN]
    ]
    more = len(classes) - CLASSES_SHOWN
    left = f"\n\nand {more} more." if more > 0 else ""
    kept = "the features of the examples" if counts else "no examples"
    example = "new.jpg" if facts["reads"] == "pictures" else "a new text"
    body = f"""# A few-shot classifier of {facts["reads"]}

{len(classes)} classes from a few examples each, by [gpldla](https://github.com/gpldla/gpldla), on features of
`{facts["backbone"]}`. It says how sure it is, and when an item is of none of its classes.

```python
from gpldla import FewShotClassifier

classifier = FewShotClassifier.from_pretrained("{name}")
classifier.predict_proba(["{example}"])  # the columns are those of classifier.classes
```

## How good it is

{_quality(facts)}

## Classes

| class | examples |
|---|--:|
{chr(10).join(rows)}{left}

## What the file holds

`{CLASSIFIER}` is data, not code: the classifier, {kept}, and the name and fingerprint of the network, which
must be installed (`pip install 'gpldla[vision,text,hf]'`), or its weights where it was trained by gpldla.
"""
    return _front_matter(classifier.model, license) + body


def model_card(model: "FewShotModel", name: str, license: str | None = None) -> str:
    """Return the card of a meta-trained network: what it was trained on, and how to use it."""
    recipe = model.info.get("recipe", {})
    dataset, accuracy = recipe.get("dataset"), model.info.get("validation_accuracy")
    trained = f"Meta-trained on `{_base_name(dataset)}`" if dataset else "Meta-trained"
    quality = "" if accuracy is None else f" Accuracy on tasks of its validation classes: {accuracy:.2f} %."
    body = f"""# A network that learns new classes from a few examples

{trained} by [gpldla](https://github.com/gpldla/gpldla): the network `{model.backbone_name}` with the head
`{model.head_name}`.{quality} Nothing was measured on other pictures than those.

```python
from gpldla import FewShotModel

model = FewShotModel.from_pretrained("{name}")
classifier = model.adapt(["wren-1.jpg", "wren-2.jpg", "robin-1.jpg"], ["wren", "wren", "robin"])
classifier.predict_proba(["new.jpg"])
```

`model.safetensors` has the weights and `config.json` all settings; both are data, not code.
"""
    return _front_matter(model, license) + body


def _front_matter(model: "FewShotModel", license: str | None) -> str:
    """Return the facts that the hub reads, in YAML, of which JSON is a part."""
    reads, name = model.backbone.reads, model.backbone_name
    facts: dict[str, Any] = {
        "library_name": "gpldla",
        "pipeline_tag": TASKS[reads],
        "tags": ["few-shot-learning", "calibration", "gaussian-process"],
    }
    if license is not None:
        facts["license"] = license
    prefix, _, rest = name.partition(":")
    base = rest.partition("@")[0].partition(",")[0]
    if prefix in HUB_MODELS and not base.startswith((".", "/", "~")):
        facts["base_model"] = base
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items()]
    return "\n".join(["---", *lines, "---", "", ""])


def _quality(facts: dict[str, Any]) -> str:
    tested, expected = facts["leave_one_out"], facts["expected"]
    if tested is None or tested["accuracy"] is None:
        return "Not known: no example can be left out to test it."
    sentence = (
        f"Each example by the others: accuracy {tested['accuracy']:.1f} %, NLL {tested['nll']:.3f}, on"
        f" {tested['examples']} examples."
    )
    if expected is not None:
        sentence += (
            f" Expected on new {facts['reads']} like these: {expected['accuracy']:.0f} % right (90 % interval"
            f" {expected['low']:.0f} to {expected['high']:.0f} %)."
        )
    return sentence


def _base_name(dataset: str) -> str:
    """Return a data set without the folders that it lies in, which are nobody's business."""
    return dataset.replace("\\", "/").rpartition("/")[2].removeprefix("folder:")


def _cell(name: Any) -> str:
    return " ".join(str(name).split()).replace("|", "\\|")
