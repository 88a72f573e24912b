"""A declared estimator held against a probe."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from ..devices import Backend
from ..model.allocators import Device
from ..model.memory_model import MemoryModel
from ..model.units import format_bytes
from .declared import declared_model
from .model_request import Question
from .probed import probe

LOWER = 0.80
UPPER = 1.02
"""Probed over declared bytes: what the checks of an estimator allow, and two in a hundred for
what a probe counts besides, Python's own objects and what it cannot tell from them."""

NOISE_BYTES = {"cpu": 2**16, "cuda": 2**22}
"""What a measurement counts more of one call than of another: small objects, a driver's steps."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many slices fit, as declared and as probed."""

    method: str
    """Full name."""
    available_bytes: int
    """Memory that both were asked about."""
    declared_slices: int
    """Slices that the author's estimator says fit."""
    probed_slices: int
    """Slices that fit by what was measured."""
    declared_bytes: int
    """Peak that the author's estimator expects for `probed_slices`, of at least 1."""
    probed_bytes: int
    """Peak that the measurements give for as many."""
    noise_bytes: int = 0
    """Difference that says nothing."""

    @property
    def ratio(self) -> float:
        """Return declared over probed slices; above 1 the declared number would not fit."""
        return self.declared_slices / self.probed_slices if self.probed_slices else 0.0

    def __str__(self) -> str:
        return (
            f"{self.method}: in {format_bytes(self.available_bytes)} its estimator allows "
            f"{self.declared_slices} slices, a probe {self.probed_slices} ({self.ratio:.3f}); for "
            f"{self.probed_slices} it expects {format_bytes(self.declared_bytes)}, measured were "
            f"{format_bytes(self.probed_bytes)}"
        )

    def agrees(self, lower: float = LOWER, upper: float = UPPER) -> bool:
        """Tell whether the author's estimator is safe, and not much too careful."""
        expected, noise = self.declared_bytes, self.noise_bytes
        return lower * expected - noise <= self.probed_bytes <= upper * expected + noise


def compare(
    asked: Question,
    device: Device,
    measured: MemoryModel,
    available_bytes: int,
    margin_bytes: int = 0,
) -> Comparison:
    """Hold a method's own estimator against a model that was measured.

    Parameters
    ----------
    asked : Question
        The method, which has an estimator, with its parameters and data.
    device : {"cuda", "cpu"}
        Where it was measured.
    measured : MemoryModel
        What was measured.
    available_bytes : int
        Memory that slices have to fit in.
    margin_bytes : int
        Part of what was measured that is there for safety.

    Raises
    ------
    EstimatorError
        If the method has no estimator, or it fails.
    """
    declared = declared_model(asked, device)
    n = measured.max_slices(available_bytes, asked.most_slices)
    return Comparison(
        method=asked.meta.full_name,
        available_bytes=available_bytes,
        declared_slices=declared.max_slices(available_bytes, asked.most_slices),
        probed_slices=n,
        declared_bytes=declared.bytes(max(1, n)),
        probed_bytes=measured.bytes(max(1, n)),
        noise_bytes=NOISE_BYTES[device] + 2 * margin_bytes,
    )


def compare_with_probe(
    asked: Question,
    backend: Backend,
    *,
    available_bytes: int,
    lower: float = LOWER,
    upper: float = UPPER,
) -> Comparison:
    """Ask a method's own estimator and a probe the same question.

    Parameters
    ----------
    asked : Question
        The method, which has an estimator, with its parameters and data.
    backend : Backend
        Where it is run.
    available_bytes : int
        Memory that slices have to fit in.
    lower, upper : float
        Bounds of probed over declared bytes, for as many slices as fit; outside them there is
        a warning.

    Returns
    -------
    Comparison

    Raises
    ------
    EstimatorError
        If the method has no estimator, or cannot be measured.

    Warns
    -----
    UserWarning
        Where the two disagree by more than the bounds allow, with both numbers.
    """
    made = probe(asked, backend, available_bytes=available_bytes)
    found = compare(asked, backend.kind, made.model(), available_bytes)
    if not found.agrees(lower, upper):
        warnings.warn(str(found), stacklevel=2)
    return found
