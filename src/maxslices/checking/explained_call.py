"""What a method allocates as formulas in the number of slices, from calls with a few of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ..core.allocators import CUDA_GRANULE_BYTES
from ..devices.sample_data import finish
from ..errors import MaxslicesError
from ..estimate.peak_model import Observation, PeakModel
from ..measure.allocation_sequence import AllocationSequence
from ..measure.sequence_recorder import SequenceRecorder, record_sequence
from .measured_call import MeasuredCall

FEW = (3, 5, 8)
"""Slices of calls beside the one that is measured: they tell lines from pairs and chunks."""
_SEEN_BYTES = 1024
"""Smaller allocations on the CPU are not looked at: Python code makes many of a few bytes."""


def recording(
    call: MeasuredCall, n_bytes: int, least_bytes: int, *, names: bool
) -> AbstractContextManager[SequenceRecorder] | Any:
    """Recorder of what a call asks its array library for.

    Parameters
    ----------
    call : MeasuredCall
        The method with its block.
    n_bytes : int
        Bytes of the input.
    least_bytes : int
        On the CPU smaller allocations are left out.
    names : bool
        Whether arrays are named by the variables that hold them. Looking for these keeps some
        arrays alive a little longer.
    """
    if call.meta.array_module == "torch":
        from ..measure.torch_sequence import record_torch_sequence

        return record_torch_sequence(call.n_slices, n_bytes, least_bytes=least_bytes)
    if call.backend.kind == "cuda":
        return record_sequence(call.n_slices, n_bytes, names=names)
    from ..measure.numpy_sequence import record_numpy_sequence

    return record_numpy_sequence(call.n_slices, n_bytes, names=names, least_bytes=least_bytes)


def explain_call(call: MeasuredCall) -> PeakModel | None:
    """Find the allocations alive at the peak, each with a formula in the number of slices.

    The method is called with a few slices more. None if no sequence is recorded of its library, or
    it cannot be called with two numbers of slices.
    """
    if call.looked_at or (call.meta.array_module == "torch" and call.backend.kind == "cuda"):
        return None
    granule = CUDA_GRANULE_BYTES if call.backend.kind == "cuda" else 1
    seen = []
    for n in sorted({*(few for few in FEW if few < call.n_slices), call.n_slices}):
        sequence = _sequence(call if n == call.n_slices else call.with_slices(n))
        if sequence is not None:
            seen.append(Observation.of(sequence, granule))
    if len(seen) < 2 or not all(each.moments for each in seen):
        return None
    return PeakModel.fit(seen, granule)


def _sequence(call: MeasuredCall) -> AllocationSequence | None:
    """Allocations of one call; None if the method refuses so few slices."""
    data = call.on_device(call.data())
    try:
        with recording(call, int(data.nbytes), _SEEN_BYTES, names=False) as recorder:
            result = call.invoke(data)
            finish(call.backend)
    except MaxslicesError:
        raise
    except Exception:  # noqa: BLE001 - a method may refuse a number of slices in any way
        return None
    del result
    return recorder.sequence()
