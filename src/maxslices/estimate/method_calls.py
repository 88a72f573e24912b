"""Measured calls of a method within a memory limit, and the memory that they retain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

from ..core.allocators import CUDA_GRANULE_BYTES
from ..core.author_code import defined_at, raised_at, what_raised
from ..core.memory_model import MemoryModel, last_true
from ..core.units import format_bytes
from ..devices.out_of_memory import is_out_of_memory
from ..errors import DeviceError, EstimatorError, MethodError
from ..trial.trial import MeasuredCall, Trial

LIMIT_S = 2.5
"""Time limit in seconds for the calls of one probe after the small ones. A pipeline of ten methods
is then measured in 25 s. On an H200, LPRec3d_tomobar makes ten calls of 32 to 61 slices in it."""
REACH = 4
"""Factor by which a model is extrapolated beyond the slices that were run. A cost hidden behind
another one is visible at a quarter of the answer, or is less than a third of it. At worst, a
further slice takes 4 times its input (input, output, and twice as much for temporaries), or 4 times
the memory of a slice so far."""
FIRST = (1, 2, 3, 4, 8, 17, 32)
"""Slice counts for the first call, tried in turn until the method runs. The small ones suit pairs
and padding. The others are one more than windows of 3, 7 and 16 slices. Chosen, not measured."""
_NOT_SIZES = (
    ImportError,
    NameError,
    AttributeError,
    TypeError,
    NotImplementedError,
    OSError,
    SyntaxError,
)
"""Errors that do not depend on the number of slices, after which no other number is tried."""


class MethodCalls:
    """Calls of a method, and bounds of the memory and time of further calls.

    The answer is for `available_bytes` and at most `total_slices`. Calls may use `run_bytes`.
    """

    def __init__(
        self, trial: Trial, available_bytes: int, total_slices: int, run_bytes: int
    ) -> None:
        self.trial, self.backend = trial, trial.backend
        trial.is_recorded = True
        self.available_bytes, self.total_slices = available_bytes, total_slices
        self.run_bytes = min(run_bytes, available_bytes)
        self.notes: list[str] = []
        """Reason why the method fails on fewer slices, or empty."""
        self._whole_bytes, self._side_bytes = self.run_bytes, 0
        self._has_pool = self.backend.kind == "cuda"
        self._before_bytes = trial.pool_bytes() if self._has_pool else 0
        self._durations_s: dict[int, float] = {}

    def start(self) -> None:
        """Make the first call, with the fewest slices on which the method runs.

        It may import modules and compile kernels.

        Raises
        ------
        EstimatorError
            If the method fails with every number of slices.
        """
        tried = [n for n in FIRST if n <= self.total_slices]
        errors: list[Exception] = []
        for n in tried:
            try:
                self.first = self._checked(self.trial.once(n))
            except DeviceError:  # its message names the next step
                raise
            except Exception as error:  # noqa: BLE001  raised below if no number of slices runs
                errors.append(error)
                if isinstance(error, _NOT_SIZES) or is_out_of_memory(error):
                    break
            else:
                self._leave_room()
                if errors:
                    why = what_raised(errors[-1])
                    self.notes.append(f"it cannot be run on fewer than {n} slices ({why})")
                return
        worst = errors[-1] if is_out_of_memory(errors[-1]) else errors[0]
        raise self._cannot(worst, tried[: len(errors)]) from worst

    def measured(self, n: int, run: Callable[[int], MeasuredCall]) -> MeasuredCall | None:
        """Measure a call with n slices. Returns None if memory ran out."""
        try:
            with self._limit(n):
                rung = self._checked(run(n))
        except Exception as error:
            if is_out_of_memory(error):
                return None
            raise self._cannot(error, [n]) from error
        self._leave_room()
        self._durations_s[n] = rung.duration_s
        return rung

    def _checked(self, call: MeasuredCall) -> MeasuredCall:
        """Return the call if its result is a block.

        Raises
        ------
        MethodError
            If its result is not a block.
        """
        meta = self.trial.meta
        if fault := "" if meta.side_results else self.trial.output.why_not_data:
            raise MethodError(f"it {fault}{defined_at(meta.function)}")
        return call

    def duration_s(self, n: int) -> float:
        """Predict the duration of a call, by a line through the shortest and the longest."""
        if not self._durations_s:
            return self.first.duration_s * n / self.first.n_slices
        (few, few_s), *_, (many, many_s) = sorted(2 * list(self._durations_s.items()))
        slice_s = max(0.0, many_s - few_s) / (many - few) if many > few else many_s / many
        return max(0.0, many_s + slice_s * (n - many))

    def in_time(self, least: int, wanted: int, time_s: float) -> int:
        """Largest number of slices, from `least` to `wanted`, that takes at most `time_s`."""
        if self.duration_s(wanted) <= time_s:
            return wanted
        return last_true(lambda k: self.duration_s(k) <= time_s, least, wanted)

    def may_take(self, n_bytes: float) -> bool:
        """True if a call with this upper bound is allowed: it fits, or the pool limits it."""
        takes_elsewhere = self.trial.uses_outside or self.trial.meta.array_module == "torch"
        return n_bytes <= self.run_bytes or (self._has_pool and not takes_elsewhere)

    def reach(self, n: int, points: Sequence[tuple[int, int]]) -> int:
        """Largest number of slices, up to n, for a call after the peaks (slices, bytes).

        The worst case is the largest memory per slice of any peak near the last one, or `REACH`
        times the steepest slope from there.
        """
        last, size = points[-1]
        near = max(b / m for m, b in points if REACH * m >= last)
        slopes = [(b - a) / (j - i) for (i, a), (j, b) in pairwise(points[-3:])]
        slice_bytes = REACH * max(self.trial.nbytes(1), *slopes, 0.0)
        return last_true(
            lambda k: self.may_take(min(near * k, size + slice_bytes * (k - last))), last, n + 1
        )

    def _limit(self, n: int) -> AbstractContextManager[None]:
        """Limit the pool to the available memory, including side data and retained memory.

        The call with the fewest slices is not limited, because a plan needs its peak even if it
        does not fit.
        """
        if not self._has_pool or n <= self.first.n_slices:
            return nullcontext()
        self.backend.release()
        held_bytes = self.trial.pool_bytes() - self._before_bytes
        return self.backend.limited(max(1, self._whole_bytes - self.trial.stays_bytes - held_bytes))

    def _leave_room(self) -> None:
        """Subtract the memory of flats and darks from the available memory."""
        more = self.trial.side_bytes - self._side_bytes
        self.available_bytes -= more
        self.run_bytes -= more
        self._side_bytes = self.trial.side_bytes

    def _cannot(self, error: Exception, counts: list[int]) -> EstimatorError:
        slices = f"{', '.join(map(str, counts))} slice{'s' if counts[-1] > 1 else ''}"
        if is_out_of_memory(error):
            why = f" ({error})" if str(error) else ""
            message = f"{self.backend.name} has too little memory for {slices}{why}"
        elif isinstance(error, MethodError):
            message = str(error)
        else:
            place = raised_at(error, self.trial.meta.function)
            arguments = f"(with {slices}, parameters {self.trial.parameters})"
            message = f"it raised {what_raised(error)}{place} {arguments}"
        return EstimatorError(f"{self.trial.meta.full_name} cannot be measured: {message}")


LEAST_BYTES = CUDA_GRANULE_BYTES
"""Least retained memory that counts: the granule of the allocator."""


class RetainedMemory:
    """Memory that stays allocated between calls, starting with the first call."""

    def __init__(self, trial: Trial, first: MeasuredCall) -> None:
        self._trial = trial
        self.left_bytes = first.left_bytes
        """Bytes that the first call left permanently allocated."""
        self.lost_bytes = 0
        """Bytes that leak in a whole scan."""
        self.accumulates = self.leaks = False
        """`accumulates`: each new number of slices leaves memory allocated. `leaks`: every call
        leaves memory allocated."""
        self._kept: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._entry = 0, 0

    def judge(self, again: MeasuredCall, more: MeasuredCall | None, other: MeasuredCall) -> None:
        """Decide whether retained memory is a constant, a cache or a leak.

        A cache with an entry for each number of slices grows with a new, smaller number. A
        workspace kept for the most slices does not. Memory that grows in a repeated call is a leak.

        Parameters
        ----------
        again : MeasuredCall
            A call with as many slices as the first call.
        more : MeasuredCall or None
            A call with a new number of slices, fewer than an earlier call had.
        other : MeasuredCall
            A call with a number of slices that was run before.
        """
        self.leaks = min(again.left_bytes, other.left_bytes) >= LEAST_BYTES
        if self.leaks:
            self.left_bytes = max(0, self.left_bytes - again.left_bytes)
        elif more is not None:
            self.accumulates = more.left_bytes >= LEAST_BYTES
            # Part of the memory that the first call left is the cache entry of its own slices.
            entry = more.left_bytes * again.n_slices // more.n_slices if self.accumulates else 0
            self._entry = again.n_slices, min(entry, self.left_bytes)
            self.left_bytes -= self._entry[1]

    def enter(self, rung: MeasuredCall) -> int:
        """Add a call, and return the bytes that earlier calls of a run would leave in the pool."""
        before_bytes = max(self.left_bytes, rung.before_bytes)
        if self.leaks or self.accumulates:
            fewest, entry_bytes = self._entry
            before_bytes = self.left_bytes + (entry_bytes if rung.n_slices == fewest else 0)
        self._kept[rung.n_slices] = rung.kept_bytes + before_bytes
        if self.leaks:
            self._lost[rung.n_slices] = rung.left_bytes
        return before_bytes

    def kept(self) -> tuple[tuple[int, int], ...]:
        """Points (slices, bytes) of the retained memory, empty if calls free everything."""
        if all(size < LEAST_BYTES for size in self._kept.values()):
            return ()
        stays = self._trial.stays_bytes + self.lost_bytes
        return tuple((n, size + stays) for n, size in sorted(self._kept.items()))

    def lose(self, model: MemoryModel, available_bytes: int, total_slices: int) -> str:
        """Count a leak over a whole scan in the largest blocks that fit, and return a note."""
        if not self._lost:
            return ""
        n, a_call = max(self._lost.items())
        by_a_call = MemoryModel.piecewise(list(self._lost.items()))

        def lost(block: int) -> int:
            return by_a_call.bytes(block) * (-(-total_slices // block) - 1)

        block = total_slices
        while block > (fits := model.max_slices(available_bytes - lost(block), block)) > 0:
            block = fits  # smaller blocks need more calls, which leak more
        self.lost_bytes = lost(block if fits else 1)
        return (
            f"each call loses memory ({format_bytes(a_call)} with {n} slices): "
            f"{format_bytes(self.lost_bytes)} are counted for the {total_slices} slices of a scan"
        )
