"""Choice of rewrites that keep the memory in use below a limit for the least time.

The changes of each rewrite are added to the memory in use at each event of the unreduced step.
This neglects how rewrites affect each other. A chosen set is therefore replayed, and another one
chosen for a lower limit if it needs too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .candidates import Candidate
from .study import ModuleOrder

Curve = npt.NDArray[np.floating]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
PEAK_POWER = 16.0
"""Exponent of the memory in use where all of it is lowered. The larger it is, the more the peak
dominates."""
LEAST_GAIN = 1e-3
"""Smallest relative improvement for which another candidate is added there."""
COST_POWERS = (1.0, 0.5)
"""Exponents of the cost in the score of a greedy choice, gain / cost**power."""


@dataclass(slots=True, eq=False)
class Knapsack:
    """Memory in use on stretches of events, and the changes of each candidate, as a knapsack."""

    candidates: list[Candidate]
    usage: Curve
    """(n_stretches,): maximum in use in each stretch, without rewrites."""
    changes: Curve
    """(n_candidates, n_stretches): changes of the memory in use."""
    conflicts: Flags
    """(n_candidates, n_candidates): True for pairs that exclude each other."""
    within: Flags
    """(n_candidates, n_candidates): True if the first may be inside the second. It then counts from
    the second's backward pass on, as the second keeps nothing inside before."""
    begins: Rows
    """(n_candidates,): stretch in which the backward pass of each begins."""
    forward: Rows
    """(n_candidates, 2): first stretch of the forward pass of each, and the one after it."""
    before: Curve
    """(n_candidates,): bytes in use before the recomputation, with its results that still exist."""
    costs: Curve
    """(n_candidates,): added seconds, infinite for excluded candidates."""

    @classmethod
    def of(
        cls, usage: npt.NDArray[np.int64], candidates: Sequence[Candidate], order: ModuleOrder
    ) -> Knapsack:
        """Build the knapsack of candidates for a step of a model."""
        n_events = len(usage)

        def event(at: int) -> int:
            return min(max(at, 0), n_events)

        ends = {event(end) for c in candidates for change in c.changes for end in change[:2]}
        ends |= {event(at) for c in candidates for at in (c.begin - 1, c.begin, *c.forward)}
        edges = sorted({0, *ends} - {n_events})
        most = np.maximum.reduceat(usage, edges).astype(np.float32)
        stretch_of = {edge: i for i, edge in enumerate(edges)}
        stretch_of[n_events] = len(edges)
        changes = np.zeros((len(candidates), len(edges)), np.float32)
        for row, candidate in enumerate(candidates):
            for first, end, n_bytes in candidate.changes:
                if end > first:
                    changes[row, stretch_of[event(first)] : stretch_of[event(end)]] += n_bytes
        stretches = np.array([order.stretch(c.path) for c in candidates]).reshape(-1, 2)
        a, b = stretches[:, :1], stretches[:, 1:]
        overlap = (a < b.T) & (b > a.T)
        inside = (a >= a.T) & (b <= b.T) & (b - a < (b - a).T)
        outer = np.array([c.rewrite.kind == "checkpoint" for c in candidates], bool)
        # The cache of a selective checkpoint cannot be read twice, as inside it would be.
        inner = np.array([c.rewrite.kind != "selective" for c in candidates], bool)
        within = inside & inner[:, None] & outer[None, :]
        conflicts = overlap & ~within & ~within.T
        np.fill_diagonal(conflicts, False)
        return cls(
            list(candidates), most, changes, conflicts, within,
            np.array([stretch_of[event(c.begin)] for c in candidates], np.int64),
            np.array([[stretch_of[event(at)] for at in c.forward] for c in candidates], np.int64),
            np.array(
                [
                    float(usage[c.forward[0] - 1] if c.forward[0] else 0) + c.results_bytes
                    for c in candidates
                ]
            ),
            np.zeros(len(candidates)),
        )  # fmt: skip

    def curve(self, chosen: Sequence[int]) -> Curve:
        """Expected memory in use on each stretch with a set of candidates."""
        rows = np.array(list(chosen), np.int64)
        if not rows.size:
            return self.usage.copy()
        counts = np.arange(len(self.usage)) >= self._from(rows, rows)[:, None]
        curve: Curve = self.usage + (self.changes[rows] * counts).sum(axis=0)
        for outer in rows:
            # Just before its backward pass it is recomputed, with the rewrites inside.
            inner = rows[self.within[rows, outer]]
            first, end = self.forward[outer]
            if inner.size and end > first:
                again = self.usage[first:end] + self.changes[inner, first:end].sum(axis=0)
                rise = float(again.max() - self.before[outer])
                curve[self.begins[outer] - 1] += max(rise, 0.0)
        return curve

    def _from(self, rows: Rows, chosen: Rows) -> Rows:
        """Stretch from which each row counts, given the candidates around it."""
        if not chosen.size:
            return np.zeros(len(rows), np.int64)
        around = self.within[np.ix_(rows, chosen)]
        begins: Rows = np.where(around, self.begins[chosen], 0).max(axis=1)
        return begins

    def peak(self, chosen: Sequence[int]) -> int:
        """Expected peak with a set of candidates."""
        return int(self.curve(chosen).max())

    def cost(self, chosen: Sequence[int]) -> float:
        """Time that a set of candidates adds, each by itself."""
        return float(self.costs[list(chosen)].sum())

    def cheapest(self, limit_bytes: float) -> list[int] | None:
        """Cheapest set within a limit, by greedy choices; None if they find none."""
        self._read_costs()
        if self.usage.max() <= limit_bytes:
            return []
        # A rewrite of the whole model conflicts with all other candidates and would end the choice.
        whole = self.whole()
        best: list[int] | None = None
        for power in COST_POWERS:
            chosen = self._greedy(limit_bytes, power, whole)
            if chosen is None:
                continue
            chosen = self._pruned(chosen, limit_bytes)
            if best is None or self.cost(chosen) < self.cost(best):
                best = chosen
        return best

    def lowest(self) -> list[int]:
        """Set that lowers the memory in use, at the peak and elsewhere, at any cost.

        The less memory is in use, the fewer gaps there are.
        """
        self._read_costs()
        excluded = [*self.whole(), *np.flatnonzero(np.isinf(self.costs))]
        chosen: list[int] = []
        for _ in range(2 * len(self.candidates)):
            curve = self.curve(chosen)
            trials, price = self.with_one_more(np.array(chosen, np.int64), curve)
            # Candidates that double the peak are never chosen, so larger values are clipped.
            level = np.clip(trials / curve.max(), 0, 2).astype(np.float64) ** PEAK_POWER
            now = ((curve / curve.max()) ** PEAK_POWER).sum(dtype=np.float64)
            gain = now - level.sum(axis=1)
            gain[[*chosen, *excluded]] = 0
            row = int((gain / np.maximum(price, 1e-9) ** COST_POWERS[-1]).argmax())
            if gain[row] <= LEAST_GAIN * now:
                break
            chosen = [*(i for i in chosen if not self.conflicts[row, i]), row]
        return chosen

    def _read_costs(self) -> None:
        """Read the candidates' costs, which are infinite for excluded ones."""
        self.costs = np.array([max(c.cost_s, 1e-9) for c in self.candidates])

    def whole(self) -> list[int]:
        """Usable rewrites of the whole model."""
        return [i for i, c in enumerate(self.candidates) if not c.path and c.is_usable]

    def _greedy(self, limit_bytes: float, power: float, banned: Sequence[int]) -> list[int] | None:
        """Add the candidate with the most gain for its cost, until nothing exceeds the limit."""
        n = len(self.candidates)
        if not n:
            return None
        allowed = np.ones(n, bool)
        allowed[list(banned)] = False
        chosen = np.zeros(n, bool)
        curve = self.curve(())
        for _ in range(2 * n):
            excess = np.maximum(curve - limit_bytes, 0)
            total, top = excess.sum(), excess.max()
            if top <= 0:
                return [int(i) for i in np.flatnonzero(chosen)]
            picked = np.flatnonzero(chosen)
            trials, price = self.with_one_more(picked, curve)
            trials -= limit_bytes
            left = np.maximum(trials, 0, out=trials)
            # The area above the limit counts. The height only breaks near ties, hence its weight.
            gain = (total - left.sum(axis=1)) / total + 0.1 * (top - left.max(axis=1)) / top
            gain[chosen | ~allowed] = 0
            score = np.where(gain > 1e-6, gain / np.maximum(price, 1e-9) ** power, 0)
            row = int(score.argmax())
            if score[row] <= 0:
                return None
            chosen[self.conflicts[row]] = False
            chosen[row] = True
            curve = self.curve(np.flatnonzero(chosen).tolist())
        return None

    def with_one_more(self, picked: Rows, curve: Curve) -> tuple[Curve, Curve]:
        """Memory in use and added cost with each candidate added to a set.

        Candidates of the set that conflict with it are removed.

        Parameters
        ----------
        picked : numpy.ndarray
            Rows of the chosen candidates.
        curve : numpy.ndarray
            (n_stretches,): memory in use with them.

        Returns
        -------
        numpy.ndarray
            (n_candidates, n_stretches)
        numpy.ndarray
            (n_candidates,)
        """
        since = self._from(np.arange(len(self.candidates)), picked)
        trials = curve + self.changes
        for inner in np.flatnonzero(since):
            trials[inner, : since[inner]] = curve[: since[inner]]
        price = self.costs.copy()
        replaced = self.conflicts[:, picked]
        # Row by row: each replaces few candidates, and a matrix product has to start its threads.
        for i, other in enumerate(picked):
            price[replaced[:, i]] -= self.costs[other]
            trials[replaced[:, i], since[other] :] -= self.changes[other, since[other] :]
            for around in np.flatnonzero(self.within[other] & ~replaced[:, i]):
                its = slice(since[other], self.begins[around])
                trials[around, its] -= self.changes[other, its]
        return trials, price

    def _pruned(self, chosen: list[int], limit_bytes: float) -> list[int]:
        """Remove candidates that are not needed, the most expensive first."""
        for row in sorted(chosen, key=lambda i: -self.costs[i]):
            rest = [i for i in chosen if i != row]
            if self.peak(rest) <= limit_bytes:
                chosen = rest
        return chosen
