"""A thread that writes results, and its first error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ...devices import DeviceEvent
from ...io import Sink, Store
from ...system.threads import (
    CALL_S,
    HANG_S,
    WorkThread,
    next_for,
)
from ..report.run_timeline import Timeline

Target = Sink | Store
"""Where slices are written: a result, or what the next section reads."""


@dataclass(slots=True)
class ResultPiece:
    """Slices of a result in host memory, to be written."""

    data: Any
    """The slices."""
    first: int
    """First of them."""
    result: int
    """First slice of the result that they are part of."""
    targets: Sequence[Target]
    """Where they are written."""
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
    look : callable, optional
        Called with the target and the data of each piece after it is written.
    hang_s : float
        Longest wait for the thread.
    """

    def __init__(
        self,
        slice_dim: int,
        timeline: Timeline,
        look: Callable[[Target, Any], object] = lambda target, data: None,
        hang_s: float = HANG_S,
    ) -> None:
        self._slice_dim, self._timeline, self._look = slice_dim, timeline, look
        self.hang_s = hang_s
        """Longest wait for a thread that results pass."""
        self.owner = threading.current_thread()
        """Thread that computes the results."""
        self._pieces: SimpleQueue[ResultPiece | WrittenMark | None] = SimpleQueue()
        self._failing = threading.Lock()
        self._error: BaseException | None = None
        self.lost_from: int | None = None
        """First slice of the first result that could not be written; None if there is none."""
        self.thread: WorkThread | None = None
        """Its thread, once it has pieces."""

    def put(self, piece: ResultPiece | WrittenMark) -> None:
        """Queue a piece, or a mark behind all pieces so far."""
        if self.thread is None:
            self.thread = WorkThread(self._work, "writer")
            self.thread.start()
        self._pieces.put(piece)

    def is_lost(self, start: int) -> bool:
        """True if the result that begins with slice `start` is given up after an error."""
        return self.lost_from is not None and start >= self.lost_from

    def fail(self, start: int, error: BaseException) -> None:
        """Give up the result that begins with slice `start`, and all after it."""
        with self._failing:
            if not self.is_lost(start):
                self.lost_from, self._error = start, error

    def raise_error(self) -> None:
        """Raise the error of the first result that was given up, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """Wait until all pieces are written, and end the thread."""
        thread, self.thread = self.thread, None
        if thread is not None:
            self._pieces.put(None)
            self.join(thread)

    def join(self, thread: WorkThread) -> None:
        """Wait for a thread that results pass; if it broke off, all of them are given up."""
        try:
            thread.join(self.hang_s)
        except BaseException as error:  # noqa: BLE001 - raised where the next result is put
            self.fail(0, error)

    def _work(self) -> None:
        while (item := next_for(self._pieces, self.owner, CALL_S)) is not None:
            start = item.start if isinstance(item, WrittenMark) else item.result
            try:
                if isinstance(item, ResultPiece) and item.copied is not None:
                    item.copied.synchronize()
                if not self.is_lost(start):
                    item.reached() if isinstance(item, WrittenMark) else self._write(item)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self.fail(start, error)
            release = None if isinstance(item, WrittenMark) else item.release
            del item
            if release is not None:
                release()

    def _write(self, piece: ResultPiece) -> None:
        began = time.perf_counter()
        for target in piece.targets:
            target.write(self._slice_dim, piece.first, piece.data)
            self._look(target, piece.data)
        self._timeline.add("write", began, time.perf_counter(), int(piece.data.nbytes))
