"""Runs a method on slices and says what memory it took."""

from __future__ import annotations

import gc
import logging
import time
import tracemalloc
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..devices import Backend, call_method, require_libraries
from ..measure import Peak, measure_peak
from ..measure.cupy_pool import GRAIN_BYTES
from ..registry.method_meta import MethodMeta
from ..system.loaded_modules import torch_on_gpu
from .sample_data import Samples, array_module, made_up

OUTSIDE_BYTES = {"cpu": 32 * 2**20, "cuda": 8 * 2**20}
"""Memory outside the allocators below this is not told from what drivers and C libraries
load and keep."""
_OUTSIDE_PART = {"cpu": 0.02, "cuda": 0.0}
"""The same, as a part of what the allocators took."""
_MORE = 2.2
"""Times as much memory outside in proportion to the slices as before, from which on a call is
repeated: arrays that a driver pads to a power of two take twice as much."""
NOISE_BYTES = {"cpu": 16 * 1024, "cuda": 16 * 512}
"""Python's own small objects, and the rounding of a few allocations."""
ROUNDING_BYTES = {"cpu": 0, "cuda": 16 * 512}
"""How far the rounding of some allocations takes peaks off a line."""
CUSHION_BYTES = {"cpu": 16 * 1024, "cuda": 0}
"""Counted on top of what is measured: Python's small objects are not the same each time."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One call of a method, measured."""

    n_slices: int
    """Slices that it was given."""
    n_bytes: int
    """Most bytes alive at once during the call, input and output included."""
    kept_bytes: int
    """Bytes that the call left when its result was gone: FFT plans with their work areas too."""
    left_bytes: int
    """Bytes that it left beyond these plans."""
    before_bytes: int
    """Bytes that earlier calls had left."""
    outside_bytes: int
    """Part of `n_bytes` that was allocated outside the pool; 0 where that is not clear."""
    duration_s: float
    """Duration of the call, of making its input and of measuring."""
    unseen: tuple[str, ...] = ()
    """What the meters could not attribute."""
    doubtful_bytes: int = 0
    """What seemed to be outside the pool, too little to be clear; not part of `n_bytes`."""
    call_s: float = 0.0
    """Duration of the call alone; 0 where it was not noted."""
    stays_bytes: int = 0
    """What the call left outside the pool: modules, caches of C libraries. Not in `n_bytes`."""


class Bench:
    """A method with its parameters and data, ready to be called with any number of slices.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    samples : Samples
        Makes its input and side data.
    backend : Backend
        Where it runs.
    parameters : mapping
        The user's; side data among them replace those of `samples`.
    """

    def __init__(
        self, meta: MethodMeta, samples: Samples, backend: Backend, parameters: Mapping[str, Any]
    ) -> None:
        require_libraries([meta])
        self.meta, self.samples, self.backend = meta, samples, backend
        self.parameters = dict(parameters)
        self.kind = "scan" if samples.first_slices is not None else "even"
        self.uses_outside = False
        """Whether calls have taken memory outside the pool, and again when repeated."""
        self.stays_bytes = 0
        """What all calls together have left outside the pool."""
        self.output_dtype: str | None = None
        """Dtype of the result; None where it is no block of slices."""
        self.output_dims: tuple[int, int] | None = None
        """The result's other two dims, in array order."""
        self.side_bytes = 0
        """What the flats and darks of the last call take, which do not count."""
        self._left_bytes = 0
        self._outside_of_slice = 0.0

    def first(self, n_slices: int) -> Rung:
        """Call the method for the first time: what is outside the pool may be for good."""
        return self._run(n_slices)

    def run(self, n_slices: int) -> Rung:
        """Call the method once, everything it allocates counted.

        Memory outside the pool counts where two calls show it, and as much as both show; a
        call is repeated where it first appears, and where there is far more than in proportion.
        """
        rung = self._run(n_slices)
        usual = _MORE * self._outside_of_slice * n_slices + OUTSIDE_BYTES[self.backend.kind]
        if rung.outside_bytes > (usual if self.uses_outside else 0):
            rung = self._agreed(rung, self._run(n_slices))
        self._outside_of_slice = max(self._outside_of_slice, rung.outside_bytes / n_slices)
        return rung

    def _agreed(self, rung: Rung, again: Rung) -> Rung:
        """Return what two calls with the same slices both show."""
        both = min(rung.outside_bytes, again.outside_bytes)
        inside = max(r.n_bytes - r.outside_bytes for r in (rung, again))
        doubtful = min(max(r.outside_bytes, r.doubtful_bytes) for r in (rung, again)) - both
        self.uses_outside = self.uses_outside or both > 0
        return replace(
            again,
            n_bytes=inside + both,
            kept_bytes=max(rung.kept_bytes, again.kept_bytes),
            left_bytes=rung.left_bytes + again.left_bytes,
            before_bytes=rung.before_bytes,
            outside_bytes=both,
            doubtful_bytes=doubtful,
            stays_bytes=rung.stays_bytes + again.stays_bytes,
        )

    def _run(self, n_slices: int) -> Rung:
        began = time.perf_counter()
        side = self.samples.side(n_slices)
        self.side_bytes = sum(int(side[name].nbytes) for name in ("flats", "darks") if name in side)
        if self.kind != "scan":
            made_up(self.samples.dtype, self.kind)  # outlives the call, and is not the method's
        self.backend.release()  # what is held from now on is this call's
        start, before = self._allocated(), self._left_bytes
        data = self.samples.block(n_slices, self.kind)
        self._finish()
        with measure_peak(self.backend.kind) as peak:
            self._call(data, side)
        del data
        kept = left = self._allocated() - start
        if kept:
            self.backend.release()
            left = self._allocated() - start
        if left > 0:
            gc.collect()  # cycles hold arrays until then; it takes too long to do it each time
            kept -= left - (left := self._allocated() - start)
        self._left_bytes += left
        counted, unseen = _counted(peak)
        stays = peak.outside_after_bytes if peak.outside_after_bytes >= GRAIN_BYTES else 0
        self.stays_bytes += stays
        outside, doubtful = max(0, (peak.outside_bytes or 0) - stays), 0
        kind = self.backend.kind
        if not self.uses_outside and outside <= max(
            OUTSIDE_BYTES[kind], _OUTSIDE_PART[kind] * counted
        ):
            outside, doubtful = 0, outside
        return Rung(
            n_slices,
            self.samples.nbytes(n_slices) + counted + outside,
            max(0, kept),
            left,
            max(0, before),
            outside,
            time.perf_counter() - began,
            unseen,
            doubtful,
            stays_bytes=stays,
            call_s=peak.wall_s,
        )

    def close(self) -> None:
        """Give back the side data."""
        self.samples.frames = {}
        self.backend.release()

    def _call(self, data: Any, side: dict[str, Any]) -> None:
        level = logging.root.manager.disable
        with warnings.catch_warnings():  # what is said about made-up data helps nobody
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            try:
                result = call_method(self.meta, data, side | self.parameters, self.backend)
            finally:
                logging.disable(level)
        if not self.meta.side_results and getattr(result, "ndim", 0) == 3:
            self.output_dtype = str(result.dtype)
            rows, columns = np.delete(result.shape, self.samples.slice_dim).tolist()
            self.output_dims = rows, columns
        del result
        self._finish()

    def _finish(self) -> None:
        """Wait for the device."""
        if self.backend.kind == "cuda":
            array_module(self.backend).cuda.get_current_stream().synchronize()

    def pool_bytes(self) -> int:
        """Return what a GPU's pool holds: once unused blocks are given back, what is in use."""
        return int(array_module(self.backend).get_default_memory_pool().total_bytes())

    def _allocated(self) -> int:
        """Return what is allocated: the pool's bytes in use, or traced NumPy arrays."""
        if self.backend.kind == "cuda":
            in_use = int(array_module(self.backend).get_default_memory_pool().used_bytes())
            torch = torch_on_gpu()
            if torch is not None:
                in_use += int(torch.cuda.memory_allocated())
            return in_use
        if not tracemalloc.is_tracing():
            return 0
        traces = tracemalloc.take_snapshot().traces
        return sum(trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain)


def _counted(peak: Peak) -> tuple[int, tuple[str, ...]]:
    """Return the most bytes alive at once in arrays; two libraries' peaks are added up."""
    counted = peak.counted_bytes
    if counted is None:
        counted = (peak.cupy_in_use_bytes or 0) + (peak.torch_allocated_bytes or 0)
    return counted, tuple(peak.unseen)


@contextmanager
def traced(backend: Backend) -> Iterator[None]:
    """Keep tracemalloc on, so that what one call leaves on the CPU is known at the next."""
    start = backend.kind == "cpu" and not tracemalloc.is_tracing()
    if start:
        tracemalloc.start(1)
    try:
        yield
    finally:
        if start:
            tracemalloc.stop()
