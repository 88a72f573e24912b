"""The page that a run leaves beside its results."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from ..errors import SourceError, StoreError
from ..io.results.result_slice import middle_slice
from ..planner.plan import value_text
from ..report_page.drawings import Lanes, SectionSpans, SlicePicture, draw_lanes, draw_slice
from ..report_page.page import run_page
from ..runner import Report, RunFolder
from ..runner.report.run_timeline import STAGES, Span
from ..runner.report.sweep_report import SweepReport

SIDE, OTHER_SIDE = 512, 256
"""Most pixels of a picture of the final result, and of one of another: 270 and 70 kB in the page,
if it is all noise."""
MOST_PICTURES = 8
"""Pictures of a page, those of the last steps: it stays under 1 MB, small enough to be mailed."""


SliceName = Callable[[Path, int], str]
"""Given a file and the index of a slice in it, names the slice."""


def page_of_run(report: Report, slice_name: SliceName, warned: Sequence[str] = ()) -> str:
    """Write the page of a run, which warned of some things, as text of an HTML file."""
    return run_page(
        report.to_dict(),
        written=time.strftime("%Y-%m-%d %H:%M"),
        lanes=_lanes(report),
        pictures=(
            _values(report)
            if isinstance(report, SweepReport)
            else _pictures(report.files, slice_name)
        ),
        warned=warned,
    )


def leave_page(report: Report, folder: RunFolder, warned: Sequence[str]) -> None:
    """Leave the page of a run in its folder; where it cannot be, warn, for the run is whole."""
    try:
        folder.write_page(page_of_run(report, folder.slice_name, warned))
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


def _values(report: SweepReport) -> list[SlicePicture]:
    """Draw the pictures of a sweep's sharpest values, the sharpest first."""
    import tifffile  # a sweep has loaded it

    from ..runner.sweep_pictures import STACK

    found = []
    stack = next((path for path in report.files if path.name == STACK), None)
    ranked = sorted(range(len(report.values)), key=lambda i: -report.sharpness[i])
    for number, index in enumerate(ranked[:MOST_PICTURES] if stack is not None else []):
        value = f"{report.parameter} = {value_text(report.values[index])}"
        title = f"{value}, sharpness {report.sharpness[index]:.4g}"
        image = tifffile.imread(stack, key=index)
        found.append(draw_slice(title, image, OTHER_SIDE if number else SIDE))
    return found


def _one_of_each(files: Iterable[Path]) -> list[Path]:
    """One file of each result, of several formats the first."""
    found: dict[str, Path] = {}
    for path in files:
        name = path.name.partition(".")[0].removesuffix("_8bit").removesuffix("_16bit")
        found.setdefault(name, path)
    return list(found.values())


def _lanes(report: Report) -> Lanes | None:
    """Outlines of the stages of the sections that ran now."""
    if report.timeline is None:
        return None
    found = []
    for section in report.timeline.sections:
        by_stage: dict[str, list[Span]] = {}
        for span in section.spans:
            by_stage.setdefault(span.stage, []).append(span)
        stages = {
            stage: np.array([(span.start_s, span.stop_s) for span in spans])
            for stage, spans in by_stage.items()
        }
        found.append(SectionSpans(section.start_s, section.stop_s, stages))
    return draw_lanes(found, STAGES)
