"""Atomic writing of files, and safe reading: files hold data, never code."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise_tensors
from torch import Tensor, uint8

from gpldla.utils.checksums import CHECKSUM, checksum
from gpldla.utils.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


def check_writable(folder: Path) -> None:
    """Raise a sentence if files cannot be written to `folder`, which need not exist yet."""
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error}); choose another folder.") from None
    if not usable:
        reason = "is not writable" if nearest.is_dir() else "is not a folder"
        raise UserError(f"{folder} cannot be written to ({nearest} {reason}); choose another folder.")


def check_output(file: Path, *inputs: Path) -> None:
    """Raise a sentence if an output file cannot be written or is one of the inputs."""
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file in it.")
    if file.exists() and any(other.exists() and file.samefile(other) for other in inputs):
        raise UserError(f"{file} is an input; write to another file.")
    _check_regular(file)
    check_writable(file.parent)


def _check_regular(file: Path) -> None:
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is a device or a pipe, not a file; name a file.")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of `path` atomically: readers see the old file or the new one.

    A link stays and its target is replaced; the permissions of an old file stay.
    """
    path = Path(os.path.realpath(path))
    _check_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # of a full disk it names no file, else the temporary one
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever `write_atomically` writes a file; None where there is none."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


class ReplacedFile:
    """A file that is read, changed and written back: refused if somebody else has written it meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path, self._before = path, file_stamp(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold a lock while the file is written; raise a sentence if it is not the one that was read."""
        with exclusive_lock(self._path.absolute().parent, "change", wait=True):
            if file_stamp(self._path) != self._before:
                raise UserError(
                    f"{self._path} was changed by another program meanwhile; nothing was written: run the"
                    " command again."
                )
            yield


def remove_partial_file(path: Path) -> None:
    """Remove temporary files that a killed `write_atomically` left, if no other process is writing."""
    for left in path.parent.glob(f".{path.name}-" + 8 * "[0-9a-f]"):
        left.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(folder: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against a second process that does the same; the lock ends with the process.

    wait: until the other process is done, instead of an error
    On systems and file systems without locks nothing is locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise UserError(f"Another {what} is running in {folder}; choose another folder.") from None
        yield
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, indent: int = 2) -> None:
    """Write `value` as readable JSON."""
    try:
        content = json.dumps(value, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:  # names of files need not be Unicode
        content = json.dumps(value, indent=indent).encode()
    write_atomically(path, content + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise a sentence on why it cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable JSON ({error}).") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], info: Mapping[str, Any] | None = None) -> str:
    """Write tensors, and `info` as JSON in the header, to one safetensors file; return its checksum.

    The header holds the checksum, too, which `read_tensors` verifies.
    """
    # Copies, as safetensors refuses tensors that share memory.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    digest = tensors_checksum(copies, dict(info or {}))
    facts = json.dumps({**(info or {}), CHECKSUM: digest})
    write_atomically(path, serialise_tensors(copies, {"info": facts}))
    return digest


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and `info` of a file by `write_tensors`; refuse one that has changed since.

    Files of other programs, and of versions that wrote no checksum, are read as they are.
    """
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            info = json.loads((file.metadata() or {}).get("info", "{}"))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a readable safetensors file ({error}).") from None
    if isinstance(info, dict) and CHECKSUM in info and tensors_checksum(tensors, info) != info[CHECKSUM]:
        raise UserError(f"{path} is damaged: its checksum does not match; copy it again, or make it again.")
    return tensors, info


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise a sentence if a tensor that was read from `path` holds numbers that are infinite or NaN.

    Minus infinity is the logarithm of the probability of a class without examples.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool((tensor.isnan() | tensor.isposinf()).any()):
            raise UserError(
                f"{path} is damaged: its tensor {name} holds numbers that are infinite or NaN;"
                " copy it again, or make it again."
            )


def tensors_checksum(tensors: Mapping[str, Tensor], info: dict[str, Any]) -> str:
    """Return a digest of everything in a file except the digest itself."""

    def content(tensor: Tensor) -> memoryview:
        return tensor.flatten().view(uint8).numpy().data

    parts = [
        (name, str(tensor.dtype), list(tensor.shape), content(tensor)) for name, tensor in tensors.items()
    ]
    return checksum(parts, info)
