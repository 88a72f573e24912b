"""Corrections of recorded estimates by what a run measured."""

from __future__ import annotations

from collections.abc import Sequence

from ..estimate import ModelResolver
from ..planner import Plan
from .report.run_report import SectionReport


def correct_records(
    plan: Plan, reports: Sequence[SectionReport], resolver: ModelResolver
) -> list[str]:
    """Correct recorded estimates that were too low for a section's blocks.

    A section's peak is that of the method that limits it, so the record of that method is
    corrected: to what was measured or, if a block ran out of memory, to more than was available.
    The next plan uses the corrected record.

    Parameters
    ----------
    plan : Plan
        Plan that was run.
    reports : sequence of SectionReport
        Report of each section.
    resolver : ModelResolver
        Chose the estimates of the methods.

    Returns
    -------
    list of str
        Names of the corrected methods.
    """
    corrected = []
    for section, report in zip(plan.sections, reports, strict=True):
        question, choice = resolver.resolved[section.limiting_step]
        if choice.origin not in ("recorded", "probed"):
            continue
        block = min(section.block + sum(section.halo), section.n_slices)
        needed = 0
        if report.measured_bytes is not None and report.measured_bytes > section.estimated_bytes:
            needed = report.measured_bytes - section.side_bytes
        if report.n_splits:
            needed = max(needed, section.available_bytes - section.side_bytes + 1)
        if needed and resolver.learn(question, block, needed):
            corrected.append(question.meta.name)
    return corrected
