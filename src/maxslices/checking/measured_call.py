"""One measured call of a method: input and output included, side data not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arrays import ArraySpec, block_shape
from ..core.method_meta import MethodMeta
from ..core.parameters import SUPPLIED
from ..core.returned_output import ReturnedOutput
from ..devices import Backend, call_method, require_libraries, select_backend
from ..devices.sample_data import Samples, finish
from ..measure import Peak, Place, measure_peak
from ..measure.alive import alive_bytes
from .inputs import check_given, input_data, require_slice_dim

HOST_NOISE_BYTES = 16 * 1024
"""Python's own small objects, which tracemalloc counts with the arrays: less is no finding. A call
of a method that only adds two arrays shows up to 8 KiB."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Measurements of one call of a method."""

    peak: Peak
    """Figures of all meters."""
    output: ReturnedOutput
    """Shape and dtype of its output."""
    kept_bytes: int
    """Bytes still alive, in arrays, when the result and the FFT plans are gone."""


class MeasuredCall:
    """A method with the block that it is called on.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    shape : (int, int, int)
        The block, axes (angles, detector_y, detector_x).
    dtype : numpy.dtype
        Of the input.
    slice_dim : int
        Axis of the slices.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    parameters : mapping
        Of the method; side data among them take the place of those made here.
    make_data : callable, optional
        As in `Case`.
    """

    def __init__(
        self,
        meta: MethodMeta,
        shape: tuple[int, int, int],
        dtype: np.dtype[Any],
        slice_dim: int,
        device: str,
        parameters: Mapping[str, Any],
        make_data: Callable[..., Any] | None = None,
    ) -> None:
        require_slice_dim(meta, slice_dim)
        check_given(meta, parameters)
        require_libraries([meta])
        self.meta, self.dtype, self.slice_dim = meta, dtype, slice_dim
        self.parameters, self.make_data = dict(parameters), make_data
        self.backend: Backend = select_backend(device)
        self.full_shape = shape
        self.looked_at = meta.looked_at(shape[slice_dim], **parameters)
        self.other_dims = ArraySpec(shape, dtype).other_dims(slice_dim)
        self.n_slices = len(self.looked_at) or shape[slice_dim]
        self.shape = block_shape(slice_dim, self.n_slices, self.other_dims)
        samples = Samples(meta, slice_dim, self.other_dims, dtype, self.backend)
        self.side = samples.side(self.n_slices)

    def with_slices(self, n: int) -> MeasuredCall:
        """The same method on a block of n slices."""
        shape = block_shape(self.slice_dim, n, self.other_dims)
        return MeasuredCall(
            self.meta, shape, self.dtype, self.slice_dim, self.backend.name, self.parameters
        )

    def data(self, seed: int = 0) -> np.ndarray:
        """Make the input on the host."""
        data = input_data(self.full_shape, self.dtype, seed, self.make_data)
        return np.take(data, self.looked_at, self.slice_dim) if self.looked_at else data

    def invoke(self, data: Any, **other: Any) -> Any:
        """Call the method as the runner does."""
        parameters = self.side | self.parameters | other
        return call_method(self.meta, data, parameters, self.backend)

    def on_device(self, host: np.ndarray) -> Any:
        """Copy the input to where the method works."""
        return np.array(host, order="C") if self.backend.kind == "cpu" else (
            self.backend.to_device(np.ascontiguousarray(host))
        )  # fmt: skip

    def on_host(self, result: Any) -> Any:
        """Bring a result's arrays to the host; on a GPU, when it is finished."""
        if isinstance(result, tuple | list):
            return tuple(self.on_host(item) for item in result)
        if hasattr(result, "ndim") and hasattr(result, "dtype") and result.ndim:
            on_host = isinstance(result, np.ndarray)  # angles stay there
            return result if on_host else self.backend.to_host(result)
        return result

    def measure(self, seed: int = 0, *, trace: bool = False) -> CallResult:
        """Call the method once with everything it allocates counted.

        Parameters
        ----------
        seed : int
            Which input data.
        trace : bool
            Also record what was alive at the peak, and where it was allocated.
        """
        host = self.data(seed)
        before = self.alive_bytes()
        kept: list[Any] = []
        with measure_peak(self.backend.kind, trace=trace) as peak:
            self._measured(host, kept)
        output = ReturnedOutput.of(kept.pop())
        return CallResult(peak, output, max(0, self.alive_bytes() - before))

    def _measured(self, host: np.ndarray, kept: list[Any]) -> None:
        data = self.on_device(host)
        kept.append(self.invoke(data))
        finish(self.backend)

    def wrong_output(self, output: ReturnedOutput) -> str:
        """Difference between an output and the method's declarations; empty if there is none.

        Side results have no declared dims or dtype.
        """
        meta, own = self.meta, self.own_parameters
        if meta.side_results:
            return ""
        dims = meta.output_other_dims(self.slice_dim, self.other_dims, **own)
        dtype = meta.output_dtype(self.slice_dim, self.other_dims, self.dtype, **own)
        shape = block_shape(self.slice_dim, self.n_slices, dims)
        return output.mismatch(meta, ArraySpec(shape, dtype), self.slice_dim)

    @property
    def own_parameters(self) -> dict[str, Any]:
        """Parameters given to estimators: all but what the runner supplies."""
        return {name: value for name, value in self.parameters.items() if name not in SUPPLIED}

    def alive_bytes(self) -> int:
        """Bytes allocated, garbage apart, and what plans of FFTs kept from being garbage."""
        self.backend.forget_plans()
        gc.collect()
        self.backend.release()
        return alive_bytes(self.backend.kind)


def is_input(place: Place) -> bool:
    """True if memory was allocated in this file: it is the input."""
    return place.filename == __file__ and not is_call(place)


def is_call(place: Place) -> bool:
    """True if the call itself allocated memory: no line of the method is known, only that."""
    return place.filename == __file__ and place.line in _CALL_LINES


_CALL_LINES = frozenset(line for _, _, line in MeasuredCall.invoke.__code__.co_lines())
THE_CALL = "the call itself"
"""How a message names that: a compiled method has no lines of Python."""
