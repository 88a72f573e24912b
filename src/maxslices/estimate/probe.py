"""Measured memory models of methods without an estimator.

`probe` derives a method's memory from the allocations of a few calls (`SequenceProbe`). If they do
not explain it, `PeakSearch` uses the peaks of calls with more and more slices. A call then counts
as one array, whose size is the peak.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ..core.arrays import ArraySpec
from ..core.memory_model import MemoryModel
from ..core.units import format_bytes
from ..devices import Backend
from ..errors import EstimatorError
from ..measure.allocation_sequence import CallSite
from ..measure.cupy_pool import GRAIN_BYTES
from ..measure.host_memory import tracemalloc_on
from ..system.process_state import random_state_kept
from ..trial.trial import CUSHION_BYTES, NOISE_BYTES, MeasuredCall, Trial
from ..tuning.garbage_collection import quick_collections
from .formula import Formula
from .method_calls import LIMIT_S, REACH, MethodCalls
from .model_request import ModelRequest
from .peak_model import Observation, PeakModel
from .probe_result import Probe
from .sequence_probe import SAME, TRUSTED, NotExplainedError, SequenceProbe

OF_SCAN, LONGEST_S = 0.08, 40.0
"""Fraction of the time of the whole scan that a search may take, up to 40 s. With calls of 0.2 s, a
twelfth answered 165 of 177 recorded peaks to 98 %, and a twentieth answered 156 (2026-11-24)."""
_WHOLE = CallSite("", 0, "", "whole call")
"""Call site of the array that represents a whole call."""


class PeakSearch(SequenceProbe):
    """Search by calls of a method with more and more slices.

    Parameters
    ----------
    calls : MethodCalls
        The method, after its first call.
    earlier : sequence of MeasuredCall
        Earlier calls by a `SequenceProbe`.
    """

    def __init__(self, calls: MethodCalls, earlier: Sequence[MeasuredCall]) -> None:
        super().__init__(calls)
        self._measure, self._tolerance_bytes = self.trial.measure, self._noise_bytes
        self._earlier = earlier
        self._is_refused = self._is_stopped = False

    def run(self) -> PeakModel:
        """Make all calls."""
        first, usual = self._first, self.trial.kind
        again = self._measured(first.n_slices)  # the first may have compiled
        # `_few_kinds` makes at least three calls, and one more proves the answer.
        if again is None or 4 * again.duration_s > self._limit_s():
            again = again or first
            self.notes.append(f"a call takes {again.duration_s:.1f} s, so only a few were made")
            self._enter(again)
        else:
            self._few_kinds(again)
        for rung in self._earlier if self.trial.kind == usual else ():
            self._enter(rung)
        model = self._proven()
        return model.with_measured(self._too_much(self._allowed(model) + 1))

    def _allowed(self, model: PeakModel) -> int:
        """Largest number of slices for which the model is trusted."""
        points = self._fitted()
        risen = max((n for n, size in points if self._seen[n].n_bytes >= size), default=0)
        if self._is_refused:
            return max(risen, self._fitting(model, int(self.available_bytes / self._excess)))
        if not self.extrapolates_exactly and self._n_confirmed < TRUSTED:
            n, size = points[-1] if points else (0, 0)
            if n > risen or not n:
                return risen  # if memory decreased, fewer slices may take more
            slice_bytes = max(b / m for m, b in points if REACH * m >= n)
            slopes = [(b - a) / (j - i) for (i, a), (j, b) in pairwise(points[-3:])]
            if len(slopes) > 1:  # growing slopes are assumed to keep growing
                rise = max(1.0, slopes[1] / max(1.0, slopes[0]))
                slice_bytes = max(slice_bytes, slopes[1] * rise)
            free_bytes = self.available_bytes / self._excess - size
            # Slopes of a quadratic keep rising.
            return min(2 * n, n + max(0, int(free_bytes / slice_bytes)))
        return REACH * risen if self._not_proven else self.total_slices

    def _few_kinds(self, again: MeasuredCall) -> None:
        """Measure retained memory, and dependence on the data, with one to three slices."""
        n, usual = again.n_slices, self.trial.kind
        by_slices: dict[int, MeasuredCall | None] = {n: again}
        for more in (n + 2, n + 1):
            fits = again.n_bytes <= self.calls.run_bytes and more <= self.total_slices
            if fits and self.calls.reach(more, [(n, again.n_bytes)]) == more:
                by_slices[more] = self._measured(more)
        other = self._with_other_data(by_slices.get(n + 2) or by_slices.get(n + 1) or again)
        self.retained.judge(again, by_slices.get(n + 1), other or again)
        if other is None or self.trial.kind != usual:
            by_slices = {k: self._measured(k) for k, rung in by_slices.items() if rung}
        for k, rung in sorted(by_slices.items()):
            if rung is not None and k < self._too_many:
                self._enter(rung)

    def _measured(self, n: int) -> MeasuredCall | None:
        """Measure n slices. Returns None if memory ran out."""
        rung = self.calls.measured(n, self._measure)
        if rung is None:
            self._too_many = min(self._too_many, n)
        return rung

    def _with_other_data(self, rung: MeasuredCall) -> MeasuredCall | None:
        """Repeat a call with other data, and keep the data that take the most memory.

        Returns None if memory runs out. A method may raise for data of equal values.
        """
        usual, n, by_kind = self.trial.kind, rung.n_slices, {self.trial.kind: rung}
        for kind in ("dark", "highest", "lowest"):
            self.trial.kind = kind
            try:
                other = self._measured(n)
            except EstimatorError:
                if kind == "dark":
                    raise
                continue
            if other is None:
                self.notes.append(
                    f"its memory depends on the data: it ran out with {n} slices of another kind "
                    f"({kind}), with which it is estimated"
                )
                return None
            cached_bytes = max(0, rung.left_bytes - other.left_bytes)
            difference_bytes = abs(rung.n_bytes - cached_bytes - other.n_bytes)
            if kind == "dark" and difference_bytes <= max(self._noise_bytes, SAME * other.n_bytes):
                self.trial.kind = usual
                return other
            by_kind[kind] = other
        self.trial.kind = max(by_kind, key=lambda kind: by_kind[kind].n_bytes)
        sizes = sorted(each.n_bytes for each in by_kind.values())
        self.notes.append(
            f"its memory depends on the data: {format_bytes(sizes[0])} to "
            f"{format_bytes(sizes[-1])} for {n} slices; estimated with data of the kind that took "
            f"most ({self.trial.kind})"
        )
        return by_kind[self.trial.kind]

    def _enter(self, rung: MeasuredCall) -> int:
        """Enter a call, with the memory that earlier calls of a run would retain."""
        alive_before = max(0, self.retained.enter(rung) - rung.freed_bytes)
        self.rungs.append(rung)
        taken = rung.n_bytes + alive_before + CUSHION_BYTES[self.calls.backend.kind]
        n = rung.n_slices
        if n in self._seen:
            taken = max(taken, self._seen[n].n_bytes)
        self._seen[n] = one_array(n, taken)
        free_bytes = self.calls.run_bytes - self.trial.stays_bytes
        over = [k for k, size in self._points() if size > free_bytes]
        self._too_many = min([self._too_many, *over])
        return taken

    @property
    def _noise_bytes(self) -> int:
        """Largest difference between peaks that is ignored."""
        return 2 * GRAIN_BYTES if self.trial.uses_outside else NOISE_BYTES[self.calls.backend.kind]

    def _points(self) -> list[tuple[int, int]]:
        """Peaks of all calls, raised to at least the peak of fewer slices."""
        slices = sorted(self._seen)
        sizes = accumulate((self._seen[n].n_bytes for n in slices), max)
        return list(zip(slices, sizes, strict=True))

    def _fitted(self) -> list[tuple[int, int]]:
        """Peaks of the calls that fitted."""
        return [(n, size) for n, size in self._points() if n < self._too_many]

    def _fit(self) -> PeakModel:
        points = self._points()
        fitting = self._fitted() or points[:1] or [(1, self.available_bytes + 1)]
        measured = dict(points) | self._too_much(self._too_many)
        return PeakModel.fit([one_array(*each) for each in fitting], 1).with_measured(measured)

    def _next(self, model: PeakModel) -> int | None:
        points = self._fitted()
        most = points[-1][0] if points else 0
        is_proven = self._is_proven_at(model)
        self.extrapolates_exactly &= is_proven
        n = super()._next(model) if most else None
        is_line = self._n_confirmed > 0 and is_proven
        if n is None or n <= most:
            return None if is_line else n
        if self._too_many > self.total_slices:
            # Odd and even in turn: with even numbers alone, LPRec3d_tomobar got 40 slices, not 36.
            n = min(n, REACH * most if is_line else 2 * most + (most % 2 == 0))
        may_run = self.calls.reach(n, points)
        self._is_refused = may_run == most
        if self._is_refused:
            self._not_proven = (
                f"{most} slices were called, and more might need too much memory: not proven"
            )
        return may_run

    def _is_contradicted(self, n: int, difference_bytes: int, tolerance_bytes: float) -> bool:
        """True if a call took more than predicted, or the one with the most slices took less."""
        has_most_slices = n >= max(self._seen)
        off_bytes = abs(difference_bytes) if has_most_slices else difference_bytes
        return off_bytes > tolerance_bytes

    def _ran_out(self, n: int, model: PeakModel | None) -> None:
        if self.retained.leaks or self.retained.accumulates:
            self._is_stopped = True  # memory left by other calls may be the reason
        else:
            super()._ran_out(n, model)

    def _time_s(self, elapsed_s: float) -> float:
        return -1.0 if self._is_stopped else self._limit_s() - elapsed_s

    def _limit_s(self) -> float:
        """Time that a search may take."""
        scan_s = self.calls.duration_s(self.total_slices)
        return max(LIMIT_S, min(OF_SCAN * scan_s, LONGEST_S))

    def result(self, model: PeakModel, available_bytes: int, duration_s: float) -> Probe:
        """Result of the probe, with the memory that a leak takes in a whole scan."""
        rising = MemoryModel(model.rising)
        note = self.retained.lose(rising, self.available_bytes, self.total_slices)
        self.notes += [note] if note else []
        model = model.plus("lost by each call", Formula(self.retained.lost_bytes))
        result = super().result(model, available_bytes, duration_s)
        sure = result.sure and self._too_many > self.total_slices
        return replace(result, sure=sure, extrapolates_exactly=False)


def one_array(n: int, n_bytes: int) -> Observation:
    """Represent a call as one array."""
    moments = {_WHOLE.path: {_WHOLE.path: (n_bytes,)}}
    return Observation(n, n_bytes, moments, {_WHOLE.path: _WHOLE}, {})


def probe(
    request: ModelRequest,
    backend: Backend,
    *,
    available_bytes: int,
    supplied: Mapping[str, ArraySpec] | None = None,
) -> Probe:
    """Measure a method's memory model with a few slices.

    The measurement itself stays within `available_bytes`, including flats and darks. On a GPU the
    pool is limited. Outside the pool and on the CPU nothing limits memory, so calls that are
    predicted to take more are not made. The call with the fewest slices is exempt.

    Parameters
    ----------
    request : ModelRequest
        The method with its parameters and data.
    backend : Backend
        The device on which it is run.
    available_bytes : int
        Memory for which the number of slices is requested.
    supplied : mapping, optional
        Flats and darks as `ArraySpec`, which are not counted in the peak.

    Raises
    ------
    EstimatorError
        If the method raises for any number of slices, or the fewest slices that it runs on do not
        fit in the device's memory.
    """
    began = time.perf_counter()
    meta = request.meta
    limited = backend.limited(backend.free_bytes())
    with random_state_kept(), quick_collections(), limited, tracemalloc_on(backend.kind):
        run_bytes = max(1, backend.free_bytes() - backend.reserved_bytes)
        trial = Trial(meta, *request.slices, backend, request.parameters, frames=supplied)
        calls = MethodCalls(trial, available_bytes, request.most_slices, run_bytes)
        calls.start()
        explained = SequenceProbe(calls)
        how: list[str] = []
        try:
            peaks = explained.run()
        except NotExplainedError as error:
            how = [f"derived from its peaks alone: {error}"]
            explained = PeakSearch(calls, explained.usual_rungs)
            peaks = explained.run()
        trial.close()
        result = explained.result(peaks, available_bytes, time.perf_counter() - began)
    notes = (*calls.notes, *result.notes, *_noticed(result.rungs, trial), *how)
    return replace(result, notes=notes)


def _noticed(rungs: Sequence[MeasuredCall], trial: Trial) -> list[str]:
    """Notes on the calls, such as memory outside the pool."""
    notes = []
    outside = [(rung.outside_bytes, rung.n_slices) for rung in rungs if rung.outside_bytes]
    if outside:
        most, n = max(outside)
        notes.append(f"{format_bytes(most)} with {n} slices were outside the pool: counted")
    if trial.stays_bytes:
        stays = format_bytes(trial.stays_bytes)
        notes.append(f"{stays} stay outside the pool after calls: counted")
    notes += sorted({text for rung in rungs if not rung.outside_bytes for text in rung.unseen})
    return notes
