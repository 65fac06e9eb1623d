"""The folder of a run: the state that an earlier part left there, and the lock against a second training."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gpldla.classifier.shipped import WEIGHTS
from gpldla.training import checkpoint
from gpldla.training.checkpoint import TrainingState
from gpldla.training.process_group import ProcessGroup
from gpldla.training.recipe import HeadSettings, Recipe, flatten, stored_settings
from gpldla.utils.errors import UserError
from gpldla.utils.files import check_writable, exclusive_lock, file_stamp, remove_partial_file


class RunFolder:
    """Refuses a folder that holds another run or somebody else's model.

    state: what an interrupted run left, or None
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self._file = path / checkpoint.FILE
        self._stamp = file_stamp(self._file)
        self.state: TrainingState | None = None
        if self._stamp is not None:
            self.state = TrainingState.read(path)
            _check_same_recipe(self.state.values["recipe"], recipe, path)
        elif (path / WEIGHTS).exists():
            raise UserError(f"{path} already holds a model; choose another folder.")
        check_writable(path)

    @contextmanager
    def locked(self, processes: ProcessGroup) -> Iterator[None]:
        """Hold the lock, in the first process; raise in all if another training has it or has just ended.

        The state was read before, so that wrong settings are refused at once; a training that wrote another
        one since then must not be overwritten.
        """
        fault: UserError | None = None
        with ExitStack() as held:
            if processes.is_first:
                try:
                    held.enter_context(exclusive_lock(self.path, "training"))
                    if file_stamp(self._file) != self._stamp:
                        raise UserError(
                            f"Another training has written {self._file} meanwhile; run the command again to"
                            " go on from there, or choose another folder."
                        )
                    remove_partial_file(self._file)
                except UserError as error:  # raised below: the other processes wait for the outcome
                    fault = error
            if processes.any(fault is not None):
                raise fault or UserError(
                    f"Another training is running in {self.path}; choose another folder."
                )
            yield


def _check_same_recipe(before: dict[str, Any], recipe: Recipe, folder: Path) -> None:
    now = flatten(recipe.as_dict())
    defaults = flatten(Recipe(head=HeadSettings(recipe.head.name)).as_dict())
    before = defaults | stored_settings(before)  # a setting that did not exist then had its default
    changed = [
        f"{key} ({before.get(key)!r}, now {now.get(key)!r})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise UserError(
            f"{folder} holds a run with other settings: {', '.join(changed)};"
            " go on with those settings or choose another folder."
        )
