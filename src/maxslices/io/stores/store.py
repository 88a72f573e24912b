"""Intermediate results between two sections, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...core.units import format_bytes
from ...errors import StoreError
from ...system.threads import parallel_copy
from ..access import Closing, SupportsWindow
from ..check_arrays import check_block, check_output_block


class MemoryStore(Closing, SupportsWindow):
    """A store in memory.

    Parameters
    ----------
    spec : ArraySpec
        Shape and dtype of the whole.
    allocate : callable, optional
        Allocates an array from shape and dtype, such as one in pinned memory; by default
        `numpy.empty`.

    Raises
    ------
    StoreError
        If there is not enough memory.
    """

    def __init__(
        self, spec: ArraySpec, allocate: Callable[[tuple[int, ...], Any], NDArray[Any]] = np.empty
    ) -> None:
        self.spec = spec
        try:
            self._array: NDArray[Any] | None = allocate(spec.shape, spec.dtype)
        except MemoryError:
            raise StoreError(
                f"{format_bytes(spec.nbytes)} for a result between two sections ({spec}) are more "
                "memory than there is: allow less memory, so that it goes to a scratch file"
            ) from None

    @property
    def array(self) -> NDArray[Any]:
        """The whole array, not a copy; it outlives the store."""
        if self._array is None:
            raise StoreError("this store is closed")
        return self._array

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""
        stop = start + block.shape[slice_dim]
        check_block(self.spec, slice_dim, start, stop, block)
        parallel_copy(self._slices(slice_dim, start, stop), block)

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        check_output_block(self.spec, slice_dim, start, stop, out)
        parallel_copy(out, self._slices(slice_dim, start, stop))

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """View of slices; see `SupportsWindow.window`."""
        return self._slices(slice_dim, start, stop)

    def _slices(self, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        return self.array[start:stop] if slice_dim == 0 else self.array[:, start:stop]

    def close(self) -> None:
        """Free the memory."""
        self._array = None
