"""Intermediate array between two sections, kept on the device."""

from __future__ import annotations

from typing import Any

from ...core.arrays import ArraySpec
from ...devices import Backend


class DeviceStore:
    """A 3D array on the device, written and read in blocks along either slice dim."""

    def __init__(self, spec: ArraySpec, backend: Backend) -> None:
        self.spec = spec
        self._array: Any = backend.empty(spec.shape, spec.dtype)

    def write(self, slice_dim: int, start: int, block: Any) -> None:
        """Copy a block to slices `start` and following along `slice_dim`."""
        stop = start + block.shape[slice_dim]
        if slice_dim == 0:
            self._array[start:stop] = block
        else:
            self._array[:, start:stop] = block

    def block(self, slice_dim: int, start: int, stop: int) -> Any:
        """C-contiguous copy of slices `start` to `stop` along `slice_dim`."""
        if slice_dim == 0:
            return self._array[start:stop].copy()
        return self._array[:, start:stop].copy()

    def close(self) -> None:
        """Free the memory."""
        self._array = None
