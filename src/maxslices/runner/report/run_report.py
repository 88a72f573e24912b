"""Report of a run or a sweep: times, and estimated and measured memory of each section."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.units import format_bytes
from ...io.results.result_info import ResultInfo
from ...planner import Plan
from ...planner.plan import value_text
from ...planner.section_plan import WIDTH, wrapped
from ...system.plain_records import plain
from .run_record import Provenance
from .run_timeline import STAGES, Stage, StageUse

_BOUNDS = {
    "read": "reading",
    "link in": "the link in",
    "compute": "computing",
    "link out": "the link out",
    "write": "writing",
    "overhead": "overhead",
    "pipeline stalls": "pipeline stalls",
}
MISSED = 1.05
"""Measured over estimated bytes above which the report calls an estimate too low. A good estimate
is never exceeded, but a meter may see up to 5 % of unrelated allocations."""
PRINTED_S = 0.05
"""Shortest phase that is printed, in seconds. A shorter one would read 0.0 s."""
NOTEBOOK_PIXELS = 256
"""Side of the result's picture in a notebook, whose file grows by 70 kB for each picture."""
_STAGE_OF: dict[str, Stage] = {"link in": "in", "link out": "out"}


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A block size, and the first slice for which it was used."""

    first_slice: int
    """First slice of the first block of this size."""
    block: int
    """Slices in a block, without the halo."""
    why: str
    """Reason for this size, such as "memory ran out"."""


@dataclass(frozen=True, slots=True)
class SectionReport:
    """Report of a section."""

    methods: tuple[str, ...]
    """Plain names, in order."""
    slice_dim: int
    """Axis of the slices: 0 projections, 1 sinograms."""
    n_slices: int
    """Total number of slices."""
    block: int
    """Planned number of slices in a block."""
    smallest_block: int
    """Slices in the smallest block, fewer than planned if memory ran out."""
    n_splits: int
    """Number of times that the block was halved because memory ran out."""
    duration_s: float
    """Wall time."""
    estimated_bytes: int
    """Planned peak of a block on the device."""
    measured_bytes: int | None
    """Measured peak on the device, on the CPU for the widest block; None if not measured."""
    stages: dict[str, StageUse] = field(default_factory=dict)
    """Use of the stages that ran, of "read", "in", "compute", "out" and "write"."""
    idle_share: float | None = None
    """Share of the wall time in which no stage worked; None if not recorded."""
    bound_by: str | None = None
    """Bottleneck: "read", "link in", "compute", "link out", "write", "overhead" of the runner, or
    "pipeline stalls" where stages waited for each other; None if not recorded."""
    blocks: tuple[BlockUse, ...] = ()
    """Block sizes, in order of use."""
    notes: tuple[str, ...] = ()
    """Differences from the plan, such as another place of the output."""
    is_earlier: bool = False
    """Whether it ran before the run was stopped. Its time is then not part of this run's time."""
    warnings: tuple[str, ...] = ()
    """Faults of its results, for example NaN throughout."""

    @property
    def gb_per_s(self) -> float | None:
        """GB/s of the bottleneck stage while it worked; None if no stage was the bottleneck."""
        name = _STAGE_OF.get(self.bound_by or "", self.bound_by)
        return self.stages[name].gb_per_s if name in self.stages else None

    @property
    def slices_per_s(self) -> float | None:
        """Slices per second, since the stop if there was one; None if no block ran."""
        if not self.blocks or self.duration_s <= 0:
            return None
        return (self.n_slices - self.blocks[0].first_slice) / self.duration_s

    @property
    def ratio(self) -> float | None:
        """Measured over estimated bytes; None if nothing was measured."""
        if self.measured_bytes is None or not self.estimated_bytes:
            return None
        return self.measured_bytes / self.estimated_bytes


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a run."""

    plan: Plan
    """The executed plan."""
    device: str
    """"cpu" or "cuda:N"."""
    sections: tuple[SectionReport, ...]
    """The sections, in order."""
    side_results: dict[str, Any]
    """Side results by ``method.name``, such as ``find_center_vo.cor``."""
    files: tuple[Path, ...]
    """Files of the results, the final result last."""
    duration_s: float
    """Wall time, except for writing the report."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase other than the sections (see `WallTime`). With the wall times of the
    sections they add up to `duration_s`."""
    process_bytes: int | None = None
    """Peak of the process's resident memory, less that before the first section, as the kernel
    counts it; None if unknown, or if workers ran the blocks."""
    result: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The final result, if it is in memory."""
    by_reference: Mapping[tuple[str, str], Any] = field(
        default_factory=dict, repr=False, compare=False
    )
    """(step id, name under its side_outputs) -> side result."""
    result_info: ResultInfo = field(default=ResultInfo(), repr=False, compare=False)
    """Metadata of `result`, such as which detector rows its slices are."""
    provenance: Provenance | None = None
    """Date, host, versions and scan of the run."""
    records: tuple[Path, ...] = ()
    """Files with the pipeline, the log and the page, if results are in a folder."""

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain types, ready for JSON."""
        return {
            "device": self.device,
            "duration_s": self.duration_s,
            "phases_s": self.phases_s,
            "process_bytes": self.process_bytes,
            "sections": [
                {**_section(s), "findings": _findings(s, planned.limited_by)}
                for s, planned in zip(self.sections, self.plan.sections, strict=True)
            ],
            "side_results": {k: plain(v) for k, v in self.side_results.items()},
            "files": [str(path) for path in self.files],
            "provenance": None
            if self.provenance is None
            else plain(dataclasses.asdict(self.provenance)),
            "records": [str(path) for path in self.records],
            "plan": self.plan.to_dict(),
        }

    def to_json(self) -> str:
        """Convert the report to JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __repr__(self) -> str:
        methods = ", ".join(name for section in self.sections for name in section.methods)
        return f"<Report: {methods} on {self.device} in {self.duration_s:.1f} s>"

    def _repr_html_(self) -> str:
        """The report for a notebook."""
        from ...report_page.drawings import draw_slice
        from ...report_page.page import run_fragment

        pictures = []
        if self.result is not None and self.result.size:
            pictures = [draw_slice(*self._picture(self.result), NOTEBOOK_PIXELS)]
        return run_fragment(self.to_dict(), pictures)

    def _picture(self, result: np.ndarray) -> tuple[str, np.ndarray]:
        """Title and middle slice of the result, for a notebook."""
        axis = self.plan.sections[-1].slice_dim
        middle = result.shape[axis] // 2
        name = self.result_info.slice_name(self.result_info.file_axis(axis), middle)
        return f"{name}, the middle of the result", result.take(middle, axis)

    def __str__(self) -> str:
        lines = [
            f"Ran on {self.device} in {self.duration_s:.1f} s",
            f"  {'section':<46}{'slices/s':>10}{'estimated':>12}{'measured':>12}{'ratio':>8}",
        ]
        for number, section in enumerate(self.sections, start=1):
            names = textwrap.wrap(f"{number} {', '.join(section.methods)}", 44) or [""]
            ratio = "-" if section.ratio is None else f"{100 * section.ratio:.0f} %"
            speed = "-" if section.slices_per_s is None else f"{section.slices_per_s:.1f}"
            lines.append(
                f"  {names[0]:<46}{speed:>10}"
                f"{format_bytes(section.estimated_bytes):>12}"
                f"{format_bytes(section.measured_bytes):>12}{ratio:>8}"
            )
            lines += [f"    {more}" for more in names[1:]]
            lines += _stages_lines(section) + _blocks_lines(section)
            lines += [f"    {note}" for note in section.notes]
            lines += ["    ran before the run was stopped"] * section.is_earlier
            lines += [f"    warning: {warning}" for warning in section.warnings]
            findings = _findings(section, self.plan.sections[number - 1].limited_by)
            lines += [f"    {finding}" for finding in findings]
        lines += _process_lines(self)
        lines += _wall_time_lines(self)
        lines += [f"  {name} = {_short(value)}" for name, value in self.side_results.items()]
        lines += [f"  wrote {path}" for path in self.files]
        return wrapped(lines)


def _section(section: SectionReport) -> dict[str, Any]:
    """Convert a section to plain types, with derived figures."""
    entry: dict[str, Any] = plain(dataclasses.asdict(section))
    for name, use in section.stages.items():
        entry["stages"][name]["gb_per_s"] = use.gb_per_s
    entry.update(slices_per_s=section.slices_per_s, ratio=section.ratio, gb_per_s=section.gb_per_s)
    return entry


def _findings(section: SectionReport, limited_by: str) -> list[str]:
    """Texts on deviations of a section's memory from the plan."""
    texts = []
    if (section.ratio or 0) > MISSED:
        texts.append(
            f"more than estimated: the estimate of {limited_by} is likely too low. Compare it with "
            f"measurements: maxslices measure {limited_by}"
        )
    if section.n_splits:
        times = "once" if section.n_splits == 1 else f"{section.n_splits} times"
        texts.append(
            f"memory ran out: the block was halved {times}, from {section.block} to "
            f"{section.smallest_block} slices"
        )
    return texts


def _stages_lines(section: SectionReport) -> list[str]:
    """Lines with the share of each stage and the bottleneck of the section."""
    if section.idle_share is None or section.bound_by is None:
        return []
    used = [(name, section.stages[name].share) for name in STAGES if name in section.stages]
    shares = [f"{name} {100 * share:.0f} %" for name, share in used]
    busy = ", ".join([*shares, f"idle {100 * section.idle_share:.0f} %"])
    speed = "" if section.gb_per_s is None else f", {format_bytes(int(1e9 * section.gb_per_s))}/s"
    bound = f"bound by {_BOUNDS[section.bound_by]}{speed}"
    line = f"    {busy}: {bound}"
    return [line] if len(line) <= WIDTH else [f"    {busy}:", f"      {bound}"]


def _blocks_lines(section: SectionReport) -> list[str]:
    """Line with the changes of the block size, if any."""
    if len(section.blocks) < 2:
        return []
    first, *later = section.blocks
    changes = [f"{use.block} from slice {use.first_slice} on ({use.why})" for use in later]
    return [f"    blocks of {first.block}, {', '.join(changes)}"]


def _process_lines(report: Report) -> list[str]:
    """Line with the memory of the process, on the CPU with the budget."""
    if report.process_bytes is None:
        return []
    of = "" if report.device != "cpu" else f" of {format_bytes(report.plan.budget_bytes)}"
    return [f"  the process took {format_bytes(report.process_bytes)}{of} by the kernel's count"]


def _wall_time_lines(report: Report) -> list[str]:
    """Line with the seconds of sections and phases. Short phases are added to "other"."""
    if not report.phases_s:
        return []
    ran_s = [section.duration_s for section in report.sections if not section.is_earlier]
    sections = " + ".join(f"{spent_s:.1f}" for spent_s in ran_s or [0.0])
    long_s = {
        phase: spent_s
        for phase, spent_s in report.phases_s.items()
        if phase != "other" and spent_s >= PRINTED_S
    }
    other_s = sum(report.phases_s.values()) - sum(long_s.values())
    if other_s >= PRINTED_S:
        long_s["other"] = other_s
    parts = [f"sections {sections} s", *(f"{phase} {s:.1f} s" for phase, s in long_s.items())]
    return [f"  wall time: {', '.join(parts)}"]


def _short(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{float(value):g}"
    text = str(plain(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


MEASURE = "gradient sparsity"
"""Name of the measure of sharpness; see `maxslices.runner.sweep_pictures.sharpness`."""
BEST = 3
"""Number of values that a report lists, the sharpest first."""


@dataclass(frozen=True, slots=True, repr=False)
class SweepReport(Report):
    """Report of a sweep.

    `sections` contains the sections that ran once, then those that ran for each value, summed over
    the values. `result` contains the pictures (values, rows, columns), if they are in memory.
    """

    parameter: str = ""
    """The parameter, such as ``fbp.center``."""
    values: tuple[Any, ...] = ()
    """Its values, in the order of the pictures."""
    sharpness: tuple[float, ...] = ()
    """Sharpness of each picture; see `maxslices.runner.sweep_pictures.sharpness`."""

    @property
    def sharpest(self) -> int:
        """Index of the value with the sharpest picture."""
        return max(range(len(self.values)), key=lambda i: self.sharpness[i])

    @property
    def suggested(self) -> Any:
        """The value with the sharpest picture, which needs a look at the picture."""
        return self.values[self.sharpest]

    def _picture(self, result: np.ndarray) -> tuple[str, np.ndarray]:
        """Title and picture of the sharpest value."""
        return f"{self.parameter} = {value_text(self.suggested)}", result[self.sharpest]

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain types, ready for JSON."""
        return {
            **Report.to_dict(self),
            "sweep": {
                "parameter": self.parameter,
                "values": plain(self.values),
                "measure": MEASURE,
                "sharpness": plain(self.sharpness),
                "suggested": plain(self.suggested),
            },
        }

    def __str__(self) -> str:
        ranked = sorted(range(len(self.values)), key=lambda i: -self.sharpness[i])[:BEST]
        shown = ", ".join(f"{value_text(self.values[i])} ({self.sharpness[i]:.4g})" for i in ranked)
        return (
            f"{Report.__str__(self)}\n"
            f"  sharpest of {len(self.values):,} by {MEASURE}: {self.parameter} = {shown}\n"
            "    A suggestion only: look at the sheet. Less smoothing, and so noise, is sharper too"
        )


def together(reports: Sequence[Sequence[SectionReport]]) -> list[SectionReport]:
    """Join the section reports of all values: sums of times, and the largest memory."""
    joined = []
    for parts in zip(*reports, strict=True):
        measured = [part.measured_bytes for part in parts if part.measured_bytes is not None]
        worst = max(parts, key=lambda part: part.ratio or 0)
        joined.append(
            replace(
                worst,
                n_slices=sum(part.n_slices for part in parts),
                smallest_block=min(part.smallest_block for part in parts),
                n_splits=sum(part.n_splits for part in parts),
                duration_s=sum(part.duration_s for part in parts),
                measured_bytes=worst.measured_bytes if measured else None,
                stages={},
                idle_share=None,
                bound_by=None,
                notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
                warnings=tuple(dict.fromkeys(text for part in parts for text in part.warnings)),
            )
        )
    return joined
