"""Which line reached the peak on the CPU, and what was alive then.

tracemalloc says how much was alive at most, not when. So Python's line tracing is switched
on: before each line the peak of the line before is read; where it is a new maximum, a
snapshot is taken. That is slow, and adds small objects of its own: a second run, to explain
a figure that was measured without it.
"""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np

from .host_memory import observe
from .peak import Alive, Place, Step
from .source_lines import describe_array, is_library

_FINER = 1.002
"""A new maximum less than this above the last one takes no new snapshot."""
_NEGLIGIBLE = 200
"""Allocations below this part of the peak are summed up in one row."""


class LineTracer:
    """Follows the lines of one thread while `HostMeter` counts."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.where: Place | None = None
        self._highest = 0
        self._snapshot: tracemalloc.Snapshot | None = None
        self._arrays: dict[int, dict[int, tuple[str, str]]] = {}
        self._place = Place("", 0)
        self._before = 0

    def start(self) -> None:
        """Begin; lines of the frame that entered the ``with`` block are followed too."""
        self._began = time.perf_counter()
        self._thread = threading.get_ident()
        self._before = self._last = observe()[0]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self._place = _place(frame)
        self._frame, self._frame_trace = frame, frame.f_trace if frame is not None else None
        self._previous = sys.gettrace()
        sys.settrace(self._enter)
        if frame is not None:
            frame.f_trace = self._line

    def stop(self) -> None:
        """End, and put back what was traced before."""
        sys.settrace(self._previous)
        if self._frame is not None:
            self._frame.f_trace = self._frame_trace
        self._note(self._frame)
        self._frame = None

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if is_library(frame.f_code.co_filename):
            return None
        return self._line(frame, event, argument)

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if threading.get_ident() == self._thread and not is_library(frame.f_code.co_filename):
            self._note(frame)
            following: FrameType | None = frame
            if event == "return":  # the line that called goes on, and no event says so
                following = frame.f_back
                while following is not None and is_library(following.f_code.co_filename):
                    following = following.f_back
            self._place = _place(following or frame)
        return self._line

    def _note(self, frame: FrameType | None) -> None:
        current, peak = observe()
        now = time.perf_counter() - self._began
        if peak - max(current, self._last) > 4096:
            self.steps.append(Step(now, peak - self._before, self._place))
        if abs(current - self._last) > 4096:
            self.steps.append(Step(now, current - self._before, self._place))
        self._last = current
        if peak > self._highest * _FINER:
            self._highest, self.where = peak, self._place
            self._snapshot = tracemalloc.take_snapshot()
            self._arrays = _arrays_in(frame)
            observe()  # the snapshot's own objects are nobody's peak

    def _describe(self, n_bytes: int, n_alike: int) -> str:
        """Return name and shape of the one array of this size; the shape alone of several."""
        arrays = list(self._arrays.get(n_bytes, {}).values())
        shapes = {shape for _, shape in arrays}
        if len(shapes) != 1:
            return ""
        return f"{arrays[0][0]} {arrays[0][1]}" if n_alike == len(arrays) == 1 else shapes.pop()

    def alive(self) -> tuple[Alive, ...]:
        """Return what was alive at the peak, largest first."""
        if self._snapshot is None:
            return ()
        highest = self._highest - self._before
        rows: list[Alive] = []
        sizes: Counter[int] = Counter()
        small = 0
        for trace in self._snapshot.traces:
            frames = [(f.filename, f.lineno) for f in reversed(trace.traceback)]
            if trace.size * _NEGLIGIBLE < highest:
                small += trace.size
                continue
            filename, line = next((f for f in frames if not is_library(f[0])), frames[0])
            sizes[trace.size] += 1
            rows.append(Alive(trace.size, Place(filename, line)))
        rows = [replace(row, what=self._describe(row.n_bytes, sizes[row.n_bytes])) for row in rows]
        rows.sort(key=lambda row: -row.n_bytes)
        listed = sum(row.n_bytes for row in rows)
        rest = highest - listed - max(0, small - self._before)
        if rest * _NEGLIGIBLE > highest and self.where:
            rows.append(Alive(rest, self.where, "freed again when the line was done"))
        rows.sort(key=lambda row: (-row.n_bytes, row.where.filename, row.where.line))
        return tuple(rows)


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _arrays_in(frame: FrameType | None) -> dict[int, dict[int, tuple[str, str]]]:
    """Return the names and shapes of the arrays that local variables hold, by size in bytes."""
    found: dict[int, dict[int, tuple[str, str]]] = {}
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            for name, value in list(frame.f_locals.items()):
                if isinstance(value, np.ndarray) and value.base is None:
                    same_size = found.setdefault(value.nbytes, {})
                    same_size.setdefault(id(value), (name, describe_array(value)))
        frame = frame.f_back
    return found
