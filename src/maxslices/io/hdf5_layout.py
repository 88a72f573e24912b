"""Where in an HDF5 file the parts of a scan are.

NXtomo is an application definition of NeXus
(https://manual.nexusformat.org/classes/applications/NXtomo.html); Data Exchange is the
APS's (https://dxfile.readthedocs.io).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import h5py

from ..errors import SourceError
from .loader_options import LoaderOptions

_ENTRIES = ("entry1/tomo_entry", "entry0000", "entry")
"""Where beamlines write NXtomo; other entries are known by their definition."""
_DATA = ("data/data", "instrument/detector/data")
_ANGLES = ("data/rotation_angle", "sample/rotation_angle")
_KEY_PLACES = ("instrument/detector", "data")
_LISTED = 6
"""Data sets that a message lists."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of the parts of a scan; None where there is no such part."""

    data: str
    """Frames."""
    image_key: str | None = None
    """Kind of each frame."""
    alignment_key: str | None = None
    """The ESRF's second image key, with -1 for frames taken to see how the sample moved."""
    angles: str | None = None
    """Rotation angles."""
    flats: str | None = None
    """Flats, where they are apart from the other frames."""
    darks: str | None = None
    """Darks, where they are apart from the other frames."""


def find_layout(path: Path, file: h5py.File, options: LoaderOptions) -> Layout:
    """Return where things are, as `options` say or as they are found.

    What is given is taken as it is; what is "auto" is looked for. If the data are given,
    that is beside them, then where the layout that is found has it, if that has as many
    frames.

    Raises
    ------
    SourceError
        If the data are not found, or no image key is where one was asked for.
    """
    found = _search(file)
    if options.data_path == "auto":
        if found is None:
            raise SourceError(
                f"{path}: no scan is found in it. Looked for {', '.join(_tried())} and any other "
                f"NXtomo entry: give data_path{list_stacks(file)}"
            )
        layout = found
    elif found is not None and _same(file, found.data, options.data_path):
        layout = found
    else:
        layout = _beside(file, options.data_path)
        if found is not None and _frames(file, found.data) == _frames(file, layout.data):
            layout = replace(
                layout,
                image_key=layout.image_key or found.image_key,
                alignment_key=None if layout.image_key else found.alignment_key,
                angles=layout.angles or found.angles,
            )
    if options.image_key_path != "auto":
        layout = replace(layout, image_key=options.image_key_path, alignment_key=None)
    return layout


def _search(file: h5py.File) -> Layout | None:
    """Return the first layout that is in the file."""
    for entry in (*_ENTRIES, *_nxtomo_entries(file)):
        layout = _nxtomo(file, entry)
        if layout is not None:
            return layout
    return _data_exchange(file)


def _nxtomo(file: h5py.File, entry: str) -> Layout | None:
    data = _first(file, entry, _DATA)
    if data is None:
        return None
    key = alignment = None
    for place in _KEY_PLACES:
        control = _first(file, entry, (f"{place}/image_key_control",))
        key = _first(file, entry, (f"{place}/image_key",)) or control
        if key is not None:
            alignment = control if control != key else None
            break
    return Layout(data, key, alignment, _first(file, entry, _ANGLES))


def _data_exchange(file: h5py.File) -> Layout | None:
    data = _first(file, "exchange", ("data",))
    if data is None:
        return None
    return Layout(
        data,
        angles=_first(file, "exchange", ("theta",)),
        flats=_first(file, "exchange", ("data_white",)),
        darks=_first(file, "exchange", ("data_dark",)),
    )


def _beside(file: h5py.File, data_path: str) -> Layout:
    """Return what lies in the group of data whose path was given."""
    group = data_path.strip("/").rpartition("/")[0] or "/"
    key = _first(file, group, ("image_key", "image_key_control"))
    return Layout(data_path, key, None, _first(file, group, ("rotation_angle",)))


def _nxtomo_entries(file: h5py.File) -> Iterator[str]:
    """Yield groups, at most two levels down, whose definition is NXtomo."""
    for name, group in _groups(file):
        if _is_nxtomo(group):
            yield name
        for below, subgroup in _groups(group):
            if _is_nxtomo(subgroup):
                yield f"{name}/{below}"


def _groups(parent: h5py.Group) -> Iterator[tuple[str, h5py.Group]]:
    for name in parent:
        if parent.get(name, getclass=True, getlink=True) is h5py.HardLink:
            child = parent[name]
            if isinstance(child, h5py.Group):
                yield name, child


def _is_nxtomo(group: h5py.Group) -> bool:
    definition = _at(group, "definition")
    if not isinstance(definition, h5py.Dataset) or definition.size != 1:
        return False
    value = definition[()] if definition.shape == () else definition[0]
    return value in (b"NXtomo", "NXtomo")


def _first(file: h5py.File, group: str, names: tuple[str, ...]) -> str | None:
    """Return the first of `names` in `group` that is there, be it a link that leads nowhere.

    Such a link is an error for who opens it, with its target named; to pass over it would
    be to say that the file has no data.
    """
    for name in names:
        where = f"{group}/{name}".replace("//", "/")
        if isinstance(_at(file, where), h5py.Dataset) or _is_link(file, where):
            return where
    return None


def _at(group: h5py.Group, name: str) -> object:
    try:
        return group.get(name)
    except (OSError, KeyError, RuntimeError):  # a link that leads nowhere, or in a circle
        return None


def _is_link(file: h5py.File, name: str) -> bool:
    try:
        return isinstance(file.get(name, getlink=True), h5py.ExternalLink) and not isinstance(
            _at(file, name), h5py.Group
        )
    except (OSError, KeyError, RuntimeError):
        return False


def _same(file: h5py.File, first: str, second: str) -> bool:
    """Tell whether two paths lead to one data set."""
    one, other = _at(file, first), _at(file, second)
    return one is not None and one == other


def _frames(file: h5py.File, name: str) -> int | None:
    """Return the number of frames at `name`, or None if no data are there."""
    data = _at(file, name)
    return data.shape[0] if isinstance(data, h5py.Dataset) and data.shape else None


def _tried() -> list[str]:
    return [f"{entry}/{name}" for entry in _ENTRIES for name in _DATA] + ["exchange/data"]


def list_stacks(file: h5py.File) -> str:
    """Return the 3D data sets of a file, as the end of a message."""
    found: list[str] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 3:
            shape = "x".join(map(str, item.shape))
            found.append(f"/{name} ({shape} {item.dtype})")

    file.visititems(visit)
    if not found:
        return "; there is no 3D data set in the file"
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"; 3D data sets in the file: {', '.join(found[:_LISTED])}{more}"
