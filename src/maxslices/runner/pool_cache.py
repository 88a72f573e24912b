"""What a device's pool and caches hold from block to block, and when they give it back."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from ..devices import Backend
from ..errors import MaxslicesError
from ..model.account import is_roomy
from ..planner import SectionPlan
from ..tuning import fft_plan_cache


@dataclass(slots=True)
class Caches:
    """The memory that a section leaves with the device's pool between its blocks."""

    backend: Backend
    """The device."""
    is_roomy: bool
    """Whether there is so much memory that the pool may keep what it holds in pieces."""
    _last_size: int = 0
    """Slices of the last block, with its halo."""

    @classmethod
    def of(cls, plan: SectionPlan, backend: Backend) -> Caches:
        """Return those of a section."""
        return cls(backend, is_roomy(plan.estimated_bytes, plan.available_bytes))

    def reserve(self, plan: SectionPlan) -> None:
        """Have the pool take what a section needs in one piece, if there is room.

        Where others have taken that since, it asks for memory as it needs it.
        """
        if not self.is_roomy:
            self.backend.release()  # what was kept is in the way
            return
        n_given = plan.block + sum(plan.halo)
        arrays = (each.with_slices(plan.slice_dim, n_given) for each in (plan.input, plan.output))
        try:
            self.backend.reserve(plan.estimated_bytes, max(array.nbytes for array in arrays))
        except Exception as error:
            if not self.ran_out(error):
                raise
            self.is_roomy = False

    def begin(self, n_given: int) -> None:
        """Get ready for blocks that begin with one of so many slices."""
        fft_plan_cache.keep_fft_plans(self.is_roomy and self.backend.kind == "cuda")
        # What the heap of a host keeps does for blocks of any size.
        if self._last_size not in (0, n_given) and self.backend.kind == "cuda":
            self.backend.release()
        self._last_size = n_given

    def change_to(self, n_given: int) -> None:
        """Drop FFT plans of another number of slices: they are not in the estimate.

        And the pool's memory, where that is short: it is in pieces of another size. To give it
        back waits for the device.
        """
        if n_given == self._last_size:
            return
        if self.is_roomy:
            self.backend.forget_plans()
        else:
            self.backend.release()
        self._last_size = n_given

    def end(self) -> None:
        """Leave other users of the device's caches as they were."""
        fft_plan_cache.keep_fft_plans(False)

    def free(self) -> None:
        """Free what nobody uses any more, since memory ran out."""
        self.is_roomy = False
        fft_plan_cache.keep_fft_plans(False)
        gc.collect()
        self.backend.release()

    def ran_out(self, error: BaseException | None) -> bool:
        """Tell whether an error says so, or one of ours that it caused."""
        while error is not None:
            if self.backend.is_out_of_memory(error):
                return True
            error = error.__cause__ if isinstance(error, MaxslicesError) else None
        return False
