"""Memory models of methods without an estimator, measured.

`SequenceProbe` finds a method's memory from what a few calls allocate. Where that does not tell it,
`PeakSearch` finds it from the peaks of calls with more and more slices.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.arrays import ArraySpec
from ..core.units import format_bytes
from ..devices import Backend
from ..measure.alive import tracemalloc_on
from ..system.process_state import random_state_kept
from ..trial.trial import MeasuredCall, Trial
from ..tuning.garbage_collection import quick_collections
from .method_calls import MethodCalls
from .model_request import ModelRequest
from .peak_search import PeakSearch
from .probe_result import Probe
from .sequence_probe import NotExplainedError, SequenceProbe


def probe(
    request: ModelRequest,
    backend: Backend,
    *,
    available_bytes: int,
    supplied: Mapping[str, ArraySpec] | None = None,
) -> Probe:
    """Measure a method's memory model with a few slices.

    The memory is that for which the number of slices that fit is wanted. Flats and darks that are
    supplied are not counted in the peak.

    Measuring itself stays within `available_bytes`, flats and darks included. On a GPU the pool is
    limited. Where nothing limits memory (outside the pool, on the CPU) a call is not made if it is
    predicted to take more. The fewest slices that the method runs on are exempt.

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
            how = [f"found by its peaks alone: {error}"]
            explained = PeakSearch(calls, explained.usual_rungs)
            peaks = explained.run()
        trial.close()
        found = explained.result(peaks, available_bytes, time.perf_counter() - began)
    notes = (*calls.notes, *found.notes, *_noticed(found.rungs, trial), *how)
    return replace(found, notes=notes)


def _noticed(rungs: Sequence[MeasuredCall], trial: Trial) -> list[str]:
    """What the calls showed beside their peaks, in words."""
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
