"""Pictures of a scan and of results, and the page that a run leaves."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError, StoreError
from ..io import Source, open_source
from ..report_page.drawings import SlicePicture, draw_slice
from ..report_page.page import run_page
from ..runner import Report, RunFolder
from ..runner.folder.folder_place import PAGE_NAME, PICTURE_NAME
from ..system.disk_space import store_errors


def draw_scan(scan: str | os.PathLike[str] | NDArray[Any], path: Path) -> None:
    """Write the picture of a scan as a PNG.

    Parameters
    ----------
    scan : path or ndarray
        As for `maxslices.run`.
    path : pathlib.Path
        File to write, ending in ``.png``.

    Raises
    ------
    SourceError
        If the scan cannot be read.
    StoreError
        If the picture cannot be written.
    """
    source = open_source(scan, guess=True)
    with source:
        projection, flat, sinogram = _parts(source)
        name = source.name
    images = {
        "projection in the middle of the scan": projection,
        "mean flat": flat,
        "sinogram of the middle row": sinogram,
    }
    drawn = {label: image for label, image in images.items() if image is not None}
    rows, columns = projection.shape
    from ..runner.sweep_pictures import ContactSheet  # fonts and tifffile, only for sheets

    sheet = ContactSheet(len(drawn), (max(rows, columns // 2), columns), name)
    for label, image in drawn.items():
        sheet.add(image, label)
    with store_errors(path, sheet.n_bytes):
        sheet.save(path, None)


def _parts(source: Source) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any]]:
    n_angles, n_rows, n_columns = source.spec.shape
    projection = np.empty((1, n_rows, n_columns), source.spec.dtype)
    source.read(0, n_angles // 2, n_angles // 2 + 1, projection)
    sinogram = np.empty((n_angles, 1, n_columns), source.spec.dtype)
    source.read(1, n_rows // 2, n_rows // 2 + 1, sinogram)
    flat = None
    if source.flats is not None:
        flat = source.read_side("flats", 0, 0, n_angles).mean(axis=0, dtype=np.float64)
    return projection[0], flat, sinogram[:, 0]


N_SLICES = 3


def draw_slices(folder: RunFolder, title: str) -> None:
    """Write a PNG of three slices of the last result, on one scale of grey, into its folder.

    Raises
    ------
    SourceError
        If there is no result.
    StoreError
        If the picture cannot be written.
    """
    name, found = next(folder.some_slices(_three), ("", []))
    if not name.startswith("result"):
        raise SourceError("no picture: the last step of the pipeline saves no result")
    images = [np.abs(image) if np.iscomplexobj(image) else image for _, image in found]
    rows, columns = images[0].shape
    from ..runner.sweep_pictures import ContactSheet

    sheet, path = ContactSheet(len(found), (rows, columns), title), folder.work / PICTURE_NAME
    for (label, _), image in zip(found, images, strict=True):
        sheet.add(image, label)
    with store_errors(path, sheet.n_bytes):
        sheet.save(path, None)


def _three(n_slices: int) -> list[int]:
    """A quarter, half and three quarters of the way; the middle three or fewer of a few.

    Examples
    --------
    >>> _three(100), _three(4), _three(2)
    ([25, 50, 75], [1, 2, 3], [0, 1])
    """
    if n_slices <= N_SLICES:
        return list(range(n_slices))
    return [n_slices * quarter // 4 for quarter in (1, 2, 3)]


SIDE, OTHER_SIDE = 512, 256
"""Most pixels of a picture of the final result, and of one of another: 270 and 70 kB in the page,
if it is all noise."""
MOST_PICTURES = 8
"""Pictures of a page, those of the last steps: it stays under 1 MB, small enough to be mailed."""


def leave_page(report: Report, folder: RunFolder, warned: Sequence[str]) -> None:
    """Leave the page of a run in its folder; where it cannot be, warn, for the run is whole."""
    try:
        page = run_page(
            report.to_dict(),
            written=time.strftime("%Y-%m-%d %H:%M"),
            pictures=_pictures(folder),
            warned=warned,
        )
        folder.write(PAGE_NAME, page)
    except (StoreError, OSError, MemoryError) as error:  # Pillow says OSError where zlib fails
        warnings.warn(f"no page of the run: {error or 'memory ran out'}", stacklevel=2)


def _pictures(folder: RunFolder) -> list[SlicePicture]:
    """Draw the middle slices of results, of the final one first, as far as they can be read."""
    results = islice(folder.some_slices(lambda n_slices: [n_slices // 2]), MOST_PICTURES)
    return [
        draw_slice(f"{name}, {label}", image, OTHER_SIDE if number else SIDE)
        for number, (name, [(label, image)]) in enumerate(results)
    ]
