"""Result of a probe: the measured calls and the memory model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ..block_effect.effect import BlockEffect
from ..core.memory_model import MemoryModel
from ..core.units import format_bytes
from ..trial.trial import MeasuredCall
from .formula import Formula
from .peak_model import PeakModel

OUTSIDE, STAYS_OUTSIDE = "outside the pool", "stays outside the pool"
"""Names of the terms of a peak that are readings of the device."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Memory model measured with a few slices, and the measurements."""

    peaks: PeakModel
    """The peak as a sum of allocations, or as one allocation for a whole call. It includes memory
    that stays allocated between calls."""
    kept: tuple[tuple[int, int], ...]
    """(slices, bytes) that stay allocated after the result of a call is freed."""
    rungs: tuple[MeasuredCall, ...]
    """All measured calls in order, except the first."""
    available_bytes: int
    """Memory in bytes for which it was measured."""
    total_slices: int
    """Largest number of slices of one call."""
    sure: bool
    """True if calls proved `answer`; False if it is only a safe bound. `SequenceProbe.result`
    decides it, or `PeakSearch.result` if allocations do not explain the peak."""
    duration_s: float
    """Duration of the probe in seconds."""
    notes: tuple[str, ...] = ()
    """Findings, each with the action that was taken."""
    output_dtype: str | None = None
    """Dtype of the result, or None if it is not a block of slices."""
    output_dims: tuple[int, int] | None = None
    """The result's other two dims, in array order."""
    extrapolates_exactly: bool = False
    """True if calls with fewer slices predicted each call to the byte."""
    blocks: BlockEffect | str = ""
    """Effect of the block size on the result, or the reason why blocks were not compared."""

    def model(self) -> MemoryModel:
        """Memory model."""
        kept_at = MemoryModel.piecewise(self.kept).bytes if self.kept else None
        return MemoryModel(lru_cache(maxsize=1024)(self.peaks.rising), kept_at)

    @property
    def measured(self) -> dict[int, int]:
        """Peaks of the calls by number of slices, with the memory that the first call retained.

        Readings of the device have an error of several MiB. A reading is replaced by the size of
        the arrays that explain it.
        """
        counts = {rung.n_slices for rung in self.rungs}
        return {n: size for n, size in self.peaks.measured.items() if n in counts}

    @property
    def answer(self) -> int:
        """Number of slices that fit in `available_bytes`."""
        return self.model().max_slices(self.available_bytes, self.total_slices)

    @property
    def is_of_any_card(self) -> bool:
        """True if the model holds for any card: all its memory was requested from CuPy's pool."""
        paths = {term.path for terms in self.peaks.moments.values() for term in terms}
        return self.extrapolates_exactly and not paths & {OUTSIDE, STAYS_OUTSIDE}

    def pace_s(self) -> tuple[float, float]:
        """Overhead of a call in seconds, and seconds per slice.

        Times of the comparison of blocks are used if available. Otherwise a line is drawn through
        the times of the calls with the fewest and with the most slices. These times exclude making
        the input and measuring, which take most of the time of a fast method.

        The time for the fewest slices is limited to that of any other call, because early calls may
        compile. LPRec3d compiled for 0.4 s with three slices, and then took 0.1 s with five and
        eight (H100, 2026-11-27).
        """
        if isinstance(self.blocks, BlockEffect) and self.blocks.pace_s is not None:
            return self.blocks.pace_s
        times = {rung.n_slices: rung.call_s or rung.duration_s for rung in self.rungs}
        if not times:
            return 0.0, 0.0
        few, many = min(times), max(times)
        if few == many:
            return 0.0, times[few] / few
        times[few] = min(times.values())
        slice_s = (times[many] - times[few]) / (many - few)
        return max(0.0, times[few] - few * slice_s), slice_s

    def corrected(self, n_slices: int, n_bytes: int) -> Probe:
        """Copy of the probe, raised to a peak that was measured in a run.

        The same bytes are added for fewer slices. For more slices they grow in proportion.
        """
        expected = self.model().bytes(n_slices)
        if n_bytes <= expected:
            return self
        note = (
            f"a run measured {format_bytes(n_bytes)} with {n_slices} slices, in place of "
            f"{format_bytes(expected)}: raised by {n_bytes / max(1, expected) - 1:.1%}"
        )
        more = Formula(0, points=((n_slices, n_bytes - expected),))
        return replace(
            self,
            peaks=self.peaks.plus("seen in a run", more),
            kept=tuple((n, -(-size * n_bytes // max(1, expected))) for n, size in self.kept),
            sure=False,
            extrapolates_exactly=False,
            notes=(*self.notes, note),
        )

    def covers(self, available_bytes: int, total_slices: int) -> bool:
        """True if the probe also answers for another amount of memory.

        * If it `extrapolates_exactly`, for any amount.
        * If it is `sure`, up to four times the slices that were run, as far as `PeakSearch`
          extrapolates a line.
        * Otherwise up to the slices that were run, or that fitted.
        """
        if self.extrapolates_exactly:
            return True
        largest = max((rung.n_slices for rung in self.rungs), default=1)
        wanted = self.model().max_slices(available_bytes, total_slices)
        return wanted <= max(largest, self.answer, 4 * largest if self.sure else 0)
