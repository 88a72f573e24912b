"""Workspaces of cuFFT plans, in bytes.

cuFFT does not document them. The rules here were fitted to 10,197 plans that CuPy 14.2 made
on an NVIDIA H200 with CUDA 13 (2026-11-21 and 28). They are below none of the measured sizes, and
at most 2 % (or 2 KiB) above most. The others are lengths for which no simple rule tells whether
an array is needed. They are counted as needing one, as are lengths beyond those measured.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

Kind = Literal["c2c", "r2c", "c2r"]

WITHOUT_KERNEL = frozenset(
    {75, 98, 154, 196, 242, 294, 484, 500, 686, 700, 726, 882, 900, 968, 980}
)
"""Lengths of real transforms that need an array, unlike all others up to 1083 of their primes."""
WITHOUT_COMPLEX_KERNEL = frozenset({782, 1054})
"""The same for complex transforms along the last axis, in single precision."""
WITHOUT_DOUBLE_KERNEL = frozenset(
    {221, 253, 323, 342, 391, 429, 437, 456, 460, 483, 506, 520, 561, 572}
)
"""The same in double precision, of all lengths up to 580."""
WITHOUT_STRIDED_KERNEL = frozenset({882, 968, 1080, 1210, 1296, 1568})
"""The same along other axes in single precision, of every third even length up to 1600."""


@lru_cache(maxsize=4096)
def work_bytes(batch: int, dims: tuple[int, ...], kind: Kind, single: bool) -> int:
    """Workspace of a plan, before the allocator rounds it.

    Parameters
    ----------
    batch : int
        Transforms made at once.
    dims : tuple of int
        Lengths of the axes transformed together, on the real side; the last is the one
        that real transforms halve.
    kind : {"c2c", "r2c", "c2r"}
        Complex, real to complex or complex to real.
    single : bool
        Whether the precision is single.

    Notes
    -----
    * A complex transform works in place for lengths that kernels cover
      (`_works_in_place`). For other lengths it needs an array of its own size, or the arrays of
      Bluestein's algorithm (`_bluestein_bytes`).
    * A real transform works in place for some lengths (`_real_works_in_place`). Otherwise, if
      its length is even, it works in an array of the spectrum's size, or of the real values' where
      a complex transform of half the length works in place. If that half has a prime over 127, it
      needs more: the arrays of Bluestein's algorithm if it is above `_fused_limit`, and a second
      array if it is above half of that. A number of transforms above `_fused_limit` that has such
      a prime needs a second array too. It is counted for every number above, so that fewer
      transforms never need more.
    * A real transform of odd length does two rows as one complex transform, in two complex
      arrays of half the batch. The second array grows to what Bluestein's algorithm needs.
    """
    itemsize = 8 if single else 16
    outer = dims[:-1]
    rows, length = batch * math.prod(outer), dims[-1]
    if rows * length == 0:
        return 0
    if kind == "c2c":
        return _complex_bytes(rows * length, outer, length, single)
    spectrum_bytes, half = rows * (length // 2 + 1) * itemsize, length // 2
    if _real_works_in_place(length, single):
        return _complex_bytes(spectrum_bytes // itemsize, outer, 1, single)
    if length % 2 == 0:
        shorter = not outer and _works_in_place(half, single, strided=False)
        array_bytes = rows * half * itemsize if shorter else spectrum_bytes
        more = max(_bluestein_bytes(spectrum_bytes // itemsize, n, single) for n in (*outer, half))
        large = _largest_prime(half) > 127 and half > _fused_limit(single) // 2
        if not more and (large or batch > _fused_limit(single)):
            more = array_bytes
        return array_bytes + (more + 2048 if more else 0)
    paired_rows = -(-batch // 2) * math.prod(outer)
    n_items = paired_rows * (length + 1)
    inner = max(_bluestein_bytes(n_items, n, single) for n in dims)
    return paired_rows * length * itemsize + max(n_items * itemsize, inner) + 2048


def _complex_bytes(n_items: int, outer: tuple[int, ...], last: int, single: bool) -> int:
    """Workspace of `n_items` elements in complex transforms along several axes."""
    bluestein = max(_bluestein_bytes(n_items, n, single) for n in (*outer, last))
    if all(
        _works_in_place(n, single, strided) or _takes_bluestein(n, single)
        for n, strided in [*((n, True) for n in outer), (last, False)]
    ):
        return bluestein
    return n_items * (8 if single else 16) + bluestein


def _fused_limit(single: bool) -> int:
    """Largest length whose large primes need no workspace.

    Up to there one kernel seems to do Bluestein's algorithm by itself.
    """
    return 4096 if single else 2048


def _takes_bluestein(length: int, single: bool) -> bool:
    """True if Bluestein's algorithm is used, with its arrays in the workspace."""
    return length > _fused_limit(single) and _largest_prime(length) > 127


def _bluestein_bytes(n_items: int, length: int, single: bool) -> int:
    """Arrays of Bluestein's algorithm; 0 where it is not used.

    There are two, of a padded length: the smallest from ``2 * length - 1`` on that has no
    primes but 2, 3 and 5, and at least 8192.
    """
    if not _takes_bluestein(length, single):
        return 0
    padded = max(_next_smooth(2 * length - 1), 8192)
    n_bytes = n_items // length * 2 * padded * (8 if single else 16)
    return -(-n_bytes // 2048) * 2048


def _works_in_place(length: int, single: bool, strided: bool) -> bool:
    """True if no measured complex transform of such a length needed an array.

    For primes over 13 (in double precision, over 5) that depends on which kernels NVIDIA built.
    Kernels for multiples of 11 are often missing, and in double precision those of all but the
    last axis (`strided`).
    """
    prime = _largest_prime(length)
    if prime > 127:
        return length <= _fused_limit(single)
    if not single:
        if strided and length > 480:
            return length in (512, 1024)
        if prime <= 5:
            return length <= 6000
        return length <= 580 and prime <= 23 and length not in WITHOUT_DOUBLE_KERNEL
    if length in (WITHOUT_STRIDED_KERNEL if strided else WITHOUT_COMPLEX_KERNEL):
        return False
    if length <= 128:
        return prime in (length, *range(32))  # 122 = 2 * 61 has none, 101 and 103 have
    if prime <= 13:
        return length <= 11_000 or (length % 4096 == 0 and length <= 20_480)
    if length % 11 == 0:  # up to 319 all of them were measured
        return length <= 319
    return length <= 4096 and prime <= (23 if length <= 1024 else 31)


def _real_works_in_place(length: int, single: bool) -> bool:
    if length in WITHOUT_KERNEL:
        return False
    prime = _largest_prime(length)
    if length % 2 == 0 and length <= 1024 and prime <= 11:
        return True
    if single and length % 2 and length <= 128:
        return prime <= 11 or prime == length
    return (16_384 if single else 2048) % length == 0 or (2187 if single else 729) % length == 0


@lru_cache(maxsize=1024)
def _largest_prime(number: int) -> int:
    largest, divisor = 1, 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            largest, number = divisor, number // divisor
        divisor += 1
    return max(largest, number)


@lru_cache(maxsize=1024)
def _next_smooth(number: int) -> int:
    while _largest_prime(number) > 5:
        number += 1
    return number
