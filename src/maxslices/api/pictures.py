"""Pictures of a scan and of results, and the page that a run leaves."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError, StoreError
from ..io import Source, open_source
from ..io.results.stored_result import middle_slice, some_slices
from ..report_page.drawings import SlicePicture, draw_slice
from ..report_page.page import run_page
from ..runner import Report, RunFolder
from ..runner.folder.folder_place import PAGE_NAME
from ..runner.report.run_report import SweepReport
from ..runner.sweep_pictures import ContactSheet
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


def draw_slices(
    files: Sequence[Path], slice_name: Callable[[Path, int], str], path: Path, title: str
) -> None:
    """Write a PNG of three slices, on one scale of grey.

    Parameters
    ----------
    files : sequence of Path
        Results of a run; the last one is drawn.
    slice_name : callable
        Given a file and the index of a slice in it, names the slice.
    path : Path
        File to write, which must not exist.
    title : str
        Line above the slices.

    Raises
    ------
    SourceError
        If there is no result.
    StoreError
        If the picture cannot be written.
    """
    result = next((each for each in files if each.name.startswith("result")), None)
    if result is None:
        raise SourceError("no picture: the last step of the pipeline saves no result")
    _, found = some_slices(result, _three)
    images = [np.abs(image) if np.iscomplexobj(image) else image for _, image in found]
    rows, columns = images[0].shape
    sheet = ContactSheet(len(found), (rows, columns), title)
    for (number, _), image in zip(found, images, strict=True):
        sheet.add(image, slice_name(result, number))
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


SliceName = Callable[[Path, int], str]
"""Given a file and the index of a slice in it, names the slice."""


def page_of_run(
    report: Report, slice_name: SliceName, warned: Sequence[str] = (), folder: Path | None = None
) -> str:
    """Write the page of a run, which warned of some things, as text of an HTML file.

    Its files are in `folder`, or where the report says.
    """
    files = [path if folder is None else folder / path.name for path in report.files]
    return run_page(
        report.to_dict(),
        written=time.strftime("%Y-%m-%d %H:%M"),
        pictures=() if isinstance(report, SweepReport) else _pictures(files, slice_name),
        warned=warned,
    )


def leave_page(report: Report, folder: RunFolder, warned: Sequence[str]) -> None:
    """Leave the page of a run in its folder; where it cannot be, warn, for the run is whole."""
    try:
        page = page_of_run(report, folder.slice_name, warned, folder.work)
        folder.write(PAGE_NAME, page)
    except (StoreError, OSError, MemoryError) as error:  # Pillow says OSError where zlib fails
        warnings.warn(f"no page of the run: {error or 'memory ran out'}", stacklevel=2)


def _pictures(files: Iterable[Path], slice_name: SliceName) -> list[SlicePicture]:
    """Draw the middle slices of results, of the final one first, as far as they can be read."""
    found = []
    for number, path in enumerate(_one_of_each(files)[::-1][:MOST_PICTURES]):
        try:
            middle, image = middle_slice(path)
        except SourceError:
            continue
        title = path.name if middle is None else f"{path.name}, {slice_name(path, middle)}"
        found.append(draw_slice(title, image, OTHER_SIDE if number else SIDE))
    return found


def _one_of_each(files: Iterable[Path]) -> list[Path]:
    """One file of each result, of several formats the first."""
    found: dict[str, Path] = {}
    for path in files:
        name = path.name.partition(".")[0].removesuffix("_8bit").removesuffix("_16bit")
        found.setdefault(name, path)
    return list(found.values())
