"""When each stage of a run was at work, as outlines of one size however many blocks there were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 480
"""Steps of an outline: two pixels each in the width of a page. An outline then has some 3 kB, for
ten blocks as for a million."""
HEIGHT = 20

Spans = NDArray[np.float64]
"""Begin and end of each time at work, in seconds: (n, 2)."""


@dataclass(frozen=True, slots=True)
class SectionSpans:
    """When the stages of a section were at work."""

    start_s: float
    """When it began, by the clock of the spans."""
    stop_s: float
    """When it ended."""
    stages: Mapping[str, Spans]
    """Spans of each stage."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One stage over the whole run."""

    stage: str
    """Its name."""
    path: str
    """Path in SVG, `BINS` wide and `HEIGHT` high: the share of the time at work."""
    share: float
    """Share of the whole time in which it was at work."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """All stages over the whole run."""

    duration_s: float
    """From the first section's begin to the last one's end."""
    lanes: tuple[Lane, ...]
    """A lane for each stage that there was."""
    starts: tuple[float, ...]
    """Where each section begins, in bins."""


def draw_lanes(sections: Sequence[SectionSpans], order: Sequence[str]) -> Lanes | None:
    """Draw the stages of all sections, in the order given; None if there is nothing to draw."""
    if not sections or sections[-1].stop_s <= sections[0].start_s:
        return None
    origin_s = sections[0].start_s
    duration_s = sections[-1].stop_s - origin_s
    edges = np.linspace(0, duration_s, BINS + 1)
    lanes = []
    for stage in order:
        # What lies outside of its section does not count, as in the shares of the report.
        spans = [
            s.stages[stage].clip(s.start_s, s.stop_s) - origin_s
            for s in sections
            if stage in s.stages
        ]
        if spans:
            busy_s = busy_until(np.concatenate(spans), edges)
            share = np.diff(busy_s) * BINS / duration_s
            lanes.append(Lane(stage, _outline(share), float(busy_s[-1]) / duration_s))
    starts = tuple((s.start_s - origin_s) * BINS / duration_s for s in sections)
    return Lanes(duration_s, tuple(lanes), starts)


def busy_until(spans: Spans, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds before each of the times that are covered by at least one span.

    Examples
    --------
    >>> busy_until(np.array([[0.0, 2.0], [1.0, 3.0], [5.0, 6.0]]), np.array([1.0, 4.0, 5.5]))
    array([1. , 3. , 3.5])
    """
    starts, stops = spans[np.argsort(spans[:, 0])].T
    ends = np.maximum.accumulate(stops)
    begins = np.maximum(starts, np.concatenate([[-np.inf], ends[:-1]]))
    after = np.cumsum(ends - begins)
    before = np.concatenate([[0.0], after[:-1]])
    knots = np.stack([begins, ends], axis=1).ravel()
    found: Any = np.interp(times, knots, np.stack([before, after], axis=1).ravel())
    return np.asarray(found)


def _outline(share: NDArray[np.float64]) -> str:
    """Outline of a step function between 0 and 1; equal steps are one line."""
    tops = np.round(HEIGHT * (1 - share.clip(0, 1)), 1)
    changes = np.flatnonzero(np.diff(tops)) + 1
    parts = [f"M0 {HEIGHT}V{tops[0]:g}"]
    parts += [f"H{i}V{tops[i]:g}" for i in changes]
    return f"{''.join(parts)}H{len(tops)}V{HEIGHT}z"
