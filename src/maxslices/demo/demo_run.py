"""The demo: make a scan, plan, run, and compare the result with the phantom."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import h5py
import numpy as np

from ..api.plan_scan import plan
from ..api.run_scan import run
from ..core.units import format_bytes, parse_bytes
from ..pipeline import Pipeline
from ..runner import Report
from ..runner.report.progress import progress_shown
from ..runner.sweep_pictures import ContactSheet
from ..system.disk_space import check_absent, check_free_space, store_errors
from .phantom import flower_head
from .scan_file import N_DARKS, N_FLATS, PhantomScan, make_scan

SCAN_NAME, PIPELINE_NAME, PICTURE_NAME = "scan.nxs", "demo.yaml", "demo.png"
"""Names of the demo's files in its folder."""
PLENTY_BYTES = 2**46
"""A budget that never limits a block."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Files and figures of a demo."""

    scan: PhantomScan
    """The scan file and its phantom."""
    report: Report
    """Report of the run, with its plan."""
    axis: float
    """Rotation axis that the run found, as a detector column."""
    rmse: float
    """Root mean square error of the middle slice in 1/mm."""
    picture: Path
    """Path of the PNG."""


def run_demo(
    out: str | os.PathLike[str],
    *,
    memory: str | int = "220MB",
    rows: int = 160,
    columns: int = 480,
    n_angles: int = 541,
    say: Callable[[str], None] = print,
) -> DemoResult:
    """Make a scan of a phantom, reconstruct it within a budget, and report.

    Parameters
    ----------
    out : path-like
        Folder for the scan, the pipeline file, the reconstruction and the picture.
    memory : str or int
        Budget. The default is half of what the whole scan would need as one block.
    rows, columns, n_angles : int
        Size of the scan.
    say : callable
        Called with each text.

    Returns
    -------
    DemoResult

    Raises
    ------
    StoreError
        If `out` already exists or cannot be created, or the disk is full.
    MaxslicesError
        If the run fails.
    """
    folder = Path(out)
    path = folder / PIPELINE_NAME
    scan_bytes = 2 * (N_DARKS + N_FLATS + n_angles) * rows * columns
    check_absent(folder)
    check_free_space(folder, scan_bytes)
    with store_errors(folder, scan_bytes):
        folder.mkdir(parents=True)
        path.write_bytes((files("maxslices.demo") / PIPELINE_NAME).read_bytes())
        pipeline = Pipeline.from_file(path)  # fails now if a method is missing
        began = time.perf_counter()
        phantom = flower_head(rows, columns)
        name = folder / SCAN_NAME
        say(
            f"Making {name}: {n_angles} projections of a phantom of "
            f"{len(phantom.bodies.density)} bodies with photon noise, rings and an axis off centre"
        )
        with progress_shown(True) as progress:
            scan = make_scan(name, phantom, n_angles, shift=0.011 * columns, progress=progress)
    say(
        f"Made {scan.path}: {n_angles} x {rows} x {columns} uint16, "
        f"{format_bytes(scan.n_bytes)}, "
        f"in {time.perf_counter() - began:.1f} s"
    )
    limited = plan(scan.path, pipeline, device="cpu", memory=memory)
    whole = plan(scan.path, pipeline, device="cpu", memory=PLENTY_BYTES, block="max")
    budget = format_bytes(parse_bytes(memory))
    say(
        f"As one block the scan would need {format_bytes(whole.estimated_bytes)}. "
        f"It is reconstructed within {budget}.\n"
    )
    say(f"{limited}\n")
    report = run(
        scan.path,
        pipeline,
        folder / "reconstruction",
        device="cpu",
        memory=memory,
        progress=True,
    )
    say(f"{report}\n")

    axis = float(report.side_results["find_center_vo.cor"])
    truth = phantom.slice(rows // 2)
    with h5py.File(report.files[-1]) as file:
        result = file["entry/data/data"][rows // 2] / np.float32(phantom.pixel_mm)
    rmse = float(np.sqrt(np.mean((result - truth) ** 2)))
    say(f"Rotation axis  found {axis:.2f}, true {scan.axis:.2f} (detector column)")
    say(
        f"RMSE           {rmse:.3f} /mm, in a phantom of {truth.min():.1f} to {truth.max():.1f} /mm"
    )
    picture = folder / PICTURE_NAME
    caption = (
        f"{rows} sinograms of {n_angles} x {columns} within {budget}: axis "
        f"found {axis:.2f}, true {scan.axis:.2f}; RMSE {rmse:.2f} /mm"
    )
    sheet = ContactSheet(3, (columns, columns), caption)
    for image, label in ((truth, "phantom"), (result, "reconstruction"), (result - truth, "error")):
        sheet.add(image, label)
    with store_errors(picture, sheet.n_bytes):
        sheet.save(picture, None)
    say(f"Picture        {picture}")
    say(f"Report         {report.files[-1].with_name('report.html')}")
    return DemoResult(scan, report, axis, rmse, picture)
