"""Fit the calibration of shipped models again, on the validation classes of their protocol.

    python -m benchmarks.calibrate cub-conv4-1shot cub-conv4-5shot

The weights and every other number of config.json stay as they are. Models that `gpldla train` wrote have a
calibration already.
"""

import argparse
import time

from gpldla.backbones import backbone_preprocessing
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.model_files import read_model_files, write_model_files
from gpldla.classifier.shipped import model_folder, shipped_models
from gpldla.data import load_protocol
from gpldla.evaluation import PartEvaluator, Task
from gpldla.training.home_tasks import fit_task_temperature
from gpldla.training.recipe import stored_settings


def calibrate(name: str) -> None:
    """Fit the calibration of one model and write it into its folder."""
    model, started = FewShotModel.from_pretrained(name), time.monotonic()
    recipe = stored_settings(model.info["recipe"])
    size, side = backbone_preprocessing(model.backbone_name).size, recipe["stored_side"] or None
    part = load_protocol(recipe["dataset"], size=size, side=side).part("validation")
    usual = Task(
        recipe["validation.ways"],
        recipe["validation.shots"] or recipe["shots"],
        recipe["validation.queries"],
        recipe["separate_groups"],
    )
    model.calibration = fit_task_temperature(PartEvaluator(model, part), usual, model.temperature)
    folder = model_folder(name)
    weights, _ = read_model_files(folder)  # as they are stored, which may be float16
    write_model_files(folder, weights, model.config())
    print(f"{name}: {model.calibration}, {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    """Calibrate the models that are named, or all shipped ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    for name in parser.parse_args().names or shipped_models():
        calibrate(name)


if __name__ == "__main__":
    main()
