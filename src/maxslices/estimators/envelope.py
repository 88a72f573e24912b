"""Lines through measured points that are never below what was measured."""

from __future__ import annotations

from itertools import pairwise


def envelope(points: list[tuple[int, int]], noise_bytes: int) -> list[tuple[int, int]]:
    """Return points whose straight lines are never below a function that never decreases.

    Where an interval is not known to be straight, all of it costs what its end costs.
    """
    found = points[:1]
    for index, ((m, _), (n, size)) in enumerate(pairwise(points)):
        if n > m + 1 and not _is_straight(points, index, noise_bytes):
            found.append((m + 1, size))
        found.append((n, size))
    return found


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
