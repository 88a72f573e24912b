"""Memory of a method: bytes as a function of the number of slices.

A `MemoryModel` is all that planner and runner know about a method's memory, whatever its origin.
It is plain integer arithmetic, without a device and without input or output. A `ChunkModel` is the
same for chunks that are cut along several axes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from operator import index

from ..errors import UsageError

MAX_SLICES = 2**40
"""Number of slices that means no limit. No scan has as many."""
MAX_BYTES = 2**60
"""Most memory for which estimators are called. No device has as much, and estimators that compute
with 64-bit integers do not overflow."""
UNREACHABLE_BYTES = 2**62
"""Bytes of slices that do not fit in `MAX_BYTES`. This exceeds any budget, because `units` refuses
more."""


class MemoryModel:
    """Peak bytes of a method as a function bytes(n) of n slices, which never decreases.

    Parameters
    ----------
    bytes_at : callable
        Peak bytes for a number of slices of at least 1, including input and output.
        0 slices take 0 bytes.
    kept_at : callable, optional
        Bytes that stay allocated after the call when its result is freed, such as the
        workspaces of cached FFT plans. By default none.

    Examples
    --------
    >>> model = MemoryModel.linear(fixed_bytes=100, bytes_per_slice=30)
    >>> model.bytes(3), model.max_slices(200)
    (190, 3)
    """

    __slots__ = ("_bytes_at", "_kept_at", "_max_slices")

    def __init__(
        self,
        bytes_at: Callable[[int], int],
        kept_at: Callable[[int], int] | None = None,
    ) -> None:
        self._bytes_at = bytes_at
        self._kept_at = kept_at
        self._max_slices: Callable[[int], int] | None = None

    @classmethod
    def linear(cls, fixed_bytes: int, bytes_per_slice: int) -> MemoryModel:
        """Model ``fixed_bytes + n * bytes_per_slice``."""
        fixed, slope = index(fixed_bytes), index(bytes_per_slice)
        if fixed < 0 or slope < 0:
            raise ValueError(f"bytes cannot be negative: {fixed_bytes} + n * {bytes_per_slice}")
        return cls(lambda n: fixed + n * slope)

    @classmethod
    def piecewise(cls, points: Sequence[tuple[int, int]]) -> MemoryModel:
        """Model of straight lines through measured points.

        Parameters
        ----------
        points : sequence of (int, int)
            Pairs (slices, bytes), at least one. Below the first point the model is constant.
            Above the last point it continues the last line, or for a single point its average
            bytes per slice. Lines are rounded up. A point below an earlier one is raised,
            because models never decrease.
        """
        highest: dict[int, int] = {}
        lifted = 0
        for n, size in sorted((index(n), index(size)) for n, size in points):
            if n < 1 or size < 0:
                raise ValueError(f"a point needs at least 1 slice and 0 bytes, not {(n, size)}")
            lifted = highest[n] = max(lifted, size)
        if not highest:
            raise ValueError("a piecewise model needs at least one point")
        xs, ys = list(highest), list(highest.values())
        if len(xs) == 1:
            n, size = xs[0], ys[0]
            return cls(lambda k: size if k <= n else -(-size * k // n))

        def bytes_at(k: int) -> int:
            if k <= xs[0]:
                return ys[0]
            right = min(bisect_left(xs, k), len(xs) - 1)
            x, y = xs[right - 1], ys[right - 1]
            rise = (ys[right] - y) * (k - x)
            return y - (-rise // (xs[right] - x))

        return cls(bytes_at)

    @classmethod
    def from_max_slices(
        cls,
        max_slices: Callable[[int], int],
        contradicted: Callable[[tuple[int, int], tuple[int, int]], Exception] | None = None,
    ) -> MemoryModel:
        """Model that is the inverse of a function of the available memory.

        Parameters
        ----------
        max_slices : callable
            Slices that fit in a number of bytes (at least 1), never decreasing: a hand-written
            estimator as a function of ``available_memory`` only. Slices that do not fit in
            `MAX_BYTES` take `UNREACHABLE_BYTES`.
        contradicted : callable, optional
            Makes the error for two pairs (bytes, slices) in which more memory holds fewer slices.
            By default pairs are not compared.
        """
        amounts, answers = [0], [0]

        def ask(n_bytes: int) -> int:
            place = bisect_left(amounts, n_bytes)
            if place == len(amounts) or amounts[place] != n_bytes:
                answer = max(0, max_slices(n_bytes))
                if contradicted is not None and answer < answers[place - 1]:
                    raise contradicted((amounts[place - 1], answers[place - 1]), (n_bytes, answer))
                if contradicted is not None and place < len(amounts) and answer > answers[place]:
                    raise contradicted((n_bytes, answer), (amounts[place], answers[place]))
                answers.insert(place, answer)
                amounts.insert(place, n_bytes)
            return answers[place]

        @lru_cache(maxsize=256)
        def bytes_at(n: int) -> int:
            # Start with little memory, because an estimator may count up to its result slice by
            # slice. The largest amount is then at most 16 times the memory of n slices.
            while answers[-1] < n:
                if amounts[-1] >= MAX_BYTES:
                    return UNREACHABLE_BYTES
                ask(max(2**20, 16 * amounts[-1]))
            place = bisect_left(answers, n)
            below, above = ((amounts[i], answers[i]) for i in (place - 1, place))
            return _first_reaching(ask, n, below, above)

        model = cls(bytes_at)
        model._max_slices = ask
        return model

    @property
    def inverse(self) -> Callable[[int], int] | None:
        """The function passed to `from_max_slices`, with cached results; None for other models."""
        return self._max_slices

    def bytes(self, n_slices: int) -> int:
        """Peak bytes for `n_slices` slices."""
        n = index(n_slices)
        return self._bytes_at(n) if n > 0 else 0

    def kept_bytes(self, n_slices: int) -> int:
        """Bytes that stay allocated after a call with `n_slices` slices."""
        n = index(n_slices)
        return 0 if self._kept_at is None or n <= 0 else self._kept_at(n)

    def max_slices(self, available_bytes: int, limit: int = MAX_SLICES) -> int:
        """Most slices, up to `limit`, that fit in `available_bytes`, or 0."""
        available, limit = index(available_bytes), index(limit)
        if limit < 1 or available < 0:
            return 0
        low = high = at_low = at_high = 0
        # Start with few slices, because a ledger may count slice by slice. The next number is at
        # most four times the one that should fit by the average bytes per slice so far.
        while at_high <= available:
            if high >= limit:
                return limit
            low, at_low = high, at_high
            high = min(limit, 4 * low * available // at_low) if at_low else min(limit, 4 * low + 1)
            at_high = self._bytes_at(high)
        return _first_reaching(self._bytes_at, available + 1, (low, at_low), (high, at_high)) - 1

    def plus(self, n_bytes: int) -> MemoryModel:
        """Model with a constant number of bytes added."""
        bytes_at = self._bytes_at
        return MemoryModel(lambda n: bytes_at(n) + n_bytes, self._kept_at)

    def widened(self, extra: int, total: int) -> MemoryModel:
        """Model of n slices with a halo around them.

        Parameters
        ----------
        extra : int
            Slices of the halo, before and after together.
        total : int
            Slices of the whole array, which limit n and halo together.
        """
        if extra == 0:
            return self
        model = self
        return MemoryModel(
            lambda n: model.bytes(min(n + extra, max(n, total))),
            lambda n: model.kept_bytes(min(n + extra, max(n, total))),
        )

    def __add__(self, other: MemoryModel) -> MemoryModel:
        """Sum of two models, for memory that is in use at the same time."""
        if not isinstance(other, MemoryModel):
            return NotImplemented
        first, second = self, other
        return MemoryModel(
            lambda n: first.bytes(n) + second.bytes(n),
            lambda n: first.kept_bytes(n) + second.kept_bytes(n),
        )

    @staticmethod
    def maximum(models: Iterable[MemoryModel]) -> MemoryModel:
        """Model of methods that run one after another.

        While one runs, the memory that the other ones keep between calls is counted too.
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


def _first_reaching(
    function: Callable[[int], int], target: int, below: tuple[int, int], above: tuple[int, int]
) -> int:
    """Smallest x with ``function(x) >= target``, for a function that never decreases.

    `below` and `above` are pairs (x, function(x)) that bracket the result. Most models are straight
    lines, so the first guess is linear. After that the bracket is halved.
    """
    (low, at_low), (high, at_high) = below, above
    guess = low - (at_low - target) * (high - low) // max(1, at_high - at_low)
    for x in (guess, guess - 1, guess + 1):
        if low < x < high:
            low, high = (low, x) if function(x) >= target else (x, high)
    return bisect_left(range(low + 1, high), target, key=function) + low + 1


def last_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Last number from `low` to below `high` for which a condition holds.

    Parameters
    ----------
    holds : callable
        The condition: true up to the result, and false above it. It is assumed to hold for `low`
        and not for `high`, and is not evaluated there.
    low, high : int
        The ends, ``low < high``.
    """
    return bisect_left(range(low + 1, high), True, key=lambda x: not holds(x)) + low


class ChunkModel:
    """Peak bytes of a function for chunks along several axes, which never decrease in any size.

    Parameters
    ----------
    bytes_at : callable
        Peak bytes for one size along each axis, including input and output.
    limits : sequence of int
        Sizes of the whole array along these axes, at least 1.

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
            raise UsageError(f"the sizes of an array must be at least 1, not {self.limits}")

    def __repr__(self) -> str:
        return f"<ChunkModel of at most {'x'.join(map(str, self.limits))}>"

    def bytes(self, *sizes: int) -> int:
        """Peak bytes for a chunk with one size along each axis."""
        if len(sizes) != len(self.limits):
            raise UsageError(f"a chunk has {len(self.limits)} free sizes, not {len(sizes)}")
        return self._bytes_at(*map(index, sizes))

    def largest(
        self, available_bytes: int, aspect: Sequence[float] | None = None
    ) -> tuple[int, ...]:
        """Sizes of the largest chunk of given proportions that fits.

        Parameters
        ----------
        available_bytes : int
            Memory for the peak.
        aspect : sequence of float, optional
            Proportions of the sizes, by default those of the whole array. When the chunk reaches
            the size of the array along one axis, it grows along the other axes only.

        Returns
        -------
        tuple of int
            One size for each axis; all are 0 if a chunk of one element does not fit.

        Raises
        ------
        UsageError
            If `aspect` is not one positive number for each axis.
        """
        parts = self.limits if aspect is None else aspect
        if len(parts) != len(self.limits) or not all(0 < part < math.inf for part in parts):
            raise UsageError(
                f"aspect must be {len(self.limits)} positive numbers, one for each axis, not "
                f"{aspect!r}"
            )
        # Exact fractions: rounding must not leave an axis one short of the array.
        fastest = Fraction(max(parts))
        growth = [
            (limit, Fraction(part) / fastest)
            for limit, part in zip(self.limits, parts, strict=True)
        ]

        def sizes(step: int) -> tuple[int, ...]:
            return tuple(min(limit, max(1, math.floor(step * part))) for limit, part in growth)

        def fits(step: int) -> bool:
            return self._bytes_at(*sizes(step)) <= available_bytes

        if not fits(1):
            return (0,) * len(self.limits)
        steps = max(math.ceil(limit / part) for limit, part in growth)
        return sizes(steps) if fits(steps) else sizes(last_true(fits, 1, steps))
