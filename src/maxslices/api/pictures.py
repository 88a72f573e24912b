"""Pictures of scans and results, and the page of a run."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.method_meta import MethodMeta
from ..errors import SourceError, StoreError
from ..io import Source, open_source
from ..io.results.result_info import ResultInfo
from ..pipeline import Pipeline
from ..report_page.drawings import SlicePicture, draw_slice
from ..report_page.page import plain_name, run_page
from ..runner import Report, RunFolder
from ..runner.folder.folder_place import PAGE_NAME, PICTURE_NAME
from ..system.disk_space import store_errors
from ..system.plain_records import plain
from ..system.threads import N_CORES


def draw_scan(scan: str | os.PathLike[str] | NDArray[Any], path: Path) -> None:
    """Write a PNG of a scan: a projection, the mean flat and a sinogram.

    Parameters
    ----------
    scan : path or ndarray
        A scan, as for `maxslices.run`.
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
    from ..runner.sweep_pictures import ContactSheet  # imports fonts and tifffile

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
        If the last step saves no result.
    StoreError
        If the picture cannot be written.
    """
    name, _, slices = next(folder.some_slices(_three), ("", None, []))
    if not name.startswith("result"):
        raise SourceError("no picture: the last step of the pipeline saves no result")
    images = [np.abs(image) if np.iscomplexobj(image) else image for _, image in slices]
    rows, columns = images[0].shape
    from ..runner.sweep_pictures import ContactSheet

    sheet, path = ContactSheet(len(slices), (rows, columns), title), folder.work / PICTURE_NAME
    for (label, _), image in zip(slices, images, strict=True):
        sheet.add(image, label)
    with store_errors(path, sheet.n_bytes):
        sheet.save(path, None)


def _three(n_slices: int) -> list[int]:
    """Choose the slices at a quarter, half and three quarters, or all of a few.

    Examples
    --------
    >>> _three(100), _three(4), _three(2)
    ([25, 50, 75], [1, 2, 3], [0, 1])
    """
    if n_slices <= N_SLICES:
        return list(range(n_slices))
    return [n_slices * quarter // 4 for quarter in (1, 2, 3)]


SIDE, OTHER_SIDE = 1024, 256
"""Most pixels of the picture of the final result, which is as wide as the page, and of the others.
A picture of nothing but noise takes 1.1 MB and 70 kB of the page."""
MOST_PICTURES = 8
"""Most results that a page shows, from the last step backwards. It stays below 2 MB, small enough
to be mailed."""
UNITS = {"minus_log": "attenuation along the ray, no unit", "fbp": "attenuation, 1/pixel"}
"""Units of the values that these methods return for a scan whose logarithm was taken."""
FACTS = ("sample", "title", "instrument", "beamline", "energy", "exposure")
"""Facts stored in the scan's file that the page shows."""


def leave_page(
    report: Report,
    folder: RunFolder,
    pipeline: Pipeline,
    origin: ResultInfo,
    warned: Sequence[str],
) -> None:
    """Write the page of a run into its folder. A failure is a warning, as the run is complete."""
    try:
        page = run_page(
            report.to_dict(),
            about=_about_run(report, origin),
            defaults={step.meta.full_name: _defaults(step.meta) for step in pipeline.steps},
            pictures=_pictures(folder),
            warned=warned,
        )
        folder.write(PAGE_NAME, page)
    except (StoreError, OSError, MemoryError) as error:  # Pillow raises OSError where zlib fails
        warnings.warn(f"no page of the run: {error or 'memory ran out'}", stacklevel=2)


def _about_run(report: Report, origin: ResultInfo) -> dict[str, str]:
    """Scan, command, time and machine of a run, by their headings on the page."""
    about: dict[str, str] = {}
    for fact in sorted(origin.facts, key=lambda fact: fact.subject not in FACTS[:1]):
        if fact.subject in FACTS:
            about.setdefault(fact.subject.capitalize(), str(fact))
    if (pixel := origin.pixel_size) is not None:
        about["Pixel size"] = f"{pixel.row_um:g} x {pixel.column_um:g} µm (rows x columns)"
    run = report.provenance
    assert run is not None  # every run into a folder has one
    versions = (f"{name} {version}" for name, version in run.versions.items() if version)
    return about | {
        "Scan": run.scan,
        "Pipeline": run.pipeline,
        "Command": shlex.join([_program(), *sys.argv[1:]]),
        "Started": run.date.replace("T", " "),
        "Host": run.host,
        "Machine": f"{run.device}, {platform.machine()} with {N_CORES} cores",
        "Versions": ", ".join(versions),
    }


def _program() -> str:
    """Name of the program that runs: "maxslices", or that of a script."""
    program = Path(sys.argv[0])
    return program.parent.name if program.stem == "__main__" else program.name


def _defaults(meta: MethodMeta) -> dict[str, Any]:
    """Default values of a method's parameters, as JSON."""
    return {n: plain(value) for n, value in meta.merged().items() if n not in meta.supplied}


def _pictures(folder: RunFolder) -> list[SlicePicture]:
    """Draw the middle slice of each readable result, the final one first."""
    results = islice(folder.some_slices(lambda n_slices: [n_slices // 2]), MOST_PICTURES)
    return [
        draw_slice(
            f"{name}, {label}",
            image,
            OTHER_SIDE if number else SIDE,
            unit=_unit(info),
            pixel_um=info.pixel_um(info.axes[2]),
        )
        for number, (name, info, [(label, image)]) in enumerate(results)
    ]


def _unit(info: ResultInfo) -> str:
    """Unit of a result's values; empty if it is not known."""
    names = [plain_name(step.method) for step in info.steps]
    return UNITS.get(names[-1], "") if "minus_log" in names else ""
