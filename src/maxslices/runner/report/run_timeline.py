"""When each stage of a run was at work, and shares of the wall time.

A block passes five stages: it is read, copied to the device, computed, copied back and written. The
stages overlap, so their times do not add up to the wall time. The share of the wall time in which
each of them was at work shows which one bounds the run: the one that was hardly ever idle.

The wall time of the whole run is split into phases, which do not overlap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, get_args

from ...devices import DeviceEvent

Stage = Literal["read", "in", "compute", "out", "write"]
Bound = Literal["read", "link in", "compute", "link out", "write", "overhead", "pipeline stalls"]
STAGES: tuple[Stage, ...] = get_args(Stage)
_BOUND_BY: dict[Stage, Bound] = {
    "read": "read",
    "in": "link in",
    "compute": "compute",
    "out": "link out",
    "write": "write",
}
MOST_PENDING = 16
"""Spans whose events are not read yet: those of the stages of two or three blocks."""
BUSY = 0.6
"""Least share of the wall time for a stage to bound a section. A convention, not a measurement: a
stage that is at work for less waits so much that a faster one would gain little."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stage at work on one block. Times are seconds of `time.perf_counter`."""

    stage: Stage
    """Which stage."""
    start_s: float
    """When it began."""
    stop_s: float
    """When it was done."""
    n_bytes: int
    """Bytes moved; for computing, those of the block."""


@dataclass(frozen=True, slots=True)
class StageUse:
    """What a stage did during a section."""

    active_s: float
    """Seconds in which at least one thread was at work."""
    share: float
    """Share of the section's wall time in which it was at work."""
    n_bytes: int
    """Bytes that it moved."""
    n_spans: int
    """How many blocks, or parts of blocks, it worked on."""

    @property
    def gb_per_s(self) -> float:
        """GB/s (powers of 1000) while it was at work."""
        return self.n_bytes / self.active_s / 1e9 if self.active_s > 0 else 0.0


class Timeline:
    """Collects when each stage of a section is at work, from any thread.

    The section begins with it. What follows from its spans is known once it has ended.

    Parameters
    ----------
    at_s : float, optional
        When the section begins, seconds of `time.perf_counter`; by default now.

    Attributes
    ----------
    spans : list of Span
        All spans.
    duration_s : float
        Wall time of the section.
    stages : dict of str to StageUse
        The stages that were used, from "read" to "write".
    idle_share : float
        Share of the wall time in which no stage was at work.

    Examples
    --------
    >>> timeline = Timeline(at_s=10.0)
    >>> timeline.add("read", 10.0, 10.5, 10**9)
    >>> timeline.add("compute", 10.2, 11.1, 2 * 10**9)
    >>> timeline.end(at_s=11.0)
    >>> timeline.bound_by, round(timeline.stages["read"].share, 2)
    ('compute', 0.5)
    """

    def __init__(self, at_s: float | None = None) -> None:
        self._lock = threading.Lock()
        self._began_s = time.perf_counter() if at_s is None else at_s
        self._pending: deque[tuple[Stage, DeviceEvent, DeviceEvent, int]] = deque()
        self.spans: list[Span] = []
        self.duration_s, self.idle_share = 0.0, 1.0
        self.stages: dict[str, StageUse] = {}

    def add(
        self, stage: Stage, start: float | DeviceEvent, stop: float | DeviceEvent, n_bytes: int
    ) -> None:
        """Add a span, from any thread.

        The times of events are read some spans later, when the device has long reached them.

        Parameters
        ----------
        stage : {"read", "in", "compute", "out", "write"}
            Which stage was at work.
        start, stop : float or DeviceEvent
            Begin and end, both in seconds of `time.perf_counter` or both as events of a device.
            What lies outside of the section does not count.
        n_bytes : int
            Bytes moved.
        """
        with self._lock:
            if isinstance(start, int | float):
                assert isinstance(stop, int | float)
                self.spans.append(Span(stage, start, stop, n_bytes))
                return
            assert not isinstance(stop, int | float)
            self._pending.append((stage, start, stop, n_bytes))
        self._read_events(MOST_PENDING)

    def _read_events(self, most: int) -> None:
        """Read the times of the oldest spans given by events, until at most `most` are left."""
        while len(self._pending) > most:
            try:
                stage, start, stop, n_bytes = self._pending.popleft()
            except IndexError:  # another thread did
                return
            stop.synchronize()
            span = Span(stage, start.time_s(), stop.time_s(), n_bytes)
            with self._lock:
                self.spans.append(span)

    def end(self, at_s: float | None = None) -> None:
        """End the section, now or at `at_s`."""
        with suppress(RuntimeError):  # of a device that failed, raised where it is used
            self._read_events(0)
        with self._lock:
            self._pending.clear()
            self.duration_s = (time.perf_counter() if at_s is None else at_s) - self._began_s
        for stage in STAGES:
            own = [span for span in self.spans if span.stage == stage]
            if own:
                active_s = self._active_s(own)
                n_bytes = sum(span.n_bytes for span in own)
                self.stages[stage] = StageUse(active_s, self._share(active_s), n_bytes, len(own))
        self.idle_share = 1 - self._share(self._active_s(self.spans))

    @property
    def bound_by(self) -> Bound | None:
        """What bounds the section; None if nothing was recorded.

        It is the busiest stage, if that was at work for `BUSY` of the wall time. Otherwise a faster
        stage would gain little. Then it is "overhead" of the runner if all stages were idle for
        more than half of the time, else "pipeline stalls": stages waited for each other, as they
        do with too few blocks to overlap.
        """
        if not self.stages:
            return None
        busiest = max(self.stages, key=lambda stage: self.stages[stage].share)
        if self.stages[busiest].share >= BUSY:
            return _BOUND_BY[busiest]  # type: ignore[index]
        return "overhead" if self.idle_share > 0.5 else "pipeline stalls"

    def _share(self, active_s: float) -> float:
        return active_s / self.duration_s if self.duration_s > 0 else 0.0

    def _active_s(self, spans: Iterable[Span]) -> float:
        """Seconds of the section that are covered by at least one span."""
        total, until = 0.0, self._began_s
        for start, stop in sorted((span.start_s, span.stop_s) for span in spans):
            start, stop = max(start, until), min(stop, self._began_s + self.duration_s)
            if stop > start:
                total += stop - start
                until = stop
        return total


Phase = Literal[
    "importing",
    "opening",
    "starting",
    "planning",
    "preparing",
    "waiting for disk space",
    "sections",
    "finishing",
]
"""``importing``: libraries. ``opening``: the scan. ``starting``: the device, or the workers with
what they import. ``planning``: estimates, with what they measure, and the
plan. ``preparing``: libraries, results and intermediates. ``sections``: the blocks. ``finishing``:
closing intermediates and results."""


class WallTime:
    """A clock that attributes every moment of a run to one phase.

    It starts with the phase "importing". A phase lasts until another one begins, so that all phases
    add up to the whole.

    Examples
    --------
    >>> wall_time = WallTime()
    >>> wall_time.begin("planning")
    >>> with wall_time.during("waiting for disk space"):
    ...     pass
    >>> wall_time.stop()
    >>> list(wall_time.beside_sections(sections_s=0.0))
    ['importing', 'planning', 'waiting for disk space', 'other']
    """

    def __init__(self) -> None:
        self._phase: Phase = "importing"
        self._phases_s: dict[Phase, float] = {}
        self._began_s = self._switched_s = time.perf_counter()

    @property
    def total_s(self) -> float:
        """Seconds from the start to the last change of phase, or to the stop."""
        return self._switched_s - self._began_s

    def begin(self, phase: Phase) -> None:
        """Begin a phase, or return to one."""
        now_s = time.perf_counter()
        spent_s = now_s - self._switched_s
        self._phases_s[self._phase] = self._phases_s.get(self._phase, 0.0) + spent_s
        self._phase, self._switched_s = phase, now_s

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Interrupt the current phase by another one."""
        interrupted = self._phase
        self.begin(phase)
        try:
            yield
        finally:
            self.begin(interrupted)

    def stop(self) -> None:
        """End the current phase."""
        self.begin(self._phase)

    def beside_sections(self, sections_s: float) -> dict[str, float]:
        """Seconds of each phase but the sections, and what remains as "other".

        Parameters
        ----------
        sections_s : float
            Wall time of all sections, as their reports say it.
        """
        found: dict[str, float] = {
            phase: spent_s for phase, spent_s in self._phases_s.items() if phase != "sections"
        }
        found["other"] = max(0.0, self.total_s - sections_s - sum(found.values()))
        return found
