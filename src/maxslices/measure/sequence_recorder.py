"""Record what a piece of code asks CuPy's pool for: allocations and frees, and from which lines."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from .allocation_sequence import Allocated, AllocationSequence, CallSite, SequenceBuilder
from .cupy_hook import shared_hook
from .source_lines import arrays_in_frames, current_place

INPUT = CallSite("", 0, "", "input")
"""Site of the input, which the caller has allocated."""


class SequenceRecorder:
    """Records allocations and frees of the current device's pool, in all threads.

    Frees of what was allocated before are left out.
    """

    with_hooks = True

    def __init__(self, n_slices: int, input_bytes: int, names: bool, base: FrameType) -> None:
        self._building = SequenceBuilder(n_slices)
        self._names, self._base = names, base
        if input_bytes:
            self._building.alloc(input_bytes, self._building.site(INPUT), "input")
        self._alive: dict[int, int] = {}
        self._unnamed: set[int] = set()
        self._site_of: dict[int, int] = {}
        self._refused: tuple[int, int, int] | None = None
        """The request at which memory ran out: events before it, bytes and call site."""
        self.in_use_bytes: int | None = None
        self.held_bytes: int | None = None
        self.unseen: list[str] = []
        """What the sequence may lack; empty if everything was seen."""
        self.is_disturbed = False
        """True if the recording took an exception from the code under measurement."""
        self.own_bytes = 0
        """Bytes that tracemalloc counts of the recorder itself; 0 where it is off."""
        self.most_bytes = 0
        """Most bytes that tracemalloc counted at an event, without the recorder's own."""

    @property
    def is_complete(self) -> bool:
        """True if the hooks were told of all allocations, and there were any."""
        return not self.unseen and bool(self._site_of)

    @property
    def n_events(self) -> int:
        """Events so far."""
        return self._building.n_events

    def sequence(self) -> AllocationSequence:
        """What was recorded so far, or up to where memory ran out."""
        found = self._building.sequence()
        if self._refused is None:
            return found
        n_events, n_bytes, site = self._refused
        return replace(found, events=(*found.events[:n_events], Allocated(n_bytes, site)))

    # Called by the shared hook: see `PoolListener`.

    def begin(self, pool: Any, device: Any) -> None:
        """Note the device."""
        self.device_id = int(device.id)

    def end(self, complaint: str | None) -> None:
        """Keep a complaint."""
        if complaint:
            self.unseen.append(complaint)

    def after_allocation(self, device_id: int) -> None:
        """Do nothing: the hooks have told."""

    def pool_grew(self, pointer: int, n_bytes: int) -> None:
        """Do nothing: the sequence does not depend on what the pool holds."""

    def allocated(self, pointer: int, n_bytes: int, requested_bytes: int) -> None:
        """Enter an allocation."""
        frame = sys._getframe(2)  # without this function and the hook's
        self._refused = None  # it was given in the end, or the method goes on without
        self._name_arrays(frame)
        which = self._building.alloc(requested_bytes, self._site(frame))
        self._alive[pointer] = which
        self._unnamed.add(pointer)

    def refused(self, requested_bytes: int) -> None:
        """Enter the request at which memory ran out: the last one, unless the method goes on."""
        site = self._site(sys._getframe(2))
        self._refused = self._building.n_events, requested_bytes, site

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Enter a free."""
        which = self._alive.get(pointer)
        if which is not None:
            self._name_arrays(sys._getframe(2))
            self._unnamed.discard(pointer)
            del self._alive[pointer]
            self._building.free(which)

    def _site(self, frame: FrameType) -> int:
        """Index of the call site of an allocation."""
        key = 0
        for found in self._frames(frame):
            key = hash((key, found.f_code, found.f_lineno))
        if key not in self._site_of:
            where = current_place(frame)
            lines = "\n".join(
                f"{_tail(found.f_code.co_filename)}:{found.f_lineno}"
                for found in self._frames(frame)
            )
            digest = hashlib.blake2b(lines.encode(), digest_size=6).hexdigest()
            site = CallSite(where.filename, where.line, where.function, digest)
            self._site_of[key] = self._building.site(site)
        return self._site_of[key]

    def _frames(self, frame: FrameType) -> Iterator[FrameType]:
        """Frames from an allocation out to where recording began."""
        found: FrameType | None = frame
        while found is not None:
            yield found
            found = None if found is self._base else found.f_back

    def _name_arrays(self, frame: FrameType) -> None:
        """Name the arrays allocated so far by the local variables that hold them."""
        if self._names and self._unnamed:
            for pointer, what in arrays_in_frames(frame, self._unnamed):
                self._building.name(self._alive[pointer], what)
                self._unnamed.discard(pointer)


def _tail(filename: str) -> str:
    """Last two parts of a path, the same wherever a package is installed."""
    return "/".join(filename.split(os.sep)[-2:])


@contextmanager
def record_sequence(
    n_slices: int, input_bytes: int = 0, *, names: bool = False
) -> Iterator[SequenceRecorder]:
    """Record what a ``with`` block asks CuPy's pool for.

    Parameters
    ----------
    n_slices : int
        Slices that the recorded method is given.
    input_bytes : int
        Bytes of its input, which is entered as the first allocation; 0 leaves it out.
    names : bool
        Whether arrays are named by the variables that hold them; walking these takes as long as
        many a method's steps.

    Yields
    ------
    SequenceRecorder
        Its `sequence` has all of it when the block has ended.
    """
    recorder = SequenceRecorder(n_slices, input_bytes, names, sys._getframe(2))
    shared_hook.add(recorder)
    try:
        yield recorder
    finally:
        shared_hook.remove(recorder)
