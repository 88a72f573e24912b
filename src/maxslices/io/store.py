"""Where an intermediate result lives between two sections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..arrays import ArraySpec
from ..errors import StoreError
from ..units import format_bytes
from .checks import check_block, check_target
from .frames import read_only
from .room import bytes_of, check_room, pread_all, pwrite_all, store_errors


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
    """A store in memory.

    Parameters
    ----------
    spec : ArraySpec
        Shape and dtype of the whole.
    allocate : callable, optional
        Makes the array of a shape and dtype, such as one in pinned memory; by default
        `numpy.empty`.

    Raises
    ------
    StoreError
        If there is not as much memory.
    """

    def __init__(
        self, spec: ArraySpec, allocate: Callable[[tuple[int, ...], Any], NDArray[Any]] = np.empty
    ) -> None:
        self._spec = spec
        try:
            self._array: NDArray[Any] | None = allocate(spec.shape, spec.dtype)
        except MemoryError:
            raise StoreError(
                f"{format_bytes(spec.nbytes)} for a result between two sections ({spec}) are more "
                "memory than there is: allow less memory, so that it goes to a scratch file"
            ) from None

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        return self._spec

    @property
    def array(self) -> NDArray[Any]:
        """The whole, not a copy; it outlives the store."""
        if self._array is None:
            raise StoreError("this store is closed")
        return self._array

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""
        stop = start + block.shape[slice_dim]
        check_block(self._spec, slice_dim, start, stop, block)
        np.copyto(self._slices(slice_dim, start, stop), block)

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        check_target(self._spec, slice_dim, start, stop, out)
        np.copyto(out, self._slices(slice_dim, start, stop))

    def view(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """Return slices without a copy, read-only, where they are contiguous; else None."""
        return read_only(self._slices(slice_dim, start, stop))

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """Return slices without a copy, along the second dim with gaps between them."""
        return self._slices(slice_dim, start, stop)

    def _slices(self, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        return self.array[start:stop] if slice_dim == 0 else self.array[:, start:stop]

    def close(self) -> None:
        """Free the memory."""
        self._array = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class ScratchStore:
    """A store in a file without a name, which is gone when it is closed or the process ends.

    Parameters
    ----------
    spec : ArraySpec
        Shape and dtype of the whole.
    folder : Path
        Where the file is; made if it is not there.

    Raises
    ------
    StoreError
        If the folder cannot be written to, or its disk has less room than the whole needs.
    """

    def __init__(self, spec: ArraySpec, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        self._row_bytes = spec.shape[2] * spec.dtype.itemsize
        check_room(folder, spec.nbytes)
        with store_errors(folder, spec.nbytes):
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO | None = TemporaryFile(  # noqa: SIM115  (closed by close)
                buffering=0, dir=folder
            )
            os.truncate(self._file.fileno(), spec.nbytes)

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        return self._spec

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`.

        Raises
        ------
        StoreError
            If the disk is full.
        """
        check_block(self._spec, slice_dim, start, start + block.shape[slice_dim], block)
        fd = self._descriptor()
        with store_errors(self._folder, self._spec.nbytes):
            for piece, offset in self._pieces(slice_dim, start, block):
                pwrite_all(fd, piece, offset)

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        check_target(self._spec, slice_dim, start, stop, out)
        fd = self._descriptor()
        with store_errors(self._folder, self._spec.nbytes):
            for piece, offset in self._pieces(slice_dim, start, out):
                pread_all(fd, piece, offset)

    def _pieces(
        self, slice_dim: int, start: int, block: NDArray[Any]
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield the pieces of a block that are contiguous in the file."""
        frame_bytes = self._spec.shape[1] * self._row_bytes
        if slice_dim == 0:
            yield bytes_of(block), start * frame_bytes
            return
        for i, rows in enumerate(block):
            yield bytes_of(rows), i * frame_bytes + start * self._row_bytes

    def _descriptor(self) -> int:
        if self._file is None:
            raise StoreError("this store is closed")
        return self._file.fileno()

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
