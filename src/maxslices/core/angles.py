"""The angles of a scan: order, range, neighbours, and projections half a turn apart.

Methods that compare a projection with its neighbours, or with the opposite one, find these with
`angle_table`. Their results then do not depend on the order in which projections are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Degrees = NDArray[np.float64]

HALF_TURN, FULL_TURN = 180.0, 360.0
TOLERANCE = 0.05
"""Relative deviation from half a turn. With 170 degrees instead of 180 (6 %) the axis of
`find_center_vo` was off by 0.35 of 48 columns."""
LONGEST_TURN = 375.0
"""Largest range of a scan of one turn, in degrees. Its projections are in order if the stage turned
in one direction."""
NEAR = 1.0
"""Largest step between neighbours, in degrees, in a scan of several turns with different angles.
With larger steps such scans are interlaced: at 4 degrees the mean of two projections blurs discs by
20 %."""
REVERSAL = 0.5
"""Fraction of a step by which an encoder may go backwards."""
GAP = 1.5
"""Steps longer than 1.5 typical steps are gaps. A missing projection causes 2 steps, and encoders
deviate by a few per cent."""
WEDGE = 3.0
"""An order by angle begins after a gap of more than this many typical steps. In golden-angle scans
steps differ by up to 2.6."""
PARTNER = 0.75
"""Fraction of a step by which opposite projections may deviate from half a turn. If one is missing,
its neighbours deviate by a whole step."""
MIN_PAIRED = 0.25
"""Smallest fraction of the projections of half a turn that must have an opposite one."""
SAME = 0.1
"""Fraction of a step within which projections have the same angle."""


@dataclass(frozen=True, slots=True, eq=False)
class AngleTable:
    """Angles of all projections of a scan, and their order."""

    degrees: Degrees
    """Angle of each projection, as stored."""
    order: Indices
    """Projections sorted by angle, so that consecutive ones are neighbours."""
    positions: Degrees
    """Degrees from the first projection of `order`, never decreasing except for encoder errors.
    They exceed 360 if several turns are stored one after the other."""
    in_order: bool
    """Whether projections are stored in this order."""
    direction: int
    """1 if stored angles increase along `order`, -1 if they decrease."""
    step: float
    """Typical degrees between neighbours; 0 if all angles are equal."""

    def __str__(self) -> str:
        n, first, last = len(self.degrees), self.degrees.min(), self.degrees.max()
        if self.in_order:
            first, last = self.degrees[0], self.degrees[-1]
        order = "" if self.in_order else ", not stored in this order"
        return f"{n} angles from {first:.5g} to {last:.5g} degrees{order}"

    @property
    def turned(self) -> float:
        """Degrees from the first to the last projection in order, over 360 for several turns."""
        return float(self.positions[-1])

    @property
    def gaps(self) -> tuple[tuple[int, int, float], ...]:
        """Neighbours over `GAP` steps apart: (projection before, projection after, degrees)."""
        steps = np.diff(self.positions)
        wide = np.flatnonzero(steps > GAP * self.step) if self.step > 0 else ()
        return tuple(
            (int(self.order[k]), int(self.order[k + 1]), float(steps[k])) for k in map(int, wide)
        )

    @property
    def is_half_turn(self) -> bool:
        """True if the scan covers half a turn."""
        return abs(self.turned - HALF_TURN) <= TOLERANCE * HALF_TURN

    def half_turn(self) -> Indices:
        """Projections of half a turn, sorted by angle.

        In a longer scan, the half turn with most projections is used, and of projections with the
        same angle the first. If the scan covers less, so does the result.
        """
        if self.is_half_turn or self.turned < HALF_TURN:
            return self.order
        around, frames = self._around()
        new = np.diff(around, prepend=-FULL_TURN) > SAME * self.step
        around, frames = around[new], frames[new]
        twice = np.concatenate([around, around + FULL_TURN])
        ends = np.searchsorted(twice, around + HALF_TURN + SAME * self.step, side="right")
        start = int(np.argmax(ends - np.arange(len(around))))
        return np.concatenate([frames, frames])[start : ends[start]]

    def opposite(self, n_pairs: int) -> tuple[Indices, Indices]:
        """Pairs of projections half a turn apart, sorted by angle.

        Parameters
        ----------
        n_pairs : int
            Length of both results. If the scan has fewer pairs, some are repeated, in order. If
            it has more, repeated angles are used once, and the pairs are then thinned out evenly.

        Returns
        -------
        front, behind : ndarray of int
            Projections of the first half turn, and the opposite projection of each.

        Raises
        ------
        ValueError
            If less than `MIN_PAIRED` of half a turn has opposite projections.
        """
        around, frames = self._around()
        partner, off = _nearest(around, (around + HALF_TURN) % FULL_TURN)
        step = typical_step(_gaps_of_circle(around, FULL_TURN))
        paired = np.flatnonzero((around < HALF_TURN) & (off <= PARTNER * step))
        if len(paired) > n_pairs:
            new = np.diff(around[paired], prepend=-FULL_TURN) > SAME * step
            paired = paired[new]
        n_half = np.count_nonzero(around < HALF_TURN)
        if len(paired) < max(2, MIN_PAIRED * n_half):
            raise ValueError(
                f"of {self}, {n_half} are within half a turn, and {len(paired)} of these have an "
                "opposite projection"
            )
        chosen = paired[np.arange(n_pairs) * len(paired) // n_pairs]
        return frames[chosen], frames[partner[chosen]]

    def are_opposite(self, front: slice, behind: slice) -> bool:
        """True if projections are stored in order, and these two ranges are half a turn apart.

        One step of deviation is allowed, because both ends of a turn may be stored.
        """
        turned = np.abs(self.positions[front] - self.positions[behind])
        return self.in_order and bool((np.abs(turned - HALF_TURN) <= 1.01 * self.step).all())

    def opposite_pair(self) -> tuple[int, int, float]:
        """The two projections closest to half a turn apart, and their difference in degrees.

        The first and the last projection are preferred unless another pair is closer by more than
        a step.
        """
        around, frames = self._around()
        partner, off = _nearest(around, (around + HALF_TURN) % FULL_TURN)
        best = int(np.argmax(off <= off.min() + SAME * self.step))
        ends = abs(self.degrees[-1] - self.degrees[0])
        if abs(ends - HALF_TURN) <= off[best] + 1.01 * self.step:
            return 0, len(frames) - 1, float(ends)
        front, behind = sorted((int(frames[best]), int(frames[partner[best]])))
        return front, behind, float(HALF_TURN - off[best])

    def _around(self) -> tuple[Degrees, Indices]:
        """Sorted positions within one turn, and the projections at these positions."""
        within = self.positions % FULL_TURN
        by_angle = np.argsort(within, kind="stable")
        return within[by_angle], self.order[by_angle]


def angle_table(radians: Any) -> AngleTable:
    """Make the table of the angles of a scan.

    Projections are stored in order if the stage turned in one direction, and in addition by at most
    `LONGEST_TURN` degrees, in steps of at most `NEAR`, or several times through the same angles.
    Otherwise they are sorted by their angles within a turn, starting after the largest gap.

    Parameters
    ----------
    radians : array-like
        Angle of each projection, at least one.
    """
    degrees = np.rad2deg(np.asarray(radians, np.float64))
    counted = np.unwrap(degrees, period=FULL_TURN)
    n, total = len(degrees), float(counted[-1] - counted[0])
    direction = -1 if total < 0 else 1
    steps = np.diff(counted) * direction
    is_one_way = bool((steps >= -REVERSAL * abs(total) / max(1, n - 1)).all())
    within = degrees % FULL_TURN
    within[within == FULL_TURN] = 0  # the remainder of a tiny negative number
    order = np.argsort(within, kind="stable")
    gaps = _gaps_of_circle(within[order], FULL_TURN)
    step = typical_step(steps)
    is_repeated = step <= GAP * typical_step(gaps[gaps > SAME * step])
    if is_one_way and (abs(total) <= LONGEST_TURN or step <= NEAR or is_repeated):
        positions = direction * (counted - counted[0])
        return AngleTable(degrees, np.arange(n), positions, True, direction, step)
    if gaps.max() > max(gaps[-1], WEDGE * typical_step(gaps)):
        order = np.roll(order, -int(np.argmax(gaps)) - 1)
    positions = (within[order] - within[order[0]]) % FULL_TURN
    return AngleTable(degrees, order, positions, False, 1, typical_step(np.diff(positions)))


def typical_step(steps: NDArray[np.floating[Any]]) -> float:
    """Median of steps weighted by their size: steps up to it cover half of all degrees.

    Repeated angles, with steps of nearly 0, do not lower it. Without steps it is 0.
    """
    by_size = np.sort(np.abs(steps))
    covered = by_size.cumsum()
    if len(covered) == 0:
        return 0.0
    return float(by_size[np.searchsorted(covered, covered[-1] / 2)])


def _gaps_of_circle(around: Degrees, period: float) -> Degrees:
    """Degrees from each sorted position on a circle to the next one."""
    return np.diff(around, append=around[0] + period)


def _nearest(around: Degrees, wanted: Degrees) -> tuple[Indices, Degrees]:
    """Index of the position nearest to each wanted one within a turn, and their distance."""
    after = np.searchsorted(around, wanted)
    both = np.stack([after - 1, after]) % len(around)
    off = np.abs((around[both] - wanted + HALF_TURN) % FULL_TURN - HALF_TURN)
    nearer = np.argmin(off, axis=0)
    at = np.arange(len(around))
    return both[nearer, at], off[nearer, at]
