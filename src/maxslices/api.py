"""The two questions asked from Python: what would it take, and do it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .arrays import ArraySpec
from .backends import Backend, select_backend
from .backends.cpu import CpuBackend
from .backends.cuda import RESERVED_BYTES, count_devices
from .backends.select import check_device_name
from .errors import UsageError
from .io import SinkFormat, Source, open_source
from .planner import Limits, Pipeline, Plan, make_plan
from .runner import Report, RunFolder, execute
from .runner.execute import check_supplied
from .runner.progress import progress_bar
from .units import parse_bytes

Scan = str | os.PathLike[str] | np.ndarray | Source
PipelineLike = Pipeline | str | os.PathLike[str] | Iterable[str | Mapping[str, Any]]
BlockLike = int | Literal["auto", "max"]
ASSUMED_FRAMES = 20
"""Flats, and darks, that are assumed where only the shape of a scan is known."""


def plan(
    scan: Scan | ArraySpec,
    pipeline: PipelineLike,
    *,
    device: str = "auto",
    memory: str | int | None = None,
    host_memory: str | int | None = None,
    block: BlockLike = "auto",
) -> Plan:
    """Say what a pipeline would take on a scan, without running anything.

    Parameters
    ----------
    scan : path, ndarray, Source or ArraySpec
        The scan; its data are not read. An `ArraySpec` stands for one that is not there:
        as many flats and darks as is usual (20 each) are assumed.
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    device : str
        "cpu", "cuda", "cuda:N" or "auto": the GPU that is here; otherwise, if `memory`
        is given, a CUDA card of that size; otherwise the CPU.
    memory : str or int, optional
        Budget on the device, such as ``"16GB"``, or bytes; by default what is free.
    host_memory : str or int, optional
        Budget in host memory; by default most of what is free. On the CPU it is `memory`.
    block : int, "auto" or "max"
        Slices in a block.

    Returns
    -------
    Plan

    Raises
    ------
    MaxslicesError
        If the scan or pipeline cannot be used, or it does not fit.

    Examples
    --------
    >>> from maxslices import ArraySpec, plan
    >>> whole = plan(ArraySpec((1801, 2160, 2560), "float32"), ["minus_log"],
    ...              device="cuda", memory="16GB")
    >>> whole.sections[0].max_block
    342
    """
    checked = as_pipeline(pipeline)
    limits = _limits(device, memory, host_memory)
    if isinstance(scan, ArraySpec):
        wanted = {name for step in checked.steps for name in step.meta.supplied}
        frames = scan.with_slices(0, ASSUMED_FRAMES)
        assumed = [name for name in ("flats", "darks") if name in wanted]
        note = f"{ASSUMED_FRAMES} frames each of {' and '.join(assumed)} are assumed"
        return make_plan(
            checked,
            scan,
            limits,
            flats=frames,
            darks=frames,
            block=block,
            scan_name=f"a scan of {scan}",
            notes=[note] if assumed else [],
        )
    with open_source(scan, checked.loader) as source:
        return _plan_source(source, checked, limits, block, result_in_memory=False)


def run(
    scan: Scan,
    pipeline: PipelineLike,
    out: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    memory: str | int | None = None,
    host_memory: str | int | None = None,
    block: BlockLike = "auto",
    format: SinkFormat = "hdf5",
    overwrite: bool = False,
    progress: bool = False,
) -> Report:
    """Run a pipeline on a scan within a memory budget.

    Parameters
    ----------
    scan : path, ndarray or Source
        The scan, axes (angles, detector_y, detector_x).
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    out : path-like, optional
        Folder for the results; without it the last result is kept in memory, as
        `Report.result`.
    device : str
        "cpu", "cuda:N" or "auto": a GPU if there is one that CuPy can use, else the CPU.
    memory, host_memory : str or int, optional
        Budgets on the device and in host memory, such as ``"16GB"``, or bytes; by
        default most of what is free.
    block : int, "auto" or "max"
        Slices in a block.
    format : {"hdf5", "tiff"}
        How results are written.
    overwrite : bool
        Whether the results of an earlier run in `out` may be replaced.
    progress : bool
        Whether to show a progress bar, if standard error is a terminal.

    Returns
    -------
    Report

    Raises
    ------
    MaxslicesError
        If anything cannot be used, does not fit or fails; `out` then holds nothing that
        looks like a result.
    """
    began = time.perf_counter()
    checked = as_pipeline(pipeline)
    backend = select_backend(device)
    limits = _backend_limits(backend, memory, host_memory)
    folder = None if out is None else RunFolder(out, format, overwrite)
    with open_source(scan, checked.loader) as source:
        check_supplied(checked, source)
        made = _plan_source(source, checked, limits, block, result_in_memory=out is None)
        with progress_bar(progress) as bar:
            if folder is None:
                scratch = Path(tempfile.gettempdir())
                sections, side, result = execute(made, checked, source, backend, None, bar, scratch)
                return Report(
                    made,
                    backend.name,
                    sections,
                    side.by_method,
                    (),
                    time.perf_counter() - began,
                    result,
                )
            with folder:
                sections, side, _ = execute(
                    made, checked, source, backend, folder, bar, folder.path
                )
                files = folder.finish()
                report = Report(
                    made,
                    backend.name,
                    sections,
                    side.by_method,
                    files,
                    time.perf_counter() - began,
                )
                folder.write_report(report.to_json())
                return report


def check(pipeline: PipelineLike, scan: Scan | None = None) -> str:
    """Say whether a pipeline can run, and on a scan if one is given.

    Returns
    -------
    str
        What was checked, for people.

    Raises
    ------
    MaxslicesError
        With every fault found.
    """
    checked = as_pipeline(pipeline)
    found = f"{checked.name}: {len(checked.steps)} methods, well formed: {checked}"
    if scan is None:
        return found
    with open_source(scan, checked.loader) as source:
        check_supplied(checked, source)
        has = ", ".join(
            f"{len_} {name}"
            for name, len_ in (
                ("flats", source.flats.shape[0] if source.flats else 0),
                ("darks", source.darks.shape[0] if source.darks else 0),
                ("angles", 0 if source.angles is None else len(source.angles)),
            )
        )
        return f"{found}\n{source.name}: projections {source.spec}, {has}"


def as_pipeline(pipeline: PipelineLike) -> Pipeline:
    """Return a `Pipeline` of whatever stands for one."""
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, str | os.PathLike):
        return Pipeline.from_file(pipeline)
    return Pipeline.from_steps(pipeline)


def _plan_source(
    source: Source, pipeline: Pipeline, limits: Limits, block: BlockLike, result_in_memory: bool
) -> Plan:
    return make_plan(
        pipeline,
        source.spec,
        limits,
        flats=source.flats,
        darks=source.darks,
        block=block,
        scan_name=f"{source.name}: {source.spec}",
        result_in_memory=result_in_memory,
    )


def _limits(device: str, memory: str | int | None, host_memory: str | int | None) -> Limits:
    """Return the limits of a device, which need not be here if its memory is given."""
    check_device_name(device)
    n_devices = count_devices() if device != "cpu" else 0
    if memory is not None and not n_devices and device != "cpu":
        budget = parse_bytes(memory)
        host = CpuBackend().free_bytes() if host_memory is None else parse_bytes(host_memory)
        return Limits("cuda", budget, host, RESERVED_BYTES)
    return _backend_limits(select_backend(device), memory, host_memory)


def _backend_limits(
    backend: Backend, memory: str | int | None, host_memory: str | int | None
) -> Limits:
    free = backend.free_bytes()
    budget = free if memory is None else parse_bytes(memory)
    if backend.kind == "cpu":
        if host_memory is not None:
            raise UsageError(
                "on the CPU the device's memory is the host's: give memory alone (--memory)"
            )
        return Limits(backend.name, budget, budget)
    host = CpuBackend().free_bytes() if host_memory is None else parse_bytes(host_memory)
    return Limits(backend.name, budget, host, backend.reserved_bytes)
