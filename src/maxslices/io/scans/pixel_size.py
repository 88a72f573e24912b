"""Pixel size of a scan, as its file stores it or a user gives it."""

from __future__ import annotations

import math
import re
from pathlib import Path, PurePosixPath

import h5py
import numpy as np

from ...errors import SourceError, UsageError
from ..hdf5.links import look_up
from ..hdf5.open_hdf5 import open_file
from ..library_errors import library_errors
from ..paths import is_hdf5
from ..results.result_info import PixelSize
from .hdf5_layout import find_layout
from .loader import LoaderOptions
from .stored_facts import shown_value

_PLACES = (
    "sample",
    "measurement/instrument/sample",
    "instrument/detector",
    "measurement/instrument/detector",
    "measurement/instrument/detection_system/objective",
    ".",
)
"""Groups with the pixel size, beside the frames or above: of NXtomo, the ESRF, Data Exchange."""

_UM = {
    "m": 1e6, "meter": 1e6, "metre": 1e6, "cm": 1e4, "mm": 1e3, "millimeter": 1e3,
    "millimetre": 1e3, "um": 1.0, "µm": 1.0, "μm": 1.0, "micron": 1.0, "micrometer": 1.0,
    "micrometre": 1.0, "nm": 1e-3, "nanometer": 1e-3, "nanometre": 1e-3,
}  # fmt: skip
"""Micrometres in a unit, as beamlines write it, without the s of a plural."""
_SIZE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(\S+)\s*")


def pixel_size_of(scan: Path, options: LoaderOptions | None = None) -> PixelSize | None:
    """Read the pixel size that a scan's file stores; None if it has none, or none with a unit.

    `options` say where the frames are, if that is not to be found. It is looked for where the
    layouts of beamlines have it, beside the frames: a file may have thousands of other data sets.
    What is stored of the sample (an effective size, as the ESRF writes it) comes before what is
    stored of the detector.
    """
    if not scan.is_file() or not is_hdf5(scan):
        return None
    try:
        with open_file(scan) as file:
            data = find_layout(scan, file, options or LoaderOptions()).data
            parents = [str(each) for each in PurePosixPath(data.strip("/")).parents]
            places = [f"{parent}/{place}" for place in _PLACES for parent in parents]
            row, column = _first(file, places, "y"), _first(file, places, "x")
    except SourceError:
        return None
    row, column = row or column, column or row
    if row is None or column is None:
        return None
    where = ", ".join(dict.fromkeys((row[1], column[1])))
    return PixelSize(row[0], column[0], where.encode(errors="backslashreplace").decode())


def parse_pixel_size(given: str | float) -> PixelSize:
    """Parse a pixel size: ``3.25um``, or a number of micrometres.

    Raises
    ------
    UsageError
        If it is none.

    Examples
    --------
    >>> parse_pixel_size("0.65 um").row_um, parse_pixel_size("0.00325mm").row_um
    (0.65, 3.25)
    """
    um: float | None = None
    if isinstance(given, str):
        um = _um(given)
    elif isinstance(given, int | float | np.integer | np.floating):
        um = float(given)
    if um is None or not (math.isfinite(um) and um > 0):
        raise UsageError(
            f"the pixel size {given!r} is not a length: give a number with a unit, such as 3.25um"
        )
    return PixelSize(um, um, "given")


def _first(file: h5py.File, places: list[str], axis: str) -> tuple[float, str] | None:
    names = (f"{axis}_pixel_size", f"pixel_size_{axis}", "pixel_size")
    for where in (f"{place}/{name}" for place in places for name in names):
        stored = look_up(file, where)
        if isinstance(stored, h5py.Dataset) and stored.size == 1:
            with library_errors(where):
                um = _um(shown_value(stored))
            if um is not None and math.isfinite(um) and um > 0:
                return um, f"/{where.removeprefix('./')}"
    return None


def _um(text: str) -> float | None:
    match = _SIZE.fullmatch(text)
    factor = None if match is None else _UM.get(match[2].lower().removesuffix("s"))
    if match is None or factor is None:
        return None
    try:
        return float(f"{float(match[1]) * factor:.9g}")  # 3.25e-06 m is 3.25 um
    except ValueError:
        return None
