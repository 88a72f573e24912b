"""Times at which each stage of a run works, and shares of the wall time.

A block passes five stages: it is read, copied to the device, computed, copied back and written. The
stages overlap, so their times do not add up to the wall time. The bottleneck is the stage that
works for nearly all of the wall time.

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
"""Most spans whose events are not yet read, as many as two or three blocks have."""
BUSY = 0.6
"""Smallest share of the wall time with which a stage counts as the bottleneck. This is a
convention. A stage with less waits so much that a faster one would gain little."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work of one stage on one block. Times are seconds of `time.perf_counter`."""

    stage: Stage
    """The stage."""
    start_s: float
    """Start."""
    stop_s: float
    """End."""
    n_bytes: int
    """Bytes moved, or size of the block for computing."""


@dataclass(frozen=True, slots=True)
class StageUse:
    """Use of a stage during a section."""

    active_s: float
    """Seconds in which at least one thread worked."""
    share: float
    """Share of the section's wall time in which it worked."""
    n_bytes: int
    """Bytes that it moved."""
    n_spans: int
    """Number of blocks, or parts of blocks."""

    @property
    def gb_per_s(self) -> float:
        """GB/s (powers of 1000) while it worked."""
        return self.n_bytes / self.active_s / 1e9 if self.active_s > 0 else 0.0


class Timeline:
    """Records the work of each stage of a section, from any thread.

    The section starts when this is made. Results are available after `end`.

    Parameters
    ----------
    at_s : float, optional
        Start of the section in seconds of `time.perf_counter`, by default now.

    Attributes
    ----------
    spans : list of Span
        All spans.
    duration_s : float
        Wall time of the section.
    stages : dict of str to StageUse
        The stages that were used, from "read" to "write".
    idle_share : float
        Share of the wall time in which no stage worked.

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

        The times of events are read some spans later, when the device has reached them.

        Parameters
        ----------
        stage : {"read", "in", "compute", "out", "write"}
            The stage.
        start, stop : float or DeviceEvent
            Begin and end, both in seconds of `time.perf_counter` or both as events of a device.
            Time outside of the section does not count.
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
        """Read the times of the oldest spans with events, until at most `most` are left."""
        while len(self._pending) > most:
            try:
                stage, start, stop, n_bytes = self._pending.popleft()
            except IndexError:  # taken by another thread
                return
            stop.synchronize()
            span = Span(stage, start.time_s(), stop.time_s(), n_bytes)
            with self._lock:
                self.spans.append(span)

    def end(self, at_s: float | None = None) -> None:
        """End the section, now or at `at_s`."""
        with suppress(RuntimeError):  # a failed device also raises it where it is used
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
        """Bottleneck of the section; None if nothing was recorded.

        It is the busiest stage if that worked for a share of at least `BUSY`. Otherwise it is the
        "overhead" of the runner if all stages were idle for more than half of the time. In all
        other cases it is "pipeline stalls", in which stages wait for each other, for example
        because too few blocks overlap.
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
        """Seconds of the section in at least one span."""
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
"""``importing``: libraries. ``opening``: the scan. ``starting``: the device, or the workers and
their imports. ``planning``: estimates with their measurements, and the plan. ``preparing``:
libraries, results and scratch files. ``sections``: the blocks. ``finishing``: closing scratch files
and results."""


class WallTime:
    """A clock that attributes every moment of a run to one phase.

    It starts with the phase "importing". A phase lasts until another one begins, so all phases add
    up to the total.

    Examples
    --------
    >>> wall_time = WallTime()
    >>> wall_time.begin("planning")
    >>> with wall_time.during("waiting for disk space"):
    ...     pass
    >>> wall_time.stop()
    >>> list(wall_time.other_phases(sections_s=0.0))
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

    def other_phases(self, sections_s: float) -> dict[str, float]:
        """Seconds of each phase other than the sections, and the rest as "other".

        Parameters
        ----------
        sections_s : float
            Wall time of all sections, from their reports.
        """
        phases_s: dict[str, float] = {
            phase: spent_s for phase, spent_s in self._phases_s.items() if phase != "sections"
        }
        phases_s["other"] = max(0.0, self.total_s - sections_s - sum(phases_s.values()))
        return phases_s
