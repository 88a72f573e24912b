"""Layouts of scans in HDF5 files: the paths of their data sets.

NXtomo is an application definition of NeXus
(https://manual.nexusformat.org/classes/applications/NXtomo.html); Data Exchange is the
APS's (https://dxfile.readthedocs.io).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import h5py

from ...errors import SourceError
from ..hdf5.links import BrokenPath, FileContents, is_nxtomo, look_up, names_in
from .angle_search import own_name
from .loader import LoaderOptions

_ENTRIES = ("entry1/tomo_entry", "entry0000", "entry")
"""Entries in which beamlines write NXtomo; others are found by their definition."""
_DATA = ("data/data", "instrument/detector/data")
"""Paths of the frames in an NXtomo entry, in order of preference."""
_ANGLES = ("data/rotation_angle", "sample/rotation_angle")
"""Paths of the rotation angles in an NXtomo entry."""
_KEY_GROUPS = ("instrument/detector", "data")
"""Groups of an NXtomo entry that may have the image key."""
SEPARATE = (
    (
        "exchange/data",
        ("exchange/theta",),
        ("exchange/data_white", "exchange/data_white_pre", "exchange/data_white_post"),
        ("exchange/data_dark",),
    ),
    ("img_tomo", ("angle",), ("img_bkg",), ("img_dark",)),
)
"""Layouts with flats and darks in data sets of their own: frames, angles, flats and darks, each in
order of preference. Data Exchange, in which flats may be from before and after the projections, as
at the SLS and Sirius. NSLS-II FXI (dxchange, read_nsls2_fxi18_h5)."""
_NAMES = {
    "image key": re.compile(r"image_?key$", re.IGNORECASE),
    "flats": re.compile(r"flat|white|bright|open|bkg|background|(?<![a-z])ref", re.IGNORECASE),
    "darks": re.compile(r"dark|black|bias", re.IGNORECASE),
}
"""What names of data sets have in them."""
_FILE_NAMES = "/entry/scan/data/image_file/value"
"""Names of the files of frames, in the logs of DESY's P05 and P07."""
_MOST_ENTRIES = 100
"""Most groups of a file that are looked at for further scans: 3 ms."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of the parts of a scan; None for a part that it does not have."""

    data: str
    """The frames."""
    image_key: str | None = None
    """The kind of each frame: the NeXus image key."""
    alignment_key: str | None = None
    """The ESRF's second image key, with -1 for frames taken to correct motion of the sample."""
    angles: str | None = None
    """The rotation angles."""
    flats: str | None = None
    """The flats, if they have a data set of their own."""
    darks: str | None = None
    """The darks, if they have a data set of their own."""
    flats_after: str | None = None
    """Flats that were taken after the projections, if `flats` were taken before them."""
    current: str | None = None
    """The current of the beam, or what a monitor counted, for each frame."""


def find_layout(path: Path, file: h5py.File, options: LoaderOptions) -> Layout:
    """Find the parts of a scan.

    Paths given in `options` are used as they are; those that are "auto" are searched for. If
    `data_path` is given, the image key and the angles are searched for beside it, then in the
    layout found in the file if its number of frames is the same.

    Raises
    ------
    SourceError
        If the data are not found.
    """
    contents = FileContents(file)
    found = _search(file, contents)
    if options.data_path == "auto":
        if found is None and isinstance(look_up(file, _FILE_NAMES), h5py.Dataset):
            raise SourceError(
                f"{path}: has no frames, and their files by name ({_FILE_NAMES}): give the folder "
                "of the TIFFs as the scan, and this file for rotation_angles (file and data_path)"
            )
        if found is None:
            raise SourceError(
                f"{path}: no scan is found in it. Looked for {', '.join(_tried())} and any other "
                f"NXtomo entry: give data_path{contents.stacks()}"
            )
        layout = found
    elif found is not None and _same(file, found.data, options.data_path):
        layout = found
    else:
        layout = _layout_beside(file, options.data_path)
        if found is not None and _n_frames(file, found.data) == _n_frames(file, layout.data):
            layout = replace(
                layout,
                image_key=layout.image_key or found.image_key,
                alignment_key=None if layout.image_key else found.alignment_key,
                angles=layout.angles or found.angles,
            )
    if options.image_key_path != "auto":
        layout = replace(layout, image_key=options.image_key_path, alignment_key=None)
    return layout


def _search(file: h5py.File, contents: FileContents) -> Layout | None:
    """First known layout in the file; None without one.

    A layout whose frames cannot be reached is taken if there is no other: opening it is an error
    that says why, where the error would be that the file has no data.
    """
    broken: Layout | None = None
    for entry in chain(_ENTRIES, contents.nxtomo_entries()):
        layout = _nxtomo(file, entry)
        if layout is not None and not _is_broken(file, layout.data):
            return layout
        broken = broken or layout
    for paths in SEPARATE:
        layout = _separate(file, *paths)
        if layout is not None and not _is_broken(file, layout.data):
            return layout
        broken = broken or layout
    return broken


def _nxtomo(file: h5py.File, entry: str) -> Layout | None:
    data = _first_present(file, entry, _DATA)
    if data is None:
        return None
    key = alignment = None
    for place in _KEY_GROUPS:
        control = _first_present(file, entry, (f"{place}/image_key_control",))
        key = _first_present(file, entry, (f"{place}/image_key",)) or control
        if key is not None:
            alignment = control if control != key else None
            break
    return Layout(
        data,
        key,
        alignment,
        _first_present(file, entry, _ANGLES),
        current=_first_present(file, entry, ("control/data",)),
    )


def _separate(
    file: h5py.File,
    data: str,
    angles: tuple[str, ...],
    flats: tuple[str, ...],
    darks: tuple[str, ...],
) -> Layout | None:
    if _first_present(file, "", (data,)) is None:
        return None
    angles_at, flats_at, darks_at = (
        _first_present(file, "", names) for names in (angles, flats, darks)
    )
    after = None
    if flats_at is not None and flats_at.endswith("data_white_pre"):
        after = _first_present(file, "", flats[-1:])
    return Layout(data, angles=angles_at, flats=flats_at, flats_after=after, darks=darks_at)


def _layout_beside(file: h5py.File, data_path: str) -> Layout:
    """Layout of the parts in the group of the data set `data_path`."""
    group = data_path.strip("/").rpartition("/")[0] or "/"
    key = _first_present(file, group, ("image_key", "image_key_control"))
    return Layout(data_path, key, None, _first_present(file, group, ("rotation_angle",)))


def _first_present(file: h5py.File, group: str, names: tuple[str, ...]) -> str | None:
    """First of `names` in `group` that is a data set; without any, the first that is broken.

    A part of a scan that is broken is not one that the scan does not have: without its image key
    flats would be taken for projections. Opening it is an error that says what is wrong.
    """
    broken = None
    for name in names:
        where = f"{group}/{name}".replace("//", "/") if group else name
        found = look_up(file, where)
        if isinstance(found, h5py.Dataset):
            return where
        if isinstance(found, BrokenPath):
            broken = broken or where
    return broken


def _is_broken(file: h5py.File, name: str) -> bool:
    return isinstance(look_up(file, name), BrokenPath)


def _same(file: h5py.File, first: str, second: str) -> bool:
    """True if two paths lead to the same data set."""
    one, other = look_up(file, first), look_up(file, second)
    return isinstance(one, h5py.Dataset) and one == other


def _n_frames(file: h5py.File, name: str) -> int | None:
    """Number of frames at `name`; None if it is not a data set."""
    data = look_up(file, name)
    return data.shape[0] if isinstance(data, h5py.Dataset) and data.shape else None


def _tried() -> list[str]:
    known = [f"{entry}/{name}" for entry in _ENTRIES for name in _DATA]
    return known + [data for data, *_ in SEPARATE]


def other_entries(file: h5py.File, layout: Layout) -> list[str]:
    """NXtomo entries of a file beside that of a layout, among its first groups."""
    own = layout.data.strip("/").partition("/")[0]
    return [
        name
        for name in islice(names_in(file), _MOST_ENTRIES)
        if name != own
        and isinstance(group := look_up(file, name), h5py.Group)
        and is_nxtomo(group)
        and _nxtomo(file, name) is not None
    ]


def likely_layout(found: Mapping[str, Any], title_of: Callable[[str], str]) -> Layout | None:
    """Find what is likely to be a scan among data sets; None if nothing stands out.

    Parameters
    ----------
    found : mapping of str to h5py.Dataset or zarr.Array
        Path -> data set of numbers.
    title_of : callable
        Title of an entry; empty without one.
    """
    stacks = {name: item for name, item in found.items() if item.ndim == 3}
    sides = [_named(stacks, kind) for kind in ("flats", "darks")]
    others = {name: item.size for name, item in stacks.items() if name not in sides}
    most = max(others.values(), default=0)
    largest = [name for name, size in others.items() if size == most]
    if len(largest) != 1:
        return None
    data = largest[0]
    n_frames, *frame = stacks[data].shape
    lines = {name: item for name, item in found.items() if item.shape == (n_frames,)}
    key = _named({n: each for n, each in lines.items() if each.dtype.kind in "iu"}, "image key")
    if key is not None:
        return Layout(data, key)
    like = [name for name, item in stacks.items() if [*item.shape[1:]] == frame]
    flats, darks = (_side(title_of, like, kind, data) for kind in ("flats", "darks"))
    return Layout(data, flats=flats, darks=darks)


def _named(found: dict[str, Any], kind: str) -> str | None:
    """The only data set whose own name is of a kind; None without one, or of several."""
    names = [name for name in found if _NAMES[kind].search(own_name(name))]
    return names[0] if len(names) == 1 else None


def _side(title_of: Callable[[str], str], stacks: list[str], kind: str, data: str) -> str | None:
    """The flats or darks among stacks; None without any, or of several."""

    def tells(name: str) -> bool:
        title = title_of(name.split("/")[1])
        return _NAMES[kind].search(f"{name} {title}") is not None

    names = [name for name in stacks if name != data and tells(name)]
    own = [name for name in names if _NAMES[kind].search(own_name(name))]
    names = own or ([] if tells(data) else names)
    return names[0] if len(names) == 1 else None
