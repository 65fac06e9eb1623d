"""Where the files of a model from the Hugging Face hub are on this machine; nothing is downloaded."""

from dataclasses import dataclass, replace
from pathlib import Path

from gpldla.backbones.names import ModelName, is_folder
from gpldla.utils.errors import UserError, first_line


@dataclass(frozen=True)
class LocalModel:
    """A folder with a model's files; name: what to store so that the same files are found again."""

    folder: Path
    name: ModelName

    def file(self, *names: str) -> Path | None:
        """Return the first of these files that exists."""
        return next((path for name in names if (path := self.folder / name).is_file()), None)

    def require(self, name: str) -> Path:
        """Return a file, or say that it is missing."""
        path = self.file(name)
        if path is None:
            raise UserError(
                f"Model '{self.name}' has no {name} in {self.folder}; download all of its files again."
            )
        return path


def find_locally(name: ModelName) -> LocalModel:
    """Return the folder of a model: a path itself, else what the hub's cache on this machine holds.

    A revision that was not given is looked up, and is part of the returned name.
    """
    folder = Path(name.name).expanduser()
    if is_folder(name.name):
        if not folder.is_dir():
            raise UserError(f"Model '{name}': there is no folder {folder}; copy the model's files there.")
        folder = folder.resolve()
        return LocalModel(folder, replace(name, name=str(folder), revision=None))
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError
    except ImportError as error:
        raise UserError(
            f"Model '{name}' needs huggingface_hub, which cannot be imported ({first_line(error)});"
            " pip install 'gpldla[hf]', or give the folder of its files."
        ) from None
    try:
        snapshot = Path(snapshot_download(name.name, revision=name.revision, local_files_only=True))
    except HFValidationError:
        raise UserError(
            f"Model '{name}' is no name of the hub; write {name.prefix}:ORG/NAME or"
            f" {name.prefix}:/path/to/folder."
        ) from None
    except (OSError, ValueError):
        download = f"hf download {name.name}" + (f" --revision {name.revision}" if name.revision else "")
        raise UserError(
            f"Model '{name}' is not on this machine, and gpldla downloads nothing by itself; run"
            f" `{download}`, or give the folder of its files as {name.prefix}:/path/to/folder."
        ) from None
    return LocalModel(snapshot, replace(name, revision=snapshot.name))
