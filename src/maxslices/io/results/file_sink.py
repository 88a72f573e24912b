"""Base of all sinks: whether a result is new or already there, and clear errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import LostResultError, StoreError
from ...system.disk_space import check_absent, check_free_space, store_errors
from ..check_arrays import check_block
from .result_info import ResultInfo

INCOMPLETE = ".incomplete"
"""Part of the name of an incomplete result."""
SinkStart = Literal["new", "resume", "join"]
"""Whether a result is new, continues what another process left, or is written together with
another process, which made it."""


class FileSink(ABC):
    """A `Sink` that writes a file or a folder.

    Parameters
    ----------
    path : Path
        Path of the result.
    spec : ArraySpec
        The whole result.
    slice_dim : int
        Axis along which it will be viewed.
    needed_bytes : int
        Disk space that the result takes.
    start : {"new", "resume", "join"}
        See `create_sink`.
    info : ResultInfo
        What the result is.
    """

    def __init__(
        self,
        path: Path,
        spec: ArraySpec,
        slice_dim: int,
        needed_bytes: int,
        start: SinkStart,
        info: ResultInfo,
    ) -> None:
        self.info = info
        self.path = path
        self.spec = spec
        self._slice_dim = slice_dim
        self._needed_bytes = needed_bytes
        self._open = False
        if start == "new":
            check_absent(path)
        with store_errors(path, needed_bytes):
            if start == "new":
                path.parent.mkdir(parents=True, exist_ok=True)
                check_free_space(path, needed_bytes)
                try:
                    self._create()
                except BaseException:
                    self.close()
                    self._remove()
                    raise
            elif start == "resume":
                self._reopen()
            else:
                self._join()
        self._open = True

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block; see `Sink.write`."""
        check_block(self.spec, slice_dim, start, start + block.shape[slice_dim], block)
        if not self._open:
            raise StoreError(f"{self.path}: is closed, and takes no more blocks")
        with store_errors(self.path, self._needed_bytes):
            self._write(slice_dim, start, block)

    def shorten(self, n_slices: int) -> None:
        """Close the result and cut it to its first slices; see `Sink.shorten`."""
        with store_errors(self.path, self._needed_bytes):
            self.close()
            self._shorten(n_slices)

    def sync(self) -> None:
        """Put what was written on disk; see `Sink.sync`."""
        with store_errors(self.path, self._needed_bytes):
            self._sync()

    def close(self) -> None:
        """Close the result; see `Sink.close`."""
        self._open = False
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _require(self, is_kind: Callable[[Path], bool]) -> None:
        """Check that the unfinished result exists, as a file or as a folder."""
        if self.path.is_symlink() or not is_kind(self.path):
            raise LostResultError(
                f"{self.path}: the unfinished result is not there: start anew with --overwrite"
            )

    @abstractmethod
    def _create(self) -> None:
        """Create the file or folder."""

    @abstractmethod
    def _reopen(self) -> None:
        """Open the file or folder, also if it was cut to its first slices.

        Raises
        ------
        StoreError
            If it does not exist, or is not such a result.
        """

    @abstractmethod
    def _join(self) -> None:
        """Open what another process has made and writes to, and change nothing.

        Raises
        ------
        StoreError
            If it does not exist, or is not such a result.
        """

    @abstractmethod
    def _write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block, whose shape and dtype are right."""

    @abstractmethod
    def _sync(self) -> None:
        """Put on disk what was written."""

    @abstractmethod
    def _close(self) -> None:
        """Close open files; a second call has no effect."""

    @abstractmethod
    def _shorten(self, n_slices: int) -> None:
        """Cut the closed result to its first slices."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the file or folder, if it exists."""


def incomplete_path(path: Path) -> Path:
    """Path of the first slices of a result, if they are kept alone."""
    return path.with_name(f"{path.stem}{INCOMPLETE}{path.suffix}")
