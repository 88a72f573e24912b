"""How far a section has come: which of its slices are done, and what they found."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, field
from typing import Any

from ...core.arrays import SLICE_NAMES
from ...planner import SectionPlan
from ..report.run_report import SectionReport


@dataclass(slots=True)
class DoneSlices:
    """Slices that are done, as intervals: workers finish them in any order."""

    parts: list[tuple[int, int]] = field(default_factory=list)
    """First slice of each interval and one past its last, in order; none touches the next."""

    def add(self, start: int, stop: int) -> None:
        """Add an interval.

        Raises
        ------
        ValueError
            If it is empty, or a part of it is done already.
        """
        at = bisect(self.parts, (start, stop))
        before = self.parts[at - 1] if at else (0, 0)
        after = self.parts[at] if at < len(self.parts) else (stop, stop)
        if not before[1] <= start < stop <= after[0]:
            raise ValueError(f"slices {start} to {stop} of {self.parts}")
        low, high = at, at
        if at and before[1] == start:
            low, start = at - 1, before[0]
        if at < len(self.parts) and after[0] == stop:
            high, stop = at + 1, after[1]
        self.parts[low:high] = [(start, stop)]

    @property
    def count(self) -> int:
        """Number of slices that are done."""
        return sum(stop - start for start, stop in self.parts)

    @property
    def n_first(self) -> int:
        """Slices that are done without a gap, counted from the first."""
        return self.parts[0][1] if self.parts and not self.parts[0][0] else 0

    def missing(self, n_slices: int) -> list[range]:
        """Intervals of the first `n_slices` that are not done, in order."""
        edges = [0, *(edge for part in self.parts for edge in part), n_slices]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return [range(start, stop) for start, stop in gaps if start < stop]


@dataclass(slots=True)
class SectionState:
    """How far a section has come."""

    done: DoneSlices = field(default_factory=DoneSlices)
    """Slices that are written."""
    block: int | None = None
    """Slices in its last block."""
    partial: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)
    """Index of a step in the section -> (first slice of a block, its side result)."""
    layout: dict[str, int] | None = None
    """Layout of the scratch file that holds its output; None if there is none."""
    report: SectionReport | None = None
    """Its report; None if it is not finished."""

    @property
    def has_slices(self) -> bool:
        """True if its results hold slices."""
        return self.done.count > 0 or self.report is not None

    def note(self, section: SectionPlan) -> str:
        """Say where a section goes on; "" if it begins anew."""
        if not self.done.count:
            return ""
        unit = SLICE_NAMES[section.slice_dim]
        return (
            f"{self.done.count} of {section.n_slices} {unit}s were done before: times are of the "
            "others"
        )
