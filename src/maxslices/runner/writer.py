"""A thread that writes slices, and what went wrong first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from ..devices import DeviceEvent
from ..model.arrays import ArraySpec
from .run_timeline import Timeline


class Target(Protocol):
    """Where slices are written: a result, or what the next section reads."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        ...

    def write(self, slice_dim: int, start: int, block: Any) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""


@dataclass(slots=True)
class ResultTransfer:
    """How far a result has come, and how long the stages of its way took."""

    start: int
    """The first of its slices."""
    copies: list[tuple[int, int, int, DeviceEvent, DeviceEvent]] = field(default_factory=list)
    """First slice, the one after the last, bytes, begin and end of each copy."""
    written_s: float = 0.0


@dataclass(slots=True)
class ResultPiece:
    """Slices of a result in host memory, to be written."""

    data: Any
    first: int
    targets: Sequence[Target]
    way: ResultTransfer
    release: Callable[[], None]
    """Is called when they are written, or will not be."""
    there: DeviceEvent | None = None
    """From when on they are in memory."""


class Writer:
    """Writes pieces in order, by a thread of its own that starts with the first.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    timeline : Timeline
        Is told what was written.
    """

    def __init__(self, slice_dim: int, timeline: Timeline) -> None:
        self._slice_dim, self._timeline = slice_dim, timeline
        self._pieces: SimpleQueue[ResultPiece | None] = SimpleQueue()
        self._failing = threading.Lock()
        self._error: BaseException | None = None
        self._lost_from: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def lost_from(self) -> int | None:
        """Return the first slice of the results that could not be written."""
        return self._lost_from

    def put(self, piece: ResultPiece) -> None:
        """Have a piece written after those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="maxslices writer", daemon=True)
            self._thread.start()
        self._pieces.put(piece)

    def is_lost(self, start: int) -> bool:
        """Tell whether the result that begins with a slice is not written any more."""
        return self._lost_from is not None and start >= self._lost_from

    def fail(self, start: int, error: BaseException) -> None:
        """Note that a result could not be written: all before it will be, none after it."""
        with self._failing:
            if not self.is_lost(start):
                self._lost_from, self._error = start, error

    def raise_error(self) -> None:
        """Raise what was noted first; once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """Return when all pieces are written."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._pieces.put(None)
            thread.join()

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                if piece.there is not None:
                    piece.there.synchronize()
                if not self.is_lost(piece.way.start):
                    self._write(piece)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self.fail(piece.way.start, error)
            release = piece.release
            del piece
            release()

    def _write(self, piece: ResultPiece) -> None:
        began = time.perf_counter()
        for target in piece.targets:
            target.write(self._slice_dim, piece.first, piece.data)
        ended, stop = time.perf_counter(), piece.first + piece.data.shape[self._slice_dim]
        piece.way.written_s += ended - began
        self._timeline.add("write", began, ended, piece.first, stop, int(piece.data.nbytes))
