"""Whether larger blocks would be faster, found out on the first ones."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..devices import CopyEngine, DeviceEvent
from ..planner import SectionPlan
from .block_ranges import Block
from .run_timeline import Timeline

TRIED_BLOCKS = 4
"""Blocks of a size that are tried. The first two are not timed: one finds no plans or memory
made, and one may be measured, which takes longer."""
GAIN = 0.05
"""Share that a call may take beside its slices for a block to be large enough."""
COST = 0.1
"""Share of the time that is left that trying another size may take."""
MARGIN = 1.25
"""By how much computing must take longer than any other stage: else that is next to bound it."""
BUSY = 0.9
"""Share of the time that computing must take for the size of a block to matter."""


class BlockClock:
    """Times one block's computing: by the device's own clock, or on the CPU by the host's."""

    def __init__(self, engine: CopyEngine | None, block: Block) -> None:
        self.block = block
        self._engine = engine
        self._began: DeviceEvent | float = 0.0
        self._ended: DeviceEvent | float = 0.0

    def start(self) -> None:
        """Set the begin before all that is begun from here on."""
        self._began = time.perf_counter() if self._engine is None else self._engine.record()

    def stop(self) -> None:
        """Set the end behind all that was begun."""
        self._ended = time.perf_counter() if self._engine is None else self._engine.record()

    def times_s(self) -> tuple[float, float]:
        """Return begin and end, seconds of `time.perf_counter`; waits for the end."""
        # Marks go once they have been asked: hundreds of events take a while to free at the end.
        self._began, self._ended = _reached_s(self._began), _reached_s(self._ended)
        return self._began, self._ended


def _reached_s(mark: DeviceEvent | float) -> float:
    if isinstance(mark, float):
        return mark
    mark.synchronize()
    return mark.time_s()


class BlockClocks:
    """BlockClocks of blocks, one after the other; what they show goes on the timeline."""

    def __init__(self, timeline: Timeline, plan: SectionPlan) -> None:
        self._timeline, self._plan = timeline, plan
        self._clocks: list[BlockClock] = []
        self._n_noted = 0

    @property
    def n_added(self) -> int:
        """Return of how many blocks there are clocks."""
        return len(self._clocks)

    def add(self, clock: BlockClock) -> None:
        """Take the clock of the next block."""
        self._clocks.append(clock)

    def times_s(self, start: int, stop: int) -> list[tuple[float, float, Block]]:
        """Return what those from one number to another show; waits for the last of them."""
        return [(*clock.times_s(), clock.block) for clock in self._clocks[start:stop]]

    def note(self, but: int = 0) -> None:
        """Put what they show on the timeline, but for the last ones."""
        stop = self.n_added - but
        for start_s, stop_s, block in self.times_s(self._n_noted, stop):
            spec = self._plan.input.with_slices(self._plan.slice_dim, block.n_given)
            self._timeline.add("compute", start_s, stop_s, block.first, block.last, spec.nbytes)
        self._n_noted = max(self._n_noted, stop)


class BlockTuner:
    """The block that a section goes on with.

    A few blocks are timed as planned. If computing is what takes the time, so are a few of
    twice the size. Both together tell what a call takes and what each slice adds to it, and
    so from which block on larger ones gain little.

    Parameters
    ----------
    block : int
        Slices to begin with.
    larger : sequence of int
        What may be tried after it, increasing.
    total : int
        Slices in all.

    Attributes
    ----------
    why : str
        Why the block is another one than before.
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
        """Return the slices in a block from here on."""
        return self._sizes[self._at]

    def is_ready(self, n_timed: int) -> bool:
        """Tell whether so many blocks of one size are what there is to decide by."""
        return not self._is_settled and n_timed >= TRIED_BLOCKS

    def decide(self, times: Sequence[tuple[float, float, Block]], beside_s: float = 0.0) -> bool:
        """Decide by the blocks that were run; return whether the block is another one now.

        Parameters
        ----------
        times : sequence of (float, float, Block)
            Begin and end of their computing in seconds, of one size.
        beside_s : float
            What the slowest other stage takes for such a block.
        """
        timed = times[2:]
        computed_s = sum(stop - start for start, stop, _ in timed)
        per_call_s = computed_s / max(1, len(timed))
        taken_s = timed[-1][1] - timed[0][0] if timed else 0.0
        before, self._per_call_s = self._per_call_s, per_call_s
        if before is None:
            # To change the size costs a slow first block each time: plans and memory anew.
            slow_s = max(0.0, times[0][1] - times[0][0] - per_call_s)
            left_s = (self._total - times[-1][2].stop) / self.block * per_call_s
            is_worth_it = 2 * slow_s <= COST * left_s and per_call_s >= MARGIN * beside_s
            if not timed or computed_s < BUSY * taken_s or not is_worth_it:
                self._is_settled = True
                return False
            self._at = 1
            self.why = "to see whether larger blocks are faster"
            return True
        self._is_settled = True
        small, large = self._sizes[:2]
        per_slice_s = max(0.0, per_call_s - before) / (large - small)
        extra_s = max(0.0, before - small * per_slice_s)  # what a call takes beside its slices
        self._at = next(
            (i for i, n in enumerate(self._sizes) if extra_s <= GAIN * n * per_slice_s),
            len(self._sizes) - 1,
        )
        self.why = f"a call takes {1e3 * extra_s:.2g} ms and {1e3 * per_slice_s:.2g} ms a slice"
        return self.block != large
