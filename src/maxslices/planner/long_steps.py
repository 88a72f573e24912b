"""Methods that will take long, where a few of their slices were timed."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.units import format_duration
from ..estimate.section_model import SectionModel
from .section_plan import SectionPlan

LONG_S = 3600.0
"""Seconds from which on a time is said: as long as a user may wait beside a run."""


def notes_on_time(sections: Sequence[SectionModel], planned: Sequence[SectionPlan]) -> list[str]:
    """Notes on methods that will take long; none on those that nobody timed."""
    notes: list[str] = []
    for section, plan in zip(sections, planned, strict=True):
        for step in section.steps:
            n_blocks = 1 if step.looked_at else -(-plan.n_slices // plan.block)
            n_slices = step.looked_at or plan.n_slices + n_blocks * sum(plan.halo)
            call_s, slice_s = step.pace_s or (0.0, 0.0)
            whole_s = n_blocks * call_s + n_slices * slice_s
            if whole_s >= LONG_S:
                notes.append(
                    f"{step.name} takes about {format_duration(whole_s)}: "
                    f"{format_duration(call_s)} for each of {n_blocks} blocks and "
                    f"{format_duration(slice_s)} for each of {n_slices} slices, as a few were timed"
                )
    return notes
