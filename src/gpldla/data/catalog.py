"""Data sets and protocols by name: listing them, and opening them, packed first where needed."""

import glob
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpldla.data.paths import DataPaths
from gpldla.data.protocols import ALL, PLUGINS, PROTOCOLS, Part, Protocol
from gpldla.data.sets import FOLDER_PREFIX, SETS, BundledSet, DataSet, FolderSet, StoredSet
from gpldla.data.splits import PARTS
from gpldla.data.store import ImageSet, cached_store, open_store, store_folder
from gpldla.data.store_manifest import MANIFEST, read_manifest
from gpldla.utils.errors import UserError, did_you_mean
from gpldla.utils.plugins import plugin_fault
from gpldla.utils.progress import SILENT, Reporter


@dataclass(frozen=True)
class Access:
    """How data is opened.

    data_paths: the data root and the cache
    report:     where progress is reported
    skip_bad:   leave out files that cannot be read, instead of raising an error
    """

    data_paths: DataPaths = field(default_factory=DataPaths)
    report: Reporter = SILENT
    skip_bad: bool = False


DEFAULT_ACCESS = Access()  # the folders of this environment, without reports


def list_sets() -> list[str]:
    """Return the names of the data sets."""
    return sorted(SETS)


def list_protocols() -> list[str]:
    """Return the names of the protocols."""
    return sorted(PROTOCOLS)


def is_set_only(name: str) -> bool:
    """Return whether a name is a data set without a protocol of its name; an unknown name is an error."""
    known = SETS.keys() | PROTOCOLS.keys()
    if name not in known and not name.startswith(FOLDER_PREFIX):
        raise _unknown(name, known)
    return name in SETS and name not in PROTOCOLS


def find_set(name: str) -> DataSet:
    """Return a data set by name; `folder:PATH` names any folder of class folders."""
    if name.startswith(FOLDER_PREFIX):
        return FolderSet.from_name(name)
    return SETS.find(name)


def sources_of(protocol: str) -> dict[str, tuple[str, str]]:
    """Return for each part of a protocol the data set and the part of it."""
    if protocol.startswith(FOLDER_PREFIX):
        return {part: (protocol, part) for part in PARTS}
    if protocol in PROTOCOLS:
        return PROTOCOLS[protocol]
    if protocol in SETS:
        raise UserError(
            f"The data set {protocol!r} has no base, validation and novel classes of its own;"
            f" protocols are {', '.join(list_protocols())}."
        )
    raise _unknown(protocol, PROTOCOLS)


def _unknown(name: str, known: Iterable[str]) -> UserError:
    fault = plugin_fault(PLUGINS, name)
    return UserError(fault or f"There is no data set {name!r}{did_you_mean(name, known)}")


def load_set(
    name: str, *, size: int | None = None, side: int | None = None, access: Access = DEFAULT_ACCESS
) -> ImageSet:
    """Open a data set by name, packed first where needed.

    size: input size of the backbone that will see the images, in pixels; None: that of the usual backbone
    side: maximal side of stored images, in pixels; None: chosen from `size`
    """
    return _open(find_set(name), size, side, access)


def _open(data_set: DataSet, size: int | None, side: int | None, access: Access) -> ImageSet:
    settings = data_set.settings(size or data_set.default_size, side)
    if isinstance(data_set, BundledSet):
        return _open_bundled(data_set, settings, access)
    assert isinstance(data_set, StoredSet)
    folder = data_set.locate(access.data_paths.root)
    if folder is None:
        return _open_packed_copy(data_set, settings, access)
    return _open_source(data_set, folder, settings, access)


def _open_bundled(data_set: BundledSet, settings: dict[str, Any], access: Access) -> ImageSet:
    store = store_folder(access.data_paths.cache, data_set.store_name, settings)

    def draw() -> None:
        access.report.say(f"Preparing {data_set.name} in {store}")
        data_set.pack(store, settings)

    return cached_store(store, draw)


def _open_source(data_set: StoredSet, folder: Path, settings: dict[str, Any], access: Access) -> ImageSet:
    source = {"settings": settings, **data_set.source(folder)}
    store = store_folder(access.data_paths.cache, data_set.store_name, source)
    if (store / MANIFEST).exists():
        _report_skipped(data_set, store, access)

    def pack() -> None:
        access.report.say(f"Preparing {data_set.name} from {folder} in {store}")
        source_facts = {**source, "folder": str(folder.absolute())}
        data_set.pack(folder, store, source_facts, access.report, access.skip_bad)

    return cached_store(store, pack)


def _open_packed_copy(data_set: StoredSet, settings: dict[str, Any], access: Access) -> ImageSet:
    """Open a store whose source images are not in the data root."""
    packed = [
        (store, source)
        for store in packed_stores(data_set, access.data_paths.cache, settings)
        if data_set.matches_source(source := read_manifest(store)["source"], access.data_paths.root)
    ]
    if not packed:
        raise UserError(missing_sentence(data_set, access.data_paths))
    store, source = packed[-1]
    access.report.say(
        f"{data_set.name} is not in the data root; using {store}, packed from {source.get('folder')}"
    )
    _report_skipped(data_set, store, access)
    return open_store(store)


def _report_skipped(data_set: DataSet, store: Path, access: Access) -> None:
    try:
        left_out = read_manifest(store)["source"].get("left_out")
    except (OSError, ValueError, KeyError, AttributeError):
        return  # reported when the store is opened
    if left_out:
        access.report.say(
            f"{data_set.name} was packed without its faulty files ({len(left_out)} entries under left_out in"
            f" {store / MANIFEST}); once they are repaired, delete {store} and it is packed again."
        )


def packed_stores(data_set: DataSet, cache: Path, settings: dict[str, Any] | None = None) -> list[Path]:
    """Return the stores of a data set in the cache (with these settings), the latest at the end."""
    stores = []
    for manifest_file in cache.glob(f"{glob.escape(data_set.store_name)}-*/{MANIFEST}"):
        try:
            manifest = read_manifest(manifest_file.parent)
        except (OSError, ValueError):
            continue
        source = manifest.get("source", {})
        if manifest.get("name") == data_set.name and settings in (None, source.get("settings")):
            stores.append((manifest_file.stat().st_mtime, manifest_file.parent))
    return [folder for _, folder in sorted(stores)]


def missing_sentence(data_set: StoredSet, data_paths: DataPaths) -> str:
    """Return a sentence on where to download a data set and where to put it."""
    if isinstance(data_set, FolderSet):
        return f"There is no folder {data_set.path}, neither in the current folder nor in {data_paths.root}."
    return (
        f"Data set {data_set.name!r} is not in the data root {data_paths.root}: get it from {data_set.get}"
        f" and put {data_set.put} into {data_paths.root / data_set.folders[0]},"
        " or name another data root with --data-root."
    )


def load_protocol(
    name: str,
    *,
    size: int | None = None,
    side: int | None = None,
    parts: Collection[str] = PARTS,
    access: Access = DEFAULT_ACCESS,
) -> Protocol:
    """Open a protocol by name; its data sets are packed first where needed.

    size:  input size of the backbone that will see the images, in pixels; None: that of the usual backbone
    side:  maximal side of stored images, in pixels; None: chosen from `size`
    parts: the parts to open; data sets that only other parts need are not opened
    """
    wanted = {part: source for part, source in sources_of(name).items() if part in parts}
    opened: dict[str, ImageSet] = {}
    found: dict[str, Part] = {}
    for part, (set_name, part_of_set) in wanted.items():
        data_set = find_set(set_name)
        if set_name not in opened:
            opened[set_name] = _open(data_set, size, side, access)
        classes, expected = classes_of_part(data_set, part_of_set, opened[set_name].class_names)
        if classes:
            found[part] = Part(opened[set_name], classes)
        if len(classes) < expected:
            access.report.say(
                f"{set_name} is not complete: {len(classes)} of the {expected} {part} classes of {name} are"
                " there, so results are not comparable with published ones."
            )
    if not found:
        raise UserError(f"None of the classes of {name!r} was found; see `gpldla data list`.")
    return Protocol(name, found)


def classes_of_part(
    data_set: DataSet, part_of_set: str, class_names: Sequence[str]
) -> tuple[tuple[int, ...], int]:
    """Return the indices of the classes in a part of a set, and how many classes the part should have."""
    indices_of_part, lists = data_set.parts(class_names), data_set.class_lists
    if part_of_set == ALL:
        return tuple(sorted(sum(indices_of_part.values(), ()))), sum(map(len, lists.values()))
    found = indices_of_part.get(part_of_set, ())
    return found, len(lists.get(part_of_set, found))
