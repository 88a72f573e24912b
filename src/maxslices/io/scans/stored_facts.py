"""What is stored in a scan's file: facts to show, and a checksum of its structure."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import SourceError
from ..hdf5.links import FileObjects, look_up, read_attribute
from ..hdf5.open_hdf5 import open_file
from ..library_errors import library_errors, raised_by_library
from ..paths import check_readable, is_hdf5
from ..results.result_info import VOLUME_AXES
from .hdf5_layout import Layout, find_layout
from .loader import LoaderOptions


def structure_checksum(path: Path) -> str | None:
    """SHA-256 of the structure of a scan.

    Parameters
    ----------
    path : Path
        An HDF5 file: the path, shape and dtype of each data set in it. A folder: name and size of
        each file. Any other file: its name and size.

    Returns
    -------
    str or None
        Hexadecimal; None where the file cannot be read any more.
    """
    try:
        lines = sorted(_lines(path))
    except (OSError, SourceError):
        return None
    except Exception as error:
        if not raised_by_library(error):
            raise
        return None
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _lines(path: Path) -> Iterator[str]:
    if path.is_dir():
        with os.scandir(path) as entries:
            yield from (f"{each.name} {each.stat().st_size}" for each in entries)
    elif is_hdf5(path):
        found: list[str] = []

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                found.append(f"{name} {item.shape} {item.dtype}")
            else:
                found.append(name)

        with h5py.File(path, "r") as file:
            file.visititems(visit)
        yield from found
    else:
        yield f"{path.name} {path.stat().st_size}"


_FACTS = {
    "pixel_size": ("x_pixel_size", "y_pixel_size", "pixel_size_x", "pixel_size_y", "pixel_size"),
    "distance": ("distance", "sample_detector_distance"),
    "energy": ("energy", "incident_energy", "monochromatic_energy"),
    "wavelength": ("incident_wavelength", "wavelength"),
    "exposure": ("count_time", "exposure_time"),
    "title": ("title", "scan_command"),
    "sample": ("sample_name",),
    "started": ("start_time", "start_date"),
    "ended": ("end_time", "end_date"),
}
"""Names of data sets in NXtomo, Data Exchange and their beamlines' dialects, by subject."""


@dataclass(frozen=True, slots=True)
class StoredFact:
    """One value that is stored beside the frames."""

    subject: str
    """What it is: "pixel_size", "energy", ..."""
    where: str
    """Path in the file."""
    value: str
    """The value with its unit, as stored."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A 3D data set."""

    where: str
    """Path in the file."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: str
    """Its dtype."""


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """What an HDF5 file says of a scan without its frames being read."""

    layout: Layout | None
    """Paths of the parts of the scan; None if no layout is recognised."""
    axes: tuple[str, ...]
    """Names of the axes of the frames, as NeXus has them; none if they are not stored."""
    chunks: tuple[int, ...] | None
    """Chunk of the frames; None if they lie in one piece, or are elsewhere."""
    compression: str
    """Filters of the frames by name; empty without."""
    stored_bytes: int
    """Bytes of the frames in the file; 0 if they are in others."""
    frame_kinds: dict[int, int]
    """Number of frames of each value of the image key."""
    values: tuple[StoredFact, ...]
    """Pixel size, energy, distance and the like, as far as they are stored."""
    stacks: tuple[Stack, ...]
    """Other 3D data sets."""
    is_complete: bool
    """False if the file has more objects than are looked at."""

    @property
    def is_volume(self) -> bool:
        """True if the frames are slices of a reconstruction, as results are written."""
        return self.axes == VOLUME_AXES


def stored_facts(path: Path, layout: Layout | None = None) -> StoredFacts | None:
    """Read what an HDF5 file stores beside the frames; None for other kinds of scans.

    Without a layout it is searched for.

    Raises
    ------
    SourceError
        If the file cannot be opened, or is damaged.
    """
    if check_readable(path) == "folder" or not is_hdf5(path):
        return None
    with open_file(path) as file, library_errors(str(path)):
        if layout is None:
            with suppress(SourceError):
                layout = find_layout(path, file, LoaderOptions())
        used = [] if layout is None else [*_used(file, layout)]
        values: list[StoredFact] = []
        stacks: list[Stack] = []
        objects = FileObjects(file, follows_links=False)  # where they lead to, a pipe may wait
        for where, stored in objects:
            if not isinstance(stored, h5py.Dataset):
                continue
            if stored.ndim == 3 and stored not in used:
                stacks.append(Stack(where, stored.shape, str(stored.dtype)))
            subject = _subject(where)
            if subject is not None and stored.size == 1:
                values.append(StoredFact(subject, where, shown_value(stored)))
        frames = None if layout is None else _data_set(file, layout.data)
        key = None if layout is None else layout.image_key
        return StoredFacts(
            layout,
            () if frames is None else _axes(frames),
            None if frames is None else frames.chunks,
            "" if frames is None else _filters(frames),
            0 if frames is None else int(frames.id.get_storage_size()),
            {} if key is None else _kinds(_data_set(file, key)),
            tuple(values),
            tuple(stacks),
            objects.is_complete,
        )


def _used(file: h5py.File, layout: Layout) -> Iterator[h5py.Dataset | None]:
    """Data sets with the frames of a scan, which may have other paths too."""
    for where in (layout.data, layout.flats, layout.darks):
        if where is not None:
            yield _data_set(file, where)


def _data_set(file: h5py.File, where: str) -> h5py.Dataset | None:
    item = look_up(file, where)
    return item if isinstance(item, h5py.Dataset) else None


def _subject(where: str) -> str | None:
    """What a data set tells, by its name; None for others."""
    parent, _, name = where.lower().rpartition("/")
    if name == "name":
        return "sample" if parent.endswith("sample") else None
    return next((subject for subject, names in _FACTS.items() if name in names), None)


def shown_value(stored: h5py.Dataset) -> str:
    """Single value of a data set, with its unit."""
    value: Any = np.ravel(stored[()])[0]
    unit = np.ravel(np.asarray(read_attribute(stored, "units", "")))
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    shown = f"{float(text):.7g}" if isinstance(text, np.number) else str(text).strip()
    of = unit[0].decode(errors="replace") if unit.size and isinstance(unit[0], bytes) else ""
    return f"{shown} {of or (str(unit[0]) if unit.size else '')}".strip()


def _axes(frames: h5py.Dataset) -> tuple[str, ...]:
    """Names of axes by the group of the frames."""
    names = np.ravel(np.asarray(read_attribute(frames.parent, "axes", ())))
    return tuple(n.decode(errors="replace") if isinstance(n, bytes) else str(n) for n in names)


def _filters(frames: h5py.Dataset) -> str:
    """Names of the filters of a data set, as its file has them."""
    settings = frames.id.get_create_plist()
    names = []
    for number in range(settings.get_nfilters()):
        code, _, _, name = settings.get_filter(number)
        names.append(name.decode(errors="replace").split(";")[0].strip() or f"filter {code}")
    return ", ".join(names)


def _kinds(key: h5py.Dataset | None) -> dict[int, int]:
    if key is None or key.ndim != 1 or not np.issubdtype(key.dtype, np.number):
        return {}
    values, counts = np.unique(key[()], return_counts=True)
    return {int(v): int(n) for v, n in zip(values, counts, strict=True) if math.isfinite(v)}
