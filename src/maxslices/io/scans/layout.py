"""Layouts of scans in files with arrays by name: the paths of their parts.

NXtomo is an application definition of NeXus
(https://manual.nexusformat.org/classes/applications/NXtomo.html); Data Exchange is the
APS's (https://dxfile.readthedocs.io).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ...errors import SourceError
from ..frames.zarr_frames import ZarrFile
from ..hdf5.frames import Hdf5File
from ..hdf5.objects import BrokenPath
from .loader import LoaderOptions

_ENTRIES = ("entry1/tomo_entry", "entry0000", "entry")
"""Entries in which beamlines write NXtomo; others are found by their definition."""
_NXTOMO = {
    "data": ("data/data", "instrument/detector/data"),
    "image_key": (
        "instrument/detector/image_key",
        "instrument/detector/image_key_control",
        "data/image_key",
        "data/image_key_control",
    ),
    "angles": ("data/rotation_angle", "sample/rotation_angle"),
    "current": ("control/data",),
}
"""Part of an NXtomo entry -> its paths there, in order of preference."""
_BESIDE = {"image_key": ("image_key", "image_key_control"), "angles": ("rotation_angle",)}
"""Parts that may be in the group of the frames."""
_SEPARATE = (
    {
        "data": ("exchange/data",),
        "angles": ("exchange/theta",),
        "flats": ("exchange/data_white", "exchange/data_white_pre", "exchange/data_white_post"),
        "darks": ("exchange/data_dark",),
    },
    {"data": ("img_tomo",), "angles": ("angle",), "flats": ("img_bkg",), "darks": ("img_dark",)},
)
"""Layouts with flats and darks in data sets of their own. Data Exchange, in which flats may be from
before and after the projections, as at the SLS and Sirius. NSLS-II FXI (dxchange,
read_nsls2_fxi18_h5)."""
_NAMES = {
    "image key": re.compile(r"image_?key$", re.IGNORECASE),
    "flats": re.compile(r"flat|white|bright|open|bkg|background|(?<![a-z])ref", re.IGNORECASE),
    "darks": re.compile(r"dark|black|bias", re.IGNORECASE),
}
"""What names of data sets have in them."""
_GENERIC = re.compile(
    r"value|data|rbv|readback|value_set|set|setpoint|demand|target(_value)?", re.IGNORECASE
)
"""Names that say nothing of their own: the group's name counts."""


ScanFile = Hdf5File | ZarrFile
"""A file with arrays by name. What one class has, the other has too; docstrings are those of
`Hdf5File`."""


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
    is_likely: bool = False
    """True if no layout is known, and the paths were found by shapes and names."""

    @property
    def parts(self) -> dict[str, str]:
        """Paths of the parts that it has, by the names of the parts."""
        names = [name for name in self.__slots__ if name != "is_likely"]
        return {n.replace("_", " "): where for n in names if (where := getattr(self, n))}

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the loader ``standard_tomo`` for these paths."""
        found: dict[str, Any] = {"data_path": self.data, "image_key_path": self.image_key}
        if self.angles is not None:
            found["rotation_angles"] = {"data_path": self.angles}
        for side, name in (("flats", self.flats), ("darks", self.darks)):
            if name is not None:
                found[side] = {"file": "input_data", "data_path": name}
        return found


def find_layout(file: ScanFile, options: LoaderOptions, *, guess: bool = False) -> Layout:
    """Find the parts of a scan.

    Paths given in `options` are used as they are; those that are "auto" are searched for. If
    `data_path` is given, the image key and the angles are searched for beside it, then in the
    layout found in the file if its number of frames is the same.

    Parameters
    ----------
    file : ScanFile
        The file.
    options : LoaderOptions
        What is given.
    guess : bool
        Whether frames are searched for by shapes and names if the file has no known layout.

    Raises
    ------
    SourceError
        If the data are not found.
    """
    layout = _known(file)
    if options.data_path == "auto":
        if layout is None and (guess or file.is_guessed):
            layout = _likely(file)
        if layout is None:
            known = [f"{entry}/{name}" for entry in _ENTRIES for name in _NXTOMO["data"]]
            tried = ", ".join([*known, *(paths["data"][0] for paths in _SEPARATE)])
            raise SourceError(
                f"{file.name}: no scan is found in it. Looked for {tried} and any other NXtomo "
                f"entry: give data_path{file.stacks()}"
            )
    elif layout is None or not _same(file, layout.data, options.data_path):
        found, group = layout, options.data_path.strip("/").rpartition("/")[0]
        layout = _layout(file, group or "/", _BESIDE, options.data_path)
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


def _known(file: ScanFile) -> Layout | None:
    """First known layout in the file; None without one.

    A layout whose frames cannot be reached is taken if there is no other: opening it is an error
    that says why, where the error would be that the file has no data.
    """
    if file.default is not None:
        return Layout(file.default)
    broken: Layout | None = None
    found = chain(
        (nxtomo_layout(file, entry) for entry in _ENTRIES),
        (_with_data(file, "", paths) for paths in _SEPARATE),
        (nxtomo_layout(file, entry) for entry in file.entries()),
    )
    for layout in found:
        if layout is not None and _is_array(file.find(layout.data)):
            return layout
        broken = broken or layout
    return broken


def nxtomo_layout(file: ScanFile, entry: str) -> Layout | None:
    """Layout of an NXtomo entry; None if it has no frames."""
    return _with_data(file, entry, _NXTOMO)


def _with_data(file: ScanFile, group: str, paths: Mapping[str, tuple[str, ...]]) -> Layout | None:
    data = _first_present(file, group, paths["data"])
    return None if data is None else _layout(file, group, paths, data)


def _layout(file: ScanFile, group: str, paths: Mapping[str, tuple[str, ...]], data: str) -> Layout:
    """Layout of frames with the parts in a group."""
    found: dict[str, Any] = {
        part: _first_present(file, group, names) for part, names in paths.items() if part != "data"
    }
    key, flats = found.get("image_key"), found.get("flats")
    if key is not None and key.endswith("image_key"):
        found["alignment_key"] = _first_present(file, "", (f"{key}_control",))
    if flats is not None and flats.endswith("data_white_pre"):
        found["flats_after"] = _first_present(file, "", (flats.replace("_pre", "_post"),))
    return Layout(data, **found)


def _first_present(file: ScanFile, group: str, names: tuple[str, ...]) -> str | None:
    """First of `names` in `group` that is a data set; without any, the first that is broken.

    A part of a scan that is broken is not one that the scan does not have: without its image key
    flats would be taken for projections. Opening it is an error that says what is wrong.
    """
    broken = None
    for name in names:
        where = f"{group}/{name}".replace("//", "/") if group else name
        found = file.find(where)
        if _is_array(found):
            return where
        if isinstance(found, BrokenPath):
            broken = broken or where
    return broken


def _is_array(item: object) -> bool:
    return hasattr(item, "dtype")


def _same(file: ScanFile, first: str, second: str) -> bool:
    """True if two paths lead to the same data set."""
    one = file.find(first)
    return _is_array(one) and bool(one == file.find(second))


def _n_frames(file: ScanFile, name: str) -> int | None:
    """Number of frames at `name`; None if it is not a data set."""
    data = file.find(name)
    return int(data.shape[0]) if _is_array(data) and data.shape else None


def _likely(file: ScanFile) -> Layout | None:
    """Find what is likely to be a scan; None if nothing stands out.

    The frames are the largest 3D data set that is neither of flats nor of darks by its name. Flats
    and darks have frames of that shape, and what they are in their name, their groups' names or the
    title of their entry. An image key has one value for each frame. Angles are searched for where
    the scan is opened.
    """
    arrays = file.arrays(follows_links=True)
    found = {name: item for name, item in arrays if item.dtype.kind in "iuf"}
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
        return Layout(data, key, is_likely=True)
    like = [name for name, item in stacks.items() if [*item.shape[1:]] == frame]
    flats, darks = (_side(file, like, kind, data) for kind in ("flats", "darks"))
    return Layout(data, flats=flats, darks=darks, is_likely=True)


def own_name(path: str) -> str:
    """Name of a data set; that of its group, where it is called value, data or the like."""
    group, _, name = path.rpartition("/")
    return group.rpartition("/")[2] if _GENERIC.fullmatch(name) else name


def _named(found: dict[str, Any], kind: str) -> str | None:
    """The only data set whose own name is of a kind; None without one, or of several."""
    names = [name for name in found if _NAMES[kind].search(own_name(name))]
    return names[0] if len(names) == 1 else None


def _side(file: ScanFile, stacks: list[str], kind: str, data: str) -> str | None:
    """The flats or darks among stacks; None without any, or of several."""

    def tells(name: str) -> bool:
        title = file.find(f"{name.split('/')[1]}/title")
        text = str(title[()]) if _is_array(title) and not title.shape else ""
        return _NAMES[kind].search(f"{name} {text}") is not None

    names = [name for name in stacks if name != data and tells(name)]
    own = [name for name in names if _NAMES[kind].search(own_name(name))]
    names = own or ([] if tells(data) else names)
    return names[0] if len(names) == 1 else None
