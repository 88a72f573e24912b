"""Clocks of blocks: when the computing of each began and ended."""

from __future__ import annotations

import time

from ...devices import CopyEngine, DeviceEvent
from ...planner import SectionPlan
from ..report.run_timeline import Timeline
from .block_ranges import Block


class BlockClock:
    """Times the computing of one block: by device events on a GPU, else by the host's clock."""

    def __init__(self, engine: CopyEngine | None, block: Block) -> None:
        self.block = block
        self._engine = engine
        self._began: DeviceEvent | float = 0.0
        self._ended: DeviceEvent | float = 0.0

    def start(self) -> None:
        """Start: all that is computed from here on counts."""
        self._began = time.perf_counter() if self._engine is None else self._engine.record()

    def stop(self) -> None:
        """Stop, behind all that was started before."""
        self._ended = time.perf_counter() if self._engine is None else self._engine.record()

    def times_s(self) -> tuple[float, float]:
        """Wait for the end; begin and end in seconds of `time.perf_counter`."""
        # Events are freed here, one by one: hundreds of them take a while at the end of a run.
        self._began, self._ended = _reached_s(self._began), _reached_s(self._ended)
        return self._began, self._ended


def _reached_s(event: DeviceEvent | float) -> float:
    if isinstance(event, float):
        return event
    event.synchronize()
    return event.time_s()


class BlockClocks:
    """Clocks of consecutive blocks, whose times go on the timeline."""

    def __init__(self, timeline: Timeline, plan: SectionPlan) -> None:
        self._timeline, self._plan = timeline, plan
        self._clocks: list[BlockClock] = []

    def add(self, clock: BlockClock) -> None:
        """Add the clock of the next block."""
        self._clocks.append(clock)

    def note(self, but: int = 0) -> None:
        """Put their times on the timeline, except those of the last `but` clocks."""
        while len(self._clocks) > but:
            clock = self._clocks.pop(0)
            start_s, stop_s = clock.times_s()
            block = clock.block
            spec = self._plan.input.with_slices(self._plan.slice_dim, block.n_given)
            self._timeline.add("compute", start_s, stop_s, block.first, block.last, spec.nbytes)
