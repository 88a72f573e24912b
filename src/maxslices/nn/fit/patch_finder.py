"""Search for the largest patch that fits; each shape is replayed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ...tuning.garbage_collection import quick_collections
from ..memory_budget import MemoryBudget
from ..nn_errors import ModelArgumentError
from ..replay import CachingAllocator, DataDependentError, Spec, Trace, TraceError, Workspaces
from ..replay.measure_workspaces import measured_workspaces
from ..replay.steady_state import steady
from ..step.call_inputs import check_divisible, shape_of
from ..step.model_step import ModelStep

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Shapes that are searched: a start, and increments along axes."""

    start: Shape
    increments: Shape
    axes: Shape
    """Axes that grow."""
    most: Shape
    """Maximum number of increments along each axis."""
    bound: int
    """Maximum multiple of the increments without a volume."""
    has_volume: bool
    """True if a volume bounds the axes."""
    is_isotropic: bool
    """True if all axes are the same multiple of their increments."""

    def twice(self) -> PatchGrid:
        """Grid that begins with a patch of twice the size."""
        first = self.grown(self.start, {a: self.start[a] // self.increments[a] for a in self.axes})
        grown = [
            (size - before) // increment
            for size, before, increment in zip(first, self.start, self.increments, strict=True)
        ]
        most = tuple(m - n for m, n in zip(self.most, grown, strict=True))
        return replace(self, start=first, most=most)

    def scaled(self, k: int) -> Shape:
        """Patch grown k times along all axes, each up to its bound."""
        return self.grown(self.start, dict.fromkeys(self.axes, k))

    def grown(self, shape: Shape, by: dict[int, int]) -> Shape:
        """Patch grown along some axes, each up to its bound."""
        sizes = list(shape)
        for axis, k in by.items():
            most = self.start[axis] + self.most[axis] * self.increments[axis]
            sizes[axis] = min(sizes[axis] + k * self.increments[axis], most)
        return tuple(sizes)

    def along(self, shape: Shape, axis: int, k: int) -> Shape:
        """Patch grown by k increments along one axis."""
        return self.grown(shape, {axis: k})

    def room(self, shape: Shape, axis: int) -> int:
        """Number of increments by which an axis may still grow."""
        return self.most[axis] - (shape[axis] - self.start[axis]) // self.increments[axis]

    def multiple(self, shape: Shape) -> int:
        """Number of increments of a patch along its first axis."""
        return shape[0] // self.increments[0]

    def at_bound(self, shape: Shape) -> bool:
        """True if the bound, and not a volume, stopped an axis."""
        return not self.has_volume and any(self.room(shape, axis) == 0 for axis in self.axes)


def grid_of(
    divisors: Shape,
    axes: Sequence[int] | None,
    start: Sequence[int] | None,
    volume: Sequence[int] | None,
    bound: int,
) -> PatchGrid:
    """Grid for the arguments of `max_patch_shape`."""
    ndim = len(divisors)
    first = divisors if start is None else shape_of(start, "start", ndim)
    check_divisible(first, divisors, "start")
    chosen = tuple(range(ndim)) if axes is None else tuple(axes)
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(ndim)):
        raise ModelArgumentError(
            f"axes {chosen} are not some of the axes 0 to {ndim - 1} of a patch, each once"
        )
    whole = None if volume is None else shape_of(volume, "volume", ndim)
    most = tuple(
        max(0, bound - size // divisor if whole is None else -(-(whole[axis] - size) // divisor))
        for axis, (size, divisor) in enumerate(zip(first, divisors, strict=True))
    )
    has_volume = whole is not None
    is_isotropic = axes is None and start is None and not has_volume
    return PatchGrid(first, divisors, chosen, most, bound, has_volume, is_isotropic)


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
