"""Run a pipeline on a scan: `run`."""

from __future__ import annotations

import os
import threading
from typing import Unpack

import numpy as np

from ..errors import UsageError
from ..pipeline.pipeline import PipelineLike
from ..runner import Report
from .carry_out import carry_out
from .run_request import RunOptions, RunRequest
from .scan_and_output import Scan


def run(
    scan: Scan,
    pipeline: PipelineLike,
    out: str | os.PathLike[str] | np.ndarray | None = None,
    **options: Unpack[RunOptions],
) -> Report:
    """Run a pipeline on a scan within a memory budget.

    Parameters
    ----------
    scan : path, ndarray, ArrayScan or Source
        The scan, axes (angles, detector_y, detector_x).
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    out : path-like or ndarray, optional
        Folder for the results, or an array to fill with the last result. The array has the
        result's shape and dtype, is C-contiguous and does not overlap the scan. Without `out` the
        last result is kept in memory as `Report.result`. A GPU copies to and from arrays of
        `pinned_empty` at the full speed of its link.
    device : str
        "cpu", "cuda:N" or "auto": a GPU if CuPy can use one, else the CPU.
    memory, host_memory : str or int, optional
        Budgets on the device and in host memory, such as ``"16GB"``, or bytes.
        Default: most of the free memory.
    block : int, "auto" or "max"
        Slices in a block.
    format : str or sequence of str
        Formats of the results: "hdf5", "tiff" (a folder), "tiff-stack" (one file) or "ome-zarr"
        (with a pyramid). Several are given as a list or separated by commas. A format may be
        followed by ":8" or ":16" for integers between two percentiles of the result, 0.1 and 99.9
        or as in "tiff:8:1-99", and by ":compressed". The first axis of files is that of the
        slices, so a reconstruction is (z, y, x).
    overwrite : bool
        Whether the results of an earlier run in `out` may be replaced.
    progress : bool
        Whether to show progress on standard error: a bar on a terminal, otherwise lines.
    estimator : {"declared", "recorded", "replayed", "probed"}, optional
        The only source of estimates to use. See `plan`.
    plan : Plan, optional
        An existing plan, perhaps from another machine. Nothing is measured or planned then.
        Budgets, `block` and `estimator` are those of the plan and cannot be set.
    resume : bool
        Whether to resume the unfinished run in `out` with its plan. Finished slices are not
        repeated. Without an unfinished run, a new one begins.
    sweep : str or mapping, optional
        A parameter with several values: ``"fbp.center=203:208:0.5"`` (the stop excluded),
        ``"fbp.center=[203, 204.5]"`` or ``{"fbp.center": values}``. The middle row is processed
        with each of them. The slices are written as a TIFF stack and a contact sheet, or returned
        as `Report.result`.
    save_all : bool
        Whether to save the data after every step. By default the last result, each reconstruction
        and the steps with `save_result` are saved.
    rows, columns : str, int, slice or (int, int), optional
        Part of the detector to read instead of the pipeline's: "mid", "40:44", "mid-5:mid+5", an
        index or a range.
    angles : str, slice or tuple, optional
        Frames to read in stored order, with a step: "::2" reads every second projection.
    scratch : path-like, optional
        Folder for scratch files. By default they are in `out`.
    pixel_size : str or float, optional
        Pixel size for the results, such as "3.25um". A number is in micrometres. By default that
        of the scan's file.
    picture : bool
        Whether to draw three slices of the result as ``slices.png`` in the folder `out`.
    engine : str or distributed.Client
        "local": this process. "dask": processes on this machine. ``"dask:ADDRESS"`` or a client:
        the workers of a Dask cluster. With the same plan the results are identical bit for bit.
    workers : int, optional
        Number of processes on the CPU of this machine. It selects the engine "dask".
    gpus : int or "all", optional
        Number of GPUs of this machine, with one process each. It selects the engine "dask".
        `memory` is the budget of each worker, `host_memory` that of all workers of a machine.
    slurm : str, optional
        Options of sbatch with which each worker starts as a SLURM job, such as
        ``"-p gpu -t 02:00:00 -A project"``.

    Returns
    -------
    Report
        The report of the run. A sweep returns a `SweepReport`.

    Raises
    ------
    PlanError
        If `plan` or the resumed run is for another scan, pipeline, source of a method, kind of
        device or version, or needs more than the free memory.
    MaxslicesError
        If an input is invalid, the work does not fit or a method fails. Finished slices are kept
        in the folder `out`, and the error says how to resume.
    KeyboardInterrupt
        If the run is stopped. Its text says what is kept.
    """
    return run_requested(RunRequest(scan=scan, pipeline=pipeline, out=out, **options))


_running = threading.Lock()


def run_requested(request: RunRequest) -> Report:
    """Run a pipeline with the options of a request, once or for each value of its sweep.

    Raises
    ------
    UsageError
        If a run is already active in this process, in another thread or around this one.
    """
    if not _running.acquire(blocking=False):
        raise UsageError(
            "another run is active in this process, and runs would share its loggers, heap "
            "settings, memory pool and FFT plans: wait for its end, or start another process"
        )
    try:
        request = request.resumed()
        pipeline, cut = request.checked()
        if cut is None:
            return carry_out(request, pipeline)
        from .sweep import run_sweep  # and with it Pillow and tifffile

        return run_sweep(request, pipeline)
    finally:
        _running.release()
