"""Turn measured points into an upper bound of straight lines."""

from __future__ import annotations

import math
from itertools import pairwise

from .trend import Trend

_JUMP = 4
"""A slope between two points is a step if it is 4 times that of all points..."""
_UP = 8
"""... from 8 slices on: among fewer, slopes differ for other reasons."""


def envelope(points: list[tuple[int, int]], noise_bytes: int) -> list[tuple[int, int]]:
    """Points whose lines are an upper bound of the measured function, which never decreases.

    All of an interval that is not known to be straight costs as much as its end.
    """
    found, jumps = points[:1], _has_jump(points)
    for index, ((m, _), (n, size)) in enumerate(pairwise(points)):
        if n > m + 1 and (jumps or not _is_straight(points, index, noise_bytes)):
            found.append((m + 1, size))
        found.append((n, size))
    return found


def _has_jump(points: list[tuple[int, int]]) -> bool:
    """True if memory jumped between two points far up; it may jump elsewhere as well."""
    (m, a), (n, b) = points[0], points[-1]
    rise = _JUMP * (b - a) / max(1, n - m)
    return any(
        j >= _UP and q - p > max(rise * (k - j), q // 50) for (j, p), (k, q) in pairwise(points)
    )


def _is_straight(points: list[tuple[int, int]], index: int, noise_bytes: int) -> bool:
    def slope(i: int) -> float:
        (m, a), (n, b) = points[i], points[i + 1]
        return (b - a) / (n - m)

    (m, _), (n, size) = points[index], points[index + 1]
    allowed = max(noise_bytes, size // 1000)
    return any(
        abs(slope(index) - slope(i)) * (n - m) <= allowed
        for i in (index - 1, index + 1)
        if 0 <= i < len(points) - 1
    )


def curve(trend: Trend) -> tuple[tuple[int, int], ...]:
    """Points whose lines, between them and beyond, are an upper bound of the memory."""
    points = trend.lifted()
    if not points:  # even the fewest slices do not fit
        return (trend.above or (1, trend.available_bytes + 1),)
    found = envelope(points, trend.noise_bytes)
    n, size = points[-1]
    passed = trend.passed_step_bytes()
    if passed:  # no more than the last point, which was measured
        found = [(k, min(each + passed, size)) for k, each in found]
    steps = trend.steps() if len(points) == len(trend.rising()) else None
    if steps is not None and trend.is_sure():
        found = list(steps.between(points, trend.total_slices))
        if trend.above is None:
            return tuple(found)
        found = [(k, each) for k, each in found if k < trend.above[0]]
        n, size = trend.above[0] - 1, max(found[-1][1], math.ceil(steps(trend.above[0] - 1)))
        found.append((n, size))
    if trend.above is not None:
        found += [(n + 1, max(trend.above[1], size))] if trend.above[0] > n + 1 else []
        found.append((trend.above[0], max(trend.above[1], size)))
        n, size = trend.above[0], max(trend.above[1], size)
        slope: float = max(size / n, *trend.slopes()[-1:], 0.0)
    elif trend.is_sure():
        slope = max([*trend.slopes()[-2:], trend.floor_bytes])
        # Small steps may look like a line: stay above it as far as any of the last points is.
        off = max(math.ceil(y - (size - slope * (n - x))) for x, y in trend.rising()[-4:])
        off = max(off, passed)
        if off > trend.noise_bytes:
            n, size = n + 1, size + off + math.ceil(slope)
            found.append((n, size))
    else:
        further = max(n + 1, trend.answer())
        slope = max(
            (trend.upper_bytes(further) - trend.step_bytes() - size) / (further - n),
            trend.pairwise_slope(),
            *trend.slopes()[-1:],
            trend.floor_bytes,
        )
        step = trend.step_bytes()
        if step:
            n, size = n + 1, size + step + math.ceil(slope)
            found.append((n, size))
    # One byte too many would cost a slice where the memory is that of a whole number of slices.
    beyond = max(size, size + math.ceil(slope) - trend.rounding_bytes)
    found.append((n + 1, beyond))
    found.append((2 * n + 1, beyond + math.ceil(slope * n)))
    return tuple(found)
