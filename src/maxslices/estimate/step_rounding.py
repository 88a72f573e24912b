"""Memory that grows in steps: with the slices rounded up to 16, say, or to a power of two."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from ..model.bisection import last_true

_MOST_POINTS = 4000
"""Most ends of steps that a model lists."""
_APART = 0.004
"""Two explanations differ if their bytes do by 0.4 %: one slice in 250, too little to matter."""
_ROUGHLY = 3
"""Where steps are clear, points may lie 3 times the noise off them: 12 MiB on a GPU where libraries
allocate outside the pool, of which readings of FISTA3d_tomobar on an H200 took 6."""
_CLEAR = 24
"""A step is clear if it is 24 times as high as points lie off it. FISTA3d_tomobar's steps of 420
MiB are 70 times as high as 6 MiB."""
POWER_OF_TWO = 0
"""Period that stands for rounding up to a power of two."""
ARRAY_DEPTH = -16
"""Period that stands for CUDA's padding of the depth of 3D arrays, from which textures are read: to
a power of two up to 16, and to a multiple of 16 beyond (measured on an H200)."""


class Steps:
    """Bytes of n slices as ``fixed + a * n + b * rounded(n)``.

    Parameters
    ----------
    candidates : list of (int, float, float, float, float)
        All explanations of the points: the period in slices (or `POWER_OF_TWO`, `ARRAY_DEPTH`),
        fixed bytes, bytes of a slice, bytes of a slice after rounding, and the distance of the
        farthest point. The explanation with the most bytes counts.
    """

    def __init__(self, candidates: list[tuple[int, float, float, float, float]]) -> None:
        self.candidates = candidates

    def __call__(self, n_slices: int) -> float:
        """Bytes of n slices by the explanation with the most."""
        return max(
            fixed + a * n_slices + b * rounded(n_slices, period) + error
            for period, fixed, a, b, error in self.candidates
        )

    def at_most(self, n_slices: int) -> float:
        """Bytes of n slices if each were the first one of a step."""
        return max(
            fixed + a * n_slices + b * (n_slices + (abs(period) or n_slices)) + error
            for period, fixed, a, b, error in self.candidates
        )

    def parting(self, n_bytes: int, low: int, high: int) -> int | None:
        """Fewest slices above `low` for which the explanations differ.

        None if they do not differ up to `high` slices or `n_bytes`.
        """
        each = [Steps([candidate]) for candidate in self.candidates]
        if len(each) < 2:
            return None
        most = max(only.last_below(n_bytes, low, high) for only in each)
        for n in range(low + 1, min(most, 8 * low) + 1):
            sizes = [only(n) for only in each]
            if max(sizes) - min(sizes) > _APART * max(sizes):
                return n
        return None

    def last_below(self, n_bytes: int, low: int, high: int) -> int:
        """Most slices from `low` to `high` that take no more than `n_bytes`."""
        if self(high) <= n_bytes:
            return high
        return last_true(lambda n: self(n) <= n_bytes, low, high)

    def between(self, measured: list[tuple[int, int]], total: int) -> tuple[tuple[int, int], ...]:
        """Points up to `total` slices, kept between measured points below and above."""
        steps = dict(self.points(total)) | dict(measured)
        found = []
        for k, size in sorted(steps.items()):
            least = max((b for n, b in measured if n <= k), default=0)
            most = min((b for n, b in measured if n >= k), default=max(size, least))
            found.append((k, min(max(size, least), most)))
        return tuple(found)

    def points(self, total: int) -> list[tuple[int, int]]:
        """Both ends of each step, up to `total` slices or `_MOST_POINTS`."""
        ends = {1}
        for period, *_ in self.candidates:
            edge = 0
            while edge < total and len(ends) < _MOST_POINTS:
                edge = rounded(edge + 1, period)
                ends |= {edge, edge + 1}
        last = max(ends)
        slope = max(a + 2 * b for _, _, a, b, _ in self.candidates)
        found = [(n, math.ceil(self(n))) for n in sorted(ends)]
        return [*found, (2 * last, found[-1][1] + math.ceil(slope * last))]


def find_steps(points: list[tuple[int, int]], noise_bytes: int) -> Steps | None:
    """Find the steps on which all points lie; None if no rounding explains them.

    The first point may lie elsewhere: a method often handles a single slice in another way. Memory
    that a driver hands out is read with an error of several of its 2 MiB steps: if nothing explains
    the points closely, clear steps do, and so does whatever else is as close as these.
    """
    close = max(noise_bytes, points[-1][1] / 2000) if points else 0.0
    at_most = max(close, _ROUGHLY * noise_bytes)
    found = []
    for some in (points, points[1:]):
        found.append(candidates := _steps_on(some, at_most))
        if any(error <= close for *_, error in candidates):
            return Steps(candidates)
    for candidates in found:
        if any(b * (abs(p) or 2) >= _CLEAR * error for p, _, _, b, error in candidates):
            return Steps(candidates)
    return None


def _steps_on(
    points: list[tuple[int, int]], at_most: float
) -> list[tuple[int, float, float, float, float]]:
    """Explanations of the points with an error of `at_most` bytes."""
    slopes = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(points)]
    changes = [b - a for a, b in pairwise(slopes) if abs(b - a) > 0.01 * max(slopes)]
    few = len(points) < (5 if points and points[-1][0] >= 16 else 6)
    if few or min(changes, default=0) >= 0 or max(changes) <= 0:
        return []
    periods = [POWER_OF_TWO, ARRAY_DEPTH, *range(2, min(256, points[-1][0] // 2) + 1)]
    steps = np.array([[rounded(n, period) for n, _ in points] for period in periods], float)
    # A single step is no evidence of a period.
    distinct = (np.diff(steps) > 0).sum(axis=1) + 1
    told = distinct >= np.where(np.array(periods) > 0, 3, 4)
    periods, steps = [each for each, so in zip(periods, told, strict=True) if so], steps[told]
    if not periods:
        return []
    sizes = np.array([size for _, size in points], float)
    ns = np.broadcast_to([float(n) for n, _ in points], steps.shape)
    terms = np.stack([np.ones_like(ns), ns, steps], axis=2)
    found = np.linalg.pinv(terms) @ sizes
    errors = np.abs(sizes - np.einsum("pnt,pt->pn", terms, found)).max(axis=1)
    return [
        (period, float(fixed), float(a), float(b), float(error))
        for period, (fixed, a, b), error in zip(periods, found, errors, strict=True)
        if error <= at_most and a >= 0 and b * (period if period > 0 else 2) >= 4 * max(error, 1)
    ]


def rounded(n: int, period: int) -> int:
    """Round n up to a multiple, or as `POWER_OF_TWO` and `ARRAY_DEPTH` say."""
    if period > 0 or n > -period > 0:
        return -(-n // abs(period)) * abs(period)
    return 1 << (n - 1).bit_length()
