"""What one method was measured to take, and what it is estimated to take if it declares that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import DTypeLike

from ..core.arrays import ArraySpec, as_dtype
from ..core.units import format_bytes
from ..errors import DeviceError
from ..estimate.peak_model import PeakModel
from ..measure import Peak
from ..trial.trial import Trial
from .check_result import CheckResult
from .estimate_check import check_trial, find_method, trial_of
from .explained_peak import explain_call, explained_peak

_OF_ARRAYS = {
    "cpu": ("numpy_bytes",),
    "cuda": ("cupy_in_use_bytes", "cupy_held_bytes", "cupy_and_torch_bytes"),
}
"""Figures of `Peak` that an input of a call is part of."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of `measure_method`."""

    method: str
    """Full name of the method."""
    slices: int
    """Slices that were run."""
    peak: Peak
    """Every meter's figure, the input included, and what was alive."""
    result: CheckResult | None = None
    """The estimate and the measured peak; None for a method without an estimator."""
    peaks: PeakModel | None = None
    """The peak as a sum of allocations, each a formula in the slices; None where none is found."""
    no_method: str = ""
    """Why no pipeline can use the function unchanged: it returned no array of these slices."""

    @property
    def explained(self) -> list[str]:
        """Lines of text: the sum, then its allocations."""
        return [] if self.peaks is None else explained_peak(self.peaks, self.slices)

    def __str__(self) -> str:
        if self.result is None:
            took = format_bytes(self.peak.counted_bytes)
            lines = [f"{self.method} has no estimator; {self.slices} slices took {took}"]
        else:
            lines = [str(replace(self.result, alive=()) if self.explained else self.result)]
        if self.explained:
            lines += [f"  alive at the peak: {self.explained[0]}"]
            lines += [f"  {line}" for line in self.explained[1:]]
        lines.append(str(self.peak))
        if self.no_method:
            lines.append(f"no method as it is: it {self.no_method}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Figures as values that JSON knows."""
        peak = self.peak
        if self.result is None:
            return {
                "method": self.method,
                "slices": self.slices,
                "peak_bytes": peak.counted_bytes,
                "explained": self.explained,
                "unseen": list(peak.unseen),
                "no_method": self.no_method,
            }
        return self.result.to_dict() | {
            "explained": self.explained,
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
        }


def measure_method(
    method: str,
    shape: tuple[int, int, int],
    dtype: DTypeLike = "float32",
    parameters: Mapping[str, Any] | None = None,
    device: str = "auto",
    slice_dim: int | None = None,
) -> Measurement:
    """Run a method, measure its peak, and compare it with the estimate if there is one.

    Parameters
    ----------
    method : str
        Registered name, or MODULE:CALLABLE.
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

    Raises
    ------
    DeviceError
        If no meter gives its memory.
    """
    meta = find_method(method)
    axis = meta.slice_dims()[0] if slice_dim is None else slice_dim
    trial = trial_of(meta, ArraySpec(shape, as_dtype(dtype)), axis, device, parameters or {})
    if meta.estimator is None:
        peaks = explain_call(trial)  # first, as the first call of a method may import and compile
        peak = _measured(trial)
        no_method = "" if meta.side_results else trial.output.no_block(trial.n_slices, axis)
        return Measurement(meta.full_name, trial.n_slices, peak, peaks=peaks, no_method=no_method)
    result = check_trial(trial, trace=False)
    peak = _measured(trial)
    alive = tuple(sorted(peak.alive, key=lambda row: -row.n_bytes))
    result = replace(result, where=peak.alive[-1].where if alive else None, alive=alive)
    return Measurement(meta.full_name, trial.n_slices, peak, result, explain_call(trial))


def _measured(trial: Trial) -> Peak:
    """Figures of a call, its input included."""
    trial.is_recorded = True
    call = trial.once()
    if trial.peak is None or trial.peak.counted_bytes is None:
        name = trial.meta.full_name
        raise DeviceError(f"{name}: no meter gives its memory: {'; '.join(call.unseen)}")
    for name in _OF_ARRAYS[trial.backend.kind]:
        if (figure := getattr(trial.peak, name)) is not None:
            setattr(trial.peak, name, figure + trial.nbytes(trial.n_slices))
    return trial.peak
