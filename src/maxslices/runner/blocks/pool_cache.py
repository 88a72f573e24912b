"""Memory that a device's pool and its caches keep from block to block."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from ...core.block_memory import is_roomy
from ...devices import Backend
from ...errors import MaxslicesError
from ...planner import SectionPlan
from ...tuning import fft_plan_cache


@dataclass(slots=True)
class PoolCache:
    """The memory that a section leaves with the device's pool between its blocks."""

    backend: Backend
    """The device."""
    is_roomy: bool
    """Whether memory is ample, so that the pool may keep fragments of other sizes."""
    _last_size: int = 0
    """Slices of the last block, with its halo."""

    @classmethod
    def for_section(cls, plan: SectionPlan, backend: Backend) -> PoolCache:
        """Make the one of a section."""
        return cls(backend, is_roomy(plan.estimated_bytes, plan.available_bytes))

    def reserve(self, plan: SectionPlan) -> None:
        """Allocate what a section needs as one piece of the pool, if memory is ample.

        If another program has taken that memory since the plan was made, the pool grows as needed.
        """
        if not self.is_roomy:
            self.backend.release()  # memory of the section before
            return
        n_given = plan.block + sum(plan.halo)
        arrays = (each.with_slices(plan.slice_dim, n_given) for each in (plan.input, plan.output))
        try:
            self.backend.reserve(plan.estimated_bytes, max(array.nbytes for array in arrays))
        except Exception as error:
            if not self.is_out_of_memory(error):
                raise
            self.is_roomy = False

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
