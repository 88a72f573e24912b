"""Search for the largest batch or patch that fits: predicted, then verified by real steps.

A size has one number for each axis: the batch, or the shape of a patch. It grows by increments
along its axes. The sizes along one or all of them are the numbers of one `StepFamily`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ...core.memory_model import last_true
from ...core.units import format_bytes
from ...tuning.garbage_collection import quick_collections
from ..memory_budget import MemoryBudget
from ..nn_errors import ModelArgumentError, TooLargeError
from ..replay import DataDependentError, StepFamily, Trace, TraceError, Workspaces
from ..replay.measure_workspaces import measured_workspaces
from ..step.model_step import ModelStep, shapes_text
from .answers import SearchLog, VerifiedStep
from .real_step import run_within

MOST = 2**20
"""Upper bound of the search: a step that still fits does not grow with its batch."""
ROUNDS = 4
"""Maximum number of sizes at which workspaces are measured. Each size is predicted with the
workspaces measured so far. cuDNN changes kernels with the batch size (for ViT-B/16 between 192 and
224 images on an H200), so the prediction may move each time."""
STEP_DOWN = 0.005
"""Part of the limit given up when a step that was predicted to fit runs out of memory; twice as
much each time that it happens again. For VGG16-BN, ResNet50 and ViT-B/16 on an H200, such steps had
been predicted to leave 3 to 18 MiB. Of ResNet50, 262 images in 24 GB did not run, and 261 did."""
NEAR = 2
"""A larger batch that did not run ends the search if one that is smaller by at most this ran."""
DOUBLINGS = 10
"""Sizes that are tried for the smallest patch: 1, 2, 4 ... 512 times the divisors."""

Size = tuple[int, ...]


class SizeSearch:
    """Search for the largest batch or patch.

    Parameters
    ----------
    inputs : callable
        Function of a size that returns the model's arguments.
    least : tuple of int
        Smallest size, and the increment of each axis.
    ends : tuple of int
        Largest size of each axis.
    has_volume : bool
        Whether single axes may grow after all axes together have reached the limit.
    """

    def __init__(
        self,
        kind: Literal["batch size", "patch shape"],
        step: ModelStep,
        budget: MemoryBudget,
        inputs: Callable[[Size], Sequence[Any]],
        least: Size,
        ends: Size,
        has_volume: bool = False,
    ) -> None:
        self.kind, self.step, self.budget = kind, step, budget
        self.inputs, self.least, self.ends = inputs, least, ends
        self.increments, self.has_volume = least, has_volume
        self.is_batch = kind == "batch size"
        self.began = time.perf_counter()
        self.calibration_s = 0.0
        self._traces: dict[Size, Trace] = {}
        self._families: dict[tuple[Size, Size], StepFamily] = {}
        self._places: dict[Size, tuple[StepFamily, int]] = {}

    def find_smallest(self) -> None:
        """Find the smallest patch that the model accepts, by doubling the increments.

        A norm cannot be trained on a single value, and the innermost level of a U-Net has only one
        for the smallest patch. A convolution without padding needs at least its kernel's size.
        """
        first: TraceError | ModelArgumentError | None = None
        size, tried = self.least, list[str]()
        while len(tried) < DOUBLINGS and size not in self._traces:
            tried.append("x".join(map(str, size)))
            try:
                self._trace(size)
            except DataDependentError:
                raise
            except (TraceError, ModelArgumentError) as error:
                first = first or error
                if size == self.ends:
                    break
                size = tuple(map(min, (2 * n for n in size), self.ends))
            else:
                self.least = size
                return
        assert first is not None
        raise type(first)(
            f"{first}; patches of {', '.join(tried)} do not run. Pass a size that the model "
            "accepts as min_divisible (--divisible); larger patches are its multiples"
        ) from first

    def _trace(self, size: Size) -> Trace:
        if size not in self._traces:
            self._traces[size] = self.step.trace(self.inputs(size), Workspaces.allowance())
        return self._traces[size]

    def _grown(self, size: Size, axes: Sequence[int], n: int) -> Size:
        """Size grown by n increments along some axes, each up to its end."""
        grown = [each + n * self.increments[a] * (a in axes) for a, each in enumerate(size)]
        return tuple(map(min, grown, self.ends))

    def _room(self, size: Size, axis: int) -> int:
        """Number of increments by which an axis may still grow."""
        return (self.ends[axis] - size[axis]) // self.increments[axis]

    def _along(self, size: Size, axes: Size, limit_bytes: int, failed: int = 0) -> Size | None:
        """Largest size that a size can grow to along some axes; None if it does not fit."""
        most = 1 + max(self._room(size, axis) for axis in axes)
        if (size, axes) not in self._families:
            family = StepFamily(lambda n: self._trace(self._grown(size, axes, n - 1)), most=most)
            self._families[size, axes] = self._measured(family, most)
        family = self._families[size, axes]
        self._places.setdefault(size, (family, 1))
        if self.is_batch:
            n = family.largest(limit_bytes, failed - 1 if failed else most)
        else:
            n, high = 0, 1
            while high <= most and limit_bytes > 0 and family.is_steady(high, limit_bytes):
                n, high = high, 2 * high
            if n:
                n = last_true(lambda n: family.is_steady(n, limit_bytes), n, min(high, most + 1))
        return self._at(size, axes, n) if n else None

    def _at(self, size: Size, axes: Sequence[int], n: int) -> Size:
        """Size of a number of a family, with the place of that size noted."""
        grown = self._grown(size, axes, n - 1)
        self._places.setdefault(grown, (self._families[size, tuple(axes)], n))
        return grown

    @quick_collections()
    def largest(self, limit_bytes: int, failed: Size | None = None) -> Size | None:
        """Largest size predicted to run within a limit; None if the smallest does not.

        Only sizes below `failed`, if any, are searched.
        """
        axes = tuple(range(len(self.least)))
        n_failed = failed[0] if failed is not None and self.is_batch else 0
        size = self._along(self.least, axes, limit_bytes, n_failed)
        if size is None:
            return None
        # One axis may have room where all axes together have none.
        for _ in axes if self.has_volume else ():
            open_axes = [axis for axis in axes if self._room(size, axis)]
            grown = [self._along(size, (axis,), limit_bytes) for axis in open_axes]
            best = max([size, *filter(None, grown)], key=math.prod)
            if best == size:
                break
            size = best
        return size if failed is None or math.prod(size) < math.prod(failed) else failed

    def _with_factor(self, predicted: Size, safety_factor: float) -> Size:
        """Size that leaves a part of the memory, and is at least that part of the predicted one."""
        limit_bytes = self.budget.limit_bytes
        asked = self.largest(int(limit_bytes * safety_factor)) or self.least
        if self.has_volume:
            return asked
        family, n = self._places[predicted]
        more = self.least[0] // self.increments[0] - 1
        n_asked = self._places[asked][1]
        part = max(n_asked, int((n + more) * safety_factor) - more)
        # The allocator's fragmentation differs from one size to the next.
        while part < n and not family.fits(part, limit_bytes):
            part += 1
        return self._at(self.least, range(len(asked)), part) if part > n_asked else asked

    def _measured(self, family: StepFamily, bound: int) -> StepFamily:
        """Family with the workspaces of the device, if there is one.

        cuDNN uses other kernels for large batches, so workspaces are measured at the predicted
        size, and the prediction is repeated with them.
        """
        if self.budget.device is None:
            return family
        limit_bytes = self.budget.limit_bytes
        n, measured = max(1, family.largest(limit_bytes, bound)), set[int]()
        while n and n not in measured and len(measured) < ROUNDS:
            workspaces, seconds = measured_workspaces(family.calls(n), self.budget.device)
            measured.add(n)
            self.calibration_s += seconds
            family = family.with_workspaces(workspaces)
            n = family.largest(limit_bytes, bound)
        return family

    def answer(self, safety_factor: float) -> SearchLog:
        """Predict the largest size, and verify it if there is a device.

        With a factor of 1, a device also tries larger batches.

        Raises
        ------
        TooLargeError
            If the smallest size does not fit.
        """
        limit_bytes = self.budget.limit_bytes
        predicted = self.largest(limit_bytes)
        if predicted is None:
            raise self._too_large()
        at_bound = not self.has_volume and predicted == self.ends
        has_factor = safety_factor < 1 and not at_bound
        asked = self._with_factor(predicted, safety_factor) if has_factor else predicted
        family, n = self._places[asked]
        log = SearchLog(
            self.kind,
            self.step.mode,
            limit_bytes,
            self.budget.origin,
            self._shown(predicted),
            self._shown(asked),
            family.allocated_bytes(n),
            (),
            family.workspaces.origin,
            time.perf_counter() - self.began - self.calibration_s,
            self.calibration_s,
            at_bound,
            (*family.notes, *(gap_notes(family, n, limit_bytes) if self.is_batch else ())),
            safety_factor if has_factor else 1.0,
        )
        if self.budget.device is None:
            return log
        return replace(log, tried=tuple(self._verified(asked, safety_factor == 1)))

    def _shown(self, size: Size) -> int | Size:
        return size[0] if self.is_batch else size

    def _verified(self, size: Size, tries_larger: bool) -> list[VerifiedStep]:
        """Run steps of smaller and smaller sizes until one runs, then of batches in between."""
        tried: list[VerifiedStep] = []
        limit_bytes = self.budget.limit_bytes
        part, step_down = 1.0, STEP_DOWN
        failed: Size | None = None
        while not self._runs(size, tried):
            if size == self.least:
                raise self._too_large()
            failed = size
            while size == failed:
                part, step_down = part - step_down, 2 * step_down
                smaller = self.largest(int(limit_bytes * part), failed) if part > 0 else None
                size = smaller or self.least
        if self.is_batch and (failed is not None or tries_larger):
            self._try_larger(size[0], 0 if failed is None else failed[0], tried)
        return tried

    def _try_larger(self, ran: int, failed: int, tried: list[VerifiedStep]) -> None:
        """Run larger batches than one that ran, until the largest is known to within `NEAR`."""
        most, apart = min(self.ends[0], 2 * ran), NEAR
        while not failed and ran < most:
            n = min(ran + apart, most)
            if self._runs((n,), tried):
                ran, apart = n, 2 * apart
            else:
                failed = n
        while failed and failed - ran > NEAR:
            middle = (ran + failed) // 2
            ran, failed = (middle, failed) if self._runs((middle,), tried) else (ran, middle)

    def _runs(self, size: Size, tried: list[VerifiedStep]) -> bool:
        """Run steps of a size on the device, and add them to those tried."""
        device, limit_bytes = self.budget.device, self.budget.limit_bytes
        assert device is not None
        began = time.perf_counter()
        peak = run_within(self.step, self.inputs(size), device, limit_bytes)
        allocated, reserved = (0, 0) if peak is None else peak
        duration_s = time.perf_counter() - began
        shown = self._shown(size)
        tried.append(VerifiedStep(shown, peak is not None, allocated, reserved, duration_s))
        return tried[-1].fits

    def _too_large(self) -> TooLargeError:
        """Error for a smallest size that does not fit."""
        family, n = self._places[self.least]
        what = f"a patch of {'x'.join(map(str, self.least))}, the smallest,"
        if self.is_batch:
            what = f"a batch of 1 of {shapes_text(self.inputs(self.least))}"
        return TooLargeError(
            f"{what} does not fit: it needs {format_bytes(family.needed_bytes(n))}, "
            f"and there are {format_bytes(self.budget.limit_bytes)} ({self.budget.origin}). "
            f"Take a smaller {'patch' if self.is_batch else 'batch'} or model, or a card with more "
            "memory"
        )


def gap_notes(family: StepFamily, n: int, limit_bytes: int) -> tuple[str, ...]:
    """Note for a batch that fits although the next smaller one does not."""
    if n <= 2 or not family.is_linear or family.fits(n - 1, limit_bytes):
        return ()
    return (
        f"{n} fit, as parts happen to be of the same size, and {n - 1} do not: keep to this "
        "number, also at the end of a data set (drop_last=True)",
    )
