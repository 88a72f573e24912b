"""Call a method on made-up or given data, and measure its memory.

Estimates, checks and studies of blocks all call methods this way.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.allocators import CUDA_GRANULE_BYTES, round_to_granule
from ..core.arrays import ArraySpec, block_shape, cut, side_of_block
from ..core.compare_arrays import compare_arrays
from ..core.declaration import ReturnedOutput
from ..core.method_meta import MethodMeta
from ..core.parameters import SUPPLIED, check_parameters
from ..devices import Backend, call_method, require_libraries
from ..errors import ParameterError, RecordingError, UsageError
from ..measure import CallSite, Peak, measure_peak
from ..measure.allocation_sequence import AllocationSequence
from ..measure.cupy_pool import GRAIN_BYTES
from ..measure.host_memory import alive_bytes
from ..system.process_state import quiet
from .made_up import DataKind, array_module, facts, finish, made_up, made_up_frames, repeated

OUTSIDE_BYTES = {"cpu": 32 * 2**20, "cuda": 8 * 2**20}
"""Memory outside the allocators counts only above this. Less cannot be distinguished from the code
and buffers of drivers and C libraries. On a GPU it is four of the 2 MiB steps in which the driver
hands out memory."""
_OUTSIDE_PART = {"cpu": 0.02, "cuda": 0.0}
"""The same threshold as a fraction of the bytes in arrays; the larger of the two counts."""
NOISE_BYTES = {"cpu": 16 * 1024, "cuda": 16 * CUDA_GRANULE_BYTES}
"""Differences between peaks that are ignored. On a CPU these are small Python objects: a call that
only adds two arrays shows up to 8 KiB. On a GPU it is the rounding of 16 allocations."""
CUSHION_BYTES = {"cpu": NOISE_BYTES["cpu"], "cuda": 0}
"""Added to each measured peak. On the CPU small Python objects are counted, and vary from call to
call."""
THE_CALL = "the call itself"
"""Name in messages of memory that no line of the method allocated, as in compiled code."""


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """One measured call of a method."""

    n_slices: int
    """Slices of the input."""
    n_bytes: int
    """Peak: most bytes alive at once during the call, input and output included."""
    kept_bytes: int
    """Bytes left after the call when its result is freed, with cached FFT plans and their
    workspaces."""
    left_bytes: int
    """Bytes left after the call when cached FFT plans are freed, too."""
    before_bytes: int
    """Bytes that earlier calls had left."""
    outside_bytes: int
    """Part of `n_bytes` that was allocated outside the pool; 0 if unknown."""
    duration_s: float
    """Duration of the call, of making its input and of measuring."""
    unseen: tuple[str, ...] = ()
    """Memory that the meters could not attribute, in words."""
    call_s: float = 0.0
    """Duration of the call alone."""
    freed_bytes: int = 0
    """Part of `before_bytes` that was freed before the peak: see `Peak.earlier_freed_bytes`."""


class Trial:
    """A method with its parameters and data, ready to be called with any number of slices.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    slice_dim : int
        Axis of the slices, 0 or 1.
    other_dims : (int, int)
        The two dims that remain, in array order.
    dtype : numpy.dtype
        Input dtype.
    backend : Backend
        The device on which it runs.
    parameters : mapping
        Parameters of the method. Side data among them replace made-up ones.
    frames : mapping, optional
        Flats and darks of the scan as `ArraySpec`. As many frames of that dtype are made up.
    make_data : callable, optional
        ``make_data(rng, shape, dtype)``, which returns the input as a NumPy array. By default the
        input is made up.
    total_slices : int, optional
        Slices of the scan. A method with `sample_slices` is called with its sample of them.

    Raises
    ------
    UsageError
        If the method's pattern does not allow slices along this axis.
    ParameterError
        If the parameters do not fit the method's signature.
    DeviceError
        If the method's library is not installed.
    """

    def __init__(
        self,
        meta: MethodMeta,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: np.dtype[Any],
        backend: Backend,
        parameters: Mapping[str, Any],
        *,
        frames: Mapping[str, ArraySpec] | None = None,
        make_data: Callable[..., Any] | None = None,
        total_slices: int = 0,
    ) -> None:
        require_slice_dim(meta, slice_dim)
        require_libraries([meta])
        self.meta, self.slice_dim, self.other_dims, self.dtype = meta, slice_dim, other_dims, dtype
        self.backend, self.parameters, self.make_data = backend, dict(parameters), make_data
        self.total_slices = total_slices
        self.sampled = meta.sampled_range(total_slices, **parameters) if total_slices else range(0)
        """Sample slices of the scan, if the method's side results depend on few slices."""
        self.n_slices = len(self.sampled) or total_slices or 1
        """Default number of slices of a call."""
        self.kind: DataKind = "even"
        """Kind of the made-up values."""
        self.uses_outside = False
        """True once a call and its repetition took memory outside the pool."""
        self.output: ReturnedOutput = ReturnedOutput.of(None)
        """Description of the last call's result."""
        self.peak: Peak | None = None
        """Figures of all meters for the last call; None if memory ran out."""
        self.is_recorded = False
        """Whether calls record their allocations, in `sequence`. Reset to False once recording has
        disturbed the method."""
        self.detects_changes = False
        """Whether calls check if the method changes its input, which reads the input once more."""
        self.changed_input = False
        """True if a call has changed its input, where `detects_changes`."""
        self.side_bytes = 0
        """Bytes of the last call's flats and darks, which are not part of a peak."""
        self.readings: list[tuple[int, int, int]] = []
        """Memory outside the pool in the last call, as `Observation.of` takes it."""
        self._spec_of_frames, self._frames = dict(frames or {}), dict[str, Any]()
        self._frames_of: tuple[int, ...] = ()
        self._left_bytes = self._stays_bytes = 0

    @property
    def own_parameters(self) -> dict[str, Any]:
        """Parameters for estimators: all but those that the runner supplies."""
        return {name: value for name, value in self.parameters.items() if name not in SUPPLIED}

    @property
    def sequence(self) -> AllocationSequence | None:
        """Allocations of the last call from NumPy or CuPy's pool, up to where memory ran out.

        None if they were not recorded.
        """
        return None if self.peak is None else self.peak.sequence

    @property
    def output_dims(self) -> tuple[int, int] | None:
        """Other two dims of the last result, in array order; None if it was not a block."""
        if self.meta.side_results or self.output.why_not_data or self.output.shape is None:
            return None
        rows, columns = np.delete(self.output.shape, self.slice_dim).tolist()
        return rows, columns

    @property
    def output_dtype(self) -> str | None:
        """Dtype of the last result; None if it was not a block."""
        return None if self.output_dims is None else str(self.output.dtype)

    @property
    def stays_bytes(self) -> int:
        """Bytes that the calls left outside the pool, beyond the reserve for modules.

        The first call loads modules, and calls with other numbers of slices may load more.
        """
        return max(0, self._stays_bytes - self.backend.modules_bytes)

    def shape(self, n_slices: int) -> tuple[int, int, int]:
        """Shape of a block."""
        return block_shape(self.slice_dim, n_slices, self.other_dims)

    def nbytes(self, n_slices: int) -> int:
        """Bytes that the device's allocator takes for a block."""
        n_bytes = math.prod(self.shape(n_slices)) * self.dtype.itemsize
        return round_to_granule(n_bytes) if self.backend.kind == "cuda" else n_bytes

    def data(self, n_slices: int | None = None, kind: DataKind | None = None) -> Any:
        """Make an input on the device.

        Raises
        ------
        OutOfMemoryError
            If the host cannot allocate it.
        """
        n, kind = n_slices or self.n_slices, kind or self.kind
        if self.make_data is None:
            return repeated(self.shape(n), made_up(self.dtype, kind), self.backend)
        block = self._given(n, kind)
        on_host = self.backend.kind == "cpu"
        return np.array(block, order="C") if on_host else self.backend.to_device(block)

    def has_changed(self, data: Any) -> bool:
        """True if the values of an input from `data` have changed."""
        if self.make_data is not None:
            return compare_arrays(self.data(), data, self.slice_dim).n_different > 0
        values = made_up(self.dtype, self.kind)
        flat, first = data.reshape(-1), self.backend.to_device(values[: data.size])
        return any(
            bool((flat[low : low + len(values)] != first[: flat.size - low]).any())
            for low in range(0, flat.size, len(values))
        )

    def _given(self, n_slices: int, kind: DataKind) -> np.ndarray:
        """Input of `make_data`, on the host."""
        assert self.make_data is not None
        shape = self.shape(self.total_slices if self.sampled else n_slices)
        seed = 0 if kind == "even" else 1
        data = self.make_data(np.random.default_rng(seed), shape, self.dtype)
        if not isinstance(data, np.ndarray) or data.shape != shape or data.dtype != self.dtype:
            raise ValueError(
                f"make_data must return a NumPy array of shape {shape} and {self.dtype}, not "
                f"{getattr(data, 'shape', type(data).__name__)} {getattr(data, 'dtype', '')}"
            )
        if self.sampled:
            data = np.take(data, self.sampled, self.slice_dim)
        return np.ascontiguousarray(data)

    def side(self, n_slices: int | None = None) -> dict[str, Any]:
        """Make the side data of a block, as the runner supplies them for a scan's first block."""
        shape = self.shape(n_slices or self.n_slices)
        if shape[1:] != self._frames_of:
            self._frames = self.make_frames(shape)
            self._frames_of = shape[1:]
        side = self._frames | facts(self.meta, self.slice_dim)
        if "angles" in self.meta.supplied:
            side["angles"] = np.linspace(0, np.pi, shape[0], endpoint=False, dtype=np.float32)
        return side

    def prepare(self, n_slices: int | None = None) -> dict[str, Any]:
        """Make the side data and fill the caches of made-up values, before memory is measured.

        Returns
        -------
        dict
            As `side`.
        """
        if self.make_data is None:
            made_up(self.dtype, self.kind)
        return self.side(n_slices)

    def make_frames(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """Make up flats and darks for a block."""
        return made_up_frames(self.meta, shape, self.dtype, self.backend, self._spec_of_frames)

    def call(self, data: Any, side: Mapping[str, Any] | None = None) -> Any:
        """Call the method as the runner does; the side data of the default block by default."""
        side_data = self.side() if side is None else dict(side)
        return call_method(self.meta, data, side_data | self.parameters, self.backend)

    def call_part(self, data: Any, low: int, high: int, side: Mapping[str, Any]) -> Any:
        """Call the method on the slices from `low` up to `high` of a block with side data."""
        own = side_of_block(side, self.slice_dim, low, high)
        return self.call(cut(data, self.slice_dim, low, high).copy(), {**side, **own})

    def blocks(self, data: Any, size: int, halo: tuple[int, int]) -> list[tuple[int, Any]]:
        """Results of all blocks of a size, each with its first slice's index, halos cropped.

        Side results are returned as they are.
        """
        before, after = halo
        n, side, results = data.shape[self.slice_dim], self.side(data.shape[self.slice_dim]), []
        for start in range(0, n, size):
            stop = min(n, start + size)
            low, high = max(0, start - before), min(n, stop + after)
            result = self.call_part(data, low, high, side)
            if not self.meta.side_results:
                result = cut(result, self.slice_dim, start - low, stop - low)
            results.append((start, result))
        return results

    def on_host(self, result: Any) -> Any:
        """Bring a result's arrays to the host; on a GPU, when it is finished."""
        if isinstance(result, tuple | list):
            return tuple(self.on_host(item) for item in result)
        if hasattr(result, "ndim") and hasattr(result, "dtype") and result.ndim:
            on_host = isinstance(result, np.ndarray)  # angles stay there
            return result if on_host else self.backend.to_host(result)
        return result

    def wrong_output(self) -> str:
        """Difference of the last output from the method's declarations; "" if they agree.

        Side results have no declared dims or dtype.
        """
        meta, own = self.meta, self.own_parameters
        if meta.side_results:
            return ""
        dims = meta.output_other_dims(self.slice_dim, self.other_dims, **own)
        dtype = meta.output_dtype(self.slice_dim, self.other_dims, self.dtype, **own)
        shape = block_shape(self.slice_dim, self.n_slices, dims)
        return self.output.mismatch(meta, ArraySpec(shape, dtype), self.slice_dim)

    def measure(self, n_slices: int | None = None) -> MeasuredCall:
        """Call the method once and measure it.

        Memory outside the pool is read from the device, on which other programs allocate as well.
        It counts if two calls with the same slices show it, and the smaller reading is used. In
        later calls each reading counts. Another program can only make the answer smaller.
        """
        call = self.once(n_slices)
        if call.outside_bytes and not self.uses_outside:
            call = min(self.once(n_slices), call, key=lambda each: each.outside_bytes)
            self.uses_outside = call.outside_bytes > 0
        return call

    def once(self, n_slices: int | None = None) -> MeasuredCall:
        """Call the method and measure it, without repeating readings outside the pool.

        The first call of a method loads libraries, compiles and fills caches.
        """
        began, kind, n = time.perf_counter(), self.backend.kind, n_slices or self.n_slices
        side = self.prepare(n)
        self.side_bytes = sum(int(side[name].nbytes) for name in ("flats", "darks") if name in side)
        self.backend.release()  # memory that is held from here on belongs to this call
        start, before = alive_bytes(kind), self._left_bytes
        data = self.data(n)
        finish(self.backend)
        self.backend.release()  # memory of making the data, which the method's call would free
        record = (n, int(data.nbytes)) if self.is_recorded else None
        self.peak = peak = None
        try:
            with quiet(), measure_peak(kind, record=record) as peak:
                self._call_once(data, side)
        except RecordingError:
            self.is_recorded = False
            del data
            return self.once(n)
        finally:
            self.peak = peak
        if self.detects_changes and self.has_changed(data):
            self.changed_input = True
        del data
        kept = left = alive_bytes(kind) - start
        if kept:
            self.backend.release()
            left = alive_bytes(kind) - start
        if left > 0:
            gc.collect()  # reference cycles hold arrays; too slow to do after every call
            left_with_garbage, left = left, alive_bytes(kind) - start
            kept -= left_with_garbage - left
        counted, own = peak.counted_bytes or 0, self.nbytes(n)
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
        return MeasuredCall(
            n,
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

    def _call_once(self, data: Any, side: Mapping[str, Any]) -> None:
        """Call the method, and keep only the shape and dtype of its result."""
        self.output = ReturnedOutput.of(self.call(data, side))
        finish(self.backend)

    def close(self) -> None:
        """Free the side data."""
        self._frames, self._frames_of = {}, ()
        self.backend.release()

    def pool_bytes(self) -> int:
        """Bytes that the GPU's pool holds; after `Backend.release`, those in use."""
        return int(array_module(self.backend).get_default_memory_pool().total_bytes())

    def alive_bytes(self) -> int:
        """Bytes allocated after garbage and cached FFT plans are freed."""
        self.backend.forget_plans()
        gc.collect()
        self.backend.release()
        return alive_bytes(self.backend.kind)


def require_slice_dim(meta: MethodMeta, slice_dim: int) -> None:
    """Require that a method's pattern allows slices along an axis.

    Raises
    ------
    UsageError
        If it does not; the message lists the allowed axes.
    """
    if slice_dim not in meta.slice_dims():
        raise UsageError(
            f"{meta.full_name} works on slices along dim "
            f"{' or '.join(map(str, meta.slice_dims()))}, not {slice_dim!r}"
        )


def check_given(meta: MethodMeta, parameters: Mapping[str, Any]) -> None:
    """Require that the parameters fit the method's signature.

    Raises
    ------
    ParameterError
        If they do not; the message names each of them.
    """
    faults = [text for _, text in check_parameters(meta.function, parameters)]
    if faults:
        raise ParameterError(f"{meta.full_name}: {'; '.join(faults)}")


def is_call(place: CallSite) -> bool:
    """True if a call site is the call of the method itself, as for compiled code."""
    return place.filename == __file__ and place.line in _CALL_LINES


_CALL_LINES = frozenset(line for _, _, line in Trial.call.__code__.co_lines())
