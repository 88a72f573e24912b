"""Measured peak of one method, with its estimate if it declares one.

The peak of a record is also printed as a table of allocations, with formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import DTypeLike

from ..core.arrays import ArraySpec, as_dtype
from ..core.units import format_bytes
from ..errors import DeviceError
from ..estimate.peak_model import PeakModel
from ..measure import Peak
from ..trial.trial import THE_CALL, is_call
from .check_result import MAX_CODE, MAX_ROWS, CheckResult, alive_rows
from .estimate_check import check_trial, find_method, trial_of

_OF_ARRAYS = {
    "cpu": ("numpy_bytes",),
    "cuda": ("cupy_in_use_bytes", "cupy_held_bytes"),
}
"""Figures of `Peak` that include a call's input."""
_SMALL = 1 / 1000
"""Allocations below this fraction of the peak are summed in one row."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of `measure_method`."""

    method: str
    """Full name of the method."""
    slices: int
    """Number of slices that were run."""
    peak: Peak
    """Figures of all meters, including the input, and the allocations alive."""
    result: CheckResult | None = None
    """Comparison of estimate and measured peak, or None for a method without an estimator."""
    no_method: str = ""
    """Reason why pipelines cannot use the function, if it did not return an array of these
    slices."""

    def __str__(self) -> str:
        if self.result is None:
            took = format_bytes(self.peak.counted_bytes)
            lines = [f"{self.method} has no estimator; {self.slices} slices took {took}"]
            lines += alive_rows(self.peak.alive)
        else:
            lines = [str(self.result)]
        lines.append(str(self.peak))
        if self.no_method:
            lines.append(f"pipelines cannot use it unchanged: it {self.no_method}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain values for JSON."""
        if self.result is None:
            return {
                "method": self.method,
                "slices": self.slices,
                "peak_bytes": self.peak.counted_bytes,
                "unseen": list(self.peak.unseen),
                "no_method": self.no_method,
            }
        meters = (
            "numpy_bytes",
            "cupy_in_use_bytes",
            "cupy_held_bytes",
            "torch_allocated_bytes",
            "device_bytes",
        )
        return self.result.to_dict() | {
            "meters": {name: getattr(self.peak, name) for name in meters},
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
    """Run a method, measure its peak, and compare it with its estimate if it declares one.

    Parameters
    ----------
    method : str
        Registered name, or MODULE:CALLABLE.
    shape : (int, int, int)
        Shape of the input (angles, detector_y, detector_x), including the slices.
    dtype : dtype-like
        Input dtype.
    parameters : mapping, optional
        Parameters of the method.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    slice_dim : int, optional
        Axis of the slices. By default, the first that the pattern allows.

    Raises
    ------
    DeviceError
        If no meter can measure its memory.
    """
    meta = find_method(method)
    axis = meta.slice_dims()[0] if slice_dim is None else slice_dim
    trial = trial_of(meta, ArraySpec(shape, as_dtype(dtype)), axis, device, parameters or {})
    result = None if meta.estimator is None else check_trial(trial)
    if result is None:
        trial.once()  # the first call of a method may import and compile
        trial.is_recorded = True
        trial.once()
    peak = trial.peak
    if peak is None or peak.counted_bytes is None:
        reasons = "" if peak is None else "; ".join(peak.unseen)
        raise DeviceError(f"{meta.full_name}: no meter can measure its memory: {reasons}")
    for name in _OF_ARRAYS[trial.backend.kind]:
        if (figure := getattr(peak, name)) is not None:
            setattr(peak, name, figure + trial.nbytes(trial.n_slices))
    is_judged = result is not None or meta.side_results
    no_method = "" if is_judged else trial.output.why_not_block(trial.n_slices, axis)
    return Measurement(meta.full_name, trial.n_slices, peak, result, no_method)


def explained_peak(peaks: PeakModel, n: int) -> list[str]:
    """Table of the allocations alive at the peak for n slices, the largest first."""
    label = peaks.highest(n)
    total = peaks.predicted(n)
    rows = sorted(
        ((term.n_bytes(n, peaks.granule_bytes), term) for term in peaks.moments[label]),
        key=lambda row: -row[0],
    )
    lines = [f"{n} slices take {format_bytes(total)} at {place_of(peaks, label)}:"]
    cells: list[tuple[str, str, str, str, str]] = []
    small_bytes = 0
    for n_bytes, term in rows:
        if n_bytes < _SMALL * total or len(cells) == MAX_ROWS:
            small_bytes += n_bytes
            continue
        number = "" if str(term.number) == "1" else f"({term.number}) arrays of "
        place = place_of(peaks, term.path)
        share = f"{n_bytes / total:.0%}"
        cells.append(
            (
                format_bytes(n_bytes),
                share,
                f"{number}{term.size} bytes",
                place,
                _code(peaks, term.path),
            )
        )
    if small_bytes:
        cells.append(
            (format_bytes(small_bytes), f"{small_bytes / total:.0%}", "smaller ones", "", "")
        )
    wide = [max(len(cell[i]) for cell in cells) for i in (2, 3)]
    return lines + [
        f"{size:>10} {share:>4}  {formula:<{wide[0]}}  {place:<{wide[1]}}  {code}".rstrip()
        for size, share, formula, place, code in cells
    ]


def place_of(peaks: PeakModel, path: str) -> str:
    """File, line and function of a call site, or its name."""
    site = peaks.sites.get(path)
    if site is None or not site.filename:
        return path
    if is_call(site):
        return THE_CALL
    short = "/".join(site.filename.split("/")[-2:])  # a record may be from another machine
    return f"{short}:{site.line} in {site.function}"


def _code(peaks: PeakModel, path: str) -> str:
    """Line of code of a call site, or "" if its file is missing here."""
    site = peaks.sites.get(path)
    text = "" if site is None or is_call(site) else site.code
    return text if len(text) <= MAX_CODE else f"{text[: MAX_CODE - 3].rstrip()}..."
