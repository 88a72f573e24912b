"""Global heaps of HDF5 files, which hold texts and the maps of virtual data sets.

HDF5 2.0 reads a heap without end if an object of it is of 0 bytes, as free space may be where a
file was copied with a hole of zeros; only SIGKILL stops it. A heap may lie anywhere, and is found
by what refers to it. So what reads one is done first in the same file opened through Python, which
sees what HDF5 asks for: of a heap, its beginning.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py

from ...errors import SourceError
from ..closing import Closing
from ..library_errors import raised_by_library
from .object_headers import ObjectHeaders
from .open_hdf5 import open_hdf5

_SIGNATURE = b"GCOL"
_MAX_OBJECTS = 2**16
"""Most objects of a heap, which 16 bits number (HDF5 File Format Specification 3.0, III.E)."""
_MAX_LINKS = 16
"""Most links that lead from one to the other: the limit of HDF5 itself."""


def check_map(
    group: h5py.Group, name: str, headers: ObjectHeaders, link: h5py.h5l.LinkInfo
) -> None:
    """Check that what a link in a group leads to is no virtual data set with a damaged map.

    Raises
    ------
    SourceError
        If it is one.
    """
    if link.type != h5py.h5l.TYPE_HARD or headers.may_be_virtual(link.u):
        with CheckedHeaps() as heaps:
            heaps.open(group, name)


def read_attribute(item: h5py.HLObject, name: str, default: Any) -> Any:
    """Read an attribute of an object; `default` if it has none of that name.

    Raises
    ------
    SourceError
        If its text is in a damaged heap.
    """
    if name not in item.attrs:
        return default
    if item.attrs.get_id(name).dtype.hasobject:
        with CheckedHeaps() as heaps:
            heaps.read(item, lambda twin: twin.attrs[name])
    return item.attrs[name]


def read_values(data: h5py.Dataset) -> Any:
    """Read all of a data set, which may be of texts.

    Raises
    ------
    SourceError
        If they are in a damaged heap.
    """
    if data.dtype.hasobject:
        if data.is_virtual:  # HDF5 would take the file that is open here for those it is made of
            raise SourceError(f"{data.file.filename}:{data.name}: holds texts of other files")
        with CheckedHeaps() as heaps:
            heaps.read(data, lambda twin: twin[()])
    return data[()]


class CheckedHeaps(Closing):
    """Files opened once more, in which damaged heaps are found; a context manager.

    Such a file must be closed before Python ends, or HDF5 ends the process with a fault.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[_WatchedFile, h5py.File]] = {}

    def open(self, group: h5py.Group, name: str) -> None:
        """Open what a name in a group leads to, if it leads anywhere.

        Raises
        ------
        SourceError
            If it is a virtual data set whose map is in a damaged heap.
        """
        path = group.file.filename
        self.read(group, lambda twin: self._follow(path, twin.id, name))

    def read(self, item: h5py.HLObject, what: Callable[[Any], Any]) -> None:
        """Read something of an object.

        Raises
        ------
        SourceError
            If it is in a damaged heap.
        """
        twin = self._twin(item, item.file.filename)
        if twin is not None:
            self._attempt(lambda: what(type(item)(twin)))

    def open_all(self, path: Path) -> None:
        """Open all objects of a file.

        Raises
        ------
        SourceError
            If one is a virtual data set whose map is in a damaged heap.
        """
        self._visit(path, lambda name, item: None)

    def read_all(self, path: Path) -> None:
        """Open all objects of a file, and read all attributes and texts.

        Raises
        ------
        SourceError
            If one is in a damaged heap.
        """

        def read(_name: str, item: h5py.HLObject) -> None:
            for name in item.attrs:
                self._attempt(partial(item.attrs.__getitem__, name))
            if isinstance(item, h5py.Dataset) and not item.is_virtual and item.dtype.hasobject:
                self._attempt(partial(item.__getitem__, ()))

        self._visit(path, read)

    def _visit(self, path: Path, visit: Callable[[str, h5py.HLObject], None]) -> None:
        def visit_all() -> None:
            file = self._opened(str(path))
            visit("/", file)
            file.visititems(visit)

        self._attempt(visit_all)

    def _twin(self, item: h5py.HLObject, path: str) -> h5py.h5g.GroupID | h5py.h5d.DatasetID | None:
        """The same object in the file opened here; None if all of that was read in its place.

        Behind a soft link to an external one, HDF5 names an object as in the file of the first.
        """

        def find() -> None:
            found.append(self._follow(path, self._opened(path)["/"].id, item.name))

        found: list[Any] = []
        self._attempt(find)
        if found and found[0] is not None and _address(found[0]) == _address(item.id):
            return found[0]
        self.read_all(Path(path))
        return None

    def _follow(self, path: str, start: Any, where: str) -> Any:
        """Open all objects on a way from one of a file; None if it leads nowhere."""
        # What damage leaves of a name, h5py gives as bytes.
        item, parts, n_links = start, deque(os.fsdecode(where).split("/")), 0
        while parts and n_links <= _MAX_LINKS:
            part = parts.popleft().encode(errors="surrogateescape")
            if part in (b"", b"."):
                continue
            if not isinstance(item, h5py.h5g.GroupID) or not item.links.exists(part):
                return None
            kind = item.links.get_info(part).type
            if kind == h5py.h5l.TYPE_HARD:
                item = h5py.h5o.open(item, part)
                continue
            n_links += 1
            target = h5py.Group(item).get(part, getlink=True)
            way = os.fsdecode(target.path)
            parts.extendleft(reversed(way.split("/")))
            if kind == h5py.h5l.TYPE_EXTERNAL:
                found = filter(os.path.isfile, external_files(target, path))
                path = next(found, "")
                if not path:
                    return None
            if kind == h5py.h5l.TYPE_EXTERNAL or way.startswith("/"):
                item = self._opened(path)["/"].id
        return item

    def _attempt(self, action: Callable[[], Any]) -> None:
        """Do something in the files; what else is wrong with them is said where they are used."""
        try:
            action()
        except Exception as error:
            self._check()
            if not isinstance(error, OSError) and not raised_by_library(error):
                raise
        self._check()

    def _check(self) -> None:
        for path, (watched, _) in self._files.items():
            at, watched.damaged_at = watched.damaged_at, None
            if at is not None:
                raise SourceError(
                    f"{path}: is damaged (its global heap at byte {at} has an object of no bytes): "
                    "copy it again"
                )

    def _opened(self, path: str) -> h5py.File:
        """Open a file, unless it is open."""
        if path not in self._files:
            watched = _WatchedFile(path)
            try:
                file = open_hdf5(watched, "r")
            except BaseException:
                watched.close()
                raise
            watched.n_length_bytes = file.id.get_create_plist().get_sizes()[1]
            self._files[path] = watched, file
        return self._files[path][1]

    def close(self) -> None:
        """Close the files."""
        for watched, file in self._files.values():
            file.close()
            watched.close()


def external_files(link: h5py.ExternalLink, path: str) -> Iterator[str]:
    """Iterate over the names by which HDF5 tries to open the file of a link in another file."""
    folders = os.environ.get("HDF5_EXT_PREFIX", "").split(":")
    folders += [os.path.dirname(path) or ".", ".", os.path.dirname(os.path.realpath(path))]
    name = link.filename
    if os.path.isabs(name):
        yield name
        name = os.path.basename(name)
    yield from (os.path.join(folder, name) for folder in folders if folder)


class _WatchedFile(io.FileIO):
    """A file that finds each global heap that is read of it, and reads none that is damaged."""

    damaged_at: int | None = None
    """Byte at which a damaged heap begins."""
    n_length_bytes = 8
    """Bytes of a length, by the superblock."""

    def readinto(self, buffer: Any) -> int:
        at = self.tell()
        n_bytes = super().readinto(buffer)
        if bytes(buffer[:4]) == _SIGNATURE and self._is_endless(at):
            self.damaged_at = at
            raise OSError("a damaged global heap")
        return n_bytes or 0

    def _is_endless(self, start: int) -> bool:
        """Go through a heap as HDF5 2.0 does, whose arithmetic has 64 bits (III.E)."""
        head_bytes = _aligned(8 + self.n_length_bytes)
        at, end = start + head_bytes, start + self._length_at(start + 8)
        for _ in range(_MAX_OBJECTS + 1):
            if at + head_bytes > end:
                return False
            number = int.from_bytes(os.pread(self.fileno(), 2, at), "little")
            size = self._length_at(at + 8)
            step = (head_bytes + _aligned(size) if number else size) % 2**64
            if step == 0:
                return True
            at += step
        return True

    def _length_at(self, at: int) -> int:
        return int.from_bytes(os.pread(self.fileno(), self.n_length_bytes, at), "little")


def _address(item: Any) -> int:
    """Place of an open object in its file."""
    address: int = h5py.h5o.get_info(item).addr
    return address


def _aligned(n_bytes: int) -> int:
    """Number of bytes with those that are added to it, for the next at a multiple of eight."""
    return -(-n_bytes // 8) * 8
