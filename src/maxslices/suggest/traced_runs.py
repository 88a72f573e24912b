"""Runs of a method on small blocks, with its allocations recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..checking.estimate_check import trial_of
from ..checking.explained_peak import recording
from ..core.allocators import Device
from ..core.arrays import ArraySpec, block_shape
from ..core.author_code import raised_at, what_raised
from ..core.method_meta import MethodMeta
from ..devices import select_backend
from ..errors import DeviceError, EstimatorError, MaxslicesError
from ..measure.alive import tracemalloc_on
from ..measure.allocation_sequence import Allocated, AllocationSequence, Freed
from ..trial.made_up import finish
from ..trial.trial import Trial
from .fft_plans import FftPlan, plans_noted
from .fold_loops import Token

_DIMS = (
    (7, 109, 139), (11, 103, 67), (37, 71, 53), (67, 59, 97), (13, 199, 113),
    (23, 62, 178), (32, 86, 122), (53, 107, 74), (41, 82, 127), (29, 157, 109),
    (31, 283, 337), (17, 521, 454),
)  # fmt: skip
"""Slices and other dims of the blocks: above 256 KiB of float32, from which NumPy uses temporaries
again; primes, so that sizes have one factorisation; some twice a
prime, as an FFT's length of an odd dim tells nothing of an even one; up to 67 slices, so that
methods that take 16 or 32 at a time do it three times; two larger ones, of which a method may take
fewer slices at a time."""
_LARGE_DIMS = ((41, 587, 601), (97, 431, 379))
"""More of them on a GPU, where they take no time: above three times the 2**22 values that CuPy
sorts at a time."""
_WARM_UP = (5, 96, 64)
"""Slices and other dims of a call before all others."""
_LEAST_RUNS = 6
"""Fewest blocks that a method must run on: fewer leave formulas to chance."""
_LEAST_BYTES = 2048
"""Allocations of less in every run are left out: scalars, and index arrays."""
_SEEN_BYTES = 512
"""Allocations of less are not recorded at all."""
_ENOUGH_RUNS, _LIMIT_S = 8, 60.0
"""Blocks, and seconds, after which no more are run: a network takes seconds for each."""
_MOST_EVENTS = 20_000
"""Events of a run; to fold more takes seconds."""


@dataclass(frozen=True, slots=True)
class TracedRun:
    """One call with what it allocated."""

    shape: tuple[int, int, int]
    """The block, axes (angles, rows, columns)."""
    dtype: np.dtype[Any]
    """Of the block."""
    sequence: AllocationSequence
    """Allocations and frees, the input's first."""
    peak_bytes: int
    """Peak as `check_max_slices` measures it."""
    plans: tuple[FftPlan, ...] = ()
    """FFT plans that were made on the way; what they allocated is not in `sequence`."""

    def tokens(self, small: set[str]) -> tuple[list[Token], list[int]]:
        """Events as tokens, and their indices, without allocations of the paths in `small`."""
        events, sites = self.sequence.events, self.sequence.sites
        tokens, indices = [], []
        for i, event in enumerate(events):
            source = events[event.which] if isinstance(event, Freed) else event
            assert isinstance(source, Allocated)
            path = sites[source.site].path
            if path not in small:
                tokens.append(Token(path, isinstance(event, Freed)))
                indices.append(i)
        return tokens, indices


class RunMaker:
    """Runs a method on blocks of any shape.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    slice_dim : int
        Axis of the slices.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    parameters : mapping
        Of the method.
    """

    def __init__(
        self, meta: MethodMeta, slice_dim: int, device: str, parameters: Mapping[str, Any]
    ) -> None:
        self.meta, self.slice_dim, self.device = meta, slice_dim, device
        self.parameters = dict(parameters)
        self.backend_kind: Device = select_backend(device).kind

    def runs(self, dtype: np.dtype[Any]) -> list[TracedRun]:
        """Runs on the blocks of which a ledger is made.

        Raises
        ------
        EstimatorError
            If the method runs on too few of them.
        """
        found: list[TracedRun] = []
        error: Exception | None = None
        with suppress(Exception):  # imports, compiled code; what refuses these dims is seen below
            self.run(block_shape(self.slice_dim, _WARM_UP[0], _WARM_UP[1:]), dtype)
        began = time.perf_counter()
        blocks = _DIMS + (_LARGE_DIMS if self.backend_kind == "cuda" else ())
        for n, first, second in blocks:
            if len(found) >= _ENOUGH_RUNS and time.perf_counter() > began + _LIMIT_S:
                break
            try:
                found.append(self.run(block_shape(self.slice_dim, n, (first, second)), dtype))
            except MaxslicesError:
                raise
            except Exception as raised:  # noqa: BLE001 - a method may refuse dims in any way
                error = raised
        if len(found) < _LEAST_RUNS:
            assert error is not None  # else all of them ran
            raise EstimatorError(
                f"{self.meta.full_name} runs on {len(found)} of {len(blocks)} blocks of 7x109x139 "
                f"to 67x59x97, and a ledger takes {_LEAST_RUNS}: {what_raised(error)}"
                f"{raised_at(error, self.meta.function)}"
            )
        return found

    def run(self, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> TracedRun:
        """Call the method on one block."""
        spec = ArraySpec(shape, dtype)
        trial = trial_of(self.meta, spec, self.slice_dim, self.device, self.parameters)
        with tracemalloc_on(trial.backend.kind):
            trial.prepare()
            before = trial.alive_bytes()
            sequence, plans = self._recorded(trial)
            cached = max(0, trial.alive_bytes() - before)
            # tracemalloc counts what other threads allocate meanwhile, too.
            n_calls = 2 if self.backend_kind == "cpu" else 1
            calls = [trial.once() for _ in range(n_calls)]
        if trial.peak is None or trial.peak.counted_bytes is None:
            reasons = "; ".join(calls[0].unseen)
            raise DeviceError(f"{self.meta.full_name}: no meter gives its memory: {reasons}")
        if len(sequence.events) > _MOST_EVENTS:
            raise EstimatorError(
                f"{self.meta.full_name} allocates {len(sequence.events)} times for "
                f"{shape[self.slice_dim]} slices: a ledger is written of {_MOST_EVENTS} at most"
            )
        peak_bytes = min(call.n_bytes - call.outside_bytes for call in calls)
        shape = trial.shape(trial.n_slices)
        return TracedRun(shape, dtype, sequence, peak_bytes + cached, tuple(plans))

    def _recorded(self, trial: Trial) -> tuple[AllocationSequence, list[FftPlan]]:
        """Allocations of one call, and the FFT plans that it makes.

        A function of its own: names are looked up in frames, which then hold what they name.
        """
        data, n = trial.data(), trial.n_slices
        noting: AbstractContextManager[list[FftPlan]] = nullcontext([])
        if self.backend_kind == "cuda":
            if self.meta.array_module == "torch":
                raise DeviceError(
                    f"{self.meta.full_name}: allocations of methods for torch are recorded on the "
                    "CPU alone: --device cpu"
                )
            noting = plans_noted(lambda: recorder.n_events)
        with (
            recording(trial, n, int(data.nbytes), _SEEN_BYTES, names=True) as recorder,
            noting as plans,
        ):
            result = trial.call(data)
            finish(trial.backend)
        del result
        return _without(recorder.sequence(), plans), plans


def _without(sequence: AllocationSequence, plans: list[FftPlan]) -> AllocationSequence:
    """Sequence without what was allocated while plans were made."""
    if not plans:
        return sequence
    inside = {i for plan in plans for i in range(plan.start, plan.stop)}
    index: dict[int, int] = {}
    events: list[Allocated | Freed] = []
    for i, event in enumerate(sequence.events):
        if isinstance(event, Freed):
            if event.which in index:
                events.append(Freed(index[event.which]))
        elif i not in inside:
            index[i] = len(events)
            events.append(event)
    return replace(sequence, events=tuple(events))


def small_paths(runs: list[TracedRun]) -> set[str]:
    """Call paths whose allocations are small in every run."""
    largest: dict[str, int] = {}
    for run in runs:
        for event in run.sequence.events:
            if isinstance(event, Allocated):
                path = run.sequence.sites[event.site].path
                largest[path] = max(largest.get(path, 0), event.n_bytes)
    return {path for path, n_bytes in largest.items() if n_bytes < _LEAST_BYTES}


def allocations(run: TracedRun) -> Iterator[tuple[str, Allocated]]:
    """Allocations of a run with their call paths."""
    for event in run.sequence.events:
        if isinstance(event, Allocated):
            yield run.sequence.sites[event.site].path, event
