"""Trace of a replayed step: allocations, frees and calls in order, and their peak.

This module does not import torch, and neither does scaling a `Trace` or simulating an allocator.

If a step needs nearly the whole limit, the allocator returns unused memory and takes it from the
device again, in all steps or in the first ones only. In a later step, the layout of blocks may
leave no space for the workspace of a convolution. So more steps are simulated than were replayed:
the last step is repeated, with the storages alive at its end in place of those at its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, islice
from typing import Literal, NamedTuple, get_args

from ...core.allocators import round_to_granule
from ...core.units import MIB
from .caching_allocator import SMALL_BYTES, AllocatorRequest, CachingAllocator, least_limit
from .expandable_segments import ExpandableAllocator
from .workspaces import CONVOLUTIONS, STATED, OperatorCall, Workspace, Workspaces

Category = Literal[
    "weights",
    "input",
    "activations",
    "gradients",
    "optimizer state",
    "workspace",
    "temporary",
]
"""Purpose of memory."""
CATEGORIES: tuple[Category, ...] = get_args(Category)
"""All categories, in the order in which a step needs them."""


@dataclass(slots=True, eq=False)
class Storage:
    """Memory of one or more tensors."""

    n_bytes: int
    """Requested bytes, not rounded."""
    category: Category
    """Purpose of the memory."""
    op: str = ""
    """Operator that allocated it, such as "aten.convolution"; "" for weights and inputs."""
    module: str = ""
    """Dotted path of the module that allocated it, or name of a weight; "" is the model itself."""
    line: str = ""
    """Line of the user's code as "file:line", or ""."""
    stage: str = ""
    """Stage of the step, such as "forward"."""
    born: int = -1
    """Index of the event that allocates it."""
    died: int | None = None
    """Index of the event that frees it, or None if it outlives the trace."""
    shape: tuple[int, ...] = ()
    """Shape of its first tensor."""
    dtype: str = ""
    """Dtype of that tensor, such as "float32"."""


class ReplayEvent(NamedTuple):
    """Event of a trace."""

    kind: Literal["alloc", "free", "call", "mark"]
    """A "call" is a call of an operator that may need a workspace, after allocating its result."""
    which: int
    """Index in `Trace.storages` for alloc and free, in `Trace.calls`, or in `Trace.marks`."""


class StageMark(NamedTuple):
    """Named moment: the end of a stage, or a mark set by the user."""

    name: str
    event: int
    """Index of its event."""


class ModuleCall(NamedTuple):
    """Call of a module's forward."""

    module: str
    """Dotted path in the model."""
    kind: str
    """Class of the module."""
    first: int
    """Index of the first event inside."""
    end: int
    """Index of the first event after it."""
    stage: str
    """Stage of the step: "forward", or "backward" if the module is recomputed."""


@dataclass(frozen=True, slots=True)
class ReplayPeak:
    """Storages alive at one event, by default that of the peak."""

    n_bytes: int
    event: int
    """Index of the event."""
    stage: str
    """Stage of the event."""
    op: str
    """Operator that ran, or ""."""
    module: str
    """Module that ran."""
    alive: tuple[Storage, ...]
    """Storages including workspaces, largest first."""

    def by_category(self) -> dict[str, int]:
        """Bytes of every category, in the order of `CATEGORIES`."""
        sums: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
        for storage in self.alive:
            sums[storage.category] += round_to_granule(storage.n_bytes)
        return sums

    def by_module(self) -> dict[str, int]:
        """Bytes by module path, largest first."""
        sums: dict[str, int] = {}
        for storage in self.alive:
            n_bytes = round_to_granule(storage.n_bytes)
            sums[storage.module] = sums.get(storage.module, 0) + n_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


DEVIATIONS = 2
"""Standard deviations by which block tails may exceed the simulated ones. Without a device, 18 of
460 steps on an H100 were then predicted more than 0.2 % too low."""
WITH_DEVICE = 200
"""If all workspaces are measured, block tails may exceed the simulated ones by 1 / 200 of the
peak."""


def block_tail_slack_bytes(trace: Trace) -> int:
    """Bound of the unused tails of blocks at the peak.

    A reused block of more than 1 MiB has an unused tail of 0 to 1 MiB. The reuse of blocks depends
    on the layout of all blocks, and so on the order in which a program deletes its tensors. The sum
    of the tails is therefore treated as a random number. For k tails with uniform sizes from 0 to
    1 MiB, and k from a Poisson distribution, the variance is 2 / 3 MiB times the mean. The mean is
    the simulated sum plus 1 MiB. No block has more than one tail.
    """
    simulated = trace.allocated_bytes - trace.peak_bytes
    n_blocks = sum(storage.n_bytes > SMALL_BYTES for storage in trace.peak.alive)
    margin = DEVIATIONS * math.isqrt(2 * (simulated + MIB) * MIB // 3)
    if trace.workspaces.origin != STATED:
        margin = min(margin, trace.peak_bytes // WITH_DEVICE)
    return simulated + max(0, min(n_blocks * MIB - simulated, margin))


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Events of a replayed step.

    Byte counts are those of the device's allocator. Each storage is rounded up to 512 bytes, and
    workspaces are included with their sizes from `workspaces`.
    """

    storages: tuple[Storage, ...]
    """All storages, in order of allocation."""
    calls: tuple[OperatorCall, ...]
    """Operators that may need a workspace."""
    marks: tuple[StageMark, ...]
    """Ends of stages and marks of the user, in order."""
    events: tuple[ReplayEvent, ...]
    """Allocations, frees, calls and marks, in order."""
    modules: tuple[ModuleCall, ...] = ()
    """Calls of modules, ordered by their beginning."""
    workspaces: Workspaces = field(default_factory=Workspaces.none)
    """Memory that operators need in addition to their results."""
    duration_s: float = 0.0
    """Duration of the replay."""
    notes: tuple[str, ...] = ()
    """Remarks on what the replay assumes."""
    drawn_from: tuple[str, ...] = ()
    """Generators on the host from which the step drew random numbers."""

    def __repr__(self) -> str:
        peak = f"peak {self.peak_bytes / 2**20:.2f} MiB in {self.peak.stage or 'it'}"
        return f"<Trace of {len(self.storages)} storages, {peak}>"

    def with_workspaces(self, workspaces: Workspaces) -> Trace:
        """Trace with other workspaces, without a new replay."""
        return replace(self, workspaces=workspaces)

    @cached_property
    def in_use_bytes(self) -> list[int]:
        """Bytes in use after each event, or during it for a call."""
        return list(self._usage())

    @cached_property
    def call_workspaces(self) -> list[tuple[Workspace, ...]]:
        """Workspaces of each call."""
        return self.workspaces.for_calls(self.calls)

    def _usage(self) -> Iterator[int]:
        sizes = [round_to_granule(storage.n_bytes) for storage in self.storages]
        in_use, kept = 0, set[str]()
        for kind, index in self.events:
            temporary = 0
            if kind == "alloc":
                in_use += sizes[index]
            elif kind == "free":
                in_use -= sizes[index]
            elif kind == "call":
                for workspace in self.call_workspaces[index]:
                    if not workspace.kept_as:
                        temporary += round_to_granule(workspace.n_bytes)
                    elif workspace.kept_as not in kept:
                        kept.add(workspace.kept_as)
                        in_use += round_to_granule(workspace.n_bytes)
            yield in_use + temporary

    @property
    def peak_bytes(self) -> int:
        """Most bytes in use at once."""
        return max(self.in_use_bytes, default=0)

    @cached_property
    def peak(self) -> ReplayPeak:
        """Storages alive at the first event with the most bytes in use."""
        usage = self.in_use_bytes
        if not usage:
            return ReplayPeak(0, 0, "", "", "", ())
        event = usage.index(max(usage))
        return self.moment(event)

    def moment(self, event: int) -> ReplayPeak:
        """Storages and workspaces alive at an event."""
        alive = [
            storage
            for storage in self.storages
            if storage.born <= event and (storage.died is None or storage.died > event)
        ]
        kept: dict[str, Storage] = {}
        for position, (kind, index) in enumerate(self.events[: event + 1]):
            for workspace in self.call_workspaces[index] if kind == "call" else ():
                storage = _as_storage(workspace.n_bytes, self.calls[index], event)
                if workspace.kept_as:
                    kept.setdefault(workspace.kept_as, storage)
                elif position == event:
                    alive.append(storage)
        alive += kept.values()
        alive.sort(key=lambda storage: -storage.n_bytes)
        kind, index = self.events[event]
        source: Storage | OperatorCall | None = None
        if kind != "mark":
            source = self.calls[index] if kind == "call" else self.storages[index]
        return ReplayPeak(
            self.in_use_bytes[event],
            event,
            self.stage_at(event),
            source.op if source else "",
            source.module if source else "",
            tuple(alive),
        )

    def kept_workspaces(self) -> list[Workspace]:
        """Workspaces that stay allocated after the step."""
        kept: dict[str, Workspace] = {}
        for call_workspaces in self.call_workspaces:
            for workspace in call_workspaces:
                if workspace.kept_as:
                    kept.setdefault(workspace.kept_as, workspace)
        return list(kept.values())

    def stage_at(self, event: int) -> str:
        """Stage of an event: the name of the next mark."""
        return next((mark.name for mark in self.marks if mark.event >= event), "")

    def bytes_at(self, mark: str) -> int:
        """Bytes in use at a mark.

        Parameters
        ----------
        mark : str
            Name of the mark. The first mark of that name counts.

        Raises
        ------
        KeyError
            If the mark does not exist. The message lists all marks.
        """
        return self.in_use_bytes[self._marked(mark).event]

    def _marked(self, mark: str) -> StageMark:
        matching = [m for m in self.marks if m.name == mark]
        if not matching:
            names = ", ".join(dict.fromkeys(m.name for m in self.marks))
            raise KeyError(f"no mark {mark!r}. The marks are: {names}")
        return matching[0]

    def bytes_after(self, call: ModuleCall) -> int:
        """Bytes in use after a module's forward has returned."""
        return self.in_use_bytes[call.end - 1] if call.end else 0

    def requests(self) -> list[AllocatorRequest]:
        """Requests to the allocator, workspaces included."""
        return [request for requests in self.requests_by_event() for request in requests]

    def requests_by_event(
        self,
        sizes: Sequence[int] | None = None,
        call_workspaces: Sequence[tuple[Workspace, ...]] | None = None,
    ) -> Iterator[Sequence[AllocatorRequest]]:
        """Yield the requests to the allocator of each event, workspaces included.

        Parameters
        ----------
        sizes : sequence of int, optional
            Replacement for the sizes of the storages.
        call_workspaces : sequence of tuple of Workspace, optional
            Replacement for the workspaces of the calls.
        """
        n_bytes = [s.n_bytes for s in self.storages] if sizes is None else sizes
        workspaces = self.call_workspaces if call_workspaces is None else call_workspaces
        next_key, kept = len(n_bytes) + 1, set[str]()
        for kind, index in self.events:
            if kind == "alloc":
                yield ((index, n_bytes[index]),)
            elif kind == "free":
                yield ((index, -1),)
            elif kind == "call":
                allocations: list[AllocatorRequest] = []
                frees: list[AllocatorRequest] = []
                for workspace in workspaces[index]:
                    if workspace.kept_as in kept:
                        continue
                    key = -next_key if self.calls[index].kind in CONVOLUTIONS else next_key
                    allocations.append((key, workspace.n_bytes))
                    if workspace.kept_as:
                        kept.add(workspace.kept_as)
                    else:
                        frees.append((key, -1))
                    next_key += 1
                yield [*allocations, *reversed(frees)]
            else:
                yield ()

    def allocated_at(self, mark: str) -> int:
        """Bytes handed out at a mark, as ``torch.cuda.memory_allocated`` returns them.

        They exceed `bytes_at` by the remainders of blocks that the allocator does not split.
        """
        return self.handed_out_bytes[self._marked(mark).event]

    @cached_property
    def handed_out_bytes(self) -> list[int]:
        """Bytes handed out after each event, or during it for a call."""
        return [allocated for allocated, _ in self._simulated_events[0]]

    @cached_property
    def held_bytes(self) -> list[int]:
        """Bytes that the allocator holds after each event (``torch.cuda.memory_reserved``)."""
        return [held for _, held in self._simulated_events[0]]

    @cached_property
    def _simulated_events(self) -> tuple[list[tuple[int, int]], CachingAllocator]:
        """Bytes handed out and held after each event, and the allocator at the end."""
        allocator = CachingAllocator()
        at: list[tuple[int, int]] = []
        for requests in self.requests_by_event():
            most = 0
            for request in requests:
                allocator.run((request,))
                most = max(most, allocator.allocated_bytes if request[1] >= 0 else 0)
            at.append((max(most, allocator.allocated_bytes), allocator.reserved_bytes))
        return at, allocator

    @cached_property
    def after_deletion(self) -> tuple[int, int, int]:
        """Bytes that remain after model, optimizer and all results are deleted.

        First the bytes handed out, which are workspaces kept by libraries. Then the bytes that the
        allocator holds, before and after ``torch.cuda.empty_cache()``.
        """
        allocator = self._simulated_events[1]
        for index in range(len(self.storages)):
            allocator.free(index)
        held = allocator.reserved_bytes
        allocator.give_back()
        return allocator.allocated_bytes, held, allocator.reserved_bytes

    @cached_property
    def _simulated(self) -> CachingAllocator:
        allocator = CachingAllocator()
        steady(self, allocator)
        return allocator

    @property
    def allocated_bytes(self) -> int:
        """Most bytes handed out in any step (``torch.cuda.max_memory_allocated``, exactly).

        Exceeds `peak_bytes` by the remainders of blocks that the allocator does not split: up to
        1 MiB for each of the larger blocks.
        """
        return self._simulated.peak_allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Most bytes that the allocator holds (``torch.cuda.max_memory_reserved``)."""
        return self._simulated.peak_reserved_bytes

    def fits(self, limit_bytes: int) -> bool:
        """True if the step runs when the allocator may hold at most `limit_bytes`.

        A convolution whose workspace does not fit uses another kernel.
        """
        return CachingAllocator(limit_bytes).run(self.requests())

    @cached_property
    def needed_bytes(self) -> int:
        """Smallest limit, to 2 MiB, within which the step runs (see `fits`).

        It lies between `allocated_bytes` and `reserved_bytes`, because the allocator returns unused
        segments before it fails.
        """
        return least_limit(self.requests(), self.allocated_bytes, self.reserved_bytes)


def _as_storage(n_bytes: int, call: OperatorCall, event: int) -> Storage:
    return Storage(n_bytes, "workspace", call.op, call.module, call.line, call.stage, born=event)


N_STEPS = 10
"""Most steps that are simulated. On an H200, two plans for ResNet50 ran out of memory in the fourth
and sixth step, as simulated."""
N_FIRST = 3
"""First steps, which the average excludes: some limits cost time only in these."""
N_STEADY = 2
"""Consecutive steps without memory from the device after which the simulation ends. The layout of
blocks is then the same in all later steps."""


class Counts(NamedTuple):
    """Counts of an allocator in one step."""

    retries: int
    taken_bytes: int


@dataclass(frozen=True, slots=True)
class Steady:
    """Steps under a limit, after the first ones."""

    runs: bool
    """Whether every request that must not fail fits."""
    taken_bytes: float = 0.0
    """Average bytes per step that were returned to the device and taken again."""


def steady(
    trace: Trace,
    allocator: CachingAllocator | ExpandableAllocator,
    requests: Iterable[Sequence[AllocatorRequest]] | None = None,
) -> Steady:
    """Simulate steps until they take no memory from the device, or `N_STEPS`.

    Parameters
    ----------
    trace : Trace
        At least two training steps, or two passes of inference.
    allocator : CachingAllocator or ExpandableAllocator
        New allocator with a limit.
    requests : iterable of sequence of AllocatorRequest, optional
        Requests of each event that replace those of the trace, for another number of images.
    """
    taken: list[int] = []
    for counts in islice(each_step(trace, allocator, requests), N_STEPS):
        if counts is None:
            return Steady(False)
        taken.append(counts.taken_bytes)
        if not any(taken[-N_STEADY:]):
            return Steady(True)
    taken = taken[min(N_FIRST, len(taken) - 1) :]
    return Steady(True, sum(taken) / len(taken))


def each_step(
    trace: Trace,
    allocator: CachingAllocator | ExpandableAllocator,
    requests: Iterable[Sequence[AllocatorRequest]] | None = None,
) -> Iterator[Counts | None]:
    """Yield the counts of each step, without end, or None as the last if a step does not fit.

    The last step is repeated if the storages alive at its beginning and its end have the same
    sizes. Otherwise only the replayed steps are simulated.
    """
    ends = [mark.event for mark in trace.marks if mark.name == trace.marks[-1].name]
    if len(ends) < 2:
        ends = [len(trace.events)] * 2
    each_event = list(trace.requests_by_event() if requests is None else requests)
    following = _following(trace, *ends[-2:])
    step_requests = [*chain.from_iterable(each_event[: ends[-2]])]
    for turn in count():
        retries, taken_bytes = allocator.retries, allocator.taken_bytes
        if not allocator.run(step_requests):
            yield None
            return
        yield Counts(allocator.retries - retries, allocator.taken_bytes - taken_bytes)
        if turn:
            if following is None:
                return
            allocator.rename(following)
        else:
            step_requests = [*chain.from_iterable(each_event[ends[-2] : ends[-1]])]


def _following(trace: Trace, begin: int, end: int) -> dict[int, int] | None:
    """Pair storages alive at the end of the last step with those alive at its beginning.

    Parameters
    ----------
    begin, end : int
        Events at which the last step begins and ends.

    Returns
    -------
    dict or None
        Older index by newer index, or None if the sizes differ.
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


__all__ = ["Trace"]
