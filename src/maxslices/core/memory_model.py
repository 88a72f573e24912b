"""Memory of a method: bytes as a function of the number of slices.

A `MemoryModel` is the only thing that planner and runner know about a method's memory, wherever
the function came from. It is plain integer arithmetic: no device, no input, no output. A
`ChunkModel` is the same for chunks that are cut along several axes at once.
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
"""Number of slices that stands for no limit, and is more than any scan has."""
MAX_BYTES = 2**60
"""Most memory that an estimator is asked about: more than there is, and small enough for estimators
that compute with 64-bit integers."""
UNREACHABLE_BYTES = 2**62
"""Bytes given for slices that do not fit in `MAX_BYTES`: more than any budget (`units` refuses
more than this)."""


class MemoryModel:
    """Peak bytes of a method, bytes(n), for n slices; never decreasing in n.

    Parameters
    ----------
    bytes_at : callable
        Peak bytes for a number of slices of at least 1, input and output included.
        The model of 0 slices is 0 bytes.
    kept_at : callable, optional
        Bytes that stay allocated after the call has returned and its result is gone,
        such as the workspaces of cached FFT plans. None means that nothing stays.

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
            Beyond the last it continues the last line, or with a single point the average bytes
            per slice. Lines are rounded up, and a point that is lower than one before it is
            raised, so that the model never decreases.
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
            Slices that fit in a number of bytes (of at least 1), never decreasing: a
            hand-written estimator with all arguments but ``available_memory`` given.
            Slices that do not fit in `MAX_BYTES` take `UNREACHABLE_BYTES`.
        contradicted : callable, optional
            Makes the exception for two answers, as (bytes, slices), of which that for more memory
            has fewer slices. None: they are not compared.
        """
        asked, answers = [0], [0]

        def ask(n_bytes: int) -> int:
            place = bisect_left(asked, n_bytes)
            if place == len(asked) or asked[place] != n_bytes:
                answer = max(0, max_slices(n_bytes))
                if contradicted is not None and answer < answers[place - 1]:
                    raise contradicted((asked[place - 1], answers[place - 1]), (n_bytes, answer))
                if contradicted is not None and place < len(asked) and answer > answers[place]:
                    raise contradicted((n_bytes, answer), (asked[place], answers[place]))
                answers.insert(place, answer)
                asked.insert(place, n_bytes)
            return answers[place]

        @lru_cache(maxsize=256)
        def bytes_at(n: int) -> int:
            # From little memory to much: an estimator may count up to its answer slice by slice,
            # so it is not asked about much more than that many slices take.
            while answers[-1] < n:
                if asked[-1] >= MAX_BYTES:
                    return UNREACHABLE_BYTES
                ask(max(2**20, 16 * asked[-1]))
            place = bisect_left(answers, n)
            below, above = ((asked[i], answers[i]) for i in (place - 1, place))
            return _first_reaching(ask, n, below, above)

        model = cls(bytes_at)
        model._max_slices = ask
        return model

    @property
    def inverse(self) -> Callable[[int], int] | None:
        """Function that `from_max_slices` was given, its answers kept; None of other models."""
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
        """Most slices, up to `limit`, that fit in `available_bytes`; 0 if not even one does."""
        available, limit = index(available_bytes), index(limit)
        if limit < 1 or available < 0:
            return 0
        low = high = at_low = at_high = 0
        # From few slices to many: a ledger may count slice by slice, so it is not asked about many
        # more than fit. Four times those for which the average up to here tells that they do.
        while at_high <= available:
            if high >= limit:
                return limit
            low, at_low = high, at_high
            high = min(limit, 4 * low * available // at_low) if at_low else min(limit, 4 * low + 1)
            at_high = self._bytes_at(high)
        return _first_reaching(self._bytes_at, available + 1, (low, at_low), (high, at_high)) - 1

    def plus(self, n_bytes: int) -> MemoryModel:
        """Model with a constant added, such as side data that stay on the device."""
        bytes_at = self._bytes_at
        return MemoryModel(lambda n: bytes_at(n) + n_bytes, self._kept_at)

    def widened(self, extra: int, total: int) -> MemoryModel:
        """Model of n slices with a halo around them.

        Parameters
        ----------
        extra : int
            Slices of the halo, before and after together.
        total : int
            Slices of the whole array: n and halo together are never more.
        """
        if extra == 0:
            return self
        model = self
        return MemoryModel(
            lambda n: model.bytes(min(n + extra, max(n, total))),
            lambda n: model.kept_bytes(min(n + extra, max(n, total))),
        )

    def __add__(self, other: MemoryModel) -> MemoryModel:
        """Model of two that are alive together."""
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

        While one runs, what the others keep between calls is alive too.
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

    `below` and `above` are pairs (x, function(x)) on either side of the answer. Most models are
    straight lines, which the first guess follows; then the bracket is halved.
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
        The condition: true up to the number sought, false from there on. It is not evaluated at
        either end: it has to hold for `low`, and not for `high`.
    low, high : int
        The ends, ``low < high``.
    """
    return bisect_left(range(low + 1, high), True, key=lambda x: not holds(x)) + low


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
