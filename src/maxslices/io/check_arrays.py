"""Checks of blocks, dtypes and angles, and read-only views."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import ArraySpec
from ..errors import SourceError, UsageError

_WIDE_GAP, _STEPS_OF_GAP = 60.0, 3
"""Smallest gap of a half turn without projections that is warned of, in degrees and in mean steps.
Angles that were not written, or are radians, have larger gaps."""
_LEAST_DEGREES = 60.0
"""Smallest range in radians that is taken for degrees. Electron tomography covers 60 degrees or
more, which would be nine turns in radians."""
_FEW_ANGLES = 3
"""Smallest number of projections whose angles are checked: fewer are not a scan."""


def check_block(
    spec: ArraySpec, slice_dim: int, start: int, stop: int, block: NDArray[Any]
) -> None:
    """Check the shape and dtype of a block of slices.

    Raises
    ------
    UsageError
        If its shape or dtype is not that of the slices `start` to `stop` of `spec`.
    """
    if slice_dim not in (0, 1):
        raise UsageError(f"slice_dim is 0 (projections) or 1 (sinograms), not {slice_dim}")
    if not 0 <= start < stop <= spec.shape[slice_dim]:
        raise UsageError(
            f"slices {start}:{stop} are not within the {spec.shape[slice_dim]} slices along "
            f"dim {slice_dim} of {spec}"
        )
    expected = spec.with_slices(slice_dim, stop - start)
    if block.shape != expected.shape or block.dtype != expected.dtype:
        raise UsageError(
            f"slices {start}:{stop} along dim {slice_dim} of {spec} are {expected}, the block "
            f"given is {'x'.join(map(str, block.shape))} {block.dtype}"
        )


def check_output_block(
    spec: ArraySpec, slice_dim: int, start: int, stop: int, out: NDArray[Any]
) -> None:
    """Check an output block for reading.

    Raises
    ------
    UsageError
        If it is not C-contiguous, or its shape or dtype is not that of the slices.
    """
    check_block(spec, slice_dim, start, stop, out)
    if not out.flags.c_contiguous:
        raise UsageError(f"the block to read {spec} into must be C-contiguous, not a view")


def check_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Native dtype of frames stored as `dtype`.

    Raises
    ------
    SourceError
        If it is not a real number of at most 8 bytes.
    """
    if dtype.kind not in "uif" or dtype.itemsize > 8:
        raise SourceError(
            f"{name}: holds {dtype}, which is not grey values: they must be real numbers "
            "(uint8, int16, uint16, int32, float32, float64)"
        )
    return dtype.newbyteorder("=")


def radians_from_degrees(name: str, degrees: NDArray[Any] | Sequence[float]) -> NDArray[np.float32]:
    """Convert angles from degrees to float32 radians, in float64.

    Raises
    ------
    SourceError
        If they are not a list of finite numbers.
    """
    return _finite(name, np.deg2rad(_real(name, degrees)))


def check_angles(name: str, radians: NDArray[Any] | Sequence[float]) -> NDArray[np.float32]:
    """Check angles in radians, convert them to float32, and warn if they look like degrees.

    Raises
    ------
    SourceError
        If they are not a list of finite numbers.
    """
    angles = _finite(name, _real(name, radians))
    span = float(np.ptp(angles)) if angles.size else 0.0
    if span >= _LEAST_DEGREES:
        warnings.warn(
            f"{name}: the angles in radians cover {span / (2 * math.pi):.3g} turns: if they "
            "are degrees, their units must say so; give them in degrees with rotation_angles",
            stacklevel=3,
        )
    return angles


def _finite(name: str, values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Angles as float32, checked to be a list of finite numbers."""
    if values.ndim != 1:
        raise SourceError(f"{name}: rotation angles must be a list, not {values.ndim}-dimensional")
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(single))  # includes values that are too large for float32
    if bad.size:
        raise SourceError(
            f"{name}: {bad.size} of {values.size} rotation angles are not numbers (the first is "
            f"number {bad[0]}): give the angles with rotation_angles"
        )
    return single


def warn_of_missing_angles(name: str, radians: NDArray[np.float32]) -> None:
    """Warn if the angles of a whole scan do not cover a half turn."""
    if radians.size < _FEW_ANGLES:
        return
    degrees = np.sort(np.rad2deg(radians.astype(np.float64)) % 180)
    gap = float(np.diff(degrees, append=degrees[0] + 180).max())
    if gap < max(_WIDE_GAP, _STEPS_OF_GAP * 180 / radians.size):
        return
    extent = 180 - gap
    fault = (
        f"lie within {extent:.3g} degrees of a half turn" if extent else "all have the same angle"
    )
    warnings.warn(
        f"{name}: its {radians.size} projections {fault}, and a reconstruction needs all of it. If "
        "the angles are radians, store their units, or give angles with rotation_angles",
        stacklevel=3,
    )


def _real(name: str, values: NDArray[Any] | Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.dtype.kind not in "uif":
        raise SourceError(
            f"{name}: rotation angles are {array.dtype}, not numbers: give them with "
            "rotation_angles"
        )
    return array.astype(np.float64)


def without_ones(shape: tuple[int, ...] | None) -> str:
    """End of a message about an array with three dims longer than 1."""
    is_three = shape is not None and len(shape) > 3 and sum(n != 1 for n in shape) == 3
    return "; save it without its dims of 1 (numpy.squeeze)" if is_three else ""


def read_only(array: NDArray[Any]) -> NDArray[Any] | None:
    """Read-only view of a C-contiguous array; None for other arrays."""
    if not array.flags.c_contiguous:
        return None
    view = array.view()
    view.flags.writeable = False
    return view
