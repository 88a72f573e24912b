"""How long a plan is likely to take, by the speed of sections that ran before."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.units import format_duration
from ..measure.cache_dir import keep, read_cached, records_folder
from ..planner import Plan, SectionPlan
from ..planner.plan import SweepPlan
from ..runner import Report

FILE_NAME = "speeds"
"""Name of the file in the folder of the records, whose own names end in ``.json``."""
LEAST_S = 1.0
"""Duration of all sections from which on they are kept: the first block, on which libraries are
loaded, takes some tenths of a second."""
MOST_SECTIONS = 256
"""Sections that are kept, the latest: 30 kB."""
REACH = 4
"""Slices of a plan, over those that ran, up to which their time is told: of a few slices what goes
before them is the most. Four rows of a scan that took 8.8 s told 53 s. Chosen as the distance to
which the memory of few slices is followed (`maxslices.estimate.method_calls`)."""


@dataclass(frozen=True, slots=True)
class LikelyTime:
    """How long a plan is likely to take."""

    sections_s: tuple[float, ...]
    """Of each section; of one that runs for each value of a sweep, for all of them."""
    device: str
    """Device of the runs that it is taken from."""
    date: str
    """Date of the oldest of them."""

    @property
    def total_s(self) -> float:
        """Of all sections."""
        return sum(self.sections_s)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, with the total."""
        return {"total_s": self.total_s, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        whole = format_duration(self.total_s)
        parts = " + ".join(format_duration(each) for each in self.sections_s)
        each = f" ({parts})" if len(self.sections_s) > 1 else ""
        return f"Likely to take {whole}{each}, as sections on {self.device} took on {self.date}"


def keep_speeds(report: Report) -> None:
    """Keep the speed of the sections of a run for later plans, if the disk takes it."""
    if sum(ran.duration_s for ran in report.sections) < LEAST_S:
        return
    known, new = _read(), {}
    for section, ran in zip(report.plan.sections, report.sections, strict=True):
        began = ran.blocks[0].first_slice if ran.blocks else 0
        if ran.is_earlier or began:
            continue
        key = _key(report.plan, section)
        if _most_slices(known.get(key)) > REACH * section.n_slices:
            continue  # it ran with far more slices before, which tell more
        new[key] = {
            "slice_s": ran.duration_s / section.n_slices,
            "n_slices": section.n_slices,
            "device": report.device,
            "date": time.strftime("%Y-%m-%d"),
        }
    if new:
        earlier = {key: entry for key, entry in known.items() if key not in new}
        latest = dict(list((earlier | new).items())[-MOST_SECTIONS:])
        keep(_path(), latest)


def likely_time(plan: Plan) -> LikelyTime | None:
    """How long a plan is likely to take; None unless each of its sections ran here before.

    Sections are the same if methods, parameters, kind of device, and the shape and dtype of a slice
    are. Their time is taken to grow with the number of slices, to `REACH` times those that ran.
    """
    known = _read()
    try:
        entries = [known[_key(plan, section)] for section in plan.sections]
        for entry, section in zip(entries, plan.sections, strict=True):
            if section.n_slices > REACH * _most_slices(entry):
                return None
        each_s = [
            float(entry["slice_s"]) * section.n_slices * _n_runs(plan, number)
            for number, (entry, section) in enumerate(zip(entries, plan.sections, strict=True))
        ]
        devices = ", ".join(dict.fromkeys(str(entry["device"]) for entry in entries))
        date = min(str(entry["date"]) for entry in entries)
    except (KeyError, TypeError, ValueError):
        return None
    if not all(math.isfinite(each) and each >= 0 for each in each_s):
        return None
    return LikelyTime(tuple(each_s), devices, date)


def _most_slices(entry: Any) -> int:
    """Slices that an entry is of; 0 if it does not say."""
    found = entry.get("n_slices", 0) if isinstance(entry, dict) else 0
    return found if isinstance(found, int) else 0


def _n_runs(plan: Plan, number: int) -> int:
    """How often a section runs."""
    return len(plan.values) if isinstance(plan, SweepPlan) and number >= plan.n_before else 1


def _key(plan: Plan, section: SectionPlan) -> str:
    content = plan.made_for.pipeline[1:]  # the first part is the loader
    steps = [
        [step.method, content[step.index]["parameters"] if step.index < len(content) else None]
        for step in section.steps
    ]
    other = [n for dim, n in enumerate(section.input.shape) if dim != section.slice_dim]
    what = [
        plan.device.partition(":")[0],
        section.slice_dim,
        other,
        str(section.input.dtype),
        steps,
    ]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _path() -> Path:
    return records_folder() / FILE_NAME


def _read() -> dict[str, Any]:
    found = read_cached(_path())
    return found if isinstance(found, dict) else {}
