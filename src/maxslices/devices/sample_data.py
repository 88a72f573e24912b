"""Input for methods under measurement: plausible values, cheap to make, and always the same."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.allocators import round_to_granule
from ..core.arrays import ArraySpec, block_shape
from ..core.method_meta import MethodMeta
from .backend import Backend

N_FRAMES = 5
"""Frames of flats, and of darks, that are made up if the user gave none."""
_PERIOD = 1_000_003
"""Made-up data repeat after this many values: a prime, so that rows do not begin alike."""


def detector_values(even: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Scale float32 values from 0 to 1 to a detector's range, all above 0; in place."""
    if dtype.kind in "iu":
        top = min(np.iinfo(dtype).max, 60_000)
        even *= top * 0.9
        even += top * 0.05 + 1
    else:
        even *= 0.9
        even += 0.1
    return even.astype(dtype, copy=False)


def facts(meta: MethodMeta, slice_dim: int) -> dict[str, Any]:
    """Arguments that the runner supplies besides frames and angles, for a scan's first block."""
    known = {
        "slice_dim": slice_dim,
        "first_slice": 0,
        "detector_start": (0, 0),
        "results_folder": None,
    }
    return {name: value for name, value in known.items() if name in meta.supplied}


@lru_cache(maxsize=8)
def made_up(dtype: np.dtype[Any], kind: str) -> np.ndarray:
    """First values of made-up data of a kind; the data repeat them.

    "even" are spread evenly over a detector's range; "dark" are the same squared, for another
    histogram; "highest" and "lowest" are all at an end of it.
    """
    even = np.random.default_rng(0).random(_PERIOD, np.float32)
    if kind == "dark":
        np.square(even, out=even)
    elif kind in ("highest", "lowest"):
        even[:] = kind == "highest"
    return detector_values(even, dtype)


def array_module(backend: Backend) -> Any:
    """Array library of a backend: NumPy, or CuPy for a GPU."""
    return importlib.import_module("cupy") if backend.kind == "cuda" else np


def finish(backend: Backend) -> None:
    """Wait until the device has finished."""
    if backend.kind == "cuda":
        array_module(backend).cuda.get_current_stream().synchronize()


def _tiled(shape: tuple[int, ...], start: np.ndarray, backend: Backend) -> Any:
    """New array on the device that repeats `start`, in memory order."""
    data = array_module(backend).empty(shape, start.dtype)
    target = data.reshape(-1)
    repeated = backend.to_device(start[: len(target)])
    for low in range(0, len(target), len(start)):
        target[low : low + len(start)] = repeated[: len(target) - low]
    return data


class Samples:
    """Makes a method's input and side data, for any number of slices.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    slice_dim, other_dims, dtype
        Of its input.
    backend : Backend
        Where the data are made.
    supplied : mapping, optional
        Flats, darks, angles: those not among them are made up. An `ArraySpec` in place of
        flats or darks says how many frames there are, and of which dtype.
    """

    def __init__(
        self,
        meta: MethodMeta,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: np.dtype[Any],
        backend: Backend,
        supplied: Mapping[str, ArraySpec] | None = None,
    ) -> None:
        self.meta, self.slice_dim, self.other_dims, self.dtype = meta, slice_dim, other_dims, dtype
        self.backend, self.supplied = backend, dict(supplied or {})
        self.frames: dict[str, Any] = {}
        self._frames_of: tuple[int, ...] = ()

    def shape(self, n_slices: int) -> tuple[int, int, int]:
        """Shape of a block."""
        return block_shape(self.slice_dim, n_slices, self.other_dims)

    def nbytes(self, n_slices: int) -> int:
        """Bytes that the device's allocator takes for a block."""
        n_bytes = math.prod(self.shape(n_slices)) * self.dtype.itemsize
        return round_to_granule(n_bytes) if self.backend.kind == "cuda" else n_bytes

    def block(self, n_slices: int, kind: str) -> Any:
        """Make an input on the device; `kind` as for `made_up`."""
        return _tiled(self.shape(n_slices), made_up(self.dtype, kind), self.backend)

    def side(self, n_slices: int) -> dict[str, Any]:
        """Make the side data of a block of this size."""
        shape = self.shape(n_slices)
        if shape[1:] != self._frames_of:
            self.frames = self._make_frames(shape)
            self._frames_of = shape[1:]
        side = self.frames | facts(self.meta, self.slice_dim)
        if "angles" in self.meta.supplied:
            side["angles"] = np.linspace(0, np.pi, shape[0], endpoint=False, dtype=np.float32)
        return side

    def _make_frames(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """Make up flats and darks, close to the ends of the data's range."""
        frames: dict[str, Any] = {}
        for name, level in (("flats", 0.95), ("darks", 0.02)):
            if name not in self.meta.supplied:
                continue
            spec = self.supplied.get(name)
            n_frames, dtype = (spec.shape[0], spec.dtype) if spec else (N_FRAMES, self.dtype)
            top = np.iinfo(dtype).max if dtype.kind in "iu" else 1.0
            count = min(_PERIOD, n_frames * shape[1] * shape[2])
            values = np.random.default_rng(1).random(count, np.float32) * 0.01 + level
            start = (values * top * 0.98).astype(dtype)
            frames[name] = _tiled((n_frames, *shape[1:]), start, self.backend)
        return frames
