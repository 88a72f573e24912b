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
"""Entries in which beamlines write NXtomo. Other entries are found by their definition."""
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
_NEXT_TO_FRAMES = {"image_key": ("image_key", "image_key_control"), "angles": ("rotation_angle",)}
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
"""Layouts with separate data sets for flats and darks: Data Exchange, where flats may be taken
before and after the projections, as at the SLS and Sirius, and NSLS-II FXI (dxchange,
read_nsls2_fxi18_h5)."""
_NAMES = {
    "image key": re.compile(r"image_?key$", re.IGNORECASE),
    "flats": re.compile(r"flat|white|bright|open|bkg|background|(?<![a-z])ref", re.IGNORECASE),
    "darks": re.compile(r"dark|black|bias", re.IGNORECASE),
}
"""Patterns in names of data sets."""
_GENERIC = re.compile(
    r"value|data|rbv|readback|value_set|set|setpoint|demand|target(_value)?", re.IGNORECASE
)
"""Generic names, for which the name of the group is used."""


ScanFile = Hdf5File | ZarrFile
"""A file with arrays by name. Both classes have the same methods, documented in `Hdf5File`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of the parts of a scan; None for a missing part."""

    data: str
    """The frames."""
    image_key: str | None = None
    """The NeXus image key: the kind of each frame."""
    alignment_key: str | None = None
    """The second image key of the ESRF, with -1 for alignment frames."""
    angles: str | None = None
    """The rotation angles."""
    flats: str | None = None
    """The flats, if they are a separate data set."""
    darks: str | None = None
    """The darks, if they are a separate data set."""
    flats_after: str | None = None
    """Flats taken after the projections, if `flats` were taken before them."""
    current: str | None = None
    """The beam current, or the count of a monitor, for each frame."""
    is_likely: bool = False
    """True if the layout is unknown, and the paths were found by shapes and names."""

    @property
    def parts(self) -> dict[str, str]:
        """Name of each part that exists -> its path."""
        names = [name for name in self.__slots__ if name != "is_likely"]
        return {n.replace("_", " "): where for n in names if (where := getattr(self, n))}

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the loader ``standard_tomo`` for these paths."""
        parameters: dict[str, Any] = {"data_path": self.data, "image_key_path": self.image_key}
        if self.angles is not None:
            parameters["rotation_angles"] = {"data_path": self.angles}
        for side, name in (("flats", self.flats), ("darks", self.darks)):
            if name is not None:
                parameters[side] = {"file": "input_data", "data_path": name}
        return parameters


def find_layout(file: ScanFile, options: LoaderOptions, *, guess: bool = False) -> Layout:
    """Find the parts of a scan.

    Paths in `options` are used unchanged, and those that are "auto" are searched for. If
    `data_path` is given, the image key and the angles are searched for in the same group, then in a
    known layout of the file with the same number of frames.

    Parameters
    ----------
    file : ScanFile
        The file.
    options : LoaderOptions
        Options of the loader.
    guess : bool
        Whether frames are searched for by shapes and names if the layout is unknown.

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
            tried = [f"{entry}/{name}" for entry in _ENTRIES for name in _NXTOMO["data"]]
            tried += [paths["data"][0] for paths in _SEPARATE]
            raise SourceError(
                f"{file.name}: no scan is found in it. Looked for {', '.join(tried)} and any other "
                f"NXtomo entry: give data_path{file.stacks()}"
            )
    elif layout is None or not _same(file, layout.data, options.data_path):
        known, group = layout, options.data_path.strip("/").rpartition("/")[0]
        layout = _layout(file, group or "/", _NEXT_TO_FRAMES, options.data_path)
        if known is not None and _n_frames(file, known.data) == _n_frames(file, layout.data):
            layout = replace(
                layout,
                image_key=layout.image_key or known.image_key,
                alignment_key=None if layout.image_key else known.alignment_key,
                angles=layout.angles or known.angles,
            )
    if options.image_key_path != "auto":
        layout = replace(layout, image_key=options.image_key_path, alignment_key=None)
    return layout


def _known(file: ScanFile) -> Layout | None:
    """First known layout in the file; None without one.

    A layout whose frames cannot be read is returned if there is no other. Opening it is then an
    error with the reason, instead of an error that the file has no data.
    """
    if file.default is not None:
        return Layout(file.default)
    broken: Layout | None = None
    layouts = chain(
        (nxtomo_layout(file, entry) for entry in _ENTRIES),
        (_with_data(file, "", paths) for paths in _SEPARATE),
        (nxtomo_layout(file, entry) for entry in file.entries()),
    )
    for layout in layouts:
        if layout is not None and _is_array(file.find(layout.data)):
            return layout
        broken = broken or layout
    return broken


def nxtomo_layout(file: ScanFile, entry: str) -> Layout | None:
    """Layout of an NXtomo entry; None if it lacks frames."""
    return _with_data(file, entry, _NXTOMO)


def _with_data(file: ScanFile, group: str, paths: Mapping[str, tuple[str, ...]]) -> Layout | None:
    data = _first_present(file, group, paths["data"])
    return None if data is None else _layout(file, group, paths, data)


def _layout(file: ScanFile, group: str, paths: Mapping[str, tuple[str, ...]], data: str) -> Layout:
    """Layout of frames whose other parts are in a group."""
    parts: dict[str, Any] = {
        part: _first_present(file, group, names) for part, names in paths.items() if part != "data"
    }
    key, flats = parts.get("image_key"), parts.get("flats")
    if key is not None and key.endswith("image_key"):
        parts["alignment_key"] = _first_present(file, "", (f"{key}_control",))
    if flats is not None and flats.endswith("data_white_pre"):
        parts["flats_after"] = _first_present(file, "", (flats.replace("_pre", "_post"),))
    return Layout(data, **parts)


def _first_present(file: ScanFile, group: str, names: tuple[str, ...]) -> str | None:
    """First of `names` in `group` that is a data set; without one, the first that is broken.

    A broken part does not count as missing: without the image key, flats would be read as
    projections. Opening a broken part is an error with the reason.
    """
    broken = None
    for name in names:
        where = f"{group}/{name}".replace("//", "/") if group else name
        item = file.find(where)
        if _is_array(item):
            return where
        if isinstance(item, BrokenPath):
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
    """Find a likely scan by shapes and names; None without one.

    The frames are the largest 3D data set whose name is not that of flats or darks. Flats and darks
    have frames of the same shape, and are recognized by their name, the names of their groups or
    the title of their entry. An image key has one value for each frame. Angles are searched for
    when the scan is opened.
    """
    arrays = file.arrays(follows_links=True)
    numeric = {name: item for name, item in arrays if item.dtype.kind in "iuf"}
    stacks = {name: item for name, item in numeric.items() if item.ndim == 3}
    sides = [_named(stacks, kind) for kind in ("flats", "darks")]
    sizes = {name: item.size for name, item in stacks.items() if name not in sides}
    most = max(sizes.values(), default=0)
    largest = [name for name, size in sizes.items() if size == most]
    if len(largest) != 1:
        return None
    data = largest[0]
    n_frames, *frame = stacks[data].shape
    lines = {name: item for name, item in numeric.items() if item.shape == (n_frames,)}
    key = _named({n: each for n, each in lines.items() if each.dtype.kind in "iu"}, "image key")
    if key is not None:
        return Layout(data, key, is_likely=True)
    like = [name for name, item in stacks.items() if [*item.shape[1:]] == frame]
    flats, darks = (_side(file, like, kind, data) for kind in ("flats", "darks"))
    return Layout(data, flats=flats, darks=darks, is_likely=True)


def own_name(path: str) -> str:
    """Name of a data set, or of its group if the name is generic, such as value or data."""
    group, _, name = path.rpartition("/")
    return group.rpartition("/")[2] if _GENERIC.fullmatch(name) else name


def _named(arrays: dict[str, Any], kind: str) -> str | None:
    """The only data set with a name of a kind; None without one, or for several."""
    names = [name for name in arrays if _NAMES[kind].search(own_name(name))]
    return names[0] if len(names) == 1 else None


def _side(file: ScanFile, stacks: list[str], kind: str, data: str) -> str | None:
    """The flats or darks among stacks; None without one, or for several."""

    def is_named(name: str) -> bool:
        title = file.find(f"{name.split('/')[1]}/title")
        text = str(title[()]) if _is_array(title) and not title.shape else ""
        return _NAMES[kind].search(f"{name} {text}") is not None

    names = [name for name in stacks if name != data and is_named(name)]
    own = [name for name in names if _NAMES[kind].search(own_name(name))]
    names = own or ([] if is_named(data) else names)
    return names[0] if len(names) == 1 else None
