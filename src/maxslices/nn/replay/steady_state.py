"""What an allocator does under a limit in steps that go on, when the first ones are over.

Where a step nearly needs the limit, the allocator gives unused memory back and takes it from the
device again, in every step or in the first ones alone; and in a later step blocks may lie so that
the workspace of a convolution finds no room. So more steps are simulated than were replayed: the
second one is repeated, what is alive at its end in the place of what was at its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

from .caching_allocator import CachingAllocator
from .expandable_segments import ExpandableAllocator
from .trace import Trace

N_STEPS = 10
"""Steps that are simulated at most."""
N_FIRST = 3
"""Those of them that do not count."""
N_CALM = 2
"""Steps one after the other that take nothing, after which none is expected to."""


class Counts(NamedTuple):
    """What an allocator does in a step."""

    retries: int
    taken_bytes: int


@dataclass(frozen=True, slots=True)
class Steady:
    """A step under a limit, once the first ones are over."""

    runs: bool
    """Whether all finds room that the allocator's `run` asks for."""
    taken_bytes: float = 0.0
    """What is given back to the device and taken from it again, on average."""


def steady(trace: Trace, allocator: CachingAllocator | ExpandableAllocator) -> Steady:
    """Simulate steps that go on.

    Parameters
    ----------
    trace : Trace
        Of two steps of training.
    allocator : CachingAllocator or ExpandableAllocator
        A new one, with a limit.
    """
    taken: list[int] = []
    for counts in islice(each_step(trace, allocator), N_STEPS):
        if counts is None:
            return Steady(False)
        taken.append(counts.taken_bytes)
        if not any(taken[-N_CALM:]):
            return Steady(True)
    taken = taken[min(N_FIRST, len(taken) - 1) :]
    return Steady(True, sum(taken) / len(taken))


def each_step(
    trace: Trace, allocator: CachingAllocator | ExpandableAllocator
) -> Iterator[Counts | None]:
    """Yield what happens in each step, endlessly; None, and no more, if one finds no room.

    The second step is repeated if what is alive at the ends of both is alike, but for what stays
    from the first on. Else there are no more than the two.
    """
    ends = [mark.event for mark in trace.marks if mark.name == trace.marks[-1].name]
    asked = list(trace.asked())
    following = _following(trace, ends[0], ends[-1])
    steps = asked[: ends[0]]
    for turn in count():
        retries, taken_bytes = allocator.retries, allocator.taken_bytes
        if not all(allocator.run(each) for each in steps):
            yield None
            return
        yield Counts(allocator.retries - retries, allocator.taken_bytes - taken_bytes)
        steps = asked[ends[0] : ends[-1]]
        if turn:
            if following is None:
                return
            allocator.rename(following)


def _following(trace: Trace, begin: int, end: int) -> dict[int, int] | None:
    """Return which storages of the second step take the places of those of the first.

    Parameters
    ----------
    begin, end : int
        Events of the end of the first step and of the second.

    Returns
    -------
    dict or None
        The first by the second; None if they are not of the same sizes.
    """
    old, new = [], []
    for index, storage in enumerate(trace.storages):
        died = len(trace.events) if storage.died is None else storage.died
        if storage.born < begin and begin <= died < end:
            old.append(index)
        elif begin <= storage.born < end <= died:
            new.append(index)
    sizes = ([trace.storages[i].n_bytes for i in each] for each in (old, new))
    if [*next(sizes)] != [*next(sizes)]:
        return None
    return dict(zip(new, old, strict=True))
