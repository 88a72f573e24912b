"""Parts of a scan in an HDF5 file of no known layout, by shapes and names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from ..errors import SourceError
from .hdf5_frames import open_file
from .hdf5_layout import find_layout
from .hdf5_links import FileObjects
from .loader_options import LoaderOptions
from .paths import is_hdf5

_NAMES = {
    "angles": re.compile(r"angle|theta|omega|rotation", re.IGNORECASE),
    "image key": re.compile(r"image_?key$", re.IGNORECASE),
    "flats": re.compile(r"flat|white|bright|open", re.IGNORECASE),
    "darks": re.compile(r"dark|black|bias", re.IGNORECASE),
}
"""What names of data sets have in them."""


@dataclass(frozen=True, slots=True)
class LikelyParts:
    """Where the parts of a scan are likely to be."""

    parameters: dict[str, Any]
    """Parameters of the loader ``standard_tomo``."""
    notes: tuple[str, ...]
    """What was assumed."""


def likely_parts(scan: Path) -> LikelyParts | None:
    """Find what is likely to be a scan; None if its layout is known, or nothing stands out.

    The frames are the largest 3D data set that is neither of flats nor of darks by its name. An
    image key, and angles, have one value for each frame.
    """
    if not scan.is_file() or not is_hdf5(scan):
        return None
    with open_file(scan) as file:
        try:
            find_layout(scan, file, LoaderOptions())
            return None
        except SourceError:
            found = {
                name: item
                for name, item in FileObjects(file)
                if isinstance(item, h5py.Dataset) and item.dtype.kind in "iuf"
            }
        stacks = {name: item for name, item in found.items() if item.ndim == 3}
        flats, darks = (_named(stacks, kind) for kind in ("flats", "darks"))
        others = {name: item.size for name, item in stacks.items() if name not in (flats, darks)}
        largest = [name for name, size in others.items() if size == max(others.values())]
        if len(largest) != 1:
            return None
        data = largest[0]
        lines = {n: item for n, item in found.items() if item.shape == stacks[data].shape[:1]}
        key = _named({n: each for n, each in lines.items() if each.dtype.kind in "iu"}, "image key")
        angles = _named({n: each for n, each in lines.items() if n != key}, "angles")
    parameters: dict[str, Any] = {"data_path": data, "image_key_path": key}
    if angles is not None:
        parameters["rotation_angles"] = {"data_path": angles}
    for kind, name in (("flats", flats), ("darks", darks)):
        if key is None and name is not None:
            parameters[kind] = {"file": "input_data", "data_path": name}
    parts = {"image key": key, "angles": angles, "flats": flats, "darks": darks}
    more = "".join(f", {kind} {name}" for kind, name in parts.items() if name is not None)
    return LikelyParts(parameters, (f"by its shape and names: frames {data}{more}",))


def _named(found: dict[str, Any], kind: str) -> str | None:
    """The only data set whose own name is of a kind; None without one, or of several."""
    names = [name for name in found if _NAMES[kind].search(name.rpartition("/")[2])]
    return names[0] if len(names) == 1 else None
