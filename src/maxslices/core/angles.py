"""The angles of a scan: order, range, neighbours, and projections half a turn apart.

Methods that compare a projection with its neighbours, or with the one from behind, take these from
`angle_table`, so that they do not depend on the order in which projections are stored.
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
"""Part by which half a turn may be longer or shorter: with 170 degrees in place of 180 the axis
that `find_center_vo` found was 0.35 columns off, of 48."""
LONGEST_TURN = 375.0
"""Degrees up to which a scan is of one turn: its projections are in order if the stage turned one
way."""
NEAR = 1.0
"""Degrees up to which projections one after the other count as neighbours in a scan of several
turns whose directions differ. With larger steps such scans are interlaced: at 4 degrees the mean of
two projections blurs discs by 20 %."""
REVERSAL = 0.5
"""Part of a step by which an encoder may read backwards."""
GAP = 1.5
"""Steps of more than 1.5 times the typical one are gaps: a missing projection makes 2, encoders are
off by a few per cent."""
WEDGE = 3.0
"""Gaps of more than this many typical steps are where an order by angle begins: those of
golden-angle scans differ by up to 2.6."""
PARTNER = 0.75
"""Part of a step by which two opposite projections may be off half a turn. Where one is missing,
its neighbours are off by a whole step."""
MIN_PAIRED = 0.25
"""Least part of the projections of half a turn that must have a partner behind."""
SAME = 0.1
"""Part of a step within which projections are of one direction."""


@dataclass(frozen=True, slots=True, eq=False)
class AngleTable:
    """Angles of all projections of a scan, and their order."""

    degrees: Degrees
    """Angle of each projection, as stored."""
    order: Indices
    """Projections by angle: those one after the other are neighbours."""
    positions: Degrees
    """Degrees from the first projection of `order` to each, never decreasing but by an encoder's
    error. Several turns count on where they are stored one after the other."""
    in_order: bool
    """True if projections are stored as in `order`."""
    direction: int
    """1 if stored angles increase along `order`, -1 if they decrease."""
    step: float
    """Typical degrees between neighbours; 0 if all have one direction."""

    def __str__(self) -> str:
        n, first, last = len(self.degrees), self.degrees.min(), self.degrees.max()
        if self.in_order:
            first, last = self.degrees[0], self.degrees[-1]
        order = "" if self.in_order else ", not stored in this order"
        return f"{n} angles from {first:.5g} to {last:.5g} degrees{order}"

    @property
    def turned(self) -> float:
        """Degrees from the first to the last projection in order; over 360 for several turns."""
        return float(self.positions[-1])

    @property
    def gaps(self) -> tuple[tuple[int, int, float], ...]:
        """Neighbours more than `GAP` steps apart: projection before, projection after, degrees."""
        steps = np.diff(self.positions)
        wide = np.flatnonzero(steps > GAP * self.step) if self.step > 0 else ()
        return tuple(
            (int(self.order[k]), int(self.order[k + 1]), float(steps[k])) for k in map(int, wide)
        )

    @property
    def is_half_turn(self) -> bool:
        """True if the scan is of half a turn."""
        return abs(self.turned - HALF_TURN) <= TOLERANCE * HALF_TURN

    def half_turn(self) -> Indices:
        """Projections of half a turn, by angle: of a longer scan the half turn that has most.

        Of projections in one direction the first is taken. The result is shorter than half a turn
        if the scan is.
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
        """Pairs of projections half a turn apart, by angle.

        Parameters
        ----------
        n_pairs : int
            Length of both results. If the scan has fewer pairs, some are repeated, in order. If
            it has more, a direction that was recorded several times is taken once, and the pairs
            are then thinned out evenly.

        Returns
        -------
        front, behind : ndarray of int
            Projections of the first half turn, and the partner of each, half a turn on.

        Raises
        ------
        ValueError
            If less than `MIN_PAIRED` of half a turn has partners.
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
                f"of {self}, {n_half} are within half a turn, and {len(paired)} of these have a "
                "partner half a turn on"
            )
        chosen = paired[np.arange(n_pairs) * len(paired) // n_pairs]
        return frames[chosen], frames[partner[chosen]]

    def are_opposite(self, front: slice, behind: slice) -> bool:
        """True if projections are stored in order, and these two runs are half a turn apart.

        They may be off by one step, as where both ends of a turn are stored.
        """
        turned = np.abs(self.positions[front] - self.positions[behind])
        return self.in_order and bool((np.abs(turned - HALF_TURN) <= 1.01 * self.step).all())

    def opposite_pair(self) -> tuple[int, int, float]:
        """The two projections that are closest to half a turn apart, and the degrees between.

        The first and the last projection are preferred if no pair is closer by more than a step.
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
        """Positions within one turn, in increasing order, and the projections there."""
        within = self.positions % FULL_TURN
        by_angle = np.argsort(within, kind="stable")
        return within[by_angle], self.order[by_angle]


def angle_table(radians: Any) -> AngleTable:
    """Make the table of the angles of a scan.

    Projections count as stored in order if the stage turned one way, by less than `LONGEST_TURN`
    degrees, in steps of at most `NEAR`, or several times through the same directions. Otherwise
    they are ordered by their angles within a turn, from the largest gap on.

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
    within[within == FULL_TURN] = 0  # of a negative number too small to count
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

    Repeated directions, with steps of nearly 0, do not lower it. It is 0 without any steps.
    """
    by_size = np.sort(np.abs(steps))
    covered = by_size.cumsum()
    if len(covered) == 0:
        return 0.0
    return float(by_size[np.searchsorted(covered, covered[-1] / 2)])


def _gaps_of_circle(around: Degrees, period: float) -> Degrees:
    """Degrees from each of increasing positions on a circle to the next."""
    return np.diff(around, append=around[0] + period)


def _nearest(around: Degrees, wanted: Degrees) -> tuple[Indices, Degrees]:
    """Index of the position nearest to each wanted one within a turn, and the degrees between."""
    after = np.searchsorted(around, wanted)
    both = np.stack([after - 1, after]) % len(around)
    off = np.abs((around[both] - wanted + HALF_TURN) % FULL_TURN - HALF_TURN)
    nearer = np.argmin(off, axis=0)
    at = np.arange(len(around))
    return both[nearer, at], off[nearer, at]
