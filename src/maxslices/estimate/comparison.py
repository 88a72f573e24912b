"""Compare a declared estimator with what was measured."""

from __future__ import annotations

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


def compare(
    request: ModelRequest, device: Device, measured: MemoryModel, available_bytes: int
) -> tuple[str, str]:
    """Compare a method's own estimator with a measured model, for as many slices as fit by that.

    Returns
    -------
    (str, str)
        How many slices each allows; and what to warn of, with both peaks, which is empty where the
        author's estimator is safe and not far too high.

    Raises
    ------
    EstimatorError
        If the method has no estimator, or it fails.
    """
    declared = declared_model(request, device)
    allowed, n = (
        model.max_slices(available_bytes, request.most_slices) for model in (declared, measured)
    )
    expected, probed = declared.bytes(max(1, n)), measured.bytes(max(1, n))
    noise = NOISE_BYTES[device]
    told = f"its own estimator allows {allowed} slices where this allows {n}"
    if not n or LOWER * expected - noise <= probed <= UPPER * expected + noise:
        return told, ""
    return told, (
        f"{request.meta.full_name}: in {format_bytes(available_bytes)} its estimator allows "
        f"{allowed} slices, a probe {n} ({allowed / n:.3f}); for {n} it expects "
        f"{format_bytes(expected)}, measured were {format_bytes(probed)}"
    )
