"""Paths in HDF5 files: what a path leads to, and why it leads nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import h5py

from .library_errors import cause_of, raised_by_library


@dataclass(frozen=True, slots=True)
class BrokenPath:
    """A path in a file with a link that leads nowhere, or with a damaged object."""

    path: str
    """The path."""
    reason: str
    """What is wrong with it, as the end of a message."""


def look_up(file: h5py.Group, path: str) -> h5py.Dataset | h5py.Group | BrokenPath | None:
    """Object at a path of a file; None if nothing has that name.

    HDF5 does not tell a name that is missing from a link that leads nowhere: a program that asks
    for an optional part of a scan would take a broken one for none.
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
            if isinstance(link, h5py.ExternalLink) and _is_no_file(link, item.file):
                return BrokenPath(path, f"is a link into {link.filename}, which is no file")
            item = item[part]
        except Exception as error:
            if not raised_by_library(error):
                raise
            return BrokenPath(path, f"{_of(where, path)}{_reason(link, error)}")
    return item if isinstance(item, h5py.Dataset | h5py.Group) else None


MAX_OBJECTS = 20_000
"""Most objects of a file that are looked at: files of detectors with a group a frame have millions,
and a person waits for the answer."""


def names_in(group: h5py.Group) -> Iterator[str]:
    """Iterate over the names in a group; bytes, which damage leaves of a name, are left out."""
    return (name for name in group if isinstance(name, str))


def walk(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset | h5py.Group]]:
    """Iterate over groups and data sets with their paths, breadth first; each comes once.

    Soft and external links are followed; those that lead nowhere, and damaged objects, are left
    out. After `MAX_OBJECTS` links it ends.
    """
    groups: list[tuple[str, h5py.Group]] = [("", file)]
    seen = {_identity(file)}
    n_looked_at = 0
    while groups:
        place, group = groups.pop(0)
        for name in names_in(group):
            n_looked_at += 1
            if n_looked_at > MAX_OBJECTS:
                return
            item = look_up(group, name)
            if item is None or isinstance(item, BrokenPath) or _identity(item) in seen:
                continue
            seen.add(_identity(item))
            yield f"{place}/{name}", item
            if isinstance(item, h5py.Group):
                groups.append((f"{place}/{name}", item))


def _identity(item: h5py.Dataset | h5py.Group) -> tuple[str, int]:
    """File and address of an object, which tell it from all others."""
    return item.file.filename, h5py.h5o.get_info(item.id).addr


def _is_no_file(link: h5py.ExternalLink, file: h5py.File) -> bool:
    """True if a link leads into a pipe or a device, which HDF5 would open and wait for."""
    folders = os.environ.get("HDF5_EXT_PREFIX", "").split(":")
    folders += [os.path.dirname(name) for name in (file.filename, os.path.realpath(file.filename))]
    names = (link.filename, os.path.basename(link.filename))
    paths = [os.path.join(folder, name) for folder in (*folders, ".") if folder for name in names]
    return any(os.path.exists(path) and not os.path.isfile(path) for path in paths)


def _of(where: str, path: str) -> str:
    """The broken part of a path, if it is not all of it."""
    return "" if where.strip("/") == path.strip("/") else f"cannot be reached: {where} "


def _reason(link: object, error: Exception) -> str:
    """Why a link cannot be followed."""
    if isinstance(link, h5py.ExternalLink):
        return (
            f"is a link to {link.path} in {link.filename}, which is not there: copy that file "
            "beside it"
        )
    if isinstance(link, h5py.SoftLink):
        return (
            f"is a link to {link.path}, which leads to nothing: write the file again, or give "
            "another path"
        )
    return f"is damaged ({cause_of(error)}): copy the file again"
