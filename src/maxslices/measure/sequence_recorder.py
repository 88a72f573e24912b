"""Record what code asks CuPy's pool or NumPy for: allocations, frees, and their lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

from .allocation_sequence import INPUT, Allocated, AllocationSequence, SequenceBuilder
from .source_lines import assigned_name, call_site


class SequenceRecorder:
    """Records allocations and frees of the current device's pool or of NumPy, in all threads.

    Frees of what was allocated before are left out.
    """

    with_hooks = True

    def __init__(self, n_slices: int, input_bytes: int, base: FrameType) -> None:
        self._building = SequenceBuilder(n_slices)
        self._base = base
        if input_bytes:
            self._building.alloc(input_bytes, self._building.site(INPUT))
        self._alive: dict[int, int] = {}
        self._site_of: dict[int, tuple[int, str]] = {}
        self._refused: AllocationSequence | None = None
        """What was recorded when memory ran out, with the request that was refused."""
        self.in_use_bytes: int | None = None
        self.held_bytes: int | None = None
        self.unseen: list[str] = []
        """What the sequence may lack; empty if everything was seen."""
        self.is_disturbed = False
        """True if the recording took an exception from the code under measurement."""

    @property
    def is_complete(self) -> bool:
        """True if the hooks were told of all allocations, and there were any."""
        return not self.unseen and bool(self._site_of)

    def sequence(self) -> AllocationSequence:
        """What was recorded so far, or up to where memory ran out."""
        return self._refused or self._building.sequence()

    # Called by the shared hook (see `PoolListener`), or for NumPy by `told_by_numpy`.

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
        self._alive[pointer] = self._building.alloc(requested_bytes, *self._site(frame))

    def refused(self, requested_bytes: int) -> None:
        """Enter the request at which memory ran out: the last one, unless the method goes on."""
        site, what = self._site(sys._getframe(2))
        before = self._building.sequence()
        self._refused = replace(
            before, events=(*before.events, Allocated(requested_bytes, site, what))
        )

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Enter a free."""
        which = self._alive.pop(pointer, None)
        if which is not None:
            self._building.free(which)

    def _site(self, frame: FrameType) -> tuple[int, str]:
        """Index of the call site of an allocation, and what its line calls the array."""
        key = 0
        for found in self._frames(frame):
            key = hash((key, found.f_code, found.f_lineno))
        if key not in self._site_of:
            site = call_site(
                [
                    (each.f_code.co_filename, each.f_lineno, each.f_code.co_name)
                    for each in self._frames(frame)
                ]
            )
            self._site_of[key] = self._building.site(site), assigned_name(site)
        return self._site_of[key]

    def _frames(self, frame: FrameType) -> Iterator[FrameType]:
        """Frames from an allocation out to where recording began."""
        found: FrameType | None = frame
        while found is not None:
            yield found
            found = None if found is self._base else found.f_back
