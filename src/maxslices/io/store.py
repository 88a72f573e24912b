"""Where an intermediate result lives between two sections."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..arrays import ArraySpec
from ..errors import StoreError
from .frames import check_block


class Store(Protocol):
    """A 3D array that is written and read in blocks along either slice dim."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        ...

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""
        ...

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`, C-contiguous."""
        ...

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class MemoryStore:
    """A store in memory."""

    def __init__(self, spec: ArraySpec) -> None:
        self._spec = spec
        self._array: NDArray[Any] | None = np.empty(spec.shape, spec.dtype)

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        return self._spec

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""
        stop = start + block.shape[slice_dim]
        check_block(self._spec, slice_dim, start, stop, block)
        np.copyto(self._slices(slice_dim, start, stop), block)

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        check_block(self._spec, slice_dim, start, stop, out)
        np.copyto(out, self._slices(slice_dim, start, stop))

    def _slices(self, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        if self._array is None:
            raise StoreError("this store is closed")
        return self._array[start:stop] if slice_dim == 0 else self._array[:, start:stop]

    def close(self) -> None:
        """Free the memory."""
        self._array = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
