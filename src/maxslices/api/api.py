"""The two questions asked from Python: what would it take, and do it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..devices import Backend, select_backend
from ..io import SinkFormat
from ..io.check_arrays import check_dtype
from ..model.arrays import ArraySpec
from ..pipeline import Pipeline, ScanSpec, cut_into_sections
from ..planner import Limits, Plan, check_supplied, make_plan
from ..planner.block_size import UNITS, BlockChoice
from ..planner.tile_and_offload import FitChoice
from ..runner import Report, RunFolder, Timeline, execute
from ..runner.correct_records import learn
from ..runner.progress import progress_bar
from .resources import backend_limits, card_here, chooser_for, limits_of, measures
from .scan_and_output import Scan, check_out, check_result, files_read, is_direct, opened, spec_of

PipelineLike = Pipeline | str | os.PathLike[str] | Iterable[str | Mapping[str, Any]]
ASSUMED_FRAMES = 20
"""Flats, and darks, that are assumed where only the shape of a scan is known."""


def plan(
    scan: Scan | ArraySpec,
    pipeline: PipelineLike,
    *,
    device: str = "auto",
    memory: str | int | None = None,
    host_memory: str | int | None = None,
    block: BlockChoice = "auto",
    fit: FitChoice = "none",
    estimator: str | None = None,
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
        "cpu", "cuda", "cuda:N" or "auto": where `run` would run. "cuda" needs no GPU if
        `memory` is given: that plans for a card of this size. For an `ArraySpec` with
        `memory`, "auto" does so too.
    memory : str or int, optional
        Budget on the device, such as ``"16GB"``, or bytes; by default what is free.
    host_memory : str or int, optional
        Budget in host memory; by default most of what is free. On the CPU it is `memory`.
    block : int, "auto" or "max"
        Slices in a block.
    fit : {"none", "auto"}
        Whether slices may be cut into tiles, and methods or flats and darks moved to the host,
        where the pipeline does not fit otherwise. The plan says what is done.
    estimator : {"declared", "recorded", "traced", "probed", "searched"}, optional
        The only source of estimates to use. By default what a method declares, else what is
        recorded of it on this device and these versions, else it is traced, if it is for torch
        and the device a GPU, or probed: run on a few slices. A search tries what runs, in a
        process of its own.

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
    ...              device="cuda", memory="16GB", host_memory="64GB")
    >>> whole.sections[0].max_block
    171
    """
    checked = as_pipeline(pipeline)
    is_here = not isinstance(scan, ArraySpec)
    limits, backend = limits_of(device, memory, host_memory, is_here)
    if backend is None and measures(checked, estimator):
        backend = card_here(device)
    if isinstance(scan, ArraySpec):
        return _plan_shape(scan, checked, limits, block, fit, backend, estimator)
    with opened(scan, checked) as source:
        spec = spec_of(source, backend)
        chooser = chooser_for(spec, limits, backend, estimator, source)
        return make_plan(checked, spec, limits, chooser=chooser, block=block, fit=fit)


def run(
    scan: Scan,
    pipeline: PipelineLike,
    out: str | os.PathLike[str] | np.ndarray | None = None,
    *,
    device: str = "auto",
    memory: str | int | None = None,
    host_memory: str | int | None = None,
    block: BlockChoice = "auto",
    fit: FitChoice = "none",
    format: SinkFormat = "hdf5",
    overwrite: bool = False,
    progress: bool = False,
    estimator: str | None = None,
) -> Report:
    """Run a pipeline on a scan within a memory budget.

    Parameters
    ----------
    scan : path, ndarray or Source
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
    fit : {"none", "auto"}
        Whether slices may be cut into tiles, and methods or flats and darks moved to the host;
        see `plan`.
    format : {"hdf5", "tiff"}
        How results are written.
    overwrite : bool
        Whether the results of an earlier run in `out` may be replaced.
    progress : bool
        Whether to show a progress bar, if standard error is a terminal.
    estimator : {"declared", "recorded", "traced", "probed", "searched"}, optional
        The only source of estimates to use; see `plan`.

    Returns
    -------
    Report

    Raises
    ------
    MaxslicesError
        If anything cannot be used, does not fit or fails. Where slices were finished
        before, they are kept in the folder `out`, and the error says how many.
    """
    return run_announced(
        scan,
        pipeline,
        out,
        announce=lambda plan: None,
        device=device,
        memory=memory,
        host_memory=host_memory,
        block=block,
        fit=fit,
        format=format,
        overwrite=overwrite,
        progress=progress,
        estimator=estimator,
    )


def run_announced(
    scan: Scan,
    pipeline: PipelineLike,
    out: str | os.PathLike[str] | np.ndarray | None,
    *,
    announce: Callable[[Plan], None],
    device: str,
    memory: str | int | None,
    host_memory: str | int | None,
    block: BlockChoice,
    fit: FitChoice,
    format: SinkFormat,
    overwrite: bool,
    progress: bool,
    estimator: str | None,
) -> Report:
    """Run a pipeline as `run` does, and hand over the plan before it begins."""
    began = time.perf_counter()
    checked = as_pipeline(pipeline)
    backend = select_backend(device)
    limits = backend_limits(backend, memory, host_memory)
    given = out if isinstance(out, np.ndarray) else None
    check_out(out, scan)
    folder = None
    if out is not None and not isinstance(out, np.ndarray):
        folder = RunFolder(out, format, overwrite)
        for path in files_read(scan, checked):
            folder.check_spares(path)
    with contextlib.ExitStack() as held:
        source = held.enter_context(opened(scan, checked))
        spec = spec_of(source, backend)
        chooser = chooser_for(spec, limits, backend, estimator, source)
        made = make_plan(
            checked,
            spec,
            limits,
            chooser=chooser,
            block=block,
            fit=fit,
            result_in_memory=folder is None,
            result_is_direct=given is not None and is_direct(given, backend),
        )
        if given is not None:
            check_result(given, made)
        announce(made)
        bar = held.enter_context(progress_bar(progress))
        scratch = Path(tempfile.gettempdir())
        if folder is not None:
            held.enter_context(folder)
            scratch = folder.path
        timeline = Timeline()
        sections, side, result = execute(
            made, checked, source, backend, folder, bar, scratch, timeline, given
        )
        learn(made, sections, chooser)
        files = () if folder is None else folder.finish()
        written = None if folder is None else folder.write_timeline(timeline.to_chrome())
        report = Report(
            plan=made,
            device=backend.name,
            sections=sections,
            side_results=side.by_method,
            files=files,
            duration_s=time.perf_counter() - began,
            result=result,
            timeline=timeline,
            timeline_file=written,
        )
        if folder is not None:
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
    n_steps = len(checked.steps)
    lines = [f"{checked.name}: {n_steps} method{'s' if n_steps > 1 else ''}, well formed"]
    for number, section in enumerate(cut_into_sections(checked), start=1):
        names = ", ".join(step.meta.name for step in section.steps)
        lines.append(f"  section {number}, {UNITS[section.slice_dim]}s: {names}")
    if scan is None:
        wanted = {name for step in checked.steps for name in step.meta.supplied}
        needs = [name for name in ("flats", "darks", "angles") if name in wanted]
        if needs:
            lines.append(f"  it uses a scan's {', '.join(needs)}")
        return "\n".join(lines)
    with opened(scan, checked) as source:
        spec = spec_of(source)
        check_supplied(checked, spec)
        lines.append(f"{spec.name}: {spec.projections}")
        for name, frames in (("flats", spec.flats), ("darks", spec.darks)):
            lines.append(f"  {name}: {frames.shape[0] if frames else 'none'}")
        angles = source.angles
        if angles is None:
            lines.append("  angles: none")
        else:
            first, last = np.rad2deg(angles[[0, -1]])
            lines.append(f"  angles: {len(angles)}, {first:g} to {last:g} degrees")
    return "\n".join(lines)


def as_pipeline(pipeline: PipelineLike) -> Pipeline:
    """Return a `Pipeline` of whatever stands for one."""
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, str | os.PathLike):
        return Pipeline.from_file(pipeline)
    return Pipeline.from_steps(pipeline)


def _plan_shape(
    scan: ArraySpec,
    pipeline: Pipeline,
    limits: Limits,
    block: BlockChoice,
    fit: FitChoice,
    backend: Backend | None,
    estimator: str | None,
) -> Plan:
    """Plan for a scan of which only the shape is known."""
    check_dtype("a scan", scan.dtype)
    wanted = {name for step in pipeline.steps for name in step.meta.supplied}
    assumed = [name for name in ("flats", "darks") if name in wanted]
    notes = [f"{ASSUMED_FRAMES} frames each of {' and '.join(assumed)} are assumed"]
    frames = scan.with_slices(0, ASSUMED_FRAMES)
    spec = ScanSpec(scan, frames, frames, True, name="a scan")
    chooser = chooser_for(spec, limits, backend, estimator)
    return make_plan(
        pipeline,
        spec,
        limits,
        chooser=chooser,
        block=block,
        fit=fit,
        notes=notes if assumed else [],
    )
