"""What one call of a method asked an allocator for, in order: allocations and frees.

Sequences are recorded by `maxslices.measure`; here they are data, and arithmetic on them.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.allocators import CUDA_GRANULE_BYTES


class CallSite(NamedTuple):
    """Where an allocation came from."""

    filename: str
    """File of the user's line: the innermost one outside array libraries."""
    line: int
    """Number of that line, from 1."""
    function: str
    """Function that the line is in."""
    path: str
    """Digest of all lines from the call down to the allocation, those of libraries included: the
    same for allocations that were reached in the same way."""

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
        """None: a free has no call site."""
        return None


@dataclass(frozen=True, slots=True)
class AllocationSequence:
    """Allocations and frees of one call, the input's first."""

    n_slices: int
    """Slices that the method was given."""
    sites: tuple[CallSite, ...]
    """Call sites, each once."""
    events: tuple[Allocated | Freed, ...]
    """In order. What is alive at the end is the input, the result, and what stays."""

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
        """Allocations alive when most is, in order: the last one reached the peak."""
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
        """Read what `as_plain` wrote.

        Raises
        ------
        ValueError, KeyError, IndexError, TypeError
            If the values are not those of a sequence.
        """
        sites = tuple(CallSite(*site) for site in plain["sites"])
        events: list[Allocated | Freed] = []
        alive: set[int] = set()
        for first, second, *_ in plain["events"]:
            if first < 0:
                alive.remove(int(second))
                events.append(Freed(int(second)))
            else:
                sites[second]  # raises if there is none
                alive.add(len(events))
                events.append(Allocated(int(first), int(second)))
        return cls(int(plain["n_slices"]), sites, tuple(events))


class SequenceBuilder:
    """Puts a sequence together, event by event.

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
        """Index of a call site, which is entered if it is new."""
        return self._sites.setdefault(site, len(self._sites))

    def alloc(self, n_bytes: int, site: int) -> int:
        """Enter an allocation; the index of its event is for `free`."""
        self._events.append(Allocated(n_bytes, site))
        return len(self._events) - 1

    def free(self, which: int) -> None:
        """Enter the free of an allocation."""
        self._events.append(Freed(which))

    def sequence(self) -> AllocationSequence:
        """The sequence so far."""
        return AllocationSequence(self.n_slices, tuple(self._sites), tuple(self._events))
