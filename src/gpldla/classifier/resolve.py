"""Load a model by name: the one rule for the command line and for Python."""

from pathlib import Path

from gpldla.backbones import is_backbone_name, list_backbones
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.shipped import CONFIG, shipped_models
from gpldla.data.preprocessing import READINGS
from gpldla.utils.errors import UserError, did_you_mean

HEAD = "gpldla-auto"  # of a model made from a pretrained backbone


def resolve_model(name_or_folder: str | Path, *, reading: int = READINGS[-1]) -> FewShotModel:
    """Return the model with this name, in evaluation mode on the CPU.

    A name is, in this order: the folder of a trained model; a pretrained backbone (also `hf:ORG/NAME`,
    `st:ORG/NAME`, `timm:NAME`, and each of these with a folder), which gets the head "gpldla-auto"; a shipped
    model. `,size=PIXELS` at its end chooses the size of pictures where the network takes several.

    reading: how picture files are decoded, see `ImageSettings`; what is made with the model keeps it
    """
    model = _named_model(name_or_folder)
    if model.backbone.reads == "pictures":
        model.set_image_settings(reading=reading)
    return model


def _named_model(name_or_folder: str | Path) -> FewShotModel:
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
