"""Chooses treatments: the least time for which the memory in use stays below a limit.

What one treatment changes is added to what the unreduced step has in use at each event. That
is right but for what treatments do to each other, so what is chosen is replayed, and chosen
again with a limit that is lower by what the replay found more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .candidates import Candidate

Curve = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
CAPS = (1.0, 0.5, 0.25, 0.1)
"""Parts of the most that one treatment saves: searches leave out what saves more at once,
because what is kept of a large module comes back all at once when it is computed again."""
POWERS = (1.0, 0.5, 0.25)
"""How much the cost counts against what is saved."""


@dataclass(slots=True, eq=False)
class Problem:
    """What is in use, and what each candidate changes of it, on stretches of events."""

    found: list[Candidate]
    usage: Curve
    """(n_stretches,): most in use in a stretch, unreduced."""
    changes: Curve
    """(n_candidates, n_stretches)"""
    conflicts: Flags
    """(n_candidates, n_candidates): whether one is inside the other."""
    costs: Curve
    saved: Curve

    @classmethod
    def of(cls, usage: npt.NDArray[np.int64], found: Sequence[Candidate]) -> Problem:
        """Return the problem of some candidates on a step."""
        n_events = len(usage)
        ends = {
            min(max(end, 0), n_events) for c in found for change in c.changes for end in change[:2]
        }
        edges = sorted({0, *ends} - {n_events})
        most = np.maximum.reduceat(usage, edges).astype(np.float64)
        place = {edge: i for i, edge in enumerate(edges)}
        place[n_events] = len(edges)
        changes = np.zeros((len(found), len(edges)))
        for row, candidate in enumerate(found):
            for first, end, n_bytes in candidate.changes:
                if end <= first:
                    continue
                a, b = place[min(max(first, 0), n_events)], place[min(end, n_events)]
                changes[row, a:b] += n_bytes
        names = [c.path + "." if c.path else "" for c in found]
        conflicts = np.array(
            [[a.startswith(b) or b.startswith(a) for b in names] for a in names], bool
        ).reshape(len(found), len(found))
        np.fill_diagonal(conflicts, False)
        costs = np.array([max(c.cost_s, 1e-9) for c in found])
        saved = np.array([float(c.saved_bytes) for c in found])
        return cls(list(found), most, changes, conflicts, costs, saved)

    def peak(self, chosen: Sequence[int]) -> int:
        """Return the expected peak with some candidates."""
        return int((self.usage + self.changes[list(chosen)].sum(axis=0)).max())

    def cheapest(self, limit_bytes: float) -> list[int] | None:
        """Return the cheapest set found that stays within a limit; None if there is none."""
        if self.usage.max() <= limit_bytes:
            return []
        best: list[int] | None = None
        for cap in CAPS:
            for power in POWERS:
                chosen = self._greedy(limit_bytes, power, cap)
                if chosen is None:
                    continue
                chosen = self._without_waste(chosen, limit_bytes)
                if best is None or self.costs[chosen].sum() < self.costs[best].sum():
                    best = chosen
        return best

    def lowest(self) -> list[int]:
        """Return what makes the peak as low as was found, whatever it costs."""
        low, high = 0.0, float(self.usage.max())
        best: list[int] = []
        while high - low > max(2.0**20, high / 200):
            middle = (low + high) / 2
            tries = (self._greedy(middle, 0.25, cap) for cap in CAPS)
            chosen = next((c for c in tries if c is not None), None)
            if chosen is None:
                low = middle
            else:
                best = chosen
                high = min(middle, float(self.peak(chosen)))
        return best

    def _greedy(self, limit_bytes: float, power: float, cap: float) -> list[int] | None:
        """Add what takes most of the excess away for its cost, until nothing is above."""
        n = len(self.found)
        if not n:
            return None
        allowed = self.saved <= cap * self.saved.max()
        chosen = np.zeros(n, bool)
        curve = self.usage.copy()
        for _ in range(2 * n):
            excess = np.maximum(curve - limit_bytes, 0)
            total, top = excess.sum(), excess.max()
            if top <= 0:
                return [int(i) for i in np.flatnonzero(chosen)]
            picked = np.flatnonzero(chosen)
            replaced = self.conflicts[:, picked]
            trials = curve + self.changes
            price = self.costs.copy()
            if picked.size:
                trials -= replaced.astype(np.float64) @ self.changes[picked]
                price -= replaced @ self.costs[picked]
            left = np.maximum(trials - limit_bytes, 0)
            gain = (total - left.sum(axis=1)) / total + 0.1 * (top - left.max(axis=1)) / top
            gain[chosen | ~allowed] = 0
            score = np.where(gain > 1e-6, gain / np.maximum(price, 1e-9) ** power, 0)
            row = int(score.argmax())
            if score[row] <= 0:
                return None
            chosen[picked[replaced[row]]] = False
            chosen[row] = True
            curve = trials[row]
        return None

    def _without_waste(self, chosen: list[int], limit_bytes: float) -> list[int]:
        """Undo what is not needed, the dearest first."""
        for row in sorted(chosen, key=lambda i: -self.costs[i]):
            rest = [i for i in chosen if i != row]
            if self.peak(rest) <= limit_bytes:
                chosen = rest
        return chosen
