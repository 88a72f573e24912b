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
        Folder for the results; or an array of the last result's shape and dtype,
        C-contiguous and apart from the scan, to be filled. Without it the last result is kept
        in memory too, as `Report.result`. A GPU copies at the full speed of its link to and
        from arrays of `pinned_empty`.
    device : str
        "cpu", "cuda:N" or "auto": a GPU if there is one that CuPy can use, else the CPU.
    memory, host_memory : str or int, optional
        Budgets on the device and in host memory, such as ``"16GB"``, or bytes; by
        default most of what is free.
    block : int, "auto" or "max"
        Slices in a block.
    format : str or sequence of str
        How results are written: "hdf5", "tiff" (a folder), "tiff-stack" (one file) or "ome-zarr"
        (with a pyramid), several in a list or separated by commas. Each may be followed by ":8" or
        ":16", whole numbers between two percentiles of the result (0.1 and 99.9, or as in
        "tiff:8:1-99"), and by ":compressed". In files slices come first: a reconstruction is
        (z, y, x).
    overwrite : bool
        Whether the results of an earlier run in `out` may be replaced.
    progress : bool
        Whether to show progress on standard error: a bar on a terminal, else a line now and then.
    estimator : {"declared", "recorded", "replayed", "probed"}, optional
        The only source of estimates to use; see `plan`.
    plan : Plan, optional
        A plan made before, perhaps elsewhere; nothing is measured or planned then. Budgets,
        `block` and `estimator` are the plan's, and cannot be given beside it.
    resume : bool
        Whether to continue the unfinished run in `out`, by its plan: finished slices are not
        repeated. Where nothing is unfinished, the run begins.
    sweep : str or mapping, optional
        A parameter with several values: ``"fbp.center=203:208:0.5"`` (the stop excluded),
        ``"fbp.center=[203, 204.5]"`` or ``{"fbp.center": values}``. The middle row is processed
        with each of them; the pictures go into a TIFF stack and a contact sheet, or become
        `Report.result`.
    save_all : bool
        Whether the data after every step are saved. Otherwise those after the last step are, those
        of each reconstruction, and what the pipeline says (`save_result`).
    rows, columns : str, int, slice or (int, int), optional
        Part of the detector that is read, in place of what the pipeline says: "mid", "40:44",
        "mid-5:mid+5", one index, or a range.
    angles : str, slice or tuple, optional
        Frames as they are stored, with a step: "::2" reads every second projection.
    scratch : path-like, optional
        Folder for scratch files; by default they are beside the results.
    pixel_size : str or float, optional
        Size of a pixel for the results, such as "3.25um"; a number is in micrometres. By default
        what the scan's file says.
    picture : bool
        Whether three slices of the result are drawn, as ``slices.png`` in the folder `out`.
    engine : str or distributed.Client
        "local": this process. "dask": processes of this machine. ``"dask:ADDRESS"``, or a client:
        the workers of a Dask cluster. The results are the same, bit for bit, with the same plan.
    workers : int, optional
        Processes on the CPU of this machine; with it the engine is "dask".
    gpus : int or "all", optional
        GPUs of this machine, with a process for each; with it the engine is "dask". `memory` is
        that of each worker, `host_memory` that of a machine for all its workers.
    slurm : str, optional
        Workers are jobs of SLURM, as many as `workers` or `gpus` says, with these options of
        sbatch, such as ``"-p gpu -t 02:00:00 -A project"``.

    Returns
    -------
    Report
        Of a sweep, a `SweepReport`.

    Raises
    ------
    PlanError
        If `plan`, or the run that is to go on, was made for another scan, pipeline, method's
        source, kind of device or version, or needs more memory than is free.
    MaxslicesError
        If anything cannot be used, does not fit or fails. What is finished by then is kept in
        the folder `out`, and the error says how to go on.
    KeyboardInterrupt
        If it is stopped; its text says what is kept.
    """
    return run_requested(RunRequest(scan=scan, pipeline=pipeline, out=out, **options))


_running = threading.Lock()


def run_requested(request: RunRequest) -> Report:
    """Run a pipeline with the options of a request, once or for each value of its sweep.

    Raises
    ------
    UsageError
        If this process has a run already, in another thread or around this one.
    """
    if not _running.acquire(blocking=False):
        raise UsageError(
            "another run is at work in this process, and runs share what belongs to the whole "
            "process: the display of warnings, loggers, the settings of the heap, the device's "
            "memory pool and its FFT plans; wait for its end, or start this run in a process of "
            "its own"
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
