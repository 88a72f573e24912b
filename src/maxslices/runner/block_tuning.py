"""The block size of a section, tuned by the time that its first blocks take."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..devices import CopyEngine, DeviceEvent
from ..planner import SectionPlan
from .block_ranges import Block
from .run_timeline import Timeline

TRIED_BLOCKS = 4
"""Blocks of one size to run before deciding, of which two are timed. The first two are not: one
makes FFT plans and memory, and one may be measured, which takes longer."""
GAIN = 0.05
"""Largest fixed share of a call's time for a block to be large enough. Doubling such a block would
gain at most 2.5 %."""
COST = 0.1
"""Largest share of the remaining time that trying another size may cost. A change of size empties
the pipeline: 10 to 45 ms on an H200, which a run of 0.25 s never gets back."""
MARGIN = 1.25
"""Least ratio of computing to the slowest other stage. With less, that stage bounds the section as
soon as computing is a little faster, and a larger block gains nothing."""
COMPUTE_BUSY = 0.9
"""Least share of the time in which blocks are computed. With less, the device waits for data, and
the size of a block does not matter."""


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
        self._n_noted = 0

    @property
    def n_added(self) -> int:
        """Number of clocks so far."""
        return len(self._clocks)

    def add(self, clock: BlockClock) -> None:
        """Add the clock of the next block."""
        self._clocks.append(clock)

    def times_s(self, start: int, stop: int) -> list[tuple[float, float, Block]]:
        """Wait for clocks `start` to `stop`; begin, end and block of each."""
        return [(*clock.times_s(), clock.block) for clock in self._clocks[start:stop]]

    def note(self, but: int = 0) -> None:
        """Put their times on the timeline, except those of the last `but` clocks."""
        stop = self.n_added - but
        for start_s, stop_s, block in self.times_s(self._n_noted, stop):
            spec = self._plan.input.with_slices(self._plan.slice_dim, block.n_given)
            self._timeline.add("compute", start_s, stop_s, block.first, block.last, spec.nbytes)
        self._n_noted = max(self._n_noted, stop)


class BlockTuner:
    """Chooses the block size of a section by the times of its first blocks.

    A few blocks of the planned size are timed. If computing bounds them, a few of the next larger
    size are timed as well. Both times together give a fixed time per call and a time per slice,
    and the smallest size is chosen whose fixed share is at most `GAIN`.

    Parameters
    ----------
    block : int
        Slices in the first blocks.
    larger : sequence of int
        Larger sizes that may be used, increasing.
    total : int
        Slices in the section.

    Attributes
    ----------
    why : str
        Reason for the last change of size.
    """

    def __init__(self, block: int, larger: Sequence[int] = (), total: int = 0) -> None:
        self._sizes = [block, *larger]
        self._at = 0
        self._total = total
        self._per_call_s: float | None = None
        self._is_settled = not larger
        self.why = ""

    @property
    def block(self) -> int:
        """Slices in a block from here on."""
        return self._sizes[self._at]

    def is_ready(self, n_timed: int) -> bool:
        """True if the size is open and `n_timed` blocks are enough to decide."""
        return not self._is_settled and n_timed >= TRIED_BLOCKS

    def decide(self, times: Sequence[tuple[float, float, Block]], beside_s: float = 0.0) -> bool:
        """Decide by the times of blocks of one size; True if the size has changed.

        Parameters
        ----------
        times : sequence of (float, float, Block)
            Begin and end of computing in seconds, and the block.
        beside_s : float
            Time of the slowest other stage for one block.
        """
        timed = times[2:]
        computed_s = sum(stop - start for start, stop, _ in timed)
        per_call_s = computed_s / max(1, len(timed))
        taken_s = timed[-1][1] - timed[0][0] if timed else 0.0
        before, self._per_call_s = self._per_call_s, per_call_s
        if before is None:
            # Each change of size costs one slow block, which makes plans and memory anew.
            slow_s = max(0.0, times[0][1] - times[0][0] - per_call_s)
            left_s = (self._total - times[-1][2].stop) / self.block * per_call_s
            is_worth_it = 2 * slow_s <= COST * left_s and per_call_s >= MARGIN * beside_s
            if not timed or computed_s < COMPUTE_BUSY * taken_s or not is_worth_it:
                self._is_settled = True
                return False
            self._at = 1
            self.why = "to see whether larger blocks are faster"
            return True
        self._is_settled = True
        small, large = self._sizes[:2]
        per_slice_s = max(0.0, per_call_s - before) / (large - small)
        extra_s = max(0.0, before - small * per_slice_s)  # fixed time of a call
        self._at = next(
            (i for i, n in enumerate(self._sizes) if extra_s <= GAIN * n * per_slice_s),
            len(self._sizes) - 1,
        )
        self.why = f"a call takes {1e3 * extra_s:.2g} ms and {1e3 * per_slice_s:.2g} ms a slice"
        return self.block != large
