"""An estimate beside what was measured, for one shape: figures and table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..errors import DeviceError
from ..estimate.peak_model import PeakModel
from ..measure import Peak
from .check_result import CheckResult
from .estimate_check import check_call, find_method
from .explained_call import explain_call
from .explained_peak import explained_peak
from .measured_call import CallResult, MeasuredCall
from .result_table import to_dict


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of `measure_method`."""

    result: CheckResult
    """The estimate beside the measured peak."""
    peak: Peak
    """Every meter's figure, with what was alive and the memory over time.

    It is of a run with places recorded; on a CPU that adds small objects of Python's own.
    """
    peaks: PeakModel | None = None
    """The peak as a sum of allocations, each a formula in the slices; None where none is found."""
    half: tuple[int, Peak] | None = None
    """Half as many slices, or one more, with their figures; None unless asked for."""

    def __str__(self) -> str:
        if self.peaks is None:
            return f"{self.result}\n{self.peak}"
        lines = explained_peak(self.peaks, self.result.slices)
        table = "\n".join(f"  {line}" for line in ["alive at the peak: " + lines[0], *lines[1:]])
        return f"{replace(self.result, alive=())}\n{table}\n{self.peak}"

    def to_dict(self) -> dict[str, Any]:
        """Figures as values that JSON knows."""
        peak = self.peak
        explained = [] if self.peaks is None else explained_peak(self.peaks, self.result.slices)
        return to_dict(self.result) | {
            "explained": explained,
            "meters": {
                name: getattr(peak, name)
                for name in (
                    "numpy_bytes",
                    "cupy_in_use_bytes",
                    "cupy_held_bytes",
                    "torch_allocated_bytes",
                    "torch_requested_bytes",
                    "torch_reserved_bytes",
                    "cupy_and_torch_bytes",
                    "device_bytes",
                )
            },
            "unseen": list(self.result.unseen),
            "steps": [[round(s.time_s, 6), s.in_use_bytes, str(s.where)] for s in peak.samples],
        }


def measure_method(
    method: str,
    shape: tuple[int, int, int],
    dtype: DTypeLike = "float32",
    parameters: Mapping[str, Any] | None = None,
    device: str = "auto",
    slice_dim: int | None = None,
    *,
    with_half: bool = False,
) -> Measurement:
    """Run a registered method, and put its estimate beside what was measured.

    Parameters
    ----------
    method : str
        Registered name.
    shape : (int, int, int)
        Input, axes (angles, detector_y, detector_x), slices included.
    dtype : dtype-like
        Input dtype.
    parameters : mapping, optional
        Of the method.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    slice_dim : int, optional
        Axis of the slices; by default the first that the pattern allows.
    with_half : bool
        Whether half of the slices are measured as well, for a picture of both.
    """
    call = call_of(method, shape, dtype, parameters, device, slice_dim)
    result = check_call(call, trace=False)
    peak = traced(call).peak
    half = None
    if with_half and not call.looked_at and call.n_slices > 1:
        fewer = call.with_slices(-(-call.n_slices // 2))
        half = fewer.n_slices, fewer.measure(trace=True).peak
    result = replace(result, where=peak.where, alive=peak.alive)
    return Measurement(result, peak, explain_call(call), half)


def call_of(
    method: str,
    shape: tuple[int, int, int],
    dtype: DTypeLike,
    parameters: Mapping[str, Any] | None,
    device: str,
    slice_dim: int | None,
) -> MeasuredCall:
    """Make the call that `measure_method` is asked for."""
    meta = find_method(method)
    axis = meta.slice_dims()[0] if slice_dim is None else slice_dim
    return MeasuredCall(meta, shape, np.dtype(dtype), axis, device, parameters or {})


def traced(call: MeasuredCall) -> CallResult:
    """Measure a call with the places where it allocates.

    Raises
    ------
    DeviceError
        If no meter gives its memory.
    """
    found = call.measure(trace=True)
    if found.peak.counted_bytes is None:
        name = call.meta.full_name
        raise DeviceError(f"{name}: no meter gives its memory: {'; '.join(found.peak.unseen)}")
    return found
