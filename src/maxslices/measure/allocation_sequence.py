"""Sequence of the allocations and frees of one call of a method.

`SequenceRecorder` records sequences. This module has the data and their arithmetic.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.allocators import CUDA_GRANULE_BYTES


class CallSite(NamedTuple):
    """Line of code of an allocation."""

    filename: str
    """File of the user's line: the innermost line outside array libraries."""
    line: int
    """Number of that line, from 1."""
    function: str
    """Function of the line."""
    path: str
    """Digest of the stack from the call down to the allocation, with the lines of libraries.
    Allocations with the same stack have the same path."""

    @property
    def code(self) -> str:
        """Text of the line, or "" if the file cannot be read."""
        return linecache.getline(self.filename, self.line).strip()

    def __str__(self) -> str:
        """Return ``package/file.py:12 in function``."""
        short = self.filename  # such as <stdin>
        if not short.startswith("<"):
            short = os.sep.join(os.path.abspath(short).split(os.sep)[-2:])
        inside = f" in {self.function}" if self.function else ""
        return f"{short}:{self.line}{inside}"


INPUT = CallSite("", 0, "", "input")
"""Site of the input, which the caller has allocated."""


class Alive(NamedTuple):
    """One allocation alive at the peak."""

    n_bytes: int
    """Bytes requested."""
    where: CallSite
    """Line that allocated it."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """An allocation."""

    n_bytes: int
    """Bytes requested, before the allocator rounds them."""
    site: int
    """Index of its call site in `AllocationSequence.sites`."""


@dataclass(frozen=True, slots=True)
class Freed:
    """A return to the allocator."""

    which: int
    """Index of the event that allocated."""

    @property
    def site(self) -> None:
        """None, because a free has no call site."""
        return None


@dataclass(frozen=True, slots=True)
class AllocationSequence:
    """Allocations and frees of one call, starting with the input."""

    n_slices: int
    """Slices of the input."""
    sites: tuple[CallSite, ...]
    """Distinct call sites."""
    events: tuple[Allocated | Freed, ...]
    """Allocations and frees in order. Input, result and retained memory are alive at the end."""

    def alive_bytes(self, granule_bytes: int = CUDA_GRANULE_BYTES) -> Iterator[int]:
        """Bytes alive after each event, every allocation rounded up to the granule."""
        alive: dict[int, int] = {}
        total = 0
        for i, event in enumerate(self.events):
            if isinstance(event, Allocated):
                alive[i] = -(-event.n_bytes // granule_bytes) * granule_bytes
                total += alive[i]
            else:
                total -= alive.pop(event.which)
            yield total

    def peak_bytes(self, granule_bytes: int = CUDA_GRANULE_BYTES) -> int:
        """Most bytes alive at once."""
        return max(self.alive_bytes(granule_bytes), default=0)

    def alive_at_peak(self, granule_bytes: int = CUDA_GRANULE_BYTES) -> tuple[Alive, ...]:
        """Allocations alive at the peak, in order. The last one reached the peak."""
        totals = list(self.alive_bytes(granule_bytes))
        alive: dict[int, Alive] = {}
        for i, event in enumerate(self.events[: totals.index(max(totals)) + 1 if totals else 0]):
            if isinstance(event, Allocated):
                alive[i] = Alive(event.n_bytes, self.sites[event.site])
            else:
                del alive[event.which]
        return tuple(alive.values())

    def as_plain(self) -> dict[str, Any]:
        """Plain values for JSON: an allocation is [bytes, site], a free [-1, event]."""
        return {
            "n_slices": self.n_slices,
            "sites": [list(site) for site in self.sites],
            "events": [
                [-1, event.which] if isinstance(event, Freed) else [event.n_bytes, event.site]
                for event in self.events
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> AllocationSequence:
        """Read plain values from `as_plain`.

        Raises
        ------
        ValueError, KeyError, IndexError, TypeError
            If the values do not represent a sequence.
        """
        sites = tuple(CallSite(*site) for site in plain["sites"])
        events: list[Allocated | Freed] = []
        alive: set[int] = set()
        for first, second, *_ in plain["events"]:
            if first < 0:
                alive.remove(int(second))
                events.append(Freed(int(second)))
            else:
                sites[second]  # raises an IndexError for an invalid site
                alive.add(len(events))
                events.append(Allocated(int(first), int(second)))
        return cls(int(plain["n_slices"]), sites, tuple(events))


class SequenceBuilder:
    """Build a sequence event by event.

    Examples
    --------
    >>> building = SequenceBuilder(3)
    >>> site = building.site(CallSite("method.py", 12, "blur", "a1"))
    >>> first = building.alloc(3 * 1000, site)
    >>> _ = building.alloc(100, site)
    >>> building.free(first)
    >>> building.sequence().peak_bytes()
    3584
    """

    def __init__(self, n_slices: int) -> None:
        self.n_slices = n_slices
        self._sites: dict[CallSite, int] = {}
        self._events: list[Allocated | Freed] = []

    def site(self, site: CallSite) -> int:
        """Index of a call site, adding it if it is new."""
        return self._sites.setdefault(site, len(self._sites))

    def alloc(self, n_bytes: int, site: int) -> int:
        """Add an allocation, and return the index of its event for `free`."""
        self._events.append(Allocated(n_bytes, site))
        return len(self._events) - 1

    def free(self, which: int) -> None:
        """Add the free of an allocation."""
        self._events.append(Freed(which))

    def sequence(self) -> AllocationSequence:
        """The sequence so far."""
        return AllocationSequence(self.n_slices, tuple(self._sites), tuple(self._events))
