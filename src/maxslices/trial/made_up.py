"""Made-up values for methods under trial: plausible, quick to make and reproducible."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ..core.arrays import ArraySpec
from ..core.method_meta import MethodMeta
from ..devices import Backend
from ..devices.out_of_memory import is_out_of_memory
from ..errors import OutOfMemoryError

DataKind = Literal["even", "dark", "highest", "lowest"]
"""Histogram of made-up values: uniform over a detector's range, the same values squared, or all
values at one end of the range. If several kinds give the same peak, the memory of a call does not
depend on the data."""
N_FRAMES = 5
"""Frames of flats, and of darks, that are made up if the user gave none."""
_PERIOD = 1_000_003
"""Made-up data repeat after this many values. It is a prime, so that rows begin differently."""


@lru_cache(maxsize=8)
def made_up(dtype: np.dtype[Any], kind: DataKind) -> np.ndarray:
    """First values of made-up data; the data repeat them."""
    even = np.random.default_rng(0).random(_PERIOD, np.float32)
    if kind == "dark":
        np.square(even, out=even)
    elif kind in ("highest", "lowest"):
        even[:] = kind == "highest"
    if dtype.kind in "iu":  # a detector's range, all above 0
        top = min(np.iinfo(dtype).max, 60_000)
        even *= top * 0.9
        even += top * 0.05 + 1
    else:
        even *= 0.9
        even += 0.1
    values = even.astype(dtype, copy=False)
    values.flags.writeable = False
    return values


def array_module(backend: Backend) -> Any:
    """Array library of a backend: NumPy, or CuPy for a GPU."""
    return importlib.import_module("cupy") if backend.kind == "cuda" else np


def finish(backend: Backend) -> None:
    """Wait until the device has finished."""
    if backend.kind == "cuda":
        array_module(backend).cuda.get_current_stream().synchronize()


def repeated(shape: tuple[int, ...], values: np.ndarray, backend: Backend) -> Any:
    """New array on the device that repeats values, in memory order.

    Raises
    ------
    OutOfMemoryError
        If the host cannot allocate it.
    """
    try:
        data = array_module(backend).empty(shape, values.dtype)
    except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
        if is_out_of_memory(error) and backend.kind != "cpu":
            raise
        raise OutOfMemoryError(
            f"the input to measure with, {'x'.join(map(str, shape))} {values.dtype}, cannot be "
            "allocated here: measure fewer slices"
        ) from error
    target = data.reshape(-1)
    first = backend.to_device(values[: len(target)])
    for low in range(0, len(target), len(values)):
        target[low : low + len(values)] = first[: len(target) - low]
    return data


def facts(meta: MethodMeta, slice_dim: int) -> dict[str, Any]:
    """Arguments that the runner supplies besides frames and angles, for a scan's first block."""
    side_data = {
        "slice_dim": slice_dim,
        "first_slice": 0,
        "detector_start": (0, 0),
        "results_folder": None,
        "pixel_size_um": 1.0,
        "flat_weights": None,
    }
    return {name: value for name, value in side_data.items() if name in meta.supplied}


def made_up_frames(
    meta: MethodMeta,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    backend: Backend,
    supplied: Mapping[str, ArraySpec],
) -> dict[str, Any]:
    """Flats and darks for a method, close to the ends of the data's range.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    shape : (int, int, int)
        Shape of the block.
    dtype : numpy.dtype
        Dtype of the block.
    backend : Backend
        The device on which they are made.
    supplied : mapping
        Flats and darks of the scan as `ArraySpec`, if known.
    """
    frames: dict[str, Any] = {}
    for name, level in (("flats", 0.95), ("darks", 0.02)):
        if name not in meta.supplied:
            continue
        spec = supplied.get(name)
        n_frames, own_dtype = (spec.shape[0], spec.dtype) if spec else (N_FRAMES, dtype)
        top = np.iinfo(own_dtype).max if own_dtype.kind in "iu" else 1.0
        count = min(_PERIOD, n_frames * math.prod(shape[1:]))
        values = np.random.default_rng(1).random(count, np.float32) * 0.01 + level
        start = (values * top * 0.98).astype(own_dtype)
        frames[name] = repeated((n_frames, *shape[1:]), start, backend)
    return frames
