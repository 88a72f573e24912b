"""What a method costs: bytes as a function of the number of slices.

A `MemoryModel` is the only thing that planner and runner know about memory, wherever
the function came from. It is plain integer arithmetic: no device, no input, no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

MAX_SLICES = 2**40
"""Number of slices that stands for "as many as you like"."""


class MemoryModel:
    """Peak bytes of a method, bytes(n), for n slices; never decreasing in n.

    Parameters
    ----------
    bytes_at : callable
        Peak bytes for a number of slices of at least 1, input and output included.
        The model of 0 slices is 0 bytes.
    kept_at : callable, optional
        Bytes that stay allocated after the call has returned and its result is gone,
        such as the work areas of cached FFT plans. None means that nothing stays.

    Examples
    --------
    >>> model = MemoryModel.linear(fixed_bytes=100, bytes_per_slice=30)
    >>> model.bytes(3), model.max_slices(200)
    (190, 3)
    """

    __slots__ = ("_bytes_at", "_kept_at")

    def __init__(
        self,
        bytes_at: Callable[[int], int],
        kept_at: Callable[[int], int] | None = None,
    ) -> None:
        self._bytes_at = bytes_at
        self._kept_at = kept_at

    @classmethod
    def linear(cls, fixed_bytes: int, bytes_per_slice: int) -> MemoryModel:
        """Return the model ``fixed_bytes + n * bytes_per_slice``."""
        return cls(lambda n: fixed_bytes + n * bytes_per_slice)

    @classmethod
    def piecewise(cls, points: Sequence[tuple[int, int]]) -> MemoryModel:
        """Return the model that goes through measured points in straight lines.

        Parameters
        ----------
        points : sequence of (int, int)
            Pairs (slices, bytes), at least one. Below the first point the model is that
            point's bytes; beyond the last it follows the last slope, or the average
            bytes per slice if there is a single point. Lines are rounded up, and a point
            lower than one before it is lifted, so that the model never decreases.
        """
        if not points:
            raise ValueError("a piecewise model needs at least one point")
        knots: list[tuple[int, int]] = []
        for n, size in sorted(points):
            lifted = max(size, knots[-1][1]) if knots else size
            if knots and knots[-1][0] == n:
                knots[-1] = (n, lifted)
            else:
                knots.append((n, lifted))
        if len(knots) == 1:
            n, size = knots[0]
            return cls(lambda k: size if k <= n else -(-size * k // n))

        def bytes_at(k: int) -> int:
            if k <= knots[0][0]:
                return knots[0][1]
            right = next((i for i, (n, _) in enumerate(knots) if n >= k), len(knots) - 1)
            (n0, b0), (n1, b1) = knots[right - 1], knots[right]
            return b0 + -(-(b1 - b0) * (k - n0) // (n1 - n0))

        return cls(bytes_at)

    @classmethod
    def from_max_slices(cls, max_slices: Callable[[int], int]) -> MemoryModel:
        """Return the model whose inverse is a function of the available memory.

        Parameters
        ----------
        max_slices : callable
            Slices that fit in a number of bytes, never decreasing: a hand-written
            estimator with everything but ``available_memory`` given.
        """

        @lru_cache(maxsize=64)
        def bytes_at(n: int) -> int:
            high = 2**20
            while high < MAX_SLICES * 2**20 and max_slices(high) < n:
                high *= 16
            return _first_reaching(max_slices, n, 0, high)

        return cls(bytes_at)

    def bytes(self, n_slices: int) -> int:
        """Return the peak bytes for `n_slices` slices."""
        return self._bytes_at(n_slices) if n_slices > 0 else 0

    def kept_bytes(self, n_slices: int) -> int:
        """Return the bytes that stay allocated after a call with `n_slices` slices."""
        if self._kept_at is None or n_slices <= 0:
            return 0
        return self._kept_at(n_slices)

    def max_slices(self, available_bytes: int, limit: int = MAX_SLICES) -> int:
        """Return the largest n <= `limit` with ``bytes(n) <= available_bytes``.

        Returns
        -------
        int
            0 if not even one slice fits.
        """
        if limit < 1 or self.bytes(1) > available_bytes:
            return 0
        if self.bytes(limit) <= available_bytes:
            return limit
        return _first_reaching(self._bytes_at, available_bytes + 1, 1, limit) - 1

    def plus(self, n_bytes: int) -> MemoryModel:
        """Return this model with a constant added, such as side data that stays resident."""
        bytes_at = self._bytes_at
        return MemoryModel(lambda n: bytes_at(n) + n_bytes, self._kept_at)

    def widened(self, extra: int, total: int) -> MemoryModel:
        """Return the model of n slices that are given with `extra` more around them.

        Parameters
        ----------
        extra : int
            Slices of the halo, before and after together.
        total : int
            Slices that there are; n and halo together are never more.
        """
        if extra == 0:
            return self
        model = self
        return MemoryModel(
            lambda n: model.bytes(min(n + extra, max(n, total))),
            lambda n: model.kept_bytes(min(n + extra, max(n, total))),
        )

    def __add__(self, other: MemoryModel) -> MemoryModel:
        """Return the model of two that are alive together."""
        if not isinstance(other, MemoryModel):
            return NotImplemented
        first, second = self, other
        return MemoryModel(
            lambda n: first.bytes(n) + second.bytes(n),
            lambda n: first.kept_bytes(n) + second.kept_bytes(n),
        )

    @staticmethod
    def maximum(models: Iterable[MemoryModel]) -> MemoryModel:
        """Return the model of methods that run one after another.

        At each of them, what the others keep between calls is alive as well.
        """
        members = tuple(models)
        if not members:
            return MemoryModel(lambda n: 0)

        def bytes_at(n: int) -> int:
            kept = [model.kept_bytes(n) for model in members]
            total = sum(kept)
            return max(
                model.bytes(n) + total - own for model, own in zip(members, kept, strict=True)
            )

        return MemoryModel(bytes_at, lambda n: sum(model.kept_bytes(n) for model in members))


def _first_reaching(function: Callable[[int], int], target: int, low: int, high: int) -> int:
    """Return the smallest x in (low, high] with ``function(x) >= target``.

    `function` never decreases, and is below `target` at `low`. Costs are nearly straight
    lines, so a secant lands next to the answer; every other step halves the bracket,
    which bounds the number of calls for any other shape.
    """
    at_low, at_high = function(low), function(high)
    halve = False
    while high - low > 1:
        if halve or at_high <= at_low:
            x = (low + high) // 2
        else:
            x = low + (target - at_low) * (high - low) // (at_high - at_low)
        x = min(max(x, low + 1), high - 1)
        value = function(x)
        before = high - low
        if value >= target:
            high, at_high = x, value
        else:
            low, at_low = x, value
            if high - low > 1 and not halve:
                value = function(low + 1)
                if value >= target:
                    return low + 1
                low, at_low = low + 1, value
        halve = high - low > before // 2
    return high
