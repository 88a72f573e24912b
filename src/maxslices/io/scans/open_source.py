"""Opening a scan: from a path or arrays to a `Source`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..access import SIDE_NAMES, SideName, Source
from ..check_arrays import check_angles
from ..files import HDF5_SUFFIXES, TIFF_SUFFIXES, check_readable, is_hdf5, is_zarr, library_errors
from ..frames.frames import ArrayFrames, Frames, JoinedFrames, NpyFrames, Selection
from ..frames.zarr_frames import ZarrFile
from ..hdf5.frames import Hdf5File
from .angles import angles_option, find_angles
from .facts import ome_pixel_size, parse_pixel_size
from .frame_source import FrameSource
from .layout import Layout, ScanFile, find_layout, nxtomo_layout
from .loader import LoaderOptions, SideData
from .sides import (
    KIND_PROJECTION,
    add_constant_sides,
    frames_of_kind,
    read_image_key,
    sides_elsewhere,
    sides_of_file,
)

logger = logging.getLogger(__name__)

_PROJECTIONS = re.compile(r"proj|tomo|sample|scan|radio|image|data", re.IGNORECASE)
"""Pattern of names of folders of projections."""
_SIDES: dict[SideName, re.Pattern[str]] = {
    "flats": re.compile(
        r"(?<![a-z])(((flat|bright)(_?field)?|white|ref(erence)?)s?|open(_?beam)?s?)(?![a-z])",
        re.IGNORECASE,
    ),
    "darks": re.compile(
        r"(?<![a-z])((dark(_?(field|current))?|black)s?|bias)(?![a-z])", re.IGNORECASE
    ),
}
"""Whole words in names of folders of flats and darks: an "opening" is not an open beam."""
_LISTED = 6
"""Largest number of entries listed in a warning."""


def open_source(
    scan: str | os.PathLike[str] | NDArray[Any] | Source,
    options: LoaderOptions | None = None,
    *,
    guess: bool = False,
) -> Source:
    """Open a scan of any kind.

    Parameters
    ----------
    scan : path, ndarray or Source
        An HDF5 or NeXus file, an ``.npy`` file, a folder of TIFFs (one a projection, in
        natural order of their names, with flats and darks in folders with such names), one TIFF of
        many pages, Zarr or OME-Zarr (a folder, a ZIP file, or an address of fsspec such as
        ``s3://bucket/scan.zarr``), a 3D array, or an open source, which is returned unchanged.
    options : LoaderOptions, optional
        Paths of the parts of the scan; by default they are searched for.
    guess : bool
        Whether the parts of an HDF5 file of unknown layout are searched for by shapes and names.
        In Zarr they always are.

    Returns
    -------
    Source
        The caller closes it, or uses it in a ``with`` statement.

    Raises
    ------
    SourceError
        If it does not exist, cannot be read, or is not a scan.
    """
    options = options or LoaderOptions()
    if isinstance(scan, np.ndarray):
        return plain_source("array", Selection.of(ArrayFrames("array", scan)), options)
    if not isinstance(scan, str | os.PathLike):
        if isinstance(scan, Source):
            return scan
        raise SourceError(
            f"a scan is a path, a NumPy array or a Source, not {type(scan).__name__}. Zarr is read "
            "from its path"
        )
    if not os.fspath(scan):
        raise SourceError("the path of the scan is empty. Use '.' for the current folder")
    if is_zarr(scan):
        file = ZarrFile(scan)
        source = file_source(file, options)
        if source.pixel_size is None:
            source.pixel_size = ome_pixel_size(file.image)
        return source
    path = Path(scan)
    kind = check_readable(path)
    suffix = path.suffix.lower()
    if kind == "folder" or suffix in TIFF_SUFFIXES:
        frames, sides = _tiff_stacks(path, options)
        return plain_source(str(path), Selection.of(frames), options, sides=sides)
    if suffix == ".npy":
        return plain_source(str(path), Selection.of(NpyFrames(path)), options)
    if is_hdf5(path):
        return file_source(Hdf5File(path), options, guess=guess)
    raise SourceError(
        f"{path}: {suffix or 'a file without a suffix'} is not a supported scan format: "
        f"give HDF5 ({' '.join(HDF5_SUFFIXES)}), Zarr, .npy, a TIFF or a folder of TIFFs"
    )


def file_source(file: ScanFile, options: LoaderOptions, *, guess: bool = False) -> FrameSource:
    """Create the source of an HDF5 or Zarr file, which it closes.

    Known layouts are NXtomo in the entries of Diamond (``entry1/tomo_entry``), the ESRF
    (``entry0000``) or any other entry, APS Data Exchange (``/exchange``), and OME-Zarr. Angles are
    in degrees unless their ``units`` are radians.

    Raises
    ------
    SourceError
        If it is not a scan, or a part of it is missing.
    """
    with library_errors(file.name), ExitStack() as opened:
        opened.callback(file.close)
        layout = find_layout(file, options, guess=guess)
        if options.data_path == "auto":
            _warn_of_other_entries(file, layout)
        frames = file.frames(layout.data)
        frames.written()  # checked before arrays of its length are allocated
        keys = _kinds(file, layout, options, frames.spec.shape[0])
        data = frames_of_kind(frames, keys, KIND_PROJECTION)
        if data is None:
            raise SourceError(
                f"{file.name}: {layout.image_key} marks none of the {frames.spec.shape[0]} frames "
                "as a projection (0): give another image_key_path, or null if all are projections"
            )
        sides = sides_of_file(file, layout, options, frames, keys, opened)
        after = None
        if layout.flats_after is not None and options.side("flats") == "auto":
            has_frames = 0 not in file.array(layout.flats_after, "flats").shape
            after = Selection.of(file.frames(layout.flats_after, "flats")) if has_frames else None
        angles, stored = find_angles(file, layout, options, data)
        if not options.dummies:
            add_constant_sides(sides, stored, options, data)
        source = FrameSource(
            frames.name,
            data,
            options,
            sides=sides,
            flats_after=after,
            angles=angles,
            stored=stored,
            currents=_read_currents(file, layout, options),
        )
        opened.pop_all()
    return source


def _kinds(
    file: ScanFile, layout: Layout, options: LoaderOptions, n_frames: int
) -> NDArray[Any] | None:
    """Read the kind of each frame; None if all are projections."""
    if layout.image_key is None:
        if options.dummies and options.image_key_path is None:
            _warn_of_unused_key(file, options)
        return None
    keys = read_image_key(file, layout.image_key, n_frames)
    if layout.alignment_key is not None:
        keys = np.where(read_image_key(file, layout.alignment_key, n_frames) == -1, -1, keys)
    return keys


def plain_source(
    name: str,
    data: Selection,
    options: LoaderOptions,
    *,
    sides: Mapping[SideName, Selection | None] | None = None,
    flats_after: Selection | None = None,
    angles: NDArray[np.float32] | None = None,
) -> FrameSource:
    """Create the source of a file without a layout.

    Parameters
    ----------
    name : str
        Name of the scan in messages.
    data : Selection
        The projections; closed if an error is raised.
    options : LoaderOptions
        Must not contain paths within an HDF5 file.
    sides : mapping of str to Selection or None, optional
        Flats and darks for options that are "auto".
    flats_after : Selection, optional
        Flats taken after the projections, for an option that is "auto".
    angles : ndarray, optional
        Angles in radians for an option that is "auto".
    """
    with ExitStack() as opened:
        opened.callback(data.frames.close)
        keys = options.image_key_path not in ("auto", None)
        if options.data_path != "auto" or keys or options.beam_current is not None:
            raise SourceError(
                f"{name}: is not an HDF5 file, so it has no data_path, image_key_path or "
                "beam_current. Omit them"
            )
        opened_sides = sides_elsewhere(options, opened)
        for side in SIDE_NAMES:
            option = options.side(side)
            if option == "auto":
                opened_sides[side] = (sides or {}).get(side)
            elif isinstance(option, SideData) and option.file is None:
                raise SourceError(
                    f"{name}: contains only projections, so {side} cannot be in it: give their file"
                )
        given_angles = angles_option(name, options, data)
        if isinstance(given_angles, str):
            raise SourceError(
                f"{name}: is not an HDF5 file, so the rotation angles cannot be at "
                f"{given_angles}: give them in degrees"
            )
        source = FrameSource(
            name,
            data,
            options,
            sides=opened_sides,
            flats_after=flats_after if options.side("flats") == "auto" else None,
            angles=angles if given_angles is None else given_angles,
        )
        opened.pop_all()
    return source


class ArrayScan(FrameSource):
    """A scan in arrays: projections with their angles, flats, darks and pixel size.

    Parameters
    ----------
    data : ndarray
        Projections (angles, detector_y, detector_x) of any real dtype, which are not copied.
    flats, darks : ndarray, optional
        Frames (n, detector_y, detector_x), or a single one (detector_y, detector_x).
    flats_after : ndarray, optional
        Flats taken after the projections, if `flats` were taken before. They are interpolated in
        time if they differ (see `dark_flat_field_correction`).
    angles : array-like, optional
        Angle of each projection in radians.
    pixel_size : str or float, optional
        Size of a pixel, such as ``"3.25um"``; a number is in micrometres.
    name : str, optional
        Name of the scan in messages.

    Raises
    ------
    SourceError
        If `data` is not an array, or shapes, dtypes or the number of angles do not fit.
    UsageError
        If the pixel size is not a length.

    Examples
    --------
    >>> import numpy as np
    >>> scan = ArrayScan(np.ones((91, 4, 64), np.uint16), angles=np.linspace(0, np.pi, 91))
    >>> print(scan.spec)
    91x4x64 uint16
    """

    def __init__(
        self,
        data: NDArray[Any],
        *,
        flats: NDArray[Any] | None = None,
        darks: NDArray[Any] | None = None,
        flats_after: NDArray[Any] | None = None,
        angles: NDArray[Any] | Sequence[float] | None = None,
        pixel_size: str | float | None = None,
        name: str = "array",
    ) -> None:
        size = None if pixel_size is None else parse_pixel_size(pixel_size)
        self.data = data
        """The projections."""
        self._given = {"flats": flats, "darks": darks, "flats_after": flats_after}
        self._angles = None if angles is None else check_angles(name, angles)
        super().__init__(name, **self._parts(name))
        self.pixel_size = size

    def _parts(self, name: str) -> dict[str, Any]:
        """The arrays as frames."""
        flats, darks, after = (_side(name, side, each) for side, each in self._given.items())
        return {
            "data": Selection.of(ArrayFrames(name, _array(name, self.data))),
            "sides": {"flats": flats, "darks": darks},
            "flats_after": after,
            "angles": self._angles,
        }

    def with_options(self, options: LoaderOptions) -> FrameSource:
        """Return the same scan with the options of a pipeline's loader.

        Angles, flats and darks of the loader replace those of the scan.

        Raises
        ------
        SourceError
            If the preview is not within the scan, or the options contain paths in an HDF5 file.
        """
        return plain_source(self.name, options=options, **self._parts(self.name))


def _side(name: str, side: str, frames: NDArray[Any] | None) -> Selection | None:
    if frames is None:
        return None
    array = _array(f"{name} {side}", frames)
    return Selection.of(ArrayFrames(f"{name} {side}", array[None] if array.ndim == 2 else array))


def _array(name: str, array: object) -> NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise SourceError(
            f"{name}: {type(array).__name__} is not a NumPy array: give numpy.asarray of it"
        )
    return array


def _read_currents(
    file: ScanFile, layout: Layout, options: LoaderOptions
) -> NDArray[np.float64] | None:
    """Read the beam current of each frame; None unless it is requested."""
    if options.beam_current is None:
        return None
    where = layout.current if options.beam_current == "auto" else options.beam_current
    if where is None:
        raise SourceError(
            f"{file.name}: no beam current is found (control/data of an NXtomo entry): give its "
            "path as beam_current, or leave it out"
        )
    data = file.array(where, "beam_current")
    if data.dtype.kind not in "uif" or data.ndim != 1:
        raise SourceError(
            f"{file.name}: {where} is {data.ndim}-dimensional {data.dtype}, not one beam current a "
            "frame"
        )
    values = file.column(where, "beam_current")
    return np.asarray(values, np.float64)


def _warn_of_other_entries(file: ScanFile, layout: Layout) -> None:
    """Log a warning if a file has further scans."""
    own = layout.data.strip("/").partition("/")[0]
    other_scans = [
        name
        for name in file.entries(at_top=True)
        if name != own and nxtomo_layout(file, name) is not None
    ]
    if other_scans:
        more = f" and {len(other_scans) - _LISTED} more" if len(other_scans) > _LISTED else ""
        logger.warning(
            "%s: %s is read; the file has further scans, %s%s: give data_path for one of them",
            file.name,
            layout.data,
            ", ".join(other_scans[:_LISTED]),
            more,
        )


def _warn_of_unused_key(file: ScanFile, options: LoaderOptions) -> None:
    """Log a warning if an unused image key marks flats or darks."""
    key = find_layout(file, replace(options, image_key_path="auto")).image_key
    stored = None if key is None else file.find(key)
    if stored is not None and getattr(stored, "ndim", 0) == 1:
        n_others = int(np.count_nonzero(stored[()]))
        if n_others:
            logger.warning(
                "%s: without image_key_path all frames are projections, as in httomo, but %s marks "
                "%d of them as flats, darks or others: give image_key_path: auto",
                file.name,
                key,
                n_others,
            )


def _tiff_stacks(
    path: Path, options: LoaderOptions
) -> tuple[Frames, dict[SideName, Selection | None]]:
    """Open the stacks of a scan in TIFFs: its projections, flats and darks.

    A folder without TIFFs may contain a folder of projections, which is recognized by its name or
    is the only one that is not of flats or darks. Folders of flats and darks are recognized by
    their names. They are next to the projections or to their folder. Frames from after the scan
    follow those from before it.

    Raises
    ------
    SourceError
        If there are no TIFFs, several folders may be the projections, or shapes do not fit.
    """
    from ..tiff.frames import open_tiffs

    if check_readable(path) == "file":
        frames = open_tiffs(path)
        if frames.spec.shape[0] == 1:
            raise SourceError(
                f"{path}: has one page, which is not a scan: give the folder of its TIFFs, "
                f"{path.parent}"
            )
        return frames, {}
    projections, parent = path, path
    if not _has_tiffs(path):
        projections = _projections(path)
    elif _PROJECTIONS.search(path.name) and not _folders(path):
        parent = path.resolve().parent
    sides: dict[SideName, Selection | None] = {}
    for side, pattern in _SIDES.items():
        folders = [each for each in _folders(parent) if pattern.search(each.name)]
        if folders and options.side(side) == "auto":
            before_first = sorted(folders, key=lambda each: "after" in each.name.lower())
            stacks: list[Frames] = [open_tiffs(each) for each in before_first]
            sides[side] = Selection.of(reduce(JoinedFrames, stacks))
    return open_tiffs(projections), sides


def _has_tiffs(folder: Path) -> bool:
    return any(
        each.suffix.lower() in TIFF_SUFFIXES and not each.name.startswith(".")
        for each in folder.iterdir()
    )


def _folders(folder: Path) -> list[Path]:
    """Subfolders that contain TIFFs."""
    try:
        return [each for each in sorted(folder.iterdir()) if each.is_dir() and _has_tiffs(each)]
    except OSError:  # such as a folder without permission
        return []


def _projections(folder: Path) -> Path:
    """Subfolder of projections; the folder itself without one."""
    candidates = [
        each
        for each in _folders(folder)
        if not any(pattern.search(each.name) for pattern in _SIDES.values())
    ]
    named = [each for each in candidates if _PROJECTIONS.search(each.name)] or candidates
    if len(named) > 1:
        names = ", ".join(each.name for each in named)
        raise SourceError(f"{folder}: the projections may be in {names}: give one of them")
    return named[0] if named else folder
