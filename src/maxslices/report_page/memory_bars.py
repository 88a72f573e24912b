"""Estimated beside measured memory, as bars of one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .section_view import SectionView, plain_name

NEAR = 1.5
"""Times the longest bar up to which the limit lies on the scale; one beyond would leave the bars
two thirds of the width and less."""


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """Memory of one section, or of one call."""

    label: str
    """What it is of."""
    estimated_bytes: int
    """By the plan."""
    measured_bytes: int | None
    """By a meter; None if it was not measured, or not yet."""
    limit_bytes: int | None
    """Bytes that it may take; None without a limit."""


@dataclass(frozen=True, slots=True)
class MemoryScale:
    """Bars and the bytes of their full width."""

    bars: tuple[MemoryBar, ...]
    """The bars, in order."""
    full_bytes: int
    """Bytes of the full width."""
    limit_bytes: int | None
    """The limit, if it is the same for all and lies on the scale."""
    is_measured: bool
    """Whether any bar has a measurement."""

    def percent(self, n_bytes: int | None) -> str:
        """Part of the full width, in percent."""
        return f"{100 * (n_bytes or 0) / self.full_bytes:.2f}"


def memory_scale(bars: Sequence[MemoryBar]) -> MemoryScale:
    """Choose the scale for some bars."""
    longest = max((max(b.estimated_bytes, b.measured_bytes or 0) for b in bars), default=0)
    limits = {bar.limit_bytes for bar in bars}
    limit = limits.pop() if len(limits) == 1 else None
    if limit is not None and limit > NEAR * longest:
        limit = None
    return MemoryScale(
        bars=tuple(bars),
        full_bytes=max(1, longest, limit or 0),
        limit_bytes=limit,
        is_measured=any(bar.measured_bytes is not None for bar in bars),
    )


def section_bars(sections: Sequence[SectionView]) -> MemoryScale:
    """Bars of the sections of a plan or of a run."""
    return memory_scale(
        [
            MemoryBar(
                label=f"{each.number} {', '.join(_names(each))}",
                estimated_bytes=each.plan["estimated_bytes"],
                measured_bytes=None if each.run is None else each.run["measured_bytes"],
                limit_bytes=each.plan["available_bytes"],
            )
            for each in sections
        ]
    )


def _names(section: SectionView) -> list[str]:
    return [plain_name(step["method"]) for step in section.plan["steps"]]
