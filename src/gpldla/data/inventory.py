"""The inventory of data sets: what was found, what is missing, and where to download it."""

import glob
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpldla.data.catalog import (
    Access,
    classes_of_part,
    find_set,
    list_protocols,
    list_sets,
    load_set,
    packed_stores,
    sources_of,
)
from gpldla.data.sets import BundledSet, DataSet, StoredSet
from gpldla.data.source_files import stamp
from gpldla.data.store_manifest import MANIFEST, read_manifest
from gpldla.utils.errors import UserError


@dataclass(frozen=True)
class SetStatus:
    """What was found of one data set.

    folder: with its images; None where there is none
    counts: images per class
    faults: one sentence for each thing that is missing or wrong
    stores: packed copies in the cache
    """

    data_set: DataSet
    folder: Path | None
    counts: Mapping[str, int]
    faults: tuple[str, ...]
    stores: tuple[Path, ...]

    @property
    def usable(self) -> bool:
        """Whether there is at least one class."""
        return bool(self.counts)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing or wrong."""
        return self.usable and not self.faults

    def as_json(self) -> dict[str, Any]:
        """Return the status for `gpldla data list --json`."""
        stored = self.data_set if isinstance(self.data_set, StoredSet) else None
        return {
            "found": self.usable,
            "embedded": stored is None,
            "place": None if self.folder is None else str(self.folder),
            "classes": len(self.counts),
            "images": sum(self.counts.values()),
            "complete": self.complete,
            "faults": list(self.faults),
            "packed": [str(store) for store in self.stores],
            "get": stored.get if stored else None,
            "put": stored.put if stored else None,
        }


def set_status(name: str, access: Access) -> SetStatus:
    """Search for a data set; a bundled one is drawn if it is not in the cache."""
    data_set = find_set(name)
    if isinstance(data_set, BundledSet):
        try:
            image_set = load_set(name, access=access)
        except UserError as error:  # such as a cache that cannot be written
            return SetStatus(data_set, None, {}, (str(error),), ())
        counts = dict(zip(image_set.class_names, image_set.counts.tolist()))
        return SetStatus(data_set, None, counts, (), tuple(packed_stores(data_set, access.data_paths.cache)))
    assert isinstance(data_set, StoredSet)
    folder = data_set.locate(access.data_paths.root)
    stores = packed_stores(data_set, access.data_paths.cache)
    try:
        current = None if folder is None else stamp(folder)
        stores = [s for s in stores if current in (None, read_manifest(s)["source"].get("stamp"))]
        counts, bad = _counts(data_set, folder, stores)
    except (UserError, OSError, ValueError) as error:
        counts, bad = {}, (str(error),)
    if folder is not None and not counts and not bad:
        bad = (data_set.empty_message(folder),)
    return SetStatus(data_set, folder, counts, (*_lacking(data_set, counts), *bad), tuple(stores))


def _counts(
    data_set: StoredSet, folder: Path | None, stores: list[Path]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return images per class and faults: from a store of the same files, else by counting files."""
    if stores:
        manifest = read_manifest(stores[-1])
        counts = {c["name"]: int(c["images"]) for c in manifest["classes"]}
        return counts, tuple(manifest["source"].get("left_out", ()))
    if folder is None:
        return {}, ()
    survey = data_set.survey(folder)
    return survey.counts, survey.bad


def _lacking(data_set: StoredSet, counts: Mapping[str, int]) -> list[str]:
    """Return sentences on how many classes and images are missing, if some were found."""
    if not counts:
        return []
    faults = []
    names = list(counts)
    present = data_set.parts(names)
    for part, wanted in data_set.class_lists.items():
        missing = len(wanted) - len(present.get(part, ()))
        if missing > 0:
            faults.append(f"{missing} of {len(wanted)} {part} classes are missing.")
    images = sum(counts.values())
    if data_set.n_images is not None and images != data_set.n_images:
        faults.append(f"There are {images:,} images instead of {data_set.n_images:,}.")
    return faults


def protocol_facts(name: str, statuses: Mapping[str, SetStatus]) -> dict[str, dict[str, Any]]:
    """Return for each part of a protocol its data set and how many classes and images it has.

    `classes` is the number that the protocol asks for; `classes_found` and `images` are those found.
    """
    facts: dict[str, dict[str, Any]] = {}
    for part, (set_name, part_of_set) in sources_of(name).items():
        status = statuses[set_name]
        names = list(status.counts)
        indices, asked = classes_of_part(status.data_set, part_of_set, names)
        facts[part] = {
            "set": set_name,
            "classes": asked,
            "classes_found": len(indices),
            "images": sum(status.counts[names[index]] for index in indices),
        }
    return facts


def data_inventory(access: Access) -> dict[str, Any]:
    """Return the content of `gpldla data list --json`."""
    statuses = {name: set_status(name, access) for name in list_sets()}
    return {
        "data_root": str(access.data_paths.root),
        "cache": str(access.data_paths.cache),
        "sets": {name: status.as_json() for name, status in statuses.items()},
        "protocols": {name: protocol_facts(name, statuses) for name in list_protocols()},
    }


def stores_to_check(cache: Path, names: Collection[str]) -> list[Path]:
    """Return the folders of the packed stores of some data sets, or of all, sorted; none is opened."""
    patterns = [glob.escape(find_set(name).store_name) + "-*" for name in names] or ["*"]
    return sorted({file.parent for pattern in patterns for file in cache.glob(f"{pattern}/{MANIFEST}")})
