"""Flats and darks that a method changes: from where on, and what they are then."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..core.arrays import ArraySpec
from .scan_spec import ScanSpec
from .steps import Step

CHANGED_DTYPE = np.dtype(np.float32)
"""Dtype of the means that methods change, as in httomo."""


def changes_frames(steps: Sequence[Step], index: int) -> bool:
    """True if a step changes flats and darks that a later one takes."""
    return steps[index].meta.side_data is not None and any(
        {"flats", "darks"} & set(step.meta.supplied) for step in steps[index + 1 :]
    )


def scan_after(steps: Sequence[Step], index: int, scan: ScanSpec) -> ScanSpec:
    """The scan as a step is given it: one frame each of flats and darks after a change."""
    if not any(changes_frames(steps, earlier) for earlier in range(index)):
        return scan

    def reduced(spec: ArraySpec | None) -> ArraySpec | None:
        return None if spec is None else ArraySpec((1, *spec.shape[1:]), CHANGED_DTYPE)

    return dataclasses.replace(scan, flats=reduced(scan.flats), darks=reduced(scan.darks))
