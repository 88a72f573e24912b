"""Memory that grows with the slices rounded up: to 16, say, or to a power of two."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from ..model.bisection import last_of

_MOST_POINTS = 4000
_APART = 0.004
"""Part of the bytes by which two ways to explain them differ."""
_ROUGHLY = 3
"""Times the noise that points may lie off, where steps are clear."""
_CLEAR = 24
"""Times what points lie off, from which on a step is clear."""
POWER_OF_TWO = 0
ARRAY_DEPTH = -16
"""In place of the slices of a step: how CUDA pads the depth of 3D arrays, which textures are
read from. To a power of two up to 16, and then to a multiple of 16 (measured on an H200)."""


class Steps:
    """Bytes that grow with the slices rounded up: ``fixed + a * n + b * rounded(n)``.

    Parameters
    ----------
    candidates : list of (int, float, float, float, float)
        All that explain the points: the slices of a step (or `POWER_OF_TWO`, `ARRAY_DEPTH`),
        fixed bytes, bytes of a slice, bytes of a slice after rounding, and how far points
        lie off. The largest of them counts.
    """

    def __init__(self, candidates: list[tuple[int, float, float, float, float]]) -> None:
        self.candidates = candidates

    def __call__(self, n_slices: int) -> float:
        """Return the bytes, never too few."""
        return max(
            fixed + a * n_slices + b * rounded(n_slices, period) + error
            for period, fixed, a, b, error in self.candidates
        )

    def at_most(self, n_slices: int) -> float:
        """Return the bytes if all of them were at the beginning of a step."""
        return max(
            fixed + a * n_slices + b * (n_slices + (abs(period) or n_slices)) + error
            for period, fixed, a, b, error in self.candidates
        )

    def parting(self, n_bytes: int, low: int, high: int) -> int | None:
        """Return the fewest slices above `low` that tell apart what explains the points.

        As far as it makes a difference up to `high` slices or `n_bytes`; None if it does not.
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
        """Return the largest number of slices from `low` to `high` that takes no more."""
        if self(high) <= n_bytes:
            return high
        return last_of(lambda n: self(n) <= n_bytes, low, high)

    def between(self, measured: list[tuple[int, int]], total: int) -> tuple[tuple[int, int], ...]:
        """Return points up to `total` slices, within what was measured of fewer and of more."""
        steps = dict(self.points(total)) | dict(measured)
        found = []
        for k, size in sorted(steps.items()):
            least = max((b for n, b in measured if n <= k), default=0)
            most = min((b for n, b in measured if n >= k), default=max(size, least))
            found.append((k, min(max(size, least), most)))
        return tuple(found)

    def points(self, total: int) -> list[tuple[int, int]]:
        """Return both ends of each step, up to `total` slices or the most that are of use."""
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
    """Return the steps on which all points lie, if there is a rounding that explains them.

    The first may lie elsewhere: one slice often takes another way through a method. What drivers
    hand out is read to several grains: where nothing is closer, clear steps are told all the same.
    Whatever else explains the points as roughly as that counts too.
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
    """Return all that explains the points as closely as that."""
    slopes = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(points)]
    changes = [b - a for a, b in pairwise(slopes) if abs(b - a) > 0.01 * max(slopes)]
    few = len(points) < (5 if points and points[-1][0] >= 16 else 6)
    if few or min(changes, default=0) >= 0 or max(changes) <= 0:
        return []
    periods = [POWER_OF_TWO, ARRAY_DEPTH, *range(2, min(256, points[-1][0] // 2) + 1)]
    steps = np.array([[rounded(n, period) for n, _ in points] for period in periods], float)
    # One step alone may be the only one.
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
    """Return n rounded up to a multiple, or as `POWER_OF_TWO` and `ARRAY_DEPTH` say."""
    if period > 0 or n > -period > 0:
        return -(-n // abs(period)) * abs(period)
    return 1 << (n - 1).bit_length()
