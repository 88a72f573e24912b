"""Effect of the block size on a method's result, and the time of its calls."""

from __future__ import annotations

from dataclasses import dataclass

ROUNDING = 1e-5
"""Differences up to this, of the result's range, are rounding: FFTs of float32 differ by 1e-6."""


@dataclass(frozen=True, slots=True)
class BlockEffect:
    """Effect of the block size on a method's result."""

    large: int
    """Slices of the larger block."""
    small: int
    """Slices of the smaller blocks."""
    difference: float
    """Largest difference between the results, relative to the range of the larger block's."""
    halo: tuple[int, int] | None = None
    """Slices (before, after) with which both agree; None if the declared halo is enough, or no halo
    helps."""
    agree_from: int | None = None
    """Smallest block from which all tried blocks agree with the larger one; None if no block
    agrees, or all do."""
    multiple: int = 1
    """Blocks of a multiple of this many slices agree, from `agree_from` slices on; the last block
    may have any size."""
    is_repeatable: bool = True
    """Whether two calls with the same data agree."""
    pace_s: tuple[float, float] | None = None
    """Seconds of a call and of each slice in it, right after a call with as many slices, as in a
    run; None if not timed."""

    @property
    def depends(self) -> bool:
        """True if the result depends on the block, and no halo would help."""
        return self.difference > ROUNDING and self.halo is None and self.is_repeatable

    @property
    def least_block(self) -> int:
        """Smallest block whose result agrees with larger ones; 1 if unknown."""
        return self.agree_from or 1 if self.depends else 1

    @property
    def block_multiple(self) -> int:
        """Number whose multiples agree; 1 if unknown."""
        return self.multiple if self.depends else 1

    def __str__(self) -> str:
        if self.difference <= ROUNDING:
            return (
                f"made-up values give the same result in blocks of {self.small} slices as in one "
                f"of {self.large}, other values were not tried"
            )
        between = f"between blocks of {self.small} slices and one of {self.large}"
        gap = (
            f"its result for made-up values differs by {self.difference:.2g} of its range {between}"
        )
        if not self.is_repeatable:
            return f"{gap}; it differs from call to call as well"
        if self.halo is not None:
            before, after = self.halo
            wanted = before if before == after else self.halo
            return f"{gap}; with a halo it does not: declare halo={wanted}"
        if self.agree_from is not None and self.multiple > 1:
            least = f", from {self.agree_from} on" if self.agree_from > self.multiple else ""
            return f"{gap}; blocks of a multiple of {self.multiple} slices{least} agree"
        if self.agree_from is not None:
            return f"{gap}; blocks of {self.agree_from} slices or more agree"
        return f"{gap}; no size of block agrees with another"
