"""Run a pipeline on a scan: `run`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..devices import select_backend
from ..devices.in_place import is_direct
from ..errors import MaxslicesError, UsageError
from ..estimate import Chooser
from ..io import SinkFormat
from ..measure.process_peak import ProcessPeak
from ..pipeline.pipeline import PipelineLike, as_pipeline
from ..pipeline.sweep import SweepLike, cut_at_sweep, with_sweep
from ..planner import Budgets, Plan
from ..planner.block_size import BlockChoice
from ..planner.tile_and_offload import FitChoice
from ..runner import Report, RunFolder, Timeline, execute
from ..runner.correct_records import correct_records
from ..runner.earlier_run import LOG_NAME, PIPELINE_NAME, RECORD_NAMES
from ..runner.progress import progress_shown
from ..runner.provenance import as_run
from ..runner.provenance import provenance as provenance_of
from ..runner.run_identity import run_identity
from ..runner.run_log import RunLog
from ..runner.snapshots import snapshot_bytes
from ..runner.wall_time import WallTime
from .check_run import check_plan_here, check_unchanged
from .on_workers import (
    Engine,
    begin_run,
    check_for_workers,
    check_plan_on_workers,
    check_unchanged_on_workers,
    identity_on_workers,
    plan_on_workers,
    workers_for,
)
from .plan_scan import plan_pipeline
from .resources import budgets_here, chooser_for
from .scan_and_output import (
    Scan,
    check_out,
    check_result,
    files_read,
    opened,
    spec_of,
)

if TYPE_CHECKING:
    from ..cluster.workers import Workers


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
    plan: Plan | None = None,
    resume: bool = False,
    allow_missing_frames: bool = False,
    sweep: SweepLike | None = None,
    save_all: bool = False,
    save_snapshots: bool = False,
    engine: Engine = "local",
    workers: int | None = None,
    gpus: int | Literal["all"] | None = None,
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
        Whether to show progress on standard error: a bar on a terminal, else a line now and then.
    estimator : {"declared", "recorded", "replayed", "probed", "bisected"}, optional
        The only source of estimates to use; see `plan`.
    plan : Plan, optional
        A plan made before, perhaps elsewhere; nothing is measured or planned then. Budgets,
        `block`, `fit` and `estimator` are the plan's, and cannot be given beside it.
    resume : bool
        Whether to go on with the unfinished run in `out`, by its plan: what is finished is not
        repeated.
    allow_missing_frames : bool
        Whether frames that were never written are read as the fill value. Otherwise they are an
        error, as are frames in files that are not there.
    sweep : str or mapping, optional
        A parameter with several values: ``"fbp.center=203:208:0.5"`` (the stop excluded),
        ``"fbp.center=[203, 204.5]"`` or ``{"fbp.center": values}``. The middle row is processed
        with each of them; the pictures go into a TIFF stack and a contact sheet, or become
        `Report.result`.
    save_all : bool
        Whether the data after every step are saved. Otherwise those after the last step are, those
        of each reconstruction, and what the pipeline says (`save_result`).
    save_snapshots : bool
        Whether the middle slice after each step is saved, as a TIFF in the folder `out`.
    engine : str or distributed.Client
        "local": this process. "dask": processes of this machine. ``"dask:ADDRESS"``, or a client:
        the workers of a Dask cluster. The results are the same, bit for bit, with the same plan.
    workers : int, optional
        Processes on the CPU of this machine; with it the engine is "dask".
    gpus : int or "all", optional
        GPUs of this machine, with a process for each; with it the engine is "dask". `memory` is
        that of each worker, `host_memory` that of a machine for all its workers.

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
        plan=plan,
        resume=resume,
        allow_missing_frames=allow_missing_frames,
        sweep=sweep,
        save_all=save_all,
        save_snapshots=save_snapshots,
        engine=engine,
        workers=workers,
        gpus=gpus,
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
    plan: Plan | None,
    resume: bool,
    allow_missing_frames: bool,
    sweep: SweepLike | None = None,
    save_all: bool = False,
    save_snapshots: bool = False,
    engine: Engine = "local",
    workers: int | None = None,
    gpus: int | Literal["all"] | None = None,
    announce_workers: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run a pipeline as `run` does, and call `announce` with the plan before it begins."""
    wall_time = WallTime()
    if workers is not None or gpus is not None:
        engine = "dask" if engine == "local" else engine
    if engine != "local":
        check_for_workers(engine, scan, out, sweep)
    checked = as_pipeline(pipeline)
    if save_all:
        checked = checked.saving_all()
    if save_snapshots and (out is None or isinstance(out, np.ndarray)):
        raise UsageError("snapshots are saved in a folder: name it as `out`")
    if sweep is not None:
        checked = with_sweep(checked, sweep)
    cut = cut_at_sweep(checked)
    if cut is not None:
        if save_all or save_snapshots:
            raise UsageError("a sweep saves a picture for each value, and nothing on the way")
        if plan is not None or resume:
            what = "carry out a plan made before" if resume is False else "go on (resume)"
            raise UsageError(f"a sweep cannot {what}: it is planned and run as a whole")
        if isinstance(out, np.ndarray):
            raise UsageError("a sweep fills no array: name a folder, or leave it out")
        check_out(out, scan)
        from .run_sweep import run_sweep  # and with it Pillow and tifffile

        return run_sweep(
            scan,
            checked,
            cut,
            out,
            announce=announce,
            device=device,
            memory=memory,
            host_memory=host_memory,
            block=block,
            fit=fit,
            overwrite=overwrite,
            progress=progress,
            estimator=estimator,
            allow_missing_frames=allow_missing_frames,
        )
    given = out if isinstance(out, np.ndarray) else None
    if resume:
        if plan is not None:
            raise UsageError("a run that goes on keeps its plan: leave the other one out")
        if out is None or given is not None:
            raise UsageError("only a run into a folder can go on: name it as `out`")
    if plan is not None:
        _check_left_to_plan("a plan", memory, host_memory, block, fit, estimator)
        device = _device_of(plan, device)
    check_out(out, scan)
    folder = None
    if out is not None and not isinstance(out, np.ndarray):
        folder = RunFolder(out, format, overwrite, resume, save_snapshots)
        for each in files_read(scan, checked):
            folder.check_spares(each)
        if folder.unfinished is not None:
            _check_left_to_plan("resume", memory, host_memory, block, fit, estimator)
            device = _device_of(folder.unfinished.plan, device)
    with _said_how_to_go_on(folder), contextlib.ExitStack() as held:
        log = held.enter_context(RunLog())
        team: Workers | None = None
        if engine != "local":
            team = held.enter_context(workers_for(engine, workers, gpus, device))
            announce_workers(team.text)
            log.add(team.text)
        backend = select_backend(device if team is None else "cpu")
        path = Path(scan) if isinstance(scan, str | os.PathLike) else None
        if path is not None and team is not None:
            path = path.absolute()
        source = held.enter_context(
            opened(scan, checked, allow_missing_frames=allow_missing_frames)
        )
        wall_time.begin("planning")
        chooser: Chooser | None = None
        if folder is not None:
            read = files_read(scan, checked) if isinstance(scan, str | os.PathLike) else None
            folder.identity = {
                **(
                    run_identity(checked, backend, read)
                    if team is None or path is None
                    else identity_on_workers(team, path, checked)
                ),
                "scan_path": _text_of(scan),
                "pipeline_path": _text_of(pipeline),
            }
        if folder is not None and folder.unfinished is not None:
            made = folder.unfinished.plan
            now = folder.path, folder.unfinished, folder.identity
            if team is None or path is None:
                check_unchanged(*now, checked, source, backend)
            else:
                check_unchanged_on_workers(team, *now, path, checked)
        elif plan is not None:
            made = plan
            if team is None or path is None:
                check_plan_here(plan, checked, source, backend, in_memory=folder is None)
            else:
                check_plan_on_workers(team, plan, path, checked)
        elif team is not None and path is not None:
            made = plan_on_workers(
                team,
                path,
                checked,
                memory=memory,
                host_memory=host_memory,
                block=block,
                fit=fit,
                estimator=estimator,
                allow_missing_frames=allow_missing_frames,
                saves_snapshots=save_snapshots,
            )
        else:
            spec = spec_of(source, backend)
            budgets = budgets_here(backend, memory, host_memory)
            chooser = chooser_for(spec, budgets, backend, estimator, source)

            def planned(within: Budgets) -> Plan:
                return plan_pipeline(
                    checked,
                    spec,
                    within,
                    chooser,
                    block=block,
                    fit=fit,
                    result_in_memory=folder is None,
                    result_is_direct=given is not None and is_direct(given, backend),
                )

            made = planned(budgets)
            if save_snapshots:
                made = planned(budgets.without(snapshot_bytes(made)))
        if given is not None:
            check_result(given, made)
        wall_time.begin("preparing")
        announce(made)
        log.add(str(made))
        device_name = backend.name if folder is None else folder.identity["device"]
        provenance = provenance_of(made, checked, path, source.name, device_name)
        bar = held.enter_context(progress_shown(progress))
        scratch = Path(tempfile.gettempdir())
        if folder is not None:
            folder.log = log
            held.enter_context(folder)
            scratch = folder.path
        timeline, process_peak = Timeline(), ProcessPeak()
        if team is not None and folder is not None and path is not None:
            begin_run(team, made, path, checked, folder, allow_missing_frames=allow_missing_frames)
        sections, side, result = execute(
            made, checked, source, backend, folder, bar, scratch, timeline, wall_time, given, team
        )
        wall_time.begin("finishing")
        if chooser is not None:
            correct_records(made, sections, chooser)
        files = () if folder is None else folder.finish()
        written = None if folder is None else folder.write_timeline(timeline.to_chrome())
        wall_time.stop()
        sections_s = sum(section.duration_s for section in sections if not section.is_earlier)
        report = Report(
            plan=made,
            device=backend.name if team is None else made.device,
            sections=sections,
            side_results=side.by_method,
            files=files,
            duration_s=wall_time.total_s,
            phases_s=wall_time.beside_sections(sections_s),
            process_bytes=process_peak.grown_bytes,
            result=result,
            timeline=timeline,
            timeline_file=written,
            provenance=provenance,
            records=() if folder is None else tuple(folder.path / name for name in RECORD_NAMES),
        )
        if folder is not None:
            from .run_page import leave_page

            log.add(str(report))
            folder.write_records({PIPELINE_NAME: as_run(checked, provenance), LOG_NAME: log.text})
            leave_page(report, folder, log.warned)
            folder.write_report(report.to_json())  # last: with it the run is whole
        return report


@contextlib.contextmanager
def _said_how_to_go_on(folder: RunFolder | None) -> Iterator[None]:
    """Add to an error, or to an interrupt, how a run that is kept can go on."""
    try:
        yield
    except (MaxslicesError, MemoryError, KeyboardInterrupt) as error:
        if folder is None or not folder.is_kept:
            raise
        texts = [text for text in (str(error), folder.way_on) if text]
        raise type(error)("; ".join(texts)) from error.__cause__


def _text_of(given: object) -> str | None:
    """Path as text; None for what is no path."""
    return os.fspath(given) if isinstance(given, str | os.PathLike) else None


def _check_left_to_plan(
    what: str, memory: object, host_memory: object, block: object, fit: object, estimator: object
) -> None:
    """Check that nothing that `what` decides is given beside it."""
    given = {
        "memory": memory is not None,
        "host_memory": host_memory is not None,
        "block": block != "auto",
        "fit": fit != "none",
        "estimator": estimator is not None,
    }
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise UsageError(
            f"{', '.join(names)} cannot be given with {what}, which holds what was chosen: plan "
            "again with it, or leave it out"
        )


def _device_of(plan: Plan, device: str) -> str:
    """Device to run a plan on: the one asked for, else the plan's."""
    if device != "auto":
        return device
    return "cuda:0" if plan.device == "cuda" else plan.device
