"""The measured peak of a method that has no estimator, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import DTypeLike

from ..core.units import format_bytes
from ..estimate.peak_model import PeakModel
from ..measure import Peak
from .explained_call import explain_call
from .explained_peak import explained_peak
from .measurement import call_of, traced


@dataclass(frozen=True, slots=True)
class MethodPeak:
    """Result of `measure_undeclared`."""

    method: str
    """Full name."""
    slices: int
    """Slices that were run."""
    peak: Peak
    """Every meter's figure, with what was alive and the memory over time."""
    peaks: PeakModel | None
    """The peak as a sum of allocations, each a formula in the slices; None where none is found."""
    no_method: str = ""
    """Why no pipeline can have it as it is: it returned no array of these slices; else empty."""

    @property
    def explained(self) -> list[str]:
        """Lines of text: the sum, then its allocations."""
        return [] if self.peaks is None else explained_peak(self.peaks, self.slices)

    def __str__(self) -> str:
        took = format_bytes(self.peak.counted_bytes)
        lines = [f"{self.method} has no estimator; {self.slices} slices took {took}"]
        if self.explained:
            lines += [f"  alive at the peak: {self.explained[0]}"]
            lines += [f"  {line}" for line in self.explained[1:]]
        lines.append(str(self.peak))
        if self.no_method:
            lines.append(f"no method as it is: it {self.no_method}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Figures as values that JSON knows."""
        return {
            "method": self.method,
            "slices": self.slices,
            "peak_bytes": self.peak.counted_bytes,
            "explained": self.explained,
            "unseen": list(self.peak.unseen),
            "no_method": self.no_method,
        }


def measure_undeclared(
    method: str,
    shape: tuple[int, int, int],
    dtype: DTypeLike = "float32",
    parameters: Mapping[str, Any] | None = None,
    device: str = "auto",
    slice_dim: int | None = None,
) -> MethodPeak:
    """Run a method without an estimator, and find the lines that its peak is made of.

    The parameters are those of `measure_method`.

    Raises
    ------
    DeviceError
        If no meter gives its memory.
    """
    call = call_of(method, shape, dtype, parameters, device, slice_dim)
    peaks = explain_call(call)  # first, as the first call of a method may import and compile
    found, meta = traced(call), call.meta
    no_method = "" if meta.side_results else found.output.no_block(call.n_slices, call.slice_dim)
    return MethodPeak(meta.full_name, call.n_slices, found.peak, peaks, no_method)
