"""The largest patch that fits: grown equally, or along the axes that still have room."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ..estimators.areas import measured_areas
from ..tracing import Spec, Trace, TraceError, WorkAreas
from ..units import format_bytes
from .arguments import (
    channels_of,
    check_divisible,
    check_safety,
    divisors_of,
    positive,
    shape_of,
)
from .batch import STEP_DOWN, explained, make_step, margin_bytes
from .errors import ModelArgumentError, TooLargeError
from .memory import Budget, budget_of, device_of
from .result import PatchShape, Search, Trial
from .step import Mode, Step, Targets
from .trial import Trials

Shape = tuple[int, ...]


def max_patch_shape(
    model: nn.Module,
    ndim: int,
    batch_size: int = 1,
    min_divisible: Sequence[int] | None = None,
    in_channels: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    safety_factor: float = 0.9,
    max_scale_factor: int = 128,
    prediction_function: Callable[[nn.Module, Any], Any] | None = None,
    *,
    memory: str | int | None = None,
    margin: str | int | None = None,
    axes: Sequence[int] | None = None,
    start: Sequence[int] | None = None,
    volume: Sequence[int] | None = None,
    mode: Mode = "inference",
    optimizer: Any = None,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Targets | None = None,
    amp: torch.dtype | bool | None = None,
) -> PatchShape:
    """Return the largest patch that fits on a device, or on a card that is not here.

    The arguments up to `prediction_function`, and what they do, are those of torch_em's
    ``compute_max_patch_shape``: shapes are multiples of `min_divisible`, the same for each
    axis. With `axes`, `start` or `volume` the patch grows equally as far as it can, and then
    along the axes that still have room.

    Parameters
    ----------
    model, in_channels, device, dtype, prediction_function, memory, margin
        As for `max_batch_size`.
    ndim : int
        Spatial axes.
    batch_size : int
        Patches in a batch.
    min_divisible : sequence of int, optional
        What each axis must be divisible by: the smallest patch and the increment. By default
        2 to the power of the model's ``depth``, else 1.
    safety_factor : float
        Part of the memory that may be used, above 0 and at most 1; at least that part of the
        largest multiple is returned, and the smallest patch at the least.
    max_scale_factor : int
        Bound of the multiple; a warning says when it is reached.
    axes : sequence of int, optional
        Axes that grow; the others keep the size that they have in `start`.
    start : sequence of int, optional
        The smallest patch, in place of `min_divisible`.
    volume : sequence of int, optional
        Shape of the volume that patches are cut from: no axis grows beyond the first multiple
        that covers it.
    mode, optimizer, loss, targets, amp
        As for `max_batch_size`.

    Returns
    -------
    PatchShape
        A `tuple` of `int`, whose `result` says what was predicted, tried and measured.

    Raises
    ------
    ModelArgumentError, NoDeviceError, TooLargeError
        As for `max_batch_size`.
    """
    ndim = positive(ndim, "ndim")
    divisors = divisors_of(model, ndim, min_divisible)
    check_safety(safety_factor)
    grid = _grid(divisors, axes, start, volume, positive(max_scale_factor, "max_scale_factor"))
    place = device_of(model, device, memory)
    channels = channels_of(model, in_channels)
    batch = positive(batch_size, "batch_size")
    step = make_step(model, mode, optimizer, loss, targets, amp, prediction_function)
    budget = budget_of(model, place, memory)

    def inputs(shape: Shape) -> tuple[Spec, ...]:
        return (Spec((batch, channels, *shape), dtype),)

    began = time.perf_counter()
    finder = _Finder(step, inputs, budget, grid)
    if start is None:
        grid = finder.begin()
    if not finder.fits(grid.start, budget.limit_bytes):
        raise _too_large(grid.start, finder.trace(grid.start).peak_bytes, budget)
    predicted = finder.largest(budget.limit_bytes)
    at_bound = grid.at_bound(predicted)
    if margin is not None:
        kept = budget.limit_bytes - margin_bytes(margin)
        if not finder.fits(grid.start, kept):
            needed = finder.trace(grid.start).peak_bytes
            raise _too_large(grid.start, needed, budget, margin_bytes(margin))
        asked = finder.largest(kept)
    elif at_bound:
        asked = predicted
    else:
        asked = finder.largest(int(budget.limit_bytes * safety_factor))
        if grid.is_isotropic:  # never less than the part of the multiple itself
            k = int(grid.multiple(predicted) * safety_factor)
            rule = grid.scaled(max(0, k - grid.multiple(grid.start)))
            if finder.fits(rule, budget.limit_bytes):
                asked = max(asked, rule, key=math.prod)
    search = Search(
        "patch shape",
        mode,
        budget.limit_bytes,
        budget.origin,
        predicted,
        asked,
        finder.trace(asked).peak_bytes,
        (),
        finder.areas.origin,
        time.perf_counter() - began - finder.calibration_s,
        finder.calibration_s,
        at_bound,
        finder.notes,
    )
    found, search = _verified(search, finder)
    if at_bound and found == predicted:
        warnings.warn(
            f"the search reached its bound, max_scale_factor={grid.bound}, before the memory's: "
            "more may fit; raise max_scale_factor to know",
            stacklevel=2,
        )
    return PatchShape(found, search)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The shapes that are looked at."""

    start: Shape
    increments: Shape
    axes: Shape
    """Axes that grow."""
    most: Shape
    """Increments that each axis may grow by."""
    bound: int
    """The most that a multiple may be, without a volume."""
    has_volume: bool
    """Whether a volume says how far axes grow."""
    is_isotropic: bool
    """Whether all axes are the same multiple of their increments."""

    def twice(self) -> _Grid:
        """Return the same from a patch of twice the size on, as far as the axes go."""
        first = self.grown(self.start, {a: self.start[a] // self.increments[a] for a in self.axes})
        grown = [
            (size - before) // increment
            for size, before, increment in zip(first, self.start, self.increments, strict=True)
        ]
        most = tuple(m - n for m, n in zip(self.most, grown, strict=True))
        return replace(self, start=first, most=most)

    def scaled(self, k: int) -> Shape:
        """Return the patch that has grown k times along all its axes, as far as they go."""
        return self.grown(self.start, dict.fromkeys(self.axes, k))

    def grown(self, shape: Shape, by: dict[int, int]) -> Shape:
        """Return a patch that has grown along axes by increments, as far as they go."""
        sizes = list(shape)
        for axis, k in by.items():
            most = self.start[axis] + self.most[axis] * self.increments[axis]
            sizes[axis] = min(sizes[axis] + k * self.increments[axis], most)
        return tuple(sizes)

    def along(self, shape: Shape, axis: int, k: int) -> Shape:
        """Return a patch that has grown by k increments along an axis."""
        return self.grown(shape, {axis: k})

    def room(self, shape: Shape, axis: int) -> int:
        """Return how many increments an axis may still grow by."""
        return self.most[axis] - (shape[axis] - self.start[axis]) // self.increments[axis]

    def multiple(self, shape: Shape) -> int:
        """Return how many increments a patch has along its first axis."""
        return shape[0] // self.increments[0]

    def at_bound(self, shape: Shape) -> bool:
        """Tell whether the bound, and not a volume, kept an axis from growing."""
        return not self.has_volume and any(self.room(shape, axis) == 0 for axis in self.axes)


def _grid(
    divisors: Shape,
    axes: Sequence[int] | None,
    start: Sequence[int] | None,
    volume: Sequence[int] | None,
    bound: int,
) -> _Grid:
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
    return _Grid(first, divisors, chosen, most, bound, has_volume, is_isotropic)


@dataclass(slots=True)
class _Finder:
    """Replays patches, each once."""

    step: Step
    inputs: Callable[[Shape], tuple[Spec, ...]]
    budget: Budget
    grid: _Grid
    areas: WorkAreas = field(default_factory=WorkAreas.allowance)
    calibration_s: float = 0.0
    notes: tuple[str, ...] = ()
    _known: dict[Shape, Trace] = field(default_factory=dict)

    def begin(self) -> _Grid:
        """Return the grid from the smallest patch on that the model takes.

        Norms cannot be trained on a single value, which is what the innermost level of a
        U-Net has for the smallest patch.
        """
        first: TraceError | ModelArgumentError | None = None
        for grid in (self.grid, self.grid.twice(), self.grid.twice().twice()):
            try:
                self.trace(grid.start)
            except (TraceError, ModelArgumentError) as error:
                first = first or error
            else:
                self.grid = grid
                return grid
        assert first is not None
        raise first

    def trace(self, shape: Shape) -> Trace:
        """Return the replay of a patch."""
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = self._trace(shape)
            self.notes = self.notes or known.notes
        return known

    def _trace(self, shape: Shape) -> Trace:
        return self.step.trace(self.inputs(shape), WorkAreas.allowance())

    def fits(self, shape: Shape, limit_bytes: int) -> bool:
        """Tell whether a patch runs within a limit.

        Work areas are measured only where they decide: between what runs with those that are
        allowed for, and what does not run even without any.
        """
        trace = self.trace(shape)
        if self.budget.device is None:
            return limit_bytes > 0 and trace.fits(limit_bytes)
        if limit_bytes <= 0 or not trace.with_work_areas(WorkAreas.none()).fits(limit_bytes):
            return False
        if trace.with_work_areas(WorkAreas.allowance()).fits(limit_bytes):
            return True
        self.areas, seconds = measured_areas(trace.calls, self.budget.device)
        self.calibration_s += seconds
        return trace.with_work_areas(self.areas).fits(limit_bytes)

    def largest(self, limit_bytes: int) -> Shape:
        """Return the largest patch that fits: the smallest is known to."""
        grid = self.grid
        top = max(grid.most[axis] for axis in grid.axes)
        k = self._most(grid.scaled, top, limit_bytes)
        shape = grid.scaled(k)
        if grid.is_isotropic:
            return shape
        # One axis alone may still grow where all together cannot.
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
        """Return the largest k up to a bound whose shape fits; that of 0 does.

        What is needed grows with the volume, so each replay tells where to look next.
        """
        low, high = 0, top + 1  # the first fits, the second is not looked at
        while high - low > 1:
            guess = self._guess(at, low, high, limit_bytes)
            if self.fits(at(guess), limit_bytes):
                low = guess
            else:
                high = guess
        return low

    def _guess(self, at: Callable[[int], Shape], low: int, high: int, limit_bytes: int) -> int:
        known = sorted(
            (math.prod(at(k)), self._known[at(k)].peak_bytes)
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
        # Between what fits and what does not; next to either of them it is settled soon.
        return min(high - 1, max(low + 1, k))


def _verified(search: Search, finder: _Finder) -> tuple[Shape, Search]:
    shape = search.asked
    assert isinstance(shape, tuple)
    budget = finder.budget
    if budget.device is None:
        return shape, search
    trials = Trials(finder.step, budget.device, budget.limit_bytes)
    tried: list[Trial] = []
    part = 1.0
    while True:
        tried.append(trials.run(shape, finder.inputs(shape), finder.trace(shape).peak_bytes))
        if tried[-1].fits:
            break
        if shape == finder.grid.start or part <= STEP_DOWN:
            raise _too_large(shape, finder.trace(shape).peak_bytes, budget)
        smaller = shape
        while smaller == shape or math.prod(smaller) > math.prod(shape):
            part -= STEP_DOWN
            smaller = finder.largest(int(budget.limit_bytes * part))
        shape = smaller
    notes = (*search.notes, *explained(trials.here_because))
    return shape, replace(search, tried=tuple(tried), notes=notes)


def _too_large(shape: Shape, needed: int, budget: Budget, margin: int = 0) -> TooLargeError:
    less = f" less a margin of {format_bytes(margin)}" if margin else ""
    return TooLargeError(
        f"a patch of {'x'.join(map(str, shape))}, the smallest, does not fit: it needs "
        f"{format_bytes(needed)}, and there are {format_bytes(budget.limit_bytes)}{less} "
        f"({budget.origin}); take a smaller batch or model, or a card with more memory"
    )
