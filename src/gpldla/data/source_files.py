"""The user's files: in folders, in zips, or in both, seen as one list."""

import hashlib
import os
import posixpath
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path, PurePosixPath

from gpldla.data.decoding import HEIC_TYPES, reads_heic
from gpldla.utils.errors import UserError

IMAGE_TYPES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".webp",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".jp2",
        ".avif",
    }
)
LARGEST_FILE = 1 << 30  # bytes; a larger member of a zip is no image
TAIL = 1 << 16  # bytes at the end that identify a file: a zip's directory, a gzip's checksum


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file in a folder (member is "") or inside a zip."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        """Return the path, continued into the zip."""
        return f"{self.path}/{self.member}" if self.member else str(self.path)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.member).name if self.member else self.path.name

    def read(self) -> bytes:
        """Return the content, or raise a sentence on why it cannot be read."""
        try:
            if not self.member:
                return self.path.read_bytes()
            archive = _open_zip(self.path)
            if archive.getinfo(self.member).file_size > LARGEST_FILE:
                raise UserError(f"{self} is larger than any image; remove it.")
            return archive.read(self.member)
        except UserError:
            raise
        except Exception as error:  # a damaged zip raises all kinds: zlib.error, BadZipFile, RuntimeError ...
            raise UserError(f"{self} cannot be read ({error}); get it anew or remove it.") from None


@dataclass(frozen=True)
class Tree:
    """All files below a folder by relative path; a zip counts as unpacked into its folder.

    files:     by path relative to the folder, sorted
    folders:   paths of all folders, relative to it, including empty ones
    bad:       sentences about zips that cannot be read
    """

    folder: Path
    files: dict[str, SourceFile]
    folders: frozenset[str]
    bad: tuple[str, ...]

    @property
    def images(self) -> dict[str, SourceFile]:
        """The files with an image's suffix."""
        return {path: file for path, file in self.files.items() if is_image(path)}


def is_image(path: str) -> bool:
    """Return whether a path has the suffix of an image."""
    suffix = PurePosixPath(path).suffix.lower()
    return suffix in IMAGE_TYPES or (suffix in HEIC_TYPES and reads_heic())


def read_tree(folder: Path) -> Tree:
    """List all files below `folder`; several zips join, and an unpacked file wins over a packed one.

    `folder` may itself be a zip.
    """
    files: dict[str, SourceFile] = {}
    folders: set[str] = set()
    zips: list[tuple[str, Path]] = []
    bad: list[str] = []
    found = _walk(folder, "") if folder.is_dir() else iter([(folder.name, folder, False)])
    for relative, path, is_folder in found:
        if is_folder:
            folders.add(relative)
        elif path.suffix.lower() == ".zip":
            zips.append((relative, path))
        else:
            files[relative] = SourceFile(path)
    for relative, path in sorted(zips):
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except Exception as error:  # a damaged directory raises exceptions of all kinds as well
            bad.append(f"{path} cannot be read as a zip ({error}); get it anew or remove it.")
            continue
        prefix = relative.rpartition("/")[0]
        for member in members:
            name = member.filename.replace("\\", "/")  # as old Windows tools write it
            inside = posixpath.normpath(posixpath.join(prefix, name))
            if is_hidden(inside):
                continue
            if name.endswith("/"):
                folders.add(inside)
            else:
                files.setdefault(inside, SourceFile(path, member.filename))
    for file_path in files:
        folders.update(str(parent) for parent in PurePosixPath(file_path).parents if str(parent) != ".")
    return Tree(folder, dict(sorted(files.items())), frozenset(folders), tuple(bad))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and in those below, including linked ones, without hidden files."""
    return (path for _, path, is_folder in _walk(folder, "") if not is_folder and path.is_file())


def _walk(folder: Path, prefix: str, above: tuple[Path, ...] = ()) -> Iterator[tuple[str, Path, bool]]:
    """Yield (relative path, path, whether a folder) of everything below, without hidden files."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); check its permissions.") from None
    above = (*above, folder.resolve())
    for entry in entries:
        if is_hidden(entry.name) or _is_link_cycle(entry, above):
            continue
        relative = prefix + entry.name
        yield relative, Path(entry.path), entry.is_dir()
        if entry.is_dir():
            yield from _walk(Path(entry.path), relative + "/", above)


def _is_link_cycle(entry: os.DirEntry[str], above: tuple[Path, ...]) -> bool:
    """Return whether an entry is a link to one of the folders that contain it."""
    if not (entry.is_symlink() and entry.is_dir()):
        return False
    target = Path(entry.path).resolve()
    return any(folder.is_relative_to(target) for folder in above)


def is_hidden(path: str) -> bool:
    """Return whether a file is hidden or left behind by a system: .DS_Store, __MACOSX/._x ..."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def stamp(folder: Path) -> str:
    """Return a hash of the state of `folder`, in milliseconds.

    Files at the top level, such as archives, count by size and last bytes; folders by name and modification
    time. An image that is rewritten in place goes unnoticed.
    """
    try:
        facts = sorted(_facts(folder)) if folder.is_dir() else [_file_facts(folder)]
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error}); check its permissions.") from None
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _facts(folder: Path) -> Iterator[tuple[str, int, str]]:
    for entry in os.scandir(folder):
        if is_hidden(entry.name):
            continue
        if entry.is_dir():
            yield from _folder_facts(entry, entry.name, (folder.resolve(),))
        elif entry.is_file():  # no pipes or broken links
            yield _file_facts(Path(entry.path))


def _file_facts(path: Path) -> tuple[str, int, str]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        return path.name, size, hashlib.sha256(file.read()).hexdigest()


def _folder_facts(
    folder: os.DirEntry[str], name: str, above: tuple[Path, ...]
) -> Iterator[tuple[str, int, str]]:
    yield name, folder.stat().st_mtime_ns, "folder"
    if _is_link_cycle(folder, above):
        return
    above = (*above, Path(folder.path).resolve())
    with os.scandir(folder.path) as entries:
        beginning = list(islice(entries, 16))
        # The modification time of a folder changes with added and removed images: no need to list all.
        rest = entries if any(entry.is_dir() for entry in beginning) else ()
        for entry in chain(beginning, rest):
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                yield from _folder_facts(entry, f"{name}/{entry.name}", above)
            elif entry.name.lower().endswith((".zip", ".csv")) and entry.is_file():
                yield _file_facts(Path(entry.path))


_zips: dict[tuple[Path, int, int], zipfile.ZipFile] = {}
_zips_lock = threading.Lock()


def _open_zip(path: Path) -> zipfile.ZipFile:
    """Return the open zip, one for all threads: reading its directory takes longer than reading an image."""
    facts = path.stat()
    key = (path, facts.st_size, facts.st_mtime_ns)
    with _zips_lock:
        if key not in _zips:
            _zips[key] = zipfile.ZipFile(path)
        return _zips[key]


def close_zips() -> None:
    """Close all zips; they are opened again when needed."""
    with _zips_lock:
        for archive in _zips.values():
            archive.close()
        _zips.clear()
