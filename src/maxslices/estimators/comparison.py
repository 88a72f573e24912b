"""A declared estimator held against a probe."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..backends import Backend
from ..method import MethodMeta
from ..units import format_bytes
from .declared import declared_model
from .probed import probe


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
    """Peak that the author's estimator expects for `probed_slices`."""
    probed_bytes: int
    """Peak that the measurements give for `probed_slices`."""

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


def compare_with_probe(
    meta: MethodMeta,
    slice_dim: int,
    other_dims: tuple[int, int],
    dtype: DTypeLike,
    backend: Backend,
    parameters: Mapping[str, Any] | None = None,
    *,
    available_bytes: int,
    total_slices: int,
    lower: float = 0.80,
    upper: float = 1.00,
) -> Comparison:
    """Ask a method's own estimator and a probe the same question.

    Parameters
    ----------
    meta : MethodMeta
        A method with an estimator.
    slice_dim, other_dims, dtype, backend, parameters
        As for `probe`.
    available_bytes : int
        Memory that slices have to fit in.
    total_slices : int
        Most slices that are asked for.
    lower, upper : float
        Bounds of declared over probed slices; outside them there is a warning.

    Returns
    -------
    Comparison

    Warns
    -----
    UserWarning
        Where the two disagree by more than the bounds allow, with both numbers.
    """
    given, kind = dict(parameters or {}), np.dtype(dtype)
    declared = declared_model(meta, slice_dim, other_dims, kind, backend.kind, given)
    probed = probe(
        meta,
        slice_dim,
        other_dims,
        kind,
        backend,
        given,
        available_bytes=available_bytes,
        total_slices=total_slices,
    ).model()
    n_probed = probed.max_slices(available_bytes, total_slices)
    found = Comparison(
        method=meta.full_name,
        available_bytes=available_bytes,
        declared_slices=declared.max_slices(available_bytes, total_slices),
        probed_slices=n_probed,
        declared_bytes=declared.bytes(n_probed),
        probed_bytes=probed.bytes(n_probed),
    )
    if not lower * n_probed <= found.declared_slices <= upper * n_probed:
        warnings.warn(str(found), stacklevel=2)
    return found
