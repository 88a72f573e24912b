"""Call a method with a number of slices and measure the memory of the call."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.allocators import CUDA_GRANULE_BYTES
from ..core.author_lines import defined_at
from ..core.method_meta import MethodMeta
from ..core.plain_records import PlainRecord
from ..core.returned_output import ReturnedOutput
from ..devices import Backend, call_method, require_libraries
from ..devices.sample_data import Samples, array_module, finish, made_up
from ..errors import MethodError, RecordingError
from ..measure import measure_peak
from ..measure.alive import alive_bytes
from ..measure.allocation_sequence import AllocationSequence
from ..measure.cupy_pool import GRAIN_BYTES
from ..system.quiet import quiet

OUTSIDE_BYTES = {"cpu": 32 * 2**20, "cuda": 8 * 2**20}
"""Memory outside the allocators counts only above this: below, it cannot be told from what drivers
and C libraries load and keep. On a GPU four of the 2 MiB steps in which the driver hands out
memory."""
_OUTSIDE_PART = {"cpu": 0.02, "cuda": 0.0}
"""The same, as a part of the bytes in arrays; the larger of the two counts."""
NOISE_BYTES = {"cpu": 16 * 1024, "cuda": 16 * CUDA_GRANULE_BYTES}
"""Differences between peaks that are ignored: small Python objects, which are not the same in each
call, and on a GPU the rounding of 16 allocations to the granule."""
CUSHION_BYTES = {"cpu": NOISE_BYTES["cpu"], "cuda": 0}
"""Added to each measured peak: on the CPU small Python objects count, and differ from call to
call."""


@dataclass(frozen=True, slots=True)
class Rung(PlainRecord):
    """One measured call of a method."""

    n_slices: int
    """Slices that it was given."""
    n_bytes: int
    """Peak: most bytes alive at once during the call, input and output included."""
    kept_bytes: int
    """Bytes left after the call when its result is freed; cached FFT plans and their workspaces
    included."""
    left_bytes: int
    """Bytes left after the call when cached FFT plans are dropped, too."""
    before_bytes: int
    """Bytes that earlier calls had left."""
    outside_bytes: int
    """Part of `n_bytes` that was allocated outside the pool; 0 where meters cannot tell."""
    duration_s: float
    """Duration of the call with making its input and measuring."""
    unseen: tuple[str, ...] = ()
    """Memory that the meters could not attribute, in words."""
    call_s: float = 0.0
    """Duration of the call alone."""
    freed_bytes: int = 0
    """Bytes of `before_bytes` that were gone at the peak: see `Peak.earlier_freed_bytes`."""


class Bench:
    """A method with its parameters and data, ready to be called with any number of slices.

    The user's parameters may hold side data, which replace those that the samples make.
    """

    def __init__(
        self, meta: MethodMeta, samples: Samples, backend: Backend, parameters: Mapping[str, Any]
    ) -> None:
        require_libraries([meta])
        self.meta, self.samples, self.backend = meta, samples, backend
        self.parameters = dict(parameters)
        self.kind = "even"
        self.uses_outside = False
        """True once a call has taken memory outside the pool, and again when it was repeated."""
        self.output_dtype: str | None = None
        """Dtype of the result; None if it is not a block of slices."""
        self.output_dims: tuple[int, int] | None = None
        """The result's other two dims, in array order."""
        self.side_bytes = 0
        """Bytes of the last call's flats and darks, which are not part of a peak."""
        self.sequence: AllocationSequence | None = None
        """What the last call asked NumPy or CuPy's pool for, up to where memory ran out; None
        where that was not recorded."""
        self.readings: list[tuple[int, int, int]] = []
        """Memory outside the pool in the last call, as `Observation.of` takes it."""
        self._is_recorded = True
        """False once recording has disturbed the method."""
        self._left_bytes = self._stays_bytes = 0

    @property
    def stays_bytes(self) -> int:
        """Bytes that the calls left outside the pool, beyond those reserved for modules.

        The first call loads modules, and calls with other numbers of slices may load more.
        """
        return max(0, self._stays_bytes - self.backend.modules_bytes)

    def run(self, n_slices: int) -> Rung:
        """Call the method once and measure it.

        Memory outside the pool counts once two calls with the same slices show it, and then the
        smaller figure. From there on it counts as it is read: what another program takes meanwhile
        makes the answer smaller, never larger.
        """
        rung = self.once(n_slices)
        if rung.outside_bytes and not self.uses_outside:
            rung = min(self.once(n_slices), rung, key=lambda each: each.outside_bytes)
            self.uses_outside = rung.outside_bytes > 0
        return rung

    def once(self, n_slices: int) -> Rung:
        """Call the method and measure it; readings outside the pool are as they come.

        The first call of a method loads libraries, compiles and fills caches.
        """
        began, kind = time.perf_counter(), self.backend.kind
        side = self.samples.side(n_slices)
        self.side_bytes = sum(int(side[name].nbytes) for name in ("flats", "darks") if name in side)
        made_up(self.samples.dtype, self.kind)  # its cache must not count as the method's
        self.backend.release()  # from here on, memory that is held is this call's
        start, before = alive_bytes(kind), self._left_bytes
        data = self.samples.block(n_slices, self.kind)
        finish(self.backend)
        self.backend.release()  # what making it took: the method would give that back
        record = (n_slices, int(data.nbytes)) if self._is_recorded else None
        self.sequence = peak = None
        try:
            with measure_peak(kind, record=record) as peak:
                self._call(data, side)
        except RecordingError:
            self._is_recorded = False
            del data
            return self.once(n_slices)
        finally:
            self.sequence = None if peak is None else peak.sequence
        del data
        kept = left = alive_bytes(kind) - start
        if kept:
            self.backend.release()
            left = alive_bytes(kind) - start
        if left > 0:
            gc.collect()  # reference cycles hold arrays; too slow to do after every call
            kept -= left - (left := alive_bytes(kind) - start)
        counted, own = peak.counted_bytes or 0, self.samples.nbytes(n_slices)
        stays = peak.outside_after_bytes if peak.outside_after_bytes >= GRAIN_BYTES else 0
        self._left_bytes += left
        self._stays_bytes += stays
        self.readings = [
            (1 + each.n_events, own + each.held_bytes, each.n_bytes - stays)
            for each in peak.outside_readings
            if each.n_bytes - stays > OUTSIDE_BYTES[kind]
        ]
        outside = max(0, (peak.outside_bytes or 0) - stays)
        unclear = max(OUTSIDE_BYTES[kind], _OUTSIDE_PART[kind] * counted)
        if outside <= unclear and not self.uses_outside:
            outside = 0
        return Rung(
            n_slices,
            own + counted + outside,
            max(0, kept),
            left,
            max(0, before),
            outside,
            time.perf_counter() - began,
            tuple(peak.unseen),
            freed_bytes=peak.earlier_freed_bytes,
            call_s=peak.wall_s,
        )

    def close(self) -> None:
        """Free the side data."""
        self.samples.frames = {}
        self.backend.release()

    def _call(self, data: Any, side: dict[str, Any]) -> None:
        with quiet():  # what it says about made-up data is of no use
            result = call_method(self.meta, data, side | self.parameters, self.backend)
        if not self.meta.side_results:
            if fault := ReturnedOutput.of(result).no_data:
                raise MethodError(f"it {fault}{defined_at(self.meta.function)}")
            self.output_dtype = str(result.dtype)
            rows, columns = np.delete(result.shape, self.samples.slice_dim).tolist()
            self.output_dims = rows, columns
        del result
        finish(self.backend)

    def pool_bytes(self) -> int:
        """Bytes that the GPU's pool holds; after `Backend.release`, those in use."""
        return int(array_module(self.backend).get_default_memory_pool().total_bytes())
