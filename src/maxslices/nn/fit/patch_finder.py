"""Search for the largest patch that fits; each shape is replayed once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ...tuning.garbage_collection import quick_collections
from ..memory_budget import MemoryBudget
from ..nn_errors import ModelArgumentError
from ..replay import CachingAllocator, DataDependentError, Spec, Trace, TraceError, Workspaces
from ..replay.steady_state import steady
from ..step.model_step import ModelStep
from ..workspace_cache import measured_workspaces
from .patch_grid import PatchGrid, Shape

DOUBLINGS = 10
"""Sizes that are tried for the smallest patch: 1, 2, 4 ... 512 times the divisors."""

_PART = 128
"""The first size tried below one that fails is 1 / 128 smaller, the next another 1 / 64."""


@dataclass(slots=True)
class PatchFinder:
    """Replays of patches, and the search over them."""

    step: ModelStep
    inputs: Callable[[Shape], tuple[Spec, ...]]
    budget: MemoryBudget
    grid: PatchGrid
    workspaces: Workspaces = field(default_factory=Workspaces.allowance)
    calibration_s: float = 0.0
    notes: tuple[str, ...] = ()
    _known: dict[Shape, Trace] = field(default_factory=dict)

    def begin(self) -> PatchGrid:
        """Grid that begins with the smallest patch the model accepts.

        A norm cannot be trained on a single value, and the innermost level of a U-Net has only one
        for the smallest patch; a convolution without padding needs as much as its kernel. So
        patches of twice the size are tried, and twice again.
        """
        first: TraceError | ModelArgumentError | None = None
        grid, tried = self.grid, list[str]()
        while len(tried) < DOUBLINGS and all(grid.most[axis] >= 0 for axis in grid.axes):
            tried.append("x".join(map(str, grid.start)))
            try:
                self.trace(grid.start)
            except DataDependentError:
                raise
            except (TraceError, ModelArgumentError) as error:
                first = first or error
            else:
                self.grid = grid
                return grid
            grid = grid.twice()
        assert first is not None
        raise type(first)(
            f"{first}; patches of {', '.join(tried)} do not run: name a size that the model takes "
            "as min_divisible (--divisible): the smallest patch, and what larger ones are "
            "multiples of"
        ) from first

    def trace(self, shape: Shape) -> Trace:
        """Replay of a patch."""
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = self._trace(shape)
            self.notes = self.notes or known.notes
        return known

    def _trace(self, shape: Shape) -> Trace:
        return self.step.trace(self.inputs(shape), Workspaces.allowance())

    def fits(self, shape: Shape, limit_bytes: int) -> bool:
        """True if a patch runs within a limit.

        Workspaces are measured only if they decide: the patch runs without any, and does not
        run with those allowed for.
        """
        trace = self.trace(shape)
        if self.budget.device is None:
            return limit_bytes > 0 and _lasts(trace, limit_bytes)
        if limit_bytes <= 0 or not trace.with_workspaces(Workspaces.none()).fits(limit_bytes):
            return False
        if _lasts(trace.with_workspaces(Workspaces.allowance()), limit_bytes):
            return True
        self.workspaces, seconds = measured_workspaces(trace.calls, self.budget.device)
        self.calibration_s += seconds
        return _lasts(trace.with_workspaces(self.workspaces), limit_bytes)

    @quick_collections()
    def largest(self, limit_bytes: int) -> Shape:
        """Largest patch that fits; the smallest is known to."""
        grid = self.grid
        top = max(grid.most[axis] for axis in grid.axes)
        k = self._most(grid.scaled, top, limit_bytes)
        shape = grid.scaled(k)
        if grid.is_isotropic:
            return shape
        # One axis may have room where all axes together have none.
        for _ in grid.axes:
            grown = [shape]
            for axis in grid.axes:
                room = grid.room(shape, axis)
                if room:
                    along = partial(grid.along, shape, axis)
                    grown.append(along(self._most(along, room, limit_bytes)))
            best = max(grown, key=math.prod)
            if best == shape:
                break
            shape = best
        return shape

    def _most(self, at: Callable[[int], Shape], top: int, limit_bytes: int) -> int:
        """Largest k, up to `top`, whose shape fits; k = 0 is known to.

        What is allocated grows with the volume, so two replays predict the next size to try. It
        may fail all the same, as the allocator needs more than it hands out: then sizes further
        and further below are tried, and those between.
        """
        low, high = 0, top + 1  # the first fits, the second is not looked at
        step = 0
        while high - low > 1:
            if step:
                guess = max((low + high) // 2, high - step)
            else:
                guess = self._guess(at, low, high, limit_bytes)
            if self.fits(at(guess), limit_bytes):
                low = guess
            else:
                high = guess
                step = 2 * step or -(-high // _PART)
        return low

    def _guess(self, at: Callable[[int], Shape], low: int, high: int, limit_bytes: int) -> int:
        known = sorted(
            (math.prod(at(k)), self._known[at(k)].allocated_bytes)
            for k in {low, low - 1, low // 2, high}
            if k >= 0 and at(k) in self._known
        )
        if len(known) < 2 or known[-1][1] <= known[-2][1]:
            return min(high - 1, max(low + 1, 2 * low))
        (volume, n_bytes), (volume2, n_bytes2) = known[-2:]
        wanted = volume + (limit_bytes - n_bytes) * (volume2 - volume) / (n_bytes2 - n_bytes)
        k = low
        while k + 1 < high and math.prod(at(k + 1)) <= wanted:
            k += 1
        # Stay between the largest size that fits and the smallest that does not.
        return min(high - 1, max(low + 1, k))


def _lasts(trace: Trace, limit_bytes: int) -> bool:
    """True if a step runs within a limit, and all later ones too."""
    return steady(trace, CachingAllocator(limit_bytes)).runs
