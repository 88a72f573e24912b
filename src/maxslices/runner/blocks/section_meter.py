"""Memory of a section, measured while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from ...core.allocators import Device
from ...measure import measure_peak
from ...tuning import heap
from .block_ranges import Block

SAMPLE_INTERVAL_S = 0.02
"""Seconds between samples of a GPU's memory. One takes 0.01 ms (H200), so 0.05 % of a run."""


class SectionMeter:
    """Measures a whole section on a GPU, and its widest block on the CPU.

    On the CPU the allocations of arrays are traced, which makes a method of many small steps up to
    1.5 times slower (tracing Python objects as well: 3 times). So one block is measured there.

    Attributes
    ----------
    measured_bytes : int or None
        The peak; None if nothing was measured or the meters are not available.
    unseen : list of str
        Memory that the meters could not see, in words.
    measured_slices : int
        Slices of the widest block that was measured, with its halo.
    """

    def __init__(self, kind: Device) -> None:
        self._kind = kind
        self.measured_bytes: int | None = None
        self.unseen: list[str] = []
        self.measured_slices = 0

    def to_measure(self, blocks: Sequence[Block]) -> Block | None:
        """Block to measure: the widest, unless one as wide was measured before.

        It is the second of that width, if there is one: then a result is being written meanwhile.
        """
        size = max(block.n_given for block in blocks)
        if size <= self.measured_slices:
            return None
        return [block for block in blocks if block.n_given == size][:2][-1]

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Measure the section, on a GPU."""
        with self._measuring(self._kind == "cuda", 0):
            yield

    @contextmanager
    def part(self, is_wanted: bool = True, resident_bytes: int = 0) -> Iterator[None]:
        """Measure a part, on the CPU; `resident_bytes` were allocated before it."""
        is_wanted = is_wanted and self._kind == "cpu"
        with (
            heap.malloc_default() if is_wanted else nullcontext(),
            self._measuring(is_wanted, resident_bytes),
        ):
            yield

    @contextmanager
    def _measuring(self, is_wanted: bool, resident_bytes: int) -> Iterator[None]:
        if not is_wanted:
            yield
            return
        every_s = SAMPLE_INTERVAL_S
        with measure_peak(self._kind, objects=False, hooks=False, interval_s=every_s) as peak:
            yield
        if peak.counted_bytes is not None:
            found = peak.counted_bytes + resident_bytes
            self.measured_bytes = max(found, self.measured_bytes or 0)
        self.unseen += [text for text in peak.unseen if text not in self.unseen]
