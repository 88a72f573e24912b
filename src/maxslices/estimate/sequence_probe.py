"""Memory model of a method from the allocations of three calls with few slices.

`PeakModel` extrapolates their sequences to any number of slices. The answer is the number of slices
that fit by this model. One call with this number of slices proves the answer, if it takes at most
`PROOF_S`. If the call contradicts the prediction, a model is fitted to all calls. Then calls are
made with the new answer and with numbers of slices just below it.

The result is sure if all calls that `SequenceProbe._next` requires were made. It is not sure if one
of them was omitted because it takes too long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations_with_replacement

from ..core.allocators import CUDA_GRANULE_BYTES
from ..core.memory_model import MAX_BYTES, MemoryModel
from ..errors import EstimatorError
from ..measure.cupy_pool import GRAIN_BYTES
from ..trial.trial import CUSHION_BYTES, OUTSIDE_BYTES, MeasuredCall
from .formula import Formula
from .method_calls import LIMIT_S, MethodCalls, RetainedMemory
from .peak_model import PERIOD, Observation, PeakModel
from .probe_result import OUTSIDE, STAYS_OUTSIDE, Probe

MORE = (2, 4, 7)
"""Slices of the small calls, in addition to the fewest. 3, 5 and 8 slices distinguish a line from
pairs (2, 3 and 4 of them), from chunks of four (1, 2, 2) and from powers of two (4, 8, 8). On the
CPU, where nothing limits the memory of a call, one with `PERIOD` more is made as well. With fewer
slices, memory rounded up to 16 slices looks like a constant."""
LONG_S = 0.5
"""Duration of a call in seconds above which two small calls are made, the fewest for a line.
FISTA3d_tomobar on an H200 takes 1.3 s for 3 slices of 1801 x 2560. The first call is not one of
them, because its regulariser works differently on a single slice."""
PROOF_S = 0.3
"""Longest call in seconds that proves an answer. A pipeline of ten methods is then proven in 3
s."""
TRUSTED = 3
"""Number of calls that must match their predictions after one that did not, with more slices and
with fewer. The FFT plans of LPRec3d_tomobar take more with 2 to 7 slices below a multiple of
eight."""
SAME = 0.01
"""Largest relative difference between peaks with other data that is ignored. Chosen, not
measured."""
NEAR = 1e-4
"""Relative tolerance of a matching prediction, for the padded scratch of a sort."""
ABOVE_BYTES = OUTSIDE_BYTES["cuda"]
"""Tolerance of readings above the size of the arrays. Those of FISTA3d_tomobar on an H200 are 3 to
6 MiB above."""
_ITEM_BYTES = 4
"""Bytes of float32, the dtype of ASTRA's arrays."""


class NotExplainedError(EstimatorError):
    """Recorded allocations do not explain a method's peak, so `PeakSearch` is used."""


class SequenceProbe:
    """Further calls of a method until its peak is explained and proven."""

    def __init__(self, calls: MethodCalls) -> None:
        self.calls, self.trial = calls, calls.trial
        self.retained = RetainedMemory(calls.trial, calls.first)
        self.available_bytes, self.total_slices = calls.available_bytes, calls.total_slices
        self._granule = CUDA_GRANULE_BYTES if calls.backend.kind == "cuda" else 1
        self.rungs: list[MeasuredCall] = []
        """All calls except the first."""
        self.usual_rungs: list[MeasuredCall] = []
        """Calls with the usual data, including calls that no formula explains."""
        self.notes: list[str] = []
        self.extrapolates_exactly = True
        """True if all calls matched the predictions from earlier calls."""
        self._not_proven = ""
        """Reason why the answer is not proven, or empty."""
        self._seen: dict[int, Observation] = {}
        self._failed_calls: list[Observation] = []
        """Calls that ran out of memory."""
        self._too_many = self.total_slices + 1
        self._failures = 0
        """Number of calls that unexpectedly did not fit and lowered the answer by at most one."""
        self._n_confirmed = 0
        """Number of calls that matched since the last one that did not."""
        self._excess = 1.0
        """Measured over predicted bytes of the last call that did not match, at least 1."""
        self._objects_bytes = 0
        """Bytes of Python objects in a call, which are not in its sequence."""
        self._first, self._measure = calls.first, self.trial.once
        self._tolerance_bytes = 2 * CUSHION_BYTES[calls.backend.kind]
        """Absolute tolerance of a matching prediction, in addition to `NEAR`."""

    def run(self) -> PeakModel:
        """Make the other calls.

        Raises
        ------
        NotExplainedError
            If memory is allocated where no sequence shows it, stays after calls, or depends on the
            data.
        """
        self._first_seen = self._observed(self._first)
        self._make_small_calls()
        model = self._proven()
        if self._not_proven and not self.extrapolates_exactly:  # the same error may occur again
            excess = self._excess if self._n_confirmed < TRUSTED - 1 else 1.0
            safe = min(self._fitting(model, int(self.available_bytes / excess)), self._most_called)
            model = model.with_measured({safe + 1: self.available_bytes + 1})
        for rung in self.rungs or [self._first]:
            self.retained.enter(rung)
        return model

    @property
    def _most_called(self) -> int:
        """Largest number of slices of a call that counts."""
        return max(self._seen, default=self._first.n_slices)

    def _proven(self) -> PeakModel:
        """Make calls with the slices that fit, until the answer is known or time is up.

        `_next` returns the number of slices. If a call with this number takes too long, one with
        fewer is made, and `_not_proven` has the reason.
        """
        began = time.perf_counter()
        while True:
            model = self._fit()
            n = self._next(model)
            if n is None:
                self._not_proven = ""  # a later call proved it
                break
            time_s = self._time_s(time.perf_counter() - began)
            affordable = self.calls.in_time(self._most_called, n, time_s)
            if affordable != n and not self._not_proven:
                takes = f"{self.calls.duration_s(n):.1f} s"
                self._not_proven = f"{n} slices were not run, which takes {takes}: not proven"
            if affordable in self._seen or affordable <= self._first.n_slices:
                break
            self._call(affordable, model)
        return model

    def _time_s(self, elapsed_s: float) -> float:
        """Time that the next call may take."""
        if self.extrapolates_exactly:
            return 0.0 if self._not_proven else PROOF_S
        return LIMIT_S - elapsed_s

    def result(self, model: PeakModel, available_bytes: int, duration_s: float) -> Probe:
        """Result of the probe, with memory that stays outside the pool."""
        peaks = model.pruned().plus(STAYS_OUTSIDE, Formula(self.trial.stays_bytes))
        self.notes += [self._not_proven] if self._not_proven else []
        return Probe(
            peaks=peaks,
            kept=self.retained.kept(),
            rungs=tuple(self.rungs) or (self._first,),
            available_bytes=available_bytes,
            total_slices=self.total_slices,
            sure=not self._not_proven,
            duration_s=duration_s,
            notes=tuple(self.notes),
            output_dtype=self.trial.output_dtype,
            output_dims=self.trial.output_dims,
            extrapolates_exactly=self.extrapolates_exactly,
        )

    def _fitting(self, model: PeakModel, limit: int = MAX_BYTES) -> int:
        """Number of slices that fit in the available memory, fewer than failed calls had."""
        n_bytes = min(limit, self.available_bytes)
        return MemoryModel(model.rising).max_slices(n_bytes, self.total_slices)

    def _make_small_calls(self) -> None:
        """Make the small calls, and check whether memory depends on the data.

        Their numbers of slices are above the fewest by `MORE`. If calls are long (`LONG_S`), two
        are made instead of three. One call has dark data instead of the usual data. If formulas
        explain it together with the other calls, memory does not depend on the data. Otherwise it
        is repeated with the usual data, and a different peak raises an error.
        """
        fewest, usual = self._first.n_slices, self.trial.kind
        counts = [fewest + more for more in MORE]
        if self.calls.backend.kind == "cpu":
            counts.append(fewest + PERIOD)
        other_data = 0
        while counts:
            n = counts.pop(0)
            last = self.rungs[-1] if self.rungs else self._first
            if last.n_slices < n:
                most = min(n, self._too_many - 1)
                n = self.calls.reach(most, [(last.n_slices, last.n_bytes)])
            if n == last.n_slices:
                continue
            is_extra = not self._is_small(n)  # omitted if long, or not below the answer
            if is_extra and (self.calls.duration_s(n) > PROOF_S or self._fitting(self._fit()) <= n):
                continue
            if not other_data and self._first.n_slices < last.n_slices < n:
                self.trial.kind, other_data = "dark", n
            try:
                self._call(n, None)
            finally:
                self.trial.kind = usual
            if n == fewest + MORE[0] and self.rungs and self.rungs[-1].duration_s > LONG_S:
                counts = [fewest + 1]
        if len(self._seen) >= len(MORE):
            n = other_data if other_data in self._seen else max(self._seen)
            if self._is_proven_at(self._fit(), n):
                return
            self.extrapolates_exactly = False
            before = self._seen[n].n_bytes
            self.rungs = [rung for rung in self.rungs if rung.n_slices != n]
            self._call(n, None)
            if abs(self._seen[n].n_bytes - before) > SAME * before:
                raise NotExplainedError("its memory depends on the data")

    def _is_proven_at(self, model: PeakModel, *more_slices: int) -> bool:
        """True if the formulas of the peak are proven at the relevant numbers of slices.

        These are the answer, half of it, the largest number in a call, and `more_slices`.
        """
        n = self._fitting(model)
        slices = (*more_slices, max(self._seen), -(-n // 2), n)
        return all(model.is_proven(model.highest(k)) for k in slices)

    def _next(self, model: PeakModel) -> int | None:
        """Number of slices of the next call, or None if the answer is known.

        1. The first call has the answer's number of slices.
        2. If all calls matched their predictions, a call has one slice fewer if the number of
           allocations may decrease, and one more if it nearly fits.
        3. If a call did not match, calls have one slice more and up to `PERIOD` fewer, until
           `TRUSTED` calls matched.
        """
        n = self._fitting(model, self.calls.run_bytes)
        if n > self._first.n_slices and n not in self._seen:
            # A few fewer are enough if the pool cannot use all the memory that it holds.
            fits = max((k for k in self._seen if k < n), default=1)
            return max(fits + 1, (fits + n + 1) // 2, n + 1 - (1 << max(0, self._failures - 1)))
        if self.extrapolates_exactly or self._n_confirmed >= TRUSTED:
            if model.numbers_fall and n - 1 > self._first.n_slices and n - 1 not in self._seen:
                return n - 1  # NumPy reuses large temporaries: small odd and even calls differ too
            short_bytes = model.bytes(n + 1) - self.available_bytes
            is_near = short_bytes <= NEAR * self.available_bytes and self._may_call(n + 1, model)
            return n + 1 if is_near and n + 1 not in self._seen and n > 0 else None
        near = [n + 1, *range(n - 1, max(self._first.n_slices, n - PERIOD), -1)]
        return next((k for k in near if k not in self._seen and self._may_call(k, model)), None)

    def _may_call(self, n: int, model: PeakModel) -> bool:
        """True if n slices may fit, by the model or by the largest call's memory per slice."""
        most = self._most_called
        n_bytes = min(model.bytes(n), model.bytes(most) * n // most)
        return n < self._too_many and self.calls.may_take(n_bytes)

    def _call(self, n: int, model: PeakModel | None) -> None:
        """Call the method with n slices, and compare the peak with a prediction."""
        rung = self.calls.measured(n, self._measure)
        if rung is None:
            self._ran_out(n, model)
            return
        n_bytes = self._enter(rung)
        if model is not None:
            expected = model.bytes(n)
            tolerance = ABOVE_BYTES if rung.outside_bytes else self._tolerance_bytes
            self._n_confirmed += 1
            if self._is_contradicted(n, n_bytes - expected, NEAR * n_bytes + tolerance):
                self.extrapolates_exactly, self._n_confirmed = False, 0
                self._excess = max(1.0, n_bytes / expected)
                if n_bytes > self.available_bytes >= expected:
                    self._count_failure(n)

    def _is_contradicted(self, n: int, difference_bytes: int, tolerance_bytes: float) -> bool:
        """True if a call of n slices differs from its prediction by more than the tolerance."""
        return abs(difference_bytes) > tolerance_bytes

    def _enter(self, rung: MeasuredCall) -> int:
        """Record a call, and return its bytes, including those that the first call retained."""
        if self.trial.kind != "dark":
            self.usual_rungs.append(rung)
        if rung.left_bytes > 0:
            raise NotExplainedError("memory stays after each call")
        self._seen[rung.n_slices] = seen = self._observed(rung)
        rung = replace(rung, n_bytes=max(rung.n_bytes, seen.n_bytes + rung.outside_bytes))
        self.rungs.append(rung)
        return rung.n_bytes + self.retained.left_bytes

    def _ran_out(self, n: int, model: PeakModel | None) -> None:
        """Record a call that ran out of memory."""
        self._too_many = min(self._too_many, n)
        if self.trial.sequence is not None:
            self._failed_calls.append(Observation.of(self.trial.sequence, self._granule))
        if model is not None and model.bytes(n) <= self.available_bytes:
            self._count_failure(n)
            self.extrapolates_exactly, self._n_confirmed = False, 0
            self.notes.append(f"memory ran out with {n} slices, which were predicted to fit")

    def _count_failure(self, n: int) -> None:
        """Count a call that unexpectedly did not fit, if it says nothing about fewer slices."""
        self._failures += self._fitting(self._fit()) >= n - 1

    def _observed(self, rung: MeasuredCall) -> Observation:
        """Allocations of the last call."""
        if self.trial.sequence is None:
            raise NotExplainedError("no allocations were recorded")
        seen = Observation.of(self.trial.sequence, self._granule, self.trial.readings)
        unrecorded_bytes = rung.n_bytes - rung.outside_bytes - seen.n_bytes
        if unrecorded_bytes and self.calls.backend.kind == "cuda":
            raise NotExplainedError("not all that it allocates was recorded")
        if rung is not self._first and rung.n_slices > max(self._seen, default=0):
            self._objects_bytes = max(0, unrecorded_bytes)  # the first call may import
        return seen

    def _fit(self) -> PeakModel:
        """Model of all calls except the first, whose allocations later calls reuse."""
        seen = list(self._seen.values()) or [self._first_seen]
        model = PeakModel.fit(seen, self._granule, self._failed_calls)
        objects = self._objects_bytes + CUSHION_BYTES[self.calls.backend.kind]
        stays = self.retained.left_bytes if self._seen else 0  # the first call's sequence has it
        model = model.plus("stays", Formula(stays)).plus("Python's objects", Formula(objects))
        model = model.with_outside(OUTSIDE, self._outside())
        measured = {r.n_slices: r.n_bytes + self.retained.left_bytes for r in self.rungs}
        first = self._first_seen.n_bytes + self._first.outside_bytes + self._objects_bytes
        measured[self._first.n_slices] = first
        for rung in self.rungs or [self._first]:
            if not rung.outside_bytes:
                continue
            n, predicted = rung.n_slices, model.predicted(rung.n_slices)
            if measured[n] <= predicted + ABOVE_BYTES:  # within the error of a reading
                measured[n] = predicted
            elif self._is_small(n):
                raise NotExplainedError(
                    "memory outside the pool does not match the sizes of arrays"
                )
        return model.with_measured(measured | self._too_much(self._too_many))

    def _too_much(self, n: int) -> dict[int, int]:
        """Entry of `measured` that excludes n slices, or empty beyond the slices of a scan."""
        return {n: self.available_bytes + 1} if n <= self.total_slices else {}

    def _is_small(self, n: int) -> bool:
        """True for slices of the small calls that are made on a GPU as well."""
        return n <= self._first.n_slices + MORE[-1]

    def _outside(self) -> dict[str, Formula]:
        """Memory of arrays outside the pool, by the moments at which it was read."""
        seen = self._seen.values() or [self._first_seen]
        dims = [self.trial.other_dims]
        dims += [self.trial.output_dims] if self.trial.output_dims else []
        formulas = {}
        for label in {label for each in seen for label in each.outside}:
            readings = {o.n_slices: o.outside[label] for o in seen if label in o.outside}
            few = {n: size for n, size in readings.items() if self._is_small(n)}
            formula = outside_formula(readings, dims)
            if formula is None and few:
                formula = outside_formula(few, dims)
            if formula is not None:
                formulas[label] = formula
        return formulas


def outside_formula(readings: Mapping[int, int], dims: Iterable[tuple[int, int]]) -> Formula | None:
    """Formula for the memory of a C library outside the pool, or None if none explains it.

    The device is read every 2 ms, in steps of 2 MiB, so a reading is not exact to the byte. But
    such memory is an array, whose size is a product of dims that the method knows.

    One array with a product of two dims is tried first, then up to four equal arrays, then two
    different ones, and then a constant, such as the workspace of a library that works slice by
    slice.

    `readings` are bytes by the slices of the call. `dims` are the dims of the input and the output.

    CUDA pads the depth of a 3D array, which is the slices here, to a power of two up to 16, and
    beyond to a multiple of 16. 33 slices take as much memory as 48 (measured on an H200).
    """
    lengths = sorted({length for pair in dims for length in pair})
    products = sorted(a * b for a, b in combinations_with_replacement(lengths, 2))
    several = [n * area for n in (2, 3, 4) for area in products]
    for areas in (products, several, [p + q for p in products for q in products]):
        candidates = []
        for area in areas:
            formula = Formula(0, area * _ITEM_BYTES, "depth(n)")
            off = [n_bytes - formula.at(n) for n, n_bytes in readings.items()]
            if min(off) >= -GRAIN_BYTES and max(off) <= ABOVE_BYTES:
                candidates.append((sum(map(abs, off)), formula))
        if candidates:
            return min(candidates, key=lambda each: each[0])[1]
    most = max(readings.values())
    is_constant = len(readings) > 1 and most - min(readings.values()) <= ABOVE_BYTES
    return Formula(most) if is_constant else None
