"""The names of a classifier's classes as its prior, by the text encoder of its model; see docs/names.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpldla.heads.base import unit_length
from gpldla.heads.gpldla_names import GPLDLANames
from gpldla.utils.errors import UserError

if TYPE_CHECKING:
    from gpldla.classifier.model import FewShotModel

HEAD = "gpldla-auto"  # the head that names can be added to
PROMPTS = {
    "pictures": ("a photo of a {}.", "a photo of {}.", "a picture of {}."),
    "texts": ("{}",),
}


@dataclass(frozen=True)
class ClassNames:
    """Embeddings of names.

    vectors: the mean of the unit embeddings of a class's prompts [d], by label
    scale: of the names' logits without examples, or "auto"
    """

    vectors: Mapping[Any, Tensor]
    scale: float | str = "auto"

    @classmethod
    def embed(
        cls,
        model: "FewShotModel",
        names: Mapping[Any, str | Sequence[str]] | Sequence[Any],
        prompts: Sequence[str] | None = None,
    ) -> "ClassNames":
        """Embed names by a model.

        names: the words of each class, several if there are synonyms; or labels that are words themselves
        prompts: sentences with {} in the place of the words, which are averaged
        """
        if model.head_name != HEAD:
            raise UserError(
                f"Names as a prior need the head {HEAD!r}, not {model.head_name!r}; leave them out."
            )
        words = names if isinstance(names, Mapping) else {label: in_words(label) for label in names}
        templates = list(PROMPTS[model.backbone.reads] if prompts is None else prompts)
        if wrong := [template for template in templates if "{}" not in template]:
            raise UserError(f"The prompt {wrong[0]!r} has no {{}}, where the name of a class goes.")
        if not templates:
            raise UserError("There are no prompts; give at least one, such as 'a photo of a {}.'.")
        vectors = {}
        for label, own in words.items():
            synonyms = [own] if isinstance(own, str) else list(own)
            if not synonyms or not all(isinstance(word, str) and word.strip() for word in synonyms):
                raise UserError(
                    f"The class {label!r} has no name in words; give one, or leave the names out."
                )
            texts = [template.replace("{}", word) for word in synonyms for template in templates]
            with torch.no_grad():
                vectors[label] = unit_length(model.backbone.text_features(texts).float()).mean(0).cpu()
        return cls(vectors)

    def head(self, model: "FewShotModel", classes: np.ndarray) -> GPLDLANames:
        """Return the head for these classes, in their order; a class may be without a name."""
        d = model.backbone.feature_dim
        rows = torch.stack([self.vectors.get(label, torch.zeros(d)) for label in classes.tolist()])
        head = GPLDLANames(prior_mean=rows, name_scale=self.scale, **model.head_options)
        return head.to(model.device).eval()

    @classmethod
    def of_rows(cls, rows: Tensor, scale: float | str, classes: Sequence[Any]) -> "ClassNames":
        """Return the names whose embeddings are the rows [C, d] of a file, without classes that have none."""
        return cls({label: row for label, row in zip(classes, rows) if bool(row.any())}, scale)


def in_words(label: Any) -> str:
    """Return a label as words: `black_footed-albatross` becomes "black footed albatross"."""
    return " ".join(str(label).replace("_", " ").replace("-", " ").split())
