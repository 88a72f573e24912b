"""Run a sweep: pictures into a stack and onto a sheet, and what tells people of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ..measure.resident_memory import ResidentPeak
from ..pipeline import Pipeline
from ..pipeline.sweep import SweptPipeline
from ..planner.sweep_plan import SweepPlan
from ..runner import RunFolder, SectionReport
from ..runner.folder.earlier_run import LOG_NAME, PIPELINE_NAME, RECORD_NAMES
from ..runner.folder.run_identity import input_state
from ..runner.report.progress import Progress, progress_shown
from ..runner.report.provenance import as_run
from ..runner.report.provenance import provenance as provenance_of
from ..runner.report.run_log import RunLog
from ..runner.report.wall_time import WallTime
from ..runner.sweep.pictures import SweepPictures
from ..runner.sweep.report import SweepReport
from .run_page import leave_page
from .run_request import RunRequest
from .scan_and_output import files_read


class SweepWork(Protocol):
    """What makes the pictures of a planned sweep: this process, or workers."""

    whole: SweepPlan
    """The plan."""
    device: str
    """The device that runs it."""
    device_name: str
    """The name of the device, for the records."""
    scan_name: str
    """The name of the scan, for the records."""
    side_results: dict[str, Any]
    """Side results by ``method.name``, when all pictures are made."""
    sections: tuple[SectionReport, ...]
    """Reports of the sections, when all pictures are made."""
    sections_s: float
    """Seconds that the sections took, when all pictures are made."""

    def pictures(self, bar: Progress) -> Iterator[NDArray[Any]]:
        """Make the picture of each value, in order."""


@dataclass(frozen=True, slots=True)
class SweepSetting:
    """What the pictures of a sweep are made of and with."""

    request: RunRequest
    """What was asked for."""
    pipeline: Pipeline
    """The whole pipeline."""
    cut: SweptPipeline
    """The same, cut before the swept step."""
    folder: RunFolder | None
    """Folder of the results."""
    wall_time: WallTime
    """Attributes the time to phases."""
    log: RunLog
    """What is said of the run."""
    held: contextlib.ExitStack
    """Closes at the end what was opened for the pictures."""


BeginSweep = Callable[[SweepSetting], SweepWork]
"""Plans a sweep, to be made when its pictures are asked for."""


def run_sweep(
    request: RunRequest, pipeline: Pipeline, cut: SweptPipeline, begin: BeginSweep
) -> SweepReport:
    """Run a pipeline that has a sweep, as `maxslices.run` says."""
    wall_time = WallTime()
    scan, folder = request.scan, None
    if request.folder_path is not None:
        folder = RunFolder(request.folder_path, "tiff", request.overwrite)
        for read in files_read(scan, pipeline):
            folder.check_spares(read)
    with contextlib.ExitStack() as held:
        log = held.enter_context(RunLog())
        work = begin(SweepSetting(request, pipeline, cut, folder, wall_time, log, held))
        wall_time.begin("preparing")
        request.announce(work.whole)
        log.add(str(work.whole))
        path = Path(scan) if isinstance(scan, str | os.PathLike) else None
        provenance = replace(
            provenance_of(work.whole, pipeline, path, work.scan_name, work.device_name),
            input=None if path is None else input_state(files_read(scan, pipeline)),
        )
        bar = held.enter_context(progress_shown(request.progress))
        if folder is not None:
            held.enter_context(folder)
        process_peak = ResidentPeak()
        values = cut.sweep.values
        with SweepPictures(work.whole, folder) as pictures:
            for picture, value in zip(work.pictures(bar), values, strict=True):
                pictures.add(picture, value)
            wall_time.begin("finishing")
            files = pictures.finish()
        wall_time.stop()
        report = SweepReport(
            plan=work.whole,
            device=work.device,
            sections=work.sections,
            side_results=work.side_results,
            files=files,
            duration_s=wall_time.total_s,
            phases_s=wall_time.beside_sections(work.sections_s),
            process_bytes=None if request.is_for_workers else process_peak.grown_bytes,
            result=pictures.stack,
            parameter=cut.name,
            values=values,
            sharpness=tuple(pictures.sharpness),
            provenance=provenance,
            records=() if folder is None else tuple(folder.path / name for name in RECORD_NAMES),
        )
        if folder is not None:  # the report last: with it the run is whole
            log.add(str(report))
            folder.write_records({PIPELINE_NAME: as_run(pipeline, provenance), LOG_NAME: log.text})
            leave_page(report, folder, log.warned)
            folder.write_report(report.to_json())
        return report
