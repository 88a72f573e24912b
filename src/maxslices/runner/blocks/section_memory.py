"""Memory of a section while it runs: what it takes, and what its device keeps between blocks."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...core.allocators import Device
from ...devices import Backend
from ...errors import MaxslicesError
from ...measure import measure_peak
from ...planner import SectionPlan
from ...tuning import fft_plan_cache
from .block_feed import Block

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
    measured_slices : int
        Slices of the widest block that was measured, with its halo.
    """

    def __init__(self, kind: Device) -> None:
        self._kind = kind
        self.measured_bytes: int | None = None
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
    def measuring(
        self, kind: Device, is_wanted: bool = True, resident_bytes: int = 0
    ) -> Iterator[None]:
        """Measure what is done on a device of that kind; `resident_bytes` were allocated before."""
        if not is_wanted or kind != self._kind:
            yield
            return
        every_s = SAMPLE_INTERVAL_S
        with measure_peak(self._kind, hooks=False, interval_s=every_s) as peak:
            yield
        if peak.counted_bytes is not None:
            found = peak.counted_bytes + resident_bytes
            self.measured_bytes = max(found, self.measured_bytes or 0)


@dataclass(slots=True)
class PoolCache:
    """The memory that a section leaves with the device's pool between its blocks."""

    backend: Backend
    """The device."""
    is_roomy: bool
    """Whether memory is ample, so that the pool may keep fragments of other sizes."""
    _last_size: int = 0
    """Slices of the last block, with its halo."""

    def prepare(self, plan: SectionPlan) -> None:
        """Let the device retain what is freed if memory is ample, else free what it holds."""
        if not self.is_roomy:
            self.backend.release()  # memory of the section before
            return
        n_given = plan.block + sum(plan.halo)
        arrays = (each.with_slices(plan.slice_dim, n_given) for each in (plan.input, plan.output))
        self.backend.retain_freed(max(array.nbytes for array in arrays))

    def begin(self, n_given: int) -> None:
        """Prepare for blocks, the first of which has `n_given` slices."""
        fft_plan_cache.keep_fft_plans(self.is_roomy and self.backend.kind == "cuda")
        # Memory that the heap of a host keeps serves blocks of any size.
        if self._last_size not in (0, n_given) and self.backend.kind == "cuda":
            self.backend.release()
        self._last_size = n_given

    def change_to(self, n_given: int) -> None:
        """Drop FFT plans for another number of slices, which the estimate does not contain.

        If memory is short, drop the pool's fragments of another size as well, which waits for the
        device.
        """
        if n_given == self._last_size:
            return
        if self.is_roomy:
            self.backend.forget_plans()
        else:
            self.backend.release()
        self._last_size = n_given

    def end(self) -> None:
        """Stop keeping FFT plans, as other users of CuPy expect."""
        fft_plan_cache.keep_fft_plans(False)

    def free(self) -> None:
        """Free all unused memory, and keep less from here on."""
        self.is_roomy = False
        fft_plan_cache.keep_fft_plans(False)
        gc.collect()
        self.backend.release()

    def is_out_of_memory(self, error: BaseException | None) -> bool:
        """True if memory ran out: by the error, or by the cause of one of our errors."""
        while error is not None:
            if self.backend.is_out_of_memory(error):
                return True
            error = error.__cause__ if isinstance(error, MaxslicesError) else None
        return False
