"""Models and classifiers on the Hugging Face Hub: safetensors, JSON and a model card, no code."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpldla.classifier.shipped import CARD, CONFIG, WEIGHTS
from gpldla.utils.errors import UserError, first_line

CLASSIFIER = "classifier.safetensors"  # the file of a shared classifier
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Shared:
    """What `FewShotModel` and `FewShotClassifier` share: `push_to_hub`."""

    save_pretrained: Callable[..., None]  # writes a folder that `from_pretrained` reads, with a model card

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = True,
        token: str | None = None,
        message: str = "Upload by gpldla",
        **options: Any,
    ) -> str:
        """Upload to the Hugging Face Hub as USER/NAME, and return the address of the page.

        private: of a repository that is made; one that exists stays as it is
        token: None: that of `hf auth login`
        options: of `save_pretrained`
        """
        hub = _huggingface_hub()
        if not is_hub_name(name):
            raise UserError(f"{name!r} is no name for the Hugging Face Hub; write USER/NAME.")
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, name=name, **options)
            api = hub.HfApi(token=token)
            try:
                page = api.create_repo(name, private=private, exist_ok=True)
                api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
            except Exception as error:  # of the hub, of its HTTP library, of the file system
                raise UserError(
                    f"{name} could not be uploaded to the Hugging Face Hub ({first_line(error)}); log in with"
                    " `hf auth login`, or give a token that may write there."
                ) from None
        return str(page)


def is_hub_name(name: object) -> bool:
    """Return whether this is USER/NAME as a string; a `Path` is never one."""
    return isinstance(name, str) and HUB_NAME.fullmatch(name) is not None


def shared_folder(name: str | Path, revision: str | None = None, token: str | None = None) -> Path:
    """Return a folder: a path itself if it exists, else that of USER/NAME, downloaded if it is not cached.

    revision: a branch, tag or commit of the repository; None: its latest state
    """
    folder = Path(name)
    if folder.exists() or not is_hub_name(name):
        if revision is not None:
            raise UserError(f"revision is for names of the Hugging Face Hub; {name} is a folder.")
        return folder
    hub = _huggingface_hub(f"There is no folder {name}")
    try:
        return Path(
            hub.snapshot_download(
                str(name), revision=revision, token=token, allow_patterns=[WEIGHTS, CONFIG, CLASSIFIER, CARD]
            )
        )
    except Exception as error:
        raise UserError(
            f"There is no folder {name}, and it could not be loaded from the Hugging Face Hub"
            f" ({first_line(error)}); check the name, the connection, and whether you are logged in."
        ) from None


def _huggingface_hub(why: str = "The Hugging Face Hub is reached by huggingface_hub") -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"{why}, and huggingface_hub is not installed: pip install 'gpldla[hf]'.") from None
    return huggingface_hub
