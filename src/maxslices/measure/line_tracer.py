"""Line that reached the peak on the CPU, and what was alive then.

tracemalloc says how much was alive at most, not when. With Python's line tracing, the peak of each
line is read before the next one; at a new maximum a snapshot is taken. That is slow and adds small
objects of its own, so it is a second run that explains a figure measured without it.
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
from .peak import Alive, MemorySample, Place
from .source_lines import describe_array, is_library

_NEW_MAXIMUM_FACTOR = 1.002
"""A maximum must exceed the last one by this factor for a new snapshot. A snapshot takes some 10 us
for each allocation alive, and small objects raise the peak at every line."""
_SMALL_FRACTION = 200
"""Allocations below 1/200 of the peak are summed up: that changes no verdict on an estimate."""
_NOISE_BYTES = 4096
"""Changes up to this (a page) are taken for Python's own objects: they give no sample, and no new
maximum."""


class LineTracer:
    """Traces the lines of one thread while `HostMeter` counts."""

    def __init__(self) -> None:
        self.samples: list[MemorySample] = []
        self.where: Place | None = None
        self._highest = 0
        self._snapshot: tracemalloc.Snapshot | None = None
        self._arrays: dict[int, dict[int, tuple[str, str]]] = {}
        self._place = Place("", 0)
        self._before = 0
        self._older: set[int] = set()

    def start(self) -> None:
        """Begin, with the lines of the frame that entered the ``with`` block too."""
        self._began = time.perf_counter()
        self._thread = threading.get_ident()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        self._older = {
            key for alike in _arrays_in(frame, set()).values() for key in alike
        }  # arrays from before are not among the allocations
        self._before = self._last = observe()[0]
        if frame is not None:
            self._place = _place(frame)
        self._frame, self._frame_trace = frame, frame.f_trace if frame is not None else None
        self._previous = sys.gettrace()
        sys.settrace(self._enter)
        if frame is not None:
            frame.f_trace = self._line

    def stop(self) -> None:
        """End, and restore the tracer from before."""
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
            if event == "return":  # the calling line goes on without an event of its own
                following = frame.f_back
                while following is not None and is_library(following.f_code.co_filename):
                    following = following.f_back
            self._place = _place(following or frame)
        return self._line

    def _note(self, frame: FrameType | None) -> None:
        current, peak = observe()
        now = time.perf_counter() - self._began
        if peak - max(current, self._last) > _NOISE_BYTES:
            self.samples.append(MemorySample(now, peak - self._before, self._place))
        if abs(current - self._last) > _NOISE_BYTES:
            self.samples.append(MemorySample(now, current - self._before, self._place))
        self._last = current
        if peak > max(self._highest * _NEW_MAXIMUM_FACTOR, self._highest + _NOISE_BYTES):
            self._highest, self.where = peak, self._place
            self._snapshot = tracemalloc.take_snapshot()
            self._arrays = _arrays_in(frame, self._older)
            observe()  # so that the snapshot's own objects count for no line

    def _describe(self, n_bytes: int, n_alike: int) -> str:
        """Name and shape of the only array of this size, or the shape alone of several alike."""
        arrays = list(self._arrays.get(n_bytes, {}).values())
        shapes = {shape for _, shape in arrays}
        if len(shapes) != 1:
            return ""
        return f"{arrays[0][0]} {arrays[0][1]}" if n_alike == len(arrays) == 1 else shapes.pop()

    def alive(self) -> tuple[Alive, ...]:
        """Allocations alive at the peak, largest first."""
        if self._snapshot is None:
            return ()
        highest = self._highest - self._before
        rows: list[Alive] = []
        sizes: Counter[int] = Counter()
        small = 0
        for trace in self._snapshot.traces:
            frames = [(f.filename, f.lineno) for f in reversed(trace.traceback)]
            if trace.size * _SMALL_FRACTION < highest:
                small += trace.size
                continue
            filename, line = next((f for f in frames if not is_library(f[0])), frames[0])
            sizes[trace.size] += 1
            rows.append(Alive(trace.size, Place(filename, line)))
        rows = [replace(row, what=self._describe(row.n_bytes, sizes[row.n_bytes])) for row in rows]
        rows.sort(key=lambda row: -row.n_bytes)
        listed = sum(row.n_bytes for row in rows)
        rest = highest - listed - max(0, small - self._before)
        if rest * _SMALL_FRACTION > highest and self.where:
            rows.append(Alive(rest, self.where, "freed again when the line was done"))
        rows.sort(key=lambda row: (-row.n_bytes, row.where.filename, row.where.line))
        return tuple(rows)


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _arrays_in(frame: FrameType | None, older: set[int]) -> dict[int, dict[int, tuple[str, str]]]:
    """Names and shapes of the arrays in local variables, by size in bytes."""
    found: dict[int, dict[int, tuple[str, str]]] = {}
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            for name, value in list(frame.f_locals.items()):
                is_array = isinstance(value, np.ndarray) and value.base is None
                if is_array and id(value) not in older:
                    same_size = found.setdefault(value.nbytes, {})
                    same_size.setdefault(id(value), (name, describe_array(value)))
        frame = frame.f_back
    return found
