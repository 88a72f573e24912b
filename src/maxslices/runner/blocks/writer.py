"""A thread that writes results, and its first error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from ...core.arrays import ArraySpec
from ...devices import DeviceEvent
from ...system.threads import WorkThread, next_of, wait_for
from ..report.run_timeline import Timeline

T = TypeVar("T")


class Target(Protocol):
    """Where slices are written: a result, or what the next section reads."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""

    def write(self, slice_dim: int, start: int, block: Any) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""


@dataclass(slots=True)
class ResultTransfer:
    """Copies of a result from the device."""

    start: int
    """First slice of the result."""
    copies: list[tuple[int, int, int, DeviceEvent, DeviceEvent]] = field(default_factory=list)
    """First slice, one past the last, bytes, begin and end of each copy from the device."""


@dataclass(slots=True)
class ResultPiece:
    """Slices of a result in host memory, to be written."""

    data: Any
    """The slices."""
    first: int
    """First of them."""
    targets: Sequence[Target]
    """Where they are written."""
    transfer: ResultTransfer
    """Times of the result that they are part of."""
    release: Callable[[], None]
    """Called once they are written, or given up."""
    copied: DeviceEvent | None = None
    """Reached when they have been copied from the device; None if nothing is copied."""


@dataclass(slots=True)
class WrittenMark:
    """A place in the queue: what was queued before it is written when its turn comes."""

    start: int
    """First slice of the last result before it."""
    reached: Callable[[], object]
    """Called then, unless that result is lost."""


class Writer:
    """Writes pieces in order, in a thread that starts with the first piece.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    timeline : Timeline
        Records what is written.
    """

    def __init__(self, slice_dim: int, timeline: Timeline) -> None:
        self._slice_dim, self._timeline = slice_dim, timeline
        self._pieces: SimpleQueue[ResultPiece | WrittenMark | None] = SimpleQueue()
        self._failing = threading.Lock()
        self._error: BaseException | None = None
        self._lost_from: int | None = None
        self._thread: WorkThread | None = None

    @property
    def lost_from(self) -> int | None:
        """First slice of the first result that could not be written; None if there is none."""
        return self._lost_from

    def put(self, piece: ResultPiece | WrittenMark) -> None:
        """Queue a piece, or a mark behind all pieces so far."""
        if self._thread is None:
            self._thread = WorkThread(self._work, "writer")
            self._thread.start()
        self._pieces.put(piece)

    def is_lost(self, start: int) -> bool:
        """True if the result that begins with slice `start` is given up after an error."""
        return self._lost_from is not None and start >= self._lost_from

    def fail(self, start: int, error: BaseException) -> None:
        """Give up the result that begins with slice `start`, and all after it."""
        with self._failing:
            if not self.is_lost(start):
                self._lost_from, self._error = start, error

    def raise_error(self) -> None:
        """Raise the error of the first result that was given up, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """Wait until all pieces are written, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._pieces.put(None)
            self.join(thread)

    def join(self, thread: WorkThread) -> None:
        """Wait for a thread that results pass; if it broke off, all of them are given up."""
        try:
            thread.join()
        except BaseException as error:  # noqa: BLE001 - raised where the next result is put
            self.fail(0, error)

    def wait_for(self, event: threading.Event) -> None:
        """Wait for an event that the thread sets, or until the thread has broken off."""
        wait_for(event, self._thread)

    def next_released(self, pieces: SimpleQueue[T]) -> T:
        """Next piece that the thread has released.

        Raises
        ------
        BaseException
            What ended the thread, if it has broken off.
        """
        return next_of(pieces, self._thread)

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, WrittenMark):
                self._reach(piece)
                continue
            try:
                if piece.copied is not None:
                    piece.copied.synchronize()
                if not self.is_lost(piece.transfer.start):
                    self._write(piece)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self.fail(piece.transfer.start, error)
            release = piece.release
            del piece
            release()

    def _reach(self, mark: WrittenMark) -> None:
        try:
            if not self.is_lost(mark.start):
                mark.reached()
        except BaseException as error:  # noqa: BLE001 - raised where the next result is put
            self.fail(mark.start, error)

    def _write(self, piece: ResultPiece) -> None:
        began = time.perf_counter()
        for target in piece.targets:
            target.write(self._slice_dim, piece.first, piece.data)
        ended, stop = time.perf_counter(), piece.first + piece.data.shape[self._slice_dim]
        self._timeline.add("write", began, ended, piece.first, stop, int(piece.data.nbytes))
