"""Opening of HDF5 files, look-up of paths in them, and iteration over their objects."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import SourceError
from ..files import cause_of, raise_if_of_system, raised_by_library

OPENING_BYTES = 2**22
"""Memory that must be free before a file is opened. HDF5 takes 2 MB for its caches, and ends the
process if it cannot (version 1.14.6, with each allocation of an opening failing in turn)."""


def open_hdf5(path: Path | FileIO, mode: str, **options: Any) -> h5py.File:
    """Open an HDF5 file as `h5py.File` does.

    Raises
    ------
    MemoryError
        If memory for the caches of HDF5 cannot be allocated.
    """
    np.empty(OPENING_BYTES, np.uint8)  # takes microseconds: its pages are not touched
    return h5py.File(path, mode, **options)


def open_file(path: Path) -> h5py.File:
    """Open an HDF5 file for reading.

    Raises
    ------
    SourceError
        If it is not an HDF5 file, is truncated or is being written.
    """
    try:
        # Without a cache HDF5 reads only the requested part of an uncompressed chunk.
        return open_hdf5(path, "r", rdcc_nbytes=0)
    except BlockingIOError:
        raise SourceError(
            f"{path}: is locked, so some program is writing it: wait until it is done"
        ) from None
    except OSError as error:
        raise_if_of_system(str(path), error)
        if not h5py.is_hdf5(path):
            raise SourceError(f"{path}: is not an HDF5 file, in spite of its name") from None
        raise SourceError(
            f"{path}: cannot be opened as HDF5 ({cause_of(error)}): copy it again, or wait until "
            "it is written"
        ) from None


@dataclass(frozen=True, slots=True)
class BrokenPath:
    """A path in a file with a broken link or a damaged object."""

    path: str
    """The path."""
    reason: str
    """Why it is broken, as the end of a message."""


def look_up(file: h5py.Group, path: str) -> h5py.Dataset | h5py.Group | BrokenPath | None:
    """Object at a path of a file; None if the path does not exist.

    h5py raises the same error for a missing name and for a broken link. Here they differ, because a
    broken part of a scan must not be treated as a missing one.
    """
    item: object = file
    where = ""
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if not isinstance(item, h5py.Group):
            return None
        where += "/" + part
        link: object = None
        try:
            if not item.id.links.exists(part.encode()):
                return None
            link = item.get(part, getlink=True)
            if isinstance(link, h5py.ExternalLink) and _leads_to_a_device(link, item.file):
                return BrokenPath(path, f"is a link into {link.filename}, which is not a file")
            item = item[part]
        except Exception as error:
            if not isinstance(link, h5py.ExternalLink):
                raise_if_of_system(f"{file.file.filename}:{path}", error)
            if not raised_by_library(error):
                raise
            is_all = where.strip("/") == path.strip("/")
            of = "" if is_all else f"cannot be reached: {where} "
            assert isinstance(item, h5py.Group)
            return BrokenPath(path, f"{of}{_reason(item, link, error)}")
    return item if isinstance(item, h5py.Dataset | h5py.Group) else None


MAX_OBJECTS = 10_000
"""Largest number of links of a file that are read, in 0.5 s. Files of detectors with a group for
each frame have millions, and some commands read the links twice."""


def names_in(group: h5py.Group) -> Iterator[str]:
    """Iterate over the names in a group; bytes, which damage leaves of a name, are left out."""
    return (name for name in group if isinstance(name, str))


class FileObjects:
    """Groups and data sets of a file with their paths, breadth first; each comes once.

    Damaged objects are left out, and links that lead nowhere. After `MAX_OBJECTS` links it ends.

    Parameters
    ----------
    file : h5py.File
        The file.
    follows_links : bool
        Whether soft and external links are followed. Every object of a file has a hard link, so
        without them nothing of the file itself is left out.

    Attributes
    ----------
    is_complete : bool
        False once the file was seen to have more links than are looked at.
    """

    def __init__(self, file: h5py.File, *, follows_links: bool = True) -> None:
        self._file = file
        self._follows_links = follows_links
        self.is_complete = True

    def __iter__(self) -> Iterator[tuple[str, h5py.Dataset | h5py.Group]]:
        groups = deque([("", self._file, _identity(self._file)[0])])
        seen = {_identity(self._file)}
        n_links = 0
        while groups:
            place, group, file_number = groups.popleft()
            for name in names_in(group):
                n_links += 1
                if n_links > MAX_OBJECTS:
                    self.is_complete = False
                    return
                item, identity = self._find(group, name, file_number)
                if item is None or identity in seen:
                    continue
                seen.add(identity)
                yield f"{place}/{name}", item
                if isinstance(item, h5py.Group):
                    groups.append((f"{place}/{name}", item, identity[0]))

    def _find(
        self, group: h5py.Group, name: str, file_number: int
    ) -> tuple[h5py.Dataset | h5py.Group | None, tuple[int, int]]:
        """Object of a name in a group, or None if it is damaged or no object; its identity."""
        item: object = None
        identity = -1, -1
        try:
            link = group.id.links.get_info(name.encode(errors="surrogateescape"))
            if link.type == h5py.h5l.TYPE_HARD:
                identity = file_number, link.u
                item = group[name]
            elif self._follows_links:
                item = look_up(group, name)
                if isinstance(item, h5py.HLObject):
                    identity = _identity(item)
        except Exception as error:
            raise_if_of_system(f"{group.file.filename}:{group.name}/{name}", error)
            if not raised_by_library(error):
                raise
            return None, identity
        return (item if isinstance(item, h5py.Dataset | h5py.Group) else None), identity


def _identity(item: h5py.HLObject) -> tuple[int, int]:
    """File and address of an object, which are unique."""
    info = h5py.h5o.get_info(item.id)
    return info.fileno, info.addr


def read_attribute(item: h5py.HLObject, name: str, default: Any) -> Any:
    """Read an attribute of an object; `default` if it is missing.

    ``attrs.get`` also returns the default for a damaged attribute.
    """
    if name not in item.attrs:
        return default
    return item.attrs[name]


def external_files(link: h5py.ExternalLink, path: str) -> Iterator[str]:
    """Iterate over the paths at which HDF5 searches for the file of an external link."""
    folders = os.environ.get("HDF5_EXT_PREFIX", "").split(":")
    folders += [os.path.dirname(path) or ".", ".", os.path.dirname(os.path.realpath(path))]
    name = link.filename
    if os.path.isabs(name):
        yield name
        name = os.path.basename(name)
    yield from (os.path.join(folder, name) for folder in folders if folder)


def _leads_to_a_device(link: h5py.ExternalLink, file: h5py.File) -> bool:
    """True if a link leads to a pipe or a device, which HDF5 would open and wait for."""
    paths = map(Path, external_files(link, file.filename))
    return any(path.exists() and not path.is_file() for path in paths)


def _reason(group: h5py.Group, link: object, error: Exception) -> str:
    """Why a link in a group cannot be followed."""
    places = []
    while isinstance(link, h5py.SoftLink) and link.path not in places:
        places.append(link.path)
        begin = group.file if link.path.startswith("/") else group
        link = begin.get(link.path, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        places.append(f"{link.path} in {link.filename}")
    if places:
        return (
            f"is a link to {', a link to '.join(places)}, which is broken ({cause_of(error)}): "
            "copy the missing file next to this one, or give another path"
        )
    return f"is damaged ({cause_of(error)}): copy the file again"


LISTED = 6
"""Largest number of data sets or entries listed in a message."""


def is_nxtomo(group: h5py.Group) -> bool:
    """True if a group is an entry whose definition is NXtomo."""
    definition = look_up(group, "definition")
    if not isinstance(definition, h5py.Dataset) or definition.size != 1:
        return False
    return np.ravel(definition[()])[0] in (b"NXtomo", "NXtomo")
