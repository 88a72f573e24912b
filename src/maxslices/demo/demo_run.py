"""The demo from end to end: make a scan, plan it, run it, hold it against the truth."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from ..api import plan, run
from ..errors import MaxslicesError, StoreError
from ..model.units import format_bytes, parse_bytes
from ..pipeline import Pipeline
from ..runner import Report
from ..system.disk_space import check_free_space, store_errors
from .phantom import Phantom, flower_head
from .picture import Stage, draw
from .scan_file import N_DARKS, N_FLATS, Scan, make_scan

SCAN_NAME, PIPELINE_NAME, PICTURE_NAME = "scan.nxs", "demo.yaml", "demo.png"
COMPARED_ROWS = 9
"""Slices that are compared with the phantom, evenly spread over the rows."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo made and found."""

    scan: Scan
    """The scan file, and the truth behind it."""
    report: Report
    """The run: its plan and what was measured."""
    axis: float
    """Rotation axis that was found, as a detector column."""
    rmse: float
    """Root mean square of reconstruction minus phantom, 1/mm."""
    picture: Path
    """The PNG."""


def run_demo(
    out: str | os.PathLike[str],
    *,
    memory: str | int = "32MB",
    device: str = "cpu",
    rows: int = 160,
    columns: int = 480,
    n_angles: int = 541,
    say: Callable[[str], None] = print,
) -> DemoResult:
    """Make a scan of a phantom, reconstruct it within a budget, and say what happened.

    Parameters
    ----------
    out : path-like
        Folder for the scan, the pipeline file, the reconstruction and the picture. An
        earlier demo in it is replaced.
    memory : str or int
        Budget: by default less than half of the scan's bytes.
    device : str
        As for `maxslices.run`.
    rows, columns, n_angles : int
        Size of the scan.
    say : callable
        Given each piece of text.

    Returns
    -------
    DemoResult

    Raises
    ------
    StoreError
        If `out` holds something other than an earlier demo, or its disk is full.
    MaxslicesError
        If matplotlib is not installed, or the run fails.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MaxslicesError(
            "the demo draws with matplotlib, which is not installed: pip install 'maxslices[demo]'"
        ) from None
    except ValueError as error:  # MPLBACKEND, which it reads as it is imported
        raise MaxslicesError(f"matplotlib cannot be used: {error}") from None
    folder = _prepare(Path(out))
    path = folder / PIPELINE_NAME
    scan_bytes = 2 * (N_DARKS + N_FLATS + n_angles) * rows * columns
    check_free_space(folder, scan_bytes)
    with store_errors(folder, scan_bytes):
        path.write_bytes(_pipeline())
        pipeline = Pipeline.from_file(path)  # before the scan: without the methods it fails at once
        began = time.perf_counter()
        phantom = flower_head(rows, columns)
        scan = make_scan(folder / SCAN_NAME, phantom, n_angles, shift=0.011 * columns)
    say(
        f"Made {scan.path}: {_by(scan.shape)} uint16, {format_bytes(scan.n_bytes)}, "
        f"in {time.perf_counter() - began:.1f} s"
    )
    say(f"It is reconstructed within {format_bytes(parse_bytes(memory))}.\n")
    say(f"{plan(scan.path, pipeline, device=device, memory=memory)}\n")
    report = run(
        scan.path,
        pipeline,
        folder / "reconstruction",
        device=device,
        memory=memory,
        progress=True,
    )
    say(f"{report}\n")

    axis = float(report.side_results["find_center_vo.cor"])
    rmse, truth, result = _compare(report.files[-1], scan.phantom)
    say(f"Rotation axis  found {axis:.2f}, true {scan.axis:.2f} (detector column)")
    say(
        f"RMSE           {rmse:.3f} /mm, in a phantom of {truth.min():.1f} to {truth.max():.1f} /mm"
    )
    picture = folder / PICTURE_NAME
    draw(
        picture,
        truth=truth,
        result=result,
        stages=[
            Stage(_label(section.methods), section.estimated_bytes, section.measured_bytes)
            for section in report.sections
        ],
        budget_bytes=report.plan.budget_bytes,
        scan_bytes=scan.n_bytes,
        caption=(
            f"{rows} sinograms of {n_angles} x {columns}: photon noise, rings, axis off centre.   "
            f"Axis found {axis:.2f}, true {scan.axis:.2f}.   RMSE {rmse:.2f} /mm."
        ),
    )
    say(f"Picture        {picture}")
    return DemoResult(scan, report, axis, rmse, picture)


def _pipeline() -> bytes:
    return (files("maxslices.demo") / PIPELINE_NAME).read_bytes()


def _is_pipeline(path: Path) -> bool:
    return path.is_file() and path.read_bytes() == _pipeline()


def _prepare(folder: Path) -> Path:
    """Return the folder, empty of an earlier demo's files; nothing else is removed."""
    ours = {SCAN_NAME, PIPELINE_NAME, PICTURE_NAME, "reconstruction"}
    try:
        there = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
        if there and not (there <= ours and _is_pipeline(folder / PIPELINE_NAME)):
            raise StoreError(
                f"{folder} holds files that are not of a demo, or a pipeline that was edited: "
                "choose a folder that is empty or not there, as in `maxslices demo my-demo`"
            )
        for name in there - {"reconstruction"}:
            (folder / name).unlink()
        shutil.rmtree(folder / "reconstruction", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot use the folder {folder}: {error.strerror}") from None
    return folder


def _compare(
    path: Path, phantom: Phantom
) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
    """Return the RMSE over some slices, and the middle one's truth and reconstruction, 1/mm."""
    rows = np.unique(np.linspace(0, phantom.rows - 1, COMPARED_ROWS).round().astype(int))
    middle = phantom.rows // 2
    with h5py.File(path) as file:
        data = file["entry/data/data"]
        squares = [np.mean((data[:, r] / phantom.pixel_mm - phantom.slice(r)) ** 2) for r in rows]
        result = np.asarray(data[:, middle] / phantom.pixel_mm, np.float32)
    return float(np.sqrt(np.mean(squares))), phantom.slice(middle), result


def _label(methods: tuple[str, ...]) -> str:
    """Return the methods of a section one below the other."""
    return "\n".join(methods)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
