"""What is said about the items without labels that `gpldla fit --unlabelled` names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier


def too_few(given: int, kind: str, classifier: "FewShotClassifier") -> str:
    """Return a sentence if there are unlabelled items, but too few to be of use, else ""."""
    from gpldla.heads.gp.unlabelled import least_rows

    if not given or classifier.task.unlabelled is not None:
        return ""
    n_classes = len(classifier.classes)
    return (
        f"{given} unlabelled {kind} are too few for {n_classes} classes and were not used;"
        f" give at least {least_rows(n_classes)}."
    )
