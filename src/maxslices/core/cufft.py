"""Workspaces of cuFFT plans, in bytes.

cuFFT does not document them. The rules were fitted to 10,197 plans of CuPy 14.2 on an NVIDIA H200
with CUDA 13 (2026-11-21 and 28). No measured workspace is larger, and most are at most 2 % (or 2
KiB) smaller. For some lengths no simple rule predicts whether an array is needed. They are counted
as needing one, and so are lengths that were not measured.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

Kind = Literal["c2c", "r2c", "c2r"]

WITHOUT_KERNEL = frozenset(
    {75, 98, 154, 196, 242, 294, 484, 500, 686, 700, 726, 882, 900, 968, 980}
)
"""Lengths of real transforms that need an array, unlike other lengths up to 1083 of these
primes."""
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
        Number of transforms in a plan.
    dims : tuple of int
        Lengths of the axes that are transformed together, those of the real array. Real transforms
        halve the last one.
    kind : {"c2c", "r2c", "c2r"}
        Complex, real to complex or complex to real.
    single : bool
        Whether the precision is single.

    Notes
    -----
    * A complex transform works in place for lengths that have a kernel (`_works_in_place`). Other
      lengths need an array of the size of the data, or the arrays of Bluestein's algorithm
      (`_bluestein_bytes`).
    * A real transform works in place for some lengths (`_real_works_in_place`). Other even lengths
      need an array of the size of the spectrum, or of the real values if a complex transform of
      half the length works in place. If half the length has a prime factor over 127, more is
      needed: the arrays of Bluestein's algorithm above `_fused_limit`, and a second array above
      half of that. A batch above `_fused_limit` with such a prime factor needs a second array as
      well. It is counted for every batch above, because the estimate must never decrease.
    * A real transform of odd length computes two rows as one complex transform, in two complex
      arrays of half the batch. The second array is as large as Bluestein's algorithm needs.
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
    """Workspace of complex transforms of `n_items` elements along several axes."""
    bluestein = max(_bluestein_bytes(n_items, n, single) for n in (*outer, last))
    if all(
        _works_in_place(n, single, strided) or _takes_bluestein(n, single)
        for n, strided in [*((n, True) for n in outer), (last, False)]
    ):
        return bluestein
    return n_items * (8 if single else 16) + bluestein


def _fused_limit(single: bool) -> int:
    """Largest length with large prime factors that needs no workspace.

    Up to this length, Bluestein's algorithm seems to run in one kernel.
    """
    return 4096 if single else 2048


def _takes_bluestein(length: int, single: bool) -> bool:
    """True if Bluestein's algorithm is used, with its arrays in the workspace."""
    return length > _fused_limit(single) and _largest_prime(length) > 127


def _bluestein_bytes(n_items: int, length: int, single: bool) -> int:
    """Bytes of the arrays of Bluestein's algorithm, or 0 if it is not used.

    It needs two arrays of a padded length: the smallest number from ``2 * length - 1`` on with the
    prime factors 2, 3 and 5 only, and at least 8192.
    """
    if not _takes_bluestein(length, single):
        return 0
    padded = max(_next_smooth(2 * length - 1), 8192)
    n_bytes = n_items // length * 2 * padded * (8 if single else 16)
    return -(-n_bytes // 2048) * 2048


def _works_in_place(length: int, single: bool, strided: bool) -> bool:
    """True if no measured complex transform of this kind of length needed an array.

    With prime factors over 13 (over 5 in double precision) this depends on the kernels that NVIDIA
    compiled. Kernels for multiples of 11 are often missing, and in double precision also those for
    all axes but the last one (`strided`).
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
        return prime in (length, *range(32))  # 101 and 103 have a kernel, 122 = 2 * 61 has not
    if prime <= 13:
        return length <= 11_000 or (length % 4096 == 0 and length <= 20_480)
    if length % 11 == 0:  # all multiples up to 319 were measured
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
