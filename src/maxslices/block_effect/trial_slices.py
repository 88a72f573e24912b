"""A method with some slices of made-up data, to be run on any part of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..core.method_meta import MethodMeta
from ..devices import Backend, call_method, require_libraries
from ..devices.sample_data import Samples, finish
from ..system.quiet import quiet
from .side_of_block import cut, side_of_block

_ABOVE, _BELOW = 1.05, 0.5
"""Factors of the values of a marked slice: made-up integers leave 5 % of their range free."""


class TrialSlices:
    """Runs a method on slices of one array, which is the same in every run.

    Parameters
    ----------
    meta : MethodMeta
        The method; it returns a block of as many slices as it is given.
    samples : Samples
        Makes the data.
    backend : Backend
        Where it runs.
    parameters : mapping
        Of the method.
    n_slices : int
        Slices of the array.
    """

    def __init__(
        self,
        meta: MethodMeta,
        samples: Samples,
        backend: Backend,
        parameters: Mapping[str, Any],
        n_slices: int,
    ) -> None:
        require_libraries([meta])
        self.meta, self.backend, self.n_slices = meta, backend, n_slices
        self.slice_dim = samples.slice_dim
        self.parameters = dict(parameters)
        self.declared = meta.halo_slices(**parameters)
        """Slices (before, after) of its declared halo."""
        self._side = samples.side(n_slices)
        self._data = samples.block(n_slices, "even")
        self._other = samples.block(n_slices, "dark")

    def run(self, low: int, high: int, marked: int | None = None) -> Any:
        """Result for the slices from `low` up to `high`, on the device.

        The slice `marked` has other values.
        """
        block = cut(self._data, self.slice_dim, low, high).copy()
        if marked is not None:
            place = cut(block, self.slice_dim, marked - low, marked - low + 1)
            other = cut(self._other, self.slice_dim, marked, marked + 1)[:, ::-1, ::-1]
            place[...] = other
            # Above all other values and below them, so that no statistic stays what it was.
            flat = place.reshape(-1)
            flat[::2] = (other.max() * _ABOVE).astype(place.dtype)
            flat[1::4] = (other.min() * _BELOW).astype(place.dtype)
            place[...] = flat.reshape(place.shape)
        side = side_of_block(self._side, self.slice_dim, low, high)
        given = self._side | side | self.parameters
        with quiet():  # about made-up data
            return call_method(self.meta, block, given, self.backend)

    def run_in_blocks(self, size: int, halo: tuple[int, int]) -> list[tuple[int, Any]]:
        """Results of all blocks of a size, each with its first slice's index, halos cropped."""
        before, after = halo
        found = []
        for start in range(0, self.n_slices, size):
            stop = min(self.n_slices, start + size)
            low, high = max(0, start - before), min(self.n_slices, stop + after)
            result = self.run(low, high)
            found.append((start, cut(result, self.slice_dim, start - low, stop - low)))
        return found

    def pace_s(self, few: int, many: int) -> tuple[float, float]:
        """Seconds of a call and of each slice beside, by a line through two numbers of slices.

        Each is called twice and timed the second time: as in a run, the call before has left
        memory and FFT plans. Those took nine tenths of the first calls of httomolibgpu's
        paganin_filter (H200).
        """
        few_s, many_s = (self._again_s(n_slices) for n_slices in (few, many))
        slice_s = max(0.0, many_s - few_s) / (many - few)
        return max(0.0, few_s - few * slice_s), slice_s

    def _again_s(self, n_slices: int) -> float:
        """Seconds of a call right after one with as many slices."""
        for _ in range(2):
            finish(self.backend)
            began = time.perf_counter()
            self.run(0, n_slices)
            finish(self.backend)
            taken_s = time.perf_counter() - began
        return taken_s

    def is_block(self, result: Any, n_slices: int) -> bool:
        """True if a result has these slices."""
        return getattr(result, "ndim", 0) == 3 and result.shape[self.slice_dim] == n_slices
