"""Parts of a scan in an HDF5 file of no known layout, by shapes and names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
from numpy.typing import NDArray

from ...errors import SourceError
from ..hdf5.links import FileObjects, look_up
from ..hdf5.open_hdf5 import open_file
from ..library_errors import library_errors
from ..paths import check_readable, is_hdf5, is_zarr, path_of
from .frame_source import FrameSource
from .hdf5_layout import Layout, find_layout, likely_layout
from .loader import LoaderOptions, parse_loader
from .open_source import open_source
from .source import Source


@dataclass(frozen=True, slots=True)
class LikelyParts:
    """Where the parts of a scan are likely to be."""

    layout: Layout
    """Their paths."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the loader ``standard_tomo``."""
        found = self.layout
        parameters: dict[str, Any] = {"data_path": found.data, "image_key_path": found.image_key}
        if found.angles is not None:
            parameters["rotation_angles"] = {"data_path": found.angles}
        for kind, name in (("flats", found.flats), ("darks", found.darks)):
            if name is not None:
                parameters[kind] = {"file": "input_data", "data_path": name}
        return parameters

    def __str__(self) -> str:
        parts = ((part.replace("_", " "), getattr(self.layout, part)) for part in Layout.__slots__)
        more = (f", {part} {where}" for part, where in parts if part != "data" and where)
        return f"by its shape and names: frames {self.layout.data}{''.join(more)}"


def open_likely(
    scan: str | os.PathLike[str] | NDArray[Any] | Source, given: Mapping[str, Any] | None = None
) -> tuple[Source, LikelyParts | None]:
    """Open a scan, in a file of no known layout by what is likely; say what that is.

    Parameters of the loader that are given go before those that are likely.

    Raises
    ------
    SourceError
        As `open_source` does.
    """
    path = None if is_zarr(scan) else path_of(scan)
    parts = None if path is None else likely_parts(path)
    parameters = {**({} if parts is None else parts.parameters), **(given or {})}
    source = open_source(scan, parse_loader(parameters)[0] if parameters else None)
    if parts is not None and isinstance(source, FrameSource) and source.stored is not None:
        found = None if source.stored.layout is None else source.stored.layout.angles
        parts = LikelyParts(replace(parts.layout, angles=found))
    return source, parts


def likely_parts(scan: Path) -> LikelyParts | None:
    """Find what is likely to be a scan; None if its layout is known, or nothing stands out.

    The frames are the largest 3D data set that is neither of flats nor of darks by its name. Flats
    and darks have frames of that shape, and what they are in their name, their groups' names or the
    title of their entry. An image key has one value for each frame. Angles are searched for where
    the scan is opened.
    """
    if check_readable(scan) == "folder" or not is_hdf5(scan):
        return None
    with open_file(scan) as file, library_errors(str(scan)):
        try:
            find_layout(scan, file, LoaderOptions())
            return None
        except SourceError:
            found = {
                name: item
                for name, item in FileObjects(file)
                if isinstance(item, h5py.Dataset) and item.dtype.kind in "iuf"
            }

        def title_of(entry: str) -> str:
            title = look_up(file, f"{entry}/title")
            if isinstance(title, h5py.Dataset) and not title.shape:
                return str(title[()])
            return ""

        layout = likely_layout(found, title_of)
    return None if layout is None else LikelyParts(layout)
