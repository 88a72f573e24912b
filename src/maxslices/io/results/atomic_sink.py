"""Base of all sinks: a hidden name until the result is complete, and clear errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import LostResultError, StoreError
from ...system.disk_space import (
    check_absent,
    check_free_space,
    give_name,
    hidden_path,
    store_errors,
)
from ..check_arrays import check_block
from .result_info import ResultInfo

INCOMPLETE = ".incomplete"
"""Part of the name of an incomplete result."""
SinkStart = Literal["new", "replace", "resume", "join"]
"""Whether a result is new, takes the name of another at its end, goes on as it was left, or is
written beside another process, which finishes it."""


class AtomicSink(ABC):
    """A `Sink` that writes under a hidden name and renames the result when it is complete.

    Parameters
    ----------
    path : Path
        Path of the finished result.
    spec : ArraySpec
        The whole result.
    slice_dim : int
        Axis along which it will be viewed.
    needed_bytes : int
        Disk space that the result takes.
    start : {"new", "replace", "resume", "join"}
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
        self._part = hidden_path(path)
        self._open = False
        if start == "new":
            check_absent(path)
        with store_errors(path, needed_bytes):
            if start in ("resume", "join"):
                (self._reopen if start == "resume" else self._join)()
                self._open = True
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            self._remove()  # what a killed run left behind
            check_free_space(path, needed_bytes)
            try:
                self._create()
            except BaseException:
                self.abandon()
                raise
        self._open = True

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block; see `Sink.write`."""
        check_block(self.spec, slice_dim, start, start + block.shape[slice_dim], block)
        if not self._open:
            raise StoreError(f"{self.path}: is finished or abandoned, and takes no more blocks")
        with store_errors(self.path, self._needed_bytes):
            self._write(slice_dim, start, block)

    def finish(self) -> Path:
        """Give the result its name; see `Sink.finish`."""
        with store_errors(self.path, self._needed_bytes):
            self._open = False
            self._close()
            return give_name(self.path)

    def set_aside(self, n_slices: int) -> Path:
        """Keep the first slices under another name; see `Sink.set_aside`."""
        path = incomplete_path(self.path)
        with store_errors(path, self._needed_bytes):
            self._open = False
            self._close()
            self._shorten(n_slices)
            check_absent(path)
            self._part.rename(path)
        return path

    def suspend(self) -> None:
        """Close the result, which keeps its hidden name; see `Sink.suspend`."""
        self._open = False
        self._close()

    def sync(self) -> None:
        """Put what was written on disk; see `Sink.sync`."""
        with store_errors(self.path, self._needed_bytes):
            self._sync()

    def abandon(self) -> None:
        """Remove what was written; see `Sink.abandon`."""
        self._open = False
        self._close()
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._open:
            self.abandon()

    def _require_part(self, is_kind: Callable[[Path], bool]) -> None:
        """Check that the unfinished result is there, as a file or as a folder."""
        if self._part.is_symlink() or not is_kind(self._part):
            raise LostResultError(
                f"{self._part}: the unfinished result is not there: start anew with --overwrite"
            )

    @abstractmethod
    def _create(self) -> None:
        """Create the file or folder of the hidden name."""

    @abstractmethod
    def _reopen(self) -> None:
        """Open what has the hidden name, also if it was cut to its first slices.

        Raises
        ------
        StoreError
            If it is not there, or is not such a result.
        """

    @abstractmethod
    def _join(self) -> None:
        """Open what has the hidden name and another process has made, and change nothing.

        Raises
        ------
        StoreError
            If it is not there, or is not such a result.
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
        """Cut the closed result to its first slices, still under the hidden name."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the file or folder of the hidden name, if it exists."""


def incomplete_path(path: Path) -> Path:
    """Path of the first slices of a result, if they are kept alone."""
    return path.with_name(f"{path.stem}{INCOMPLETE}{path.suffix}")
