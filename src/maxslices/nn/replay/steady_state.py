"""Simulation of an allocator under a limit over many steps.

Where a step needs nearly the whole limit, the allocator gives unused memory back and takes it from
the device again, in every step or in the first ones only; and in a later step blocks may lie so
that the workspace of a convolution finds no room. So more steps are simulated than were replayed:
the last step is repeated, with the storages alive at its end in place of those at its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import TYPE_CHECKING, NamedTuple

from .caching_allocator import AllocatorRequest, CachingAllocator
from .expandable_segments import ExpandableAllocator

if TYPE_CHECKING:
    from .trace import Trace

N_STEPS = 10
"""Steps that are simulated at most. On an H200 two plans for ResNet50 ran out of memory in the
fourth and the sixth step, as simulated."""
N_FIRST = 3
"""First steps, which are left out of the average: some limits cost time in these alone."""
N_CALM = 2
"""Consecutive steps without memory from the device after which the simulation ends: blocks then lie
as in the step before, and so in every later one."""


class Counts(NamedTuple):
    """Counts of an allocator in one step."""

    retries: int
    taken_bytes: int


@dataclass(frozen=True, slots=True)
class Steady:
    """Steps under a limit, after the first ones."""

    runs: bool
    """Whether every request finds room that the allocator's `run` requires."""
    taken_bytes: float = 0.0
    """Average bytes that a step takes from the device, having given them back before."""


def steady(
    trace: Trace,
    allocator: CachingAllocator | ExpandableAllocator,
    requests: Iterable[Sequence[AllocatorRequest]] | None = None,
) -> Steady:
    """Simulate steps until they take no memory from the device, or `N_STEPS`.

    Parameters
    ----------
    trace : Trace
        Of two steps or more of training, or two passes of inference.
    allocator : CachingAllocator or ExpandableAllocator
        A new one, with a limit.
    requests : iterable of sequence of AllocatorRequest, optional
        Requests of each event, in place of the trace's own: those of another number of images.
    """
    taken: list[int] = []
    for counts in islice(each_step(trace, allocator, requests), N_STEPS):
        if counts is None:
            return Steady(False)
        taken.append(counts.taken_bytes)
        if not any(taken[-N_CALM:]):
            return Steady(True)
    taken = taken[min(N_FIRST, len(taken) - 1) :]
    return Steady(True, sum(taken) / len(taken))


def each_step(
    trace: Trace,
    allocator: CachingAllocator | ExpandableAllocator,
    requests: Iterable[Sequence[AllocatorRequest]] | None = None,
) -> Iterator[Counts | None]:
    """Yield the counts of each step, endlessly; None as the last if one finds no room.

    The last step is repeated if the storages alive at its two ends have the same sizes, apart from
    those that stay. Otherwise only the replayed steps are simulated.
    """
    ends = [mark.event for mark in trace.marks if mark.name == trace.marks[-1].name]
    if len(ends) < 2:
        ends = [len(trace.events)] * 2
    each_event = list(trace.requests_by_event() if requests is None else requests)
    following = _following(trace, *ends[-2:])
    asked = [*chain.from_iterable(each_event[: ends[-2]])]
    for turn in count():
        retries, taken_bytes = allocator.retries, allocator.taken_bytes
        if not allocator.run(asked):
            yield None
            return
        yield Counts(allocator.retries - retries, allocator.taken_bytes - taken_bytes)
        if turn:
            if following is None:
                return
            allocator.rename(following)
        else:
            asked = [*chain.from_iterable(each_event[ends[-2] : ends[-1]])]


def _following(trace: Trace, begin: int, end: int) -> dict[int, int] | None:
    """Pair storages alive at the end of the last step with those alive at its beginning.

    Parameters
    ----------
    begin, end : int
        Events at which the last step begins and ends.

    Returns
    -------
    dict or None
        Older index by newer index; None if the sizes differ.
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
