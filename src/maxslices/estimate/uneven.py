"""Memory that rises and falls with the slices.

A method that works in chunks may need more for a last chunk that is smaller (the plan of another
FFT): memory rises for some slices, falls and rises again, like the teeth of a saw. Points may lie
on teeth or in valleys between them, so that no line through them can be extrapolated. Two rules are
safe: all teeth have about the bytes per slice of the highest point near them, and no answer lies
beyond the slices that were run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from ..model.bisection import last_true
from .trend import Trend

_FALL = 0.004
"""Memory is uneven if it falls by 0.4 % or more with more slices; less is noise of large peaks."""
_KINK = 0.9
"""A slope below 0.9 of the one before it shows that a tooth lies before it."""
_LONG = 4
"""Slopes over fewer than 4 slices say nothing of teeth."""
_NEAR = 3
"""The teeth near n are those from n / 3 slices on..."""
_FAR = 10
"""... and from n / 10 on, where n is more than was run."""
_MARGIN = 0.015
"""Teeth are taken to be up to 1.5 % higher than the highest near them that was run..."""
_FEW, _MARGIN_OF_FEW = 4, 0.1
"""... if at least 4 points are near, and 10 % higher if there are fewer."""
_VALLEY = 0.9
"""A point below 0.9 of the bytes per slice of the teeth near it lies in a valley."""
_FEWER = 2
"""Below a point in a valley, 2 slice counts have to be run."""


class Uneven(Trend):
    """`Trend` that allows for memory that rises and falls."""

    def is_uneven(self) -> bool:
        """True if memory fell, or grows so unevenly that it may have fallen between points."""
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
        """True if extrapolation is safe: never among teeth."""
        return not self.is_uneven() and super().is_sure()

    def seen(self) -> list[tuple[int, int]]:
        """All points, the one that did not fit last."""
        return [*self._points, *([self.above] if self.above else [])]

    def tooth_bytes(self, n_slices: int) -> float:
        """Bytes of a tooth at n slices, by the highest points near it."""
        seen, near, fixed = self.seen(), self._near(n_slices), self._fixed_bytes()
        most = fixed + max((size - fixed) / n for n, size in near) * n_slices
        falls = [(n, a - b + b * (n - m) / n) for (m, a), (n, b) in pairwise(seen) if b < a]
        if falls and max(falls)[0] < near[0][0]:  # none near: add the height of those further down
            most += max(height for _, height in falls)
        return most

    def worst_bytes(self, n_slices: int, margin: float = 0.0) -> float:
        """Upper bound of a tooth at n slices: with a margin, larger if few points are near."""
        few = len(self._near(n_slices)) < _FEW
        return self.tooth_bytes(n_slices) * (1 + max(margin, _MARGIN_OF_FEW if few else _MARGIN))

    def _fixed_bytes(self) -> float:
        """Fixed bytes: the least intercept of lines through neighbouring points."""
        pairs = [((b - a) / (n - m), m, a) for (m, a), (n, b) in pairwise(self.seen()) if b > a]
        return max(0.0, min((a - slope * m for slope, m, a in pairs), default=0.0))

    def _near(self, n_slices: int) -> list[tuple[int, int]]:
        least = min(n_slices, self._points[-1][0]) / _NEAR
        return [(n, size) for n, size in self.seen() if n >= least]

    def safe(self) -> int:
        """Most slices run of which all smaller numbers fit as well, by the upper bound of teeth."""
        last, size = self._points[-1]
        is_valley = size < _VALLEY * self.tooth_bytes(last)

        def fits(k: int) -> bool:
            few = _MARGIN_OF_FEW if is_valley and k >= last - _FEWER else 0.0
            return self.worst_bytes(k, few) <= self.run_bytes

        for (m, _), (n, _) in pairwise(self._points):
            if n > m + 1 and not fits(n - 1):
                return last_true(fits, m, n - 1)
        return last

    def _beyond_bytes(self, n_slices: int) -> float:
        """Bytes of slices far beyond those run, if teeth are at most a tenth higher there."""
        least = self._points[-1][0] / _FAR
        fixed = self._fixed_bytes()
        most = max((size - fixed) / n for n, size in self.seen() if n >= least)
        return (fixed + most * n_slices) * (1 + _MARGIN_OF_FEW)

    def crossing(self) -> int:
        """Slices up to which teeth fit, if they are as high as the points near them."""
        return self._most(self.tooth_bytes)

    def _most(self, bytes_at: Callable[[int], float]) -> int:
        last = self._points[-1][0]
        return last_true(lambda k: bytes_at(k) <= self.run_bytes, last, self.top + 1)

    def uneven_curve(self, *, further: bool) -> tuple[tuple[int, int], ...]:
        """Points whose lines are an upper bound of the teeth.

        Parameters
        ----------
        further : bool
            Whether to extrapolate beyond the slices that were run, with a margin of a tenth.
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
