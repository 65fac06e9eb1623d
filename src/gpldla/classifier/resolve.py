"""Load a model by name: the one rule for the command line and for Python."""

from pathlib import Path

from gpldla.backbones import is_backbone_name, list_backbones
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.shipped import CONFIG, shipped_models
from gpldla.utils.errors import UserError, did_you_mean

HEAD = "gpldla-auto"  # of a model made from a pretrained backbone


def resolve_model(name_or_folder: str | Path) -> FewShotModel:
    """Return the model with this name, in evaluation mode on the CPU.

    A name is, in this order: the folder of a trained model; a pretrained backbone (also `timm:NAME`), which
    gets the head "gpldla-auto"; a shipped model.
    """
    folder, name = Path(name_or_folder), str(name_or_folder)
    is_model = (folder / CONFIG).is_file()
    if not is_model and is_backbone_name(name):
        model = FewShotModel(name, HEAD)
        if not model.backbone.pretrained:
            raise UserError(
                f"Backbone {name!r} has no trained weights;"
                " give the folder of a model trained with `gpldla train`."
            )
        return model
    if not is_model and not folder.exists() and name not in shipped_models():
        known = [*list_backbones(pretrained=True), *shipped_models()]
        raise UserError(f"There is no model {name!r}{did_you_mean(name, known)}")
    return FewShotModel.from_pretrained(name_or_folder)
