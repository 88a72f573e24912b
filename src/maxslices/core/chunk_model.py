"""Memory of chunks that are cut along several axes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import index

from ..errors import UsageError
from .memory_model import last_true


class ChunkModel:
    """Peak bytes of a function for chunks of several free sizes, never decreasing in any of them.

    Parameters
    ----------
    bytes_at : callable
        Peak bytes for one size of each free axis, input and output included.
    limits : sequence of int
        Sizes of the whole array along the free axes, at least 1.

    Examples
    --------
    >>> model = ChunkModel(lambda rows, columns: 8 * rows * columns, (1000, 500))
    >>> model.bytes(100, 50)
    40000
    >>> model.largest(40_000)
    (100, 50)
    >>> model.largest(40_000, aspect=(1, 1))
    (70, 70)
    """

    __slots__ = ("_bytes_at", "limits")

    def __init__(self, bytes_at: Callable[..., int], limits: Sequence[int]) -> None:
        self._bytes_at = bytes_at
        self.limits = tuple(index(limit) for limit in limits)
        if min(self.limits, default=0) < 1:
            raise UsageError(f"the sizes of an array are at least 1, not {self.limits}")

    def __repr__(self) -> str:
        return f"<ChunkModel of at most {'x'.join(map(str, self.limits))}>"

    def bytes(self, *sizes: int) -> int:
        """Peak bytes for a chunk of these sizes, one for each free axis."""
        if len(sizes) != len(self.limits):
            raise UsageError(f"a chunk has {len(self.limits)} free sizes, not {len(sizes)}")
        return self._bytes_at(*map(index, sizes))

    def largest(
        self, available_bytes: int, aspect: Sequence[float] | None = None
    ) -> tuple[int, ...]:
        """Sizes of the largest chunk of a shape that fits.

        Parameters
        ----------
        available_bytes : int
            Memory for the peak.
        aspect : sequence of float, optional
            Ratio of the sizes to each other; by default that of the whole array. An axis that has
            reached the size of the array stays there, and the others grow on.

        Returns
        -------
        tuple of int
            One size for each free axis; all are 0 if not even one element along each of them fits.

        Raises
        ------
        UsageError
            If `aspect` is not one positive number for each free axis.
        """
        given = self.limits if aspect is None else aspect
        if len(given) != len(self.limits) or not all(0 < part < math.inf for part in given):
            raise UsageError(
                f"aspect is {len(self.limits)} positive numbers, one for each free axis, not "
                f"{aspect!r}"
            )
        # Exact fractions: rounding must not leave an axis one short of the array.
        fastest = Fraction(max(given))
        growth = [
            (limit, Fraction(part) / fastest)
            for limit, part in zip(self.limits, given, strict=True)
        ]

        def sizes(step: int) -> tuple[int, ...]:
            return tuple(min(limit, max(1, math.floor(step * part))) for limit, part in growth)

        def fits(step: int) -> bool:
            return self._bytes_at(*sizes(step)) <= available_bytes

        if not fits(1):
            return (0,) * len(self.limits)
        steps = max(math.ceil(limit / part) for limit, part in growth)
        return sizes(steps) if fits(steps) else sizes(last_true(fits, 1, steps))
