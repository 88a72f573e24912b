"""Find out whether slices can be used in place, or copied by a device directly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..io import SupportsWindow
from ..io.check_arrays import read_only
from .backend import is_copyable
from .cpu import Backend
from .cuda_copies import CopyEngine


def slices_in_place(
    holder: object, backend: Backend, slice_dim: int, start: int, stop: int
) -> NDArray[Any] | None:
    """View of slices in host memory, if the device can use it.

    Parameters
    ----------
    holder : object
        A source or a store to read from, or a store or a sink to write to.
    backend : Backend
        The device. On the CPU methods use the slices themselves, C-contiguous and read-only. Other
        devices copy from them or to them.
    slice_dim : int
        0 for projections, 1 for sinograms.
    start, stop : int
        The slices, `stop` excluded.

    Returns
    -------
    ndarray or None
        None if the slices must be copied through other memory.
    """
    engine = backend.copy_engine()
    if engine is None:
        window = _window(holder, slice_dim, start, stop)
        return None if window is None else read_only(window)
    return slices_to_copy(holder, engine, slice_dim, start, stop)


def slices_to_copy(
    holder: object, engine: CopyEngine, slice_dim: int, start: int, stop: int
) -> NDArray[Any] | None:
    """View of slices that a device can copy from or to, or None. See `slices_in_place`."""
    window = _window(holder, slice_dim, start, stop)
    if window is None or not is_copyable(window) or not engine.is_direct(window):
        return None
    return window


def _window(holder: object, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
    return holder.window(slice_dim, start, stop) if isinstance(holder, SupportsWindow) else None


def is_direct(array: np.ndarray, backend: Backend) -> bool:
    """True if a device copies from and to an array at full speed, always on the CPU."""
    engine = backend.copy_engine()
    return engine is None or engine.is_direct(array)
