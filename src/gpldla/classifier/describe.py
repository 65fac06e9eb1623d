"""What a classifier holds, in words and as JSON."""

from typing import TYPE_CHECKING, Any

from gpldla.classifier.answers import summarise

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier


def describe(classifier: "FewShotClassifier") -> dict[str, Any]:
    """Return what a classifier holds and how good it is, as JSON.

    examples: how many each class has; None, like `leave_one_out` and `expected`, where they were not kept
    """
    model, task = classifier.model, classifier.task
    facts: dict[str, Any] = {
        "reads": model.backbone.reads,
        "classes": classifier.classes.tolist(),
        "backbone": model.backbone_name,
        "head": model.head_name,
        "network_in_file": model.has_own_network,
        "temperature": task.temperature,
        "own_prior_share": classifier.own_prior_share,
        "none_of_these": classifier.has_novelty,
        "unlabelled": 0 if task.unlabelled is None else len(task.unlabelled),
        "names_as_prior": classifier.class_names is not None,
        "names": task.examples is not None and task.examples.names is not None,
        "examples": None,
        "leave_one_out": None,
        "expected": None,
    }
    if task.examples is not None:
        summary = summarise(classifier, classifier.item_names()).as_json()
        facts["examples"] = summary["classes"]
        facts |= {name: summary[name] for name in ("leave_one_out", "expected")}
    return facts
