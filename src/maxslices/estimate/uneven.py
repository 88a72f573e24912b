"""Memory that does not always grow with the slices, as far as a few points show it.

Where slices are worked on in chunks, what is left over may take memory of its own (the plan of
another FFT): memory climbs for some slices, falls, and climbs again. Points may lie on the
teeth or between them, so that no line through them says how it goes on. What is relied on is
that the highest bytes per slice that were seen are about those of all teeth near it, and no
answer is beyond what was run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from ..model.bisection import last_of
from .trend import Trend

_FALL = 0.004
"""Part of the memory by which it has to fall to be uneven."""
_KINK = 0.9
"""Part of the slope before it that a slope has to be, if there is to be a tooth before it."""
_LONG = 4
"""Slices over which a slope says something of teeth."""
_NEAR = 3
"""Teeth are as high as those seen from this part of the slices on..."""
_FAR = 10
"""The same, for more slices than were run."""
_MARGIN = 0.015
"""... and so much higher at most."""
_FEW, _MARGIN_OF_FEW = 4, 0.1
"""... if at least so many points are as near; else so much."""
_VALLEY = 0.9
"""Part of the bytes per slice of teeth below which a point lies between them."""
_FEWER = 2
"""Slices below such a point that have to be run."""


class Uneven(Trend):
    """Points (slices, bytes), with teeth between them or without."""

    def is_uneven(self) -> bool:
        """Tell whether the memory was seen to fall, or grows so unevenly that it may have."""
        if any(
            b < a - max(self.noise_bytes, _FALL * a) for (_, a), (_, b) in pairwise(self.seen())
        ):
            return True
        if self.established() or self.steps() is not None:
            return False
        long = [
            (b - a) / (n - m)
            for (m, a), (n, b) in pairwise(self._points)
            if n - m >= max(_LONG, m / 5)
        ]
        return any(b < _KINK * a for a, b in pairwise(long[-3:]))

    def is_sure(self) -> bool:
        """Tell whether it is safe to go on with the last slope: never among teeth."""
        return not self.is_uneven() and super().is_sure()

    def seen(self) -> list[tuple[int, int]]:
        """Return all that was run, with what did not fit last."""
        return [*self._points, *([self.above] if self.above else [])]

    def tooth_bytes(self, n_slices: int) -> float:
        """Return how high teeth are, by those near it."""
        seen, near, fixed = self.seen(), self._near(n_slices), self._fixed_bytes()
        most = fixed + max((size - fixed) / n for n, size in near) * n_slices
        falls = [(n, a - b + b * (n - m) / n) for (m, a), (n, b) in pairwise(seen) if b < a]
        if falls and max(falls)[0] < near[0][0]:  # none was seen so far up: as high as they were
            most += max(height for _, height in falls)
        return most

    def worst_bytes(self, n_slices: int, margin: float = 0.0) -> float:
        """Return how high teeth are at most, or by a margin more than those seen if that is so."""
        few = len(self._near(n_slices)) < _FEW
        return self.tooth_bytes(n_slices) * (1 + max(margin, _MARGIN_OF_FEW if few else _MARGIN))

    def _fixed_bytes(self) -> float:
        """Return what no slices would take, by all points that are neighbours."""
        pairs = [((b - a) / (n - m), m, a) for (m, a), (n, b) in pairwise(self.seen()) if b > a]
        return max(0.0, min((a - slope * m for slope, m, a in pairs), default=0.0))

    def _near(self, n_slices: int) -> list[tuple[int, int]]:
        least = min(n_slices, self._points[-1][0]) / _NEAR
        return [(n, size) for n, size in self.seen() if n >= least]

    def safe(self) -> int:
        """Return the most slices that were run, of which all fewer fit as far as can be told."""
        last, size = self._points[-1]
        is_valley = size < _VALLEY * self.tooth_bytes(last)

        def fits(k: int) -> bool:
            few = _MARGIN_OF_FEW if is_valley and k >= last - _FEWER else 0.0
            return self.worst_bytes(k, few) <= self.run_bytes

        for (m, _), (n, _) in pairwise(self._points):
            if n > m + 1 and not fits(n - 1):
                return last_of(fits, m, n - 1)
        return last

    def _beyond_bytes(self, n_slices: int) -> float:
        """Return what slices far beyond those run take, if teeth are not much higher."""
        least = self._points[-1][0] / _FAR
        fixed = self._fixed_bytes()
        most = max((size - fixed) / n for n, size in self.seen() if n >= least)
        return (fixed + most * n_slices) * (1 + _MARGIN_OF_FEW)

    def crossing(self) -> int:
        """Return the slices up to which teeth fit, if they are as high as those seen."""
        return self._most(self.tooth_bytes)

    def _most(self, bytes_at: Callable[[int], float]) -> int:
        last = self._points[-1][0]
        return last_of(lambda k: bytes_at(k) <= self.run_bytes, last, self.top + 1)

    def uneven_curve(self, *, further: bool) -> tuple[tuple[int, int], ...]:
        """Return points between which straight lines are never below the teeth.

        Parameters
        ----------
        further : bool
            Whether to go on beyond what was run, carefully.
        """
        safe, found, highest = self.safe(), [], 0

        def add(n: int, size: float) -> None:
            nonlocal highest
            highest = max(highest, min(math.ceil(size), self.run_bytes))
            found.append((n, highest))

        points = self._points
        add(*points[0])
        for (m, _), (n, size) in pairwise(points):
            last = min(n - 1, safe)
            if m < last:
                add(m + 1, max(size, self.worst_bytes(m + 1)))
            if m + 1 < last:
                add(last, max(size, self.worst_bytes(last)))
            if n > safe:
                break
            add(n, size)
        if further and safe == points[-1][0] < (beyond := self._most(self._beyond_bytes)):
            add(safe + 1, self._beyond_bytes(safe + 1))
            add(beyond, self._beyond_bytes(beyond))
            safe = beyond
        more = max(self.run_bytes + 1, math.ceil(self.worst_bytes(safe + 1)))
        return (*found, (safe + 1, more), (2 * safe + 2, 2 * more))
