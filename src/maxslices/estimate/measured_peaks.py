"""Peaks measured with some numbers of slices, and the memory of others by them: arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .method_calls import REACH

_SAME_SLOPE = 0.004
"""Slopes count as equal if they differ by less than 0.4 % of the memory at the answer: one slice
in 250."""
_MOST_BENT = 2
"""Nothing is taken to grow faster than the third power of n."""


@dataclass(frozen=True)
class MeasuredPeaks:
    """Peaks of the calls that fit."""

    points: tuple[tuple[int, int], ...]
    """(slices, bytes), by slices; no peak is below that of fewer slices."""
    available_bytes: int
    """Memory for which an answer is wanted."""
    total_slices: int
    """Most slices of one call."""
    noise_bytes: int
    """Differences between peaks that are ignored."""
    input_bytes: int
    """Input of one slice: the least that a slice takes."""

    @property
    def slopes(self) -> list[float]:
        """Bytes per slice between neighbouring points."""
        return [(b - a) / (n - m) for (m, a), (n, b) in pairwise(self.points)]

    @property
    def slope(self) -> float:
        """Last slope, at least that of the input."""
        return max([self.input_bytes, *self.slopes[-1:]])

    @property
    def fell(self) -> bool:
        """True if the last peak was not above all before it."""
        return self.slopes[-1:] == [0.0]

    @property
    def is_line(self) -> bool:
        """True if the last four points lie on a line, as far as it matters at the answer."""
        slopes = self.slopes[-3:]
        return len(slopes) == 3 and self._is_little(max(slopes) - min(slopes))

    def _is_little(self, slope: float) -> bool:
        """True if a difference between slopes does not matter at the answer."""
        n, _ = self.points[-1]
        further = min(self.total_slices, self._line_fits()) - n
        allowed = _SAME_SLOPE * self.available_bytes + 2 * self.noise_bytes
        return slope * max(further, n / 4) <= allowed

    @property
    def is_known_line(self) -> bool:
        """True if a line was followed far enough to be believed at the answer."""
        if not self.points:
            return False
        return self.is_line and self._line_fits() <= REACH * self.points[-1][0]

    def _line_fits(self) -> float:
        """Slices that fit if the last slope goes on."""
        n, size = self.points[-1]
        return n + (self.available_bytes - size) / self.slope

    def likely_bytes(self, n: int) -> float:
        """Bytes of n slices if the last slope goes on."""
        k, size = self.points[-1]
        return size + self.slope * (n - k)

    @property
    def bend(self) -> int:
        """Power of n with which the last slopes grow: 0 for a line, 1 for a square."""
        if len(self.points) < 3:
            return 0
        (low, _), (middle, _), (high, _) = self.points[-3:]
        before, last = self.slopes[-2:]
        if self._is_little(last - before):
            return 0
        times = last / max(before, self.input_bytes)
        power = math.log(max(1.0, times)) / math.log((middle + high) / (low + middle))
        return min(_MOST_BENT, math.ceil(power - 0.1))

    def curve(self, above: tuple[int, int] | None) -> list[tuple[int, int]]:
        """Points whose lines, between them and beyond, are an upper bound of the memory.

        Beyond the last: a line, where four points lie on one; else as much per slice as any peak
        near the last took, or, where slopes grow, a power of n.

        Parameters
        ----------
        above : tuple of int, optional
            Fewest slices that did not fit, and their bytes.
        """
        found, (n, size) = envelope(self.points, self.noise_bytes), self.points[-1]
        if above is not None:
            found += [(k, self.available_bytes + 1) for k in {n + 1} - {above[0]}]
            n, size = above
            slope = size / n
            found.append((n, size))
        elif self.is_known_line:
            slope = self.slope
        else:
            slope = max(self.slope, *(b / k for k, b in self.points if REACH * k >= n))
            if bend := self.bend:
                before = self.points[-2][0]
                slope *= (2 * n / (before + n)) ** bend  # at n, not in the middle
                more = [(k, slope * (k - n) * (k / n) ** bend) for k in (2 * n, 4 * n, 8 * n)]
                found += [(k, size + math.ceil(rise)) for k, rise in more]
                n, size = found[-1]
                slope *= (bend + 1) * 8**bend
        # One byte too many would cost a slice where the memory is that of a whole number of slices.
        beyond = max(size, size + math.ceil(slope) - self.noise_bytes // 2)
        return [*found, (n + 1, beyond), (2 * n + 1, beyond + math.ceil(slope * n))]


def envelope(points: Sequence[tuple[int, int]], noise_bytes: int) -> list[tuple[int, int]]:
    """Points whose lines are an upper bound of the measured function, which never decreases.

    An interval is straight if its slope is that of a neighbour; all of any other costs as much as
    its end.
    """
    slopes = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(points)]
    found = [points[0]]
    for i, ((m, _), (n, size)) in enumerate(pairwise(points)):
        beside = slopes[max(0, i - 1) : i] + slopes[i + 1 : i + 2]
        allowed = max(noise_bytes, size // 1000)
        if n > m + 1 and all(abs(slopes[i] - each) * (n - m) > allowed for each in beside):
            found.append((m + 1, size))
        found.append((n, size))
    return found
