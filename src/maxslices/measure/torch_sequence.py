"""Record what a piece of code asks torch's CPU allocator for, in order.

torch's profiler notes every allocation and free with the time; Python's line tracing notes the time
of every line. Both clocks are the system's, so that the line before an allocation is the one that
made it. The operators around it, which the profiler has as well, complete the way to it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .allocation_sequence import AllocationSequence, CallSite, SequenceBuilder
from .sequence_recorder import INPUT
from .source_lines import is_library


class TorchSequence:
    """Allocations and frees of torch's CPU allocator, after the ``with`` block has ended."""

    def __init__(self, n_slices: int, input_bytes: int, least_bytes: int) -> None:
        self._building = SequenceBuilder(n_slices)
        self._least = least_bytes
        if input_bytes:
            self._building.alloc(input_bytes, self._building.site(INPUT), "input")
        self._times: list[int] = []
        self._lines: list[tuple[CallSite, str]] = []

    def sequence(self) -> AllocationSequence:
        """What was recorded."""
        return self._building.sequence()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Note a line, as `sys.settrace` calls it."""
        if is_library(frame.f_code.co_filename):
            return None
        found: FrameType | None = frame
        if event == "return":  # the calling line goes on without an event of its own
            found = frame.f_back
            while found is not None and is_library(found.f_code.co_filename):
                found = found.f_back
        if found is not None:
            self._times.append(time.time_ns())
            self._lines.append(_line(found))
        return self.trace

    def take(self, profile: Any) -> None:
        """Enter what a profile has seen."""
        events: list[tuple[int, int, int, str]] = []
        _collect(profile.kineto_results.experimental_event_tree(), "", events)
        alive: dict[int, int] = {}
        for at, pointer, n_bytes, operators in sorted(events, key=lambda event: event[0]):
            if n_bytes < 0:
                if pointer in alive:
                    self._building.free(alive.pop(pointer))
            elif n_bytes >= self._least:
                site = self._building.site(self._site(at, operators))
                alive[pointer] = self._building.alloc(n_bytes, site)

    def _site(self, at: int, operators: str) -> CallSite:
        index = bisect_right(self._times, at) - 1
        if index < 0:
            return CallSite("", 0, "", operators)
        place, path = self._lines[index]
        digest = hashlib.blake2b(f"{path}\n{operators}".encode(), digest_size=6).hexdigest()
        return CallSite(place.filename, place.line, place.function, digest)


def _line(frame: FrameType) -> tuple[CallSite, str]:
    """A line, and the way to it."""
    code = frame.f_code
    path = []
    outer: FrameType | None = frame
    while outer is not None:
        name = outer.f_code.co_filename
        if not is_library(name):
            path.append(f"{os.path.basename(name)}:{outer.f_lineno}")
        outer = outer.f_back
    return CallSite(code.co_filename, frame.f_lineno, code.co_name, ""), "\n".join(path)


def _collect(events: Any, operators: str, found: list[tuple[int, int, int, str]]) -> None:
    """List (time, address, bytes, operators around) of allocations and frees."""
    import torch

    allocation = torch._C._profiler._EventType.Allocation
    for event in events:
        if event.tag == allocation:
            fields = event.typed[1]
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size, operators))
        _collect(event.children, f"{operators}/{event.name}", found)


@contextmanager
def record_torch_sequence(
    n_slices: int, input_bytes: int = 0, *, least_bytes: int = 0
) -> Iterator[TorchSequence]:
    """Record what a ``with`` block asks torch's CPU allocator for.

    Parameters
    ----------
    n_slices : int
        Slices that the recorded method is given.
    input_bytes : int
        Bytes of its input, which is entered as the first allocation; 0 leaves it out.
    least_bytes : int
        Smaller allocations are left out.

    Yields
    ------
    TorchSequence
        Its `sequence` is there when the block has ended.
    """
    from .torch_cpu_memory import start_profile

    recorder = TorchSequence(n_slices, input_bytes, least_bytes)
    profile = start_profile()
    previous = sys.gettrace()
    sys.settrace(recorder.trace)
    try:
        yield recorder
    finally:
        sys.settrace(previous)
        profile.__exit__(None, None, None)
        recorder.take(profile)
