"""Formulas in the number of slices n, for a number of bytes or of arrays.

A `Formula` is ``start + step * count(n)``, where `count` is one of a few functions of n that
programs compute: n itself, pairs, chunks, a power of two. `fits` finds the formulas that agree with
all observations. Only the remainder of a division into chunks decreases with more slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

COUNTS: dict[str, Callable[[int, int], int]] = {
    "1": lambda n, k: 0,
    "n": lambda n, k: n,
    "ceil(n/k)": lambda n, k: -(-n // k),
    "n//k": lambda n, k: n // k,
    "min(n,k)": min,
    "n%k": lambda n, k: n % k,
    "n*n": lambda n, k: n * n,
    "pow2(n)": lambda n, k: 1 << (n - 1).bit_length(),
    "depth(n)": lambda n, k: array_depth(n),
    "last(n/k)": lambda n, k: last_chunk(n, -(-n // k)),
    "last(pairs/k)": lambda n, k: last_chunk(-(-n // 2), -(-n // k)),
    "ragged(n/k)": lambda n, k: int(last_chunk(n, -(-n // k)) != -(-n // k)),
    "ragged(pairs/k)": lambda n, k: int(last_chunk(-(-n // 2), -(-n // k)) != -(-n // k)),
}
"""Functions of n and a chunk size k, by name, the simplest first."""
PADDING_BYTES = 2048
"""Sizes within this distance of a line, and within a hundredth of their rise, count as a line.
CUDA's sorts allocate up to eight arrays at once, each padded to 256 bytes (CUB's
`AliasTemporaries`). Measured peaks on a CPU include some bytes of Python objects."""
PADDING_PART = 1e-3
"""Distance from a line as a fraction of the rise. FFTs of real rows are computed in pairs, so an
odd number of rows takes one more (20 kB of 37 MB a slice of 1801 x 2557)."""
CHUNKS_OF = ("n", "pairs")
"""Items that are divided into chunks of ceil(n/k): slices, or pairs of them as complex numbers."""
_NOT_FITTED = ("depth(n)", *(f"{name}({of}/k)" for name in ("last", "ragged") for of in CHUNKS_OF))
"""Counts of memory outside the pool, and of the last of several chunks."""
_FALLING = ("n%k", *_NOT_FITTED[1:])
_CHUNKED = ("ceil(n/k)", "n//k", "min(n,k)", "n%k")
"""Counts whose chunk size k is searched, from 2 to the largest n."""


def fast_length(n: int) -> int:
    """Smallest length from n up whose prime factors are 2, 3, 5 and 7: FFTs are padded to it."""
    while True:
        rest = n
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


def last_chunk(n: int, chunk: int) -> int:
    """Size of the last chunk of n slices: a full chunk or the remainder."""
    return n - chunk * (-(-n // chunk) - 1)


def array_depth(n: int) -> int:
    """Depth of a 3D array in CUDA: a power of two up to 16, then a multiple of 16."""
    return 1 << (n - 1).bit_length() if n <= 16 else -(-n // 16) * 16


class Formula(NamedTuple):
    """``start + step * count(n)``, or observed values if no formula agrees with them."""

    start: int
    """Part that does not depend on n."""
    step: int = 0
    """Value that each count adds."""
    counted: str = "1"
    """Key of `COUNTS`."""
    k: int = 0
    """Slices of a chunk, if `count` has chunks."""
    points: tuple[tuple[int, int], ...] = ()
    """Observed (slices, value), in order, if no formula agrees with them, else empty. Between two
    observations the value is that of the next one. Beyond the last one it grows in proportion to
    n."""

    def at(self, n: int) -> int:
        """Value for n slices."""
        for seen, value in self.points:
            if n <= seen:
                return value
        if self.points:
            return -(-value * n // seen)
        return self.start + self.step * COUNTS[self.counted](n, self.k) if self.step else self.start

    @property
    def may_fall(self) -> bool:
        """True if more slices may give a lower value."""
        falls = self.step < 0 or self.counted in _FALLING
        return bool(self.points) or (bool(self.step) and falls)

    def __str__(self) -> str:
        if self.points:
            return "about " + ", ".join(f"{value:,} at {n}" for n, value in self.points)
        if not self.step:
            return f"{self.start:,}"
        count = self.counted.replace("k", str(self.k))
        start = f"{self.start:,} + " if self.start else ""
        return f"{start}{self.step:,} * {count}"


def fits(points: Mapping[int, int]) -> Iterator[Formula]:
    """Formulas that pass through all points (slices: value), the simplest first.

    The last one is a line just above the points, if they are near it.
    """
    ns = sorted(points)
    low = ns[0]
    if all(points[n] == points[low] for n in ns):
        yield Formula(points[low])
        return
    padded = _padded_line(points)
    for name, count in COUNTS.items():
        if name in _NOT_FITTED:
            continue
        if name in _CHUNKED and padded is not None and len(ns) == 2:
            break  # any two points agree with some chunk size
        for k in range(2, ns[-1] + 1) if name in _CHUNKED else (0,):
            fewest = count(low, k)
            for other in reversed(ns):  # the largest n at which the count differs
                if (counted := count(other, k) - fewest) != 0:
                    break
            else:
                continue
            step, rest = divmod(points[other] - points[low], counted)
            if rest or step <= 0:
                continue
            start = points[low] - step * fewest
            if all(start + step * count(n, k) == points[n] for n in ns):
                yield Formula(start, step, name, k)
    if padded is not None:
        yield padded


def _padded_line(points: Mapping[int, int]) -> Formula | None:
    """Line above all points, or None if they are not near a line."""
    low, high = min(points), max(points)
    rise = points[high] - points[low]
    step = -(-rise // (high - low))
    starts = [points[n] - step * n for n in points]
    near = max(min(PADDING_BYTES, rise // 100), PADDING_PART * rise)
    if step <= 0 or max(starts) - min(starts) > near:
        return None
    return Formula(max(starts), step, "n")


def first_fit(points: Mapping[int, int]) -> Formula | None:
    """Simplest formula through all points, or None if no formula agrees."""
    return _first_fit(tuple(sorted(points.items())))


@lru_cache(maxsize=4096)
def _first_fit(points: tuple[tuple[int, int], ...]) -> Formula | None:
    return next(fits(dict(points)), None)
