"""What all results have in common: a hidden name until they are whole, and clear errors."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from ..errors import StoreError
from ..model.arrays import ArraySpec
from ..system.disk_space import check_absent, check_free_space, hidden_path, store_errors
from .check_arrays import check_block

INCOMPLETE = ".incomplete"
"""Part of the name of a result that is not whole."""


class AtomicSink(ABC):
    """A `Sink` under a hidden name, which takes its own when it is whole.

    Parameters
    ----------
    path : Path
        Where the finished result will be.
    spec : ArraySpec
        The whole result.
    slice_dim : int
        Axis along which it will be looked at.
    needed_bytes : int
        Room that it takes on the disk.
    """

    def __init__(self, path: Path, spec: ArraySpec, slice_dim: int, needed_bytes: int) -> None:
        self._path = path
        self._spec = spec
        self._slice_dim = slice_dim
        self._needed_bytes = needed_bytes
        self._part = hidden_path(path)
        self._open = False
        check_absent(path)
        with store_errors(path, needed_bytes):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._remove()  # what a killed run left behind
            check_free_space(path, needed_bytes)
            try:
                self._begin()
            except BaseException:
                self.abandon()
                raise
        self._open = True

    @property
    def path(self) -> Path:
        """Where the finished result will be."""
        return self._path

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole result."""
        return self._spec

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block; see `Sink.write`."""
        check_block(self._spec, slice_dim, start, start + block.shape[slice_dim], block)
        if not self._open:
            raise StoreError(f"{self._path}: is finished or abandoned, and takes no more blocks")
        with store_errors(self._path, self._needed_bytes):
            self._write(slice_dim, start, block)

    def finish(self) -> Path:
        """Give the result its name."""
        with store_errors(self._path, self._needed_bytes):
            self._open = False
            self._end()
            if os.path.lexists(self._path):
                raise StoreError(
                    f"{self._path}: something else took this name meanwhile: the result is whole, "
                    f"in {self._part}"
                )
            self._part.rename(self._path)
        return self._path

    def set_aside(self, n_slices: int) -> Path:
        """Keep the first slices, under a name that says that they are not all."""
        path = self._path.with_name(f"{self._path.stem}{INCOMPLETE}{self._path.suffix}")
        with store_errors(path, self._needed_bytes):
            self._open = False
            self._end()
            self._shorten(n_slices)
            check_absent(path)
            self._part.rename(path)
        return path

    def abandon(self) -> None:
        """Remove what was written."""
        self._open = False
        self._end()
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open:
            self.abandon()

    @abstractmethod
    def _begin(self) -> None:
        """Make what is under the hidden name."""

    @abstractmethod
    def _write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block that was checked."""

    @abstractmethod
    def _end(self) -> None:
        """Close what is open; a second call does nothing."""

    @abstractmethod
    def _shorten(self, n_slices: int) -> None:
        """Leave only the first slices of what is under the hidden name, and closed."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove what is under the hidden name, if anything is."""
