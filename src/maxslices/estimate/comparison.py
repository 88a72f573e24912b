"""Compare a declared estimator with what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.allocators import Device
from ..model.memory_model import MemoryModel
from ..model.units import format_bytes
from .declared import declared_model
from .model_request import ModelRequest

LOWER = 0.80
UPPER = 1.02
"""Bounds of probed over declared bytes. The lower one is that of `check_max_slices`; the upper one
allows 2 % for what a probe counts besides arrays: Python's objects, and what meters cannot tell
from them."""

NOISE_BYTES = {"cpu": 2**16, "cuda": 2**22}
"""Differences between two measurements of one call: 64 KiB of small Python objects on the CPU; on a
GPU 4 MiB, two of the 2 MiB steps in which a driver hands out memory."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Slices that fit and their peak, as declared and as measured."""

    method: str
    """Full name."""
    available_bytes: int
    """Memory for which both were evaluated."""
    declared_slices: int
    """Slices that the author's estimator says fit."""
    probed_slices: int
    """Slices that fit by what was measured."""
    declared_bytes: int
    """Peak that the author's estimator expects for `probed_slices`, at least for one slice."""
    probed_bytes: int
    """Peak by the measurements for as many slices."""
    noise_bytes: int = 0
    """Difference that is ignored."""

    @property
    def ratio(self) -> float:
        """Declared over probed slices; above 1 the declared number does not fit."""
        return self.declared_slices / self.probed_slices if self.probed_slices else 0.0

    def __str__(self) -> str:
        return (
            f"{self.method}: in {format_bytes(self.available_bytes)} its estimator allows "
            f"{self.declared_slices} slices, a probe {self.probed_slices} ({self.ratio:.3f}); for "
            f"{self.probed_slices} it expects {format_bytes(self.declared_bytes)}, measured were "
            f"{format_bytes(self.probed_bytes)}"
        )

    def agrees(self) -> bool:
        """True if the author's estimator is safe and not far too high."""
        expected, noise = self.declared_bytes, self.noise_bytes
        return LOWER * expected - noise <= self.probed_bytes <= UPPER * expected + noise


def compare(
    request: ModelRequest,
    device: Device,
    measured: MemoryModel,
    available_bytes: int,
) -> Comparison:
    """Compare a method's own estimator with a measured model.

    Parameters
    ----------
    request : ModelRequest
        The method, which has an estimator, with its parameters and data.
    device : {"cuda", "cpu"}
        Where it was measured.
    measured : MemoryModel
        The measured model.
    available_bytes : int
        Memory that slices have to fit in.

    Raises
    ------
    EstimatorError
        If the method has no estimator, or it fails.
    """
    declared = declared_model(request, device)
    n = measured.max_slices(available_bytes, request.most_slices)
    return Comparison(
        method=request.meta.full_name,
        available_bytes=available_bytes,
        declared_slices=declared.max_slices(available_bytes, request.most_slices),
        probed_slices=n,
        declared_bytes=declared.bytes(max(1, n)),
        probed_bytes=measured.bytes(max(1, n)),
        noise_bytes=NOISE_BYTES[device],
    )
