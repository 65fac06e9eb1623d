"""The items without labels that `gpldla fit --unlabelled` names."""

from typing import TYPE_CHECKING, Any

from gpldla.cli.items import pictures_of_arguments, readable_indices, texts_of_arguments

if TYPE_CHECKING:
    from gpldla.classifier.few_shot import FewShotClassifier
    from gpldla.classifier.model import FewShotModel


def unlabelled_items(
    arguments: list[str], text: str | None, model: "FewShotModel", *, skip_bad: bool
) -> list[Any]:
    """Return the pictures, or with a column of texts the texts, that arguments name."""
    if model.backbone.reads == "texts":
        return texts_of_arguments(arguments, text)
    pictures = pictures_of_arguments(arguments)
    return (
        [pictures[i] for i in readable_indices(pictures, model.preprocessing)]
        if skip_bad and pictures
        else pictures
    )


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
