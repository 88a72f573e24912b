"""What a replay saw: storages from birth to death, in order, and what was alive at the peak.

Plain Python: a `Trace` needs no torch to be read, scaled or given to an allocator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...model.allocators import round_to_granule
from .caching_allocator import AllocatorRequest, CachingAllocator, least_limit
from .storages import ModuleCall, ReplayEvent, ReplayPeak, StageMark, Storage
from .workspaces import CONVOLUTIONS, OperatorCall, Workspace, Workspaces


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Events of a replayed step.

    Byte counts are those of the device's allocator: multiples of 512, workspaces included
    as `workspaces` has them.
    """

    storages: tuple[Storage, ...]
    """All storages, in order of birth."""
    calls: tuple[OperatorCall, ...]
    """Operators that may need a workspace."""
    marks: tuple[StageMark, ...]
    """Ends of stages, and the user's marks, in order."""
    events: tuple[ReplayEvent, ...]
    """What happened, in order."""
    modules: tuple[ModuleCall, ...] = ()
    """Calls of modules, in order of their beginning."""
    workspaces: Workspaces = field(default_factory=Workspaces.none)
    """What operators need beside their results."""
    duration_s: float = 0.0
    """How long the replay took."""
    notes: tuple[str, ...] = ()
    """What the replay could not follow to the letter."""

    def __repr__(self) -> str:
        peak = f"peak {self.peak_bytes / 2**20:.2f} MiB in {self.peak.stage or 'it'}"
        return f"<Trace of {len(self.storages)} storages, {peak}>"

    def with_workspaces(self, workspaces: Workspaces) -> Trace:
        """Return this trace with other workspaces; nothing is replayed."""
        return replace(self, workspaces=workspaces)

    @cached_property
    def in_use_bytes(self) -> list[int]:
        """Bytes in use at each event: after it, and for a call while it runs."""
        return list(self._usage())

    @cached_property
    def call_workspaces(self) -> list[tuple[Workspace, ...]]:
        """Workspaces of each call."""
        return self.workspaces.for_calls(self.calls)

    def _usage(self) -> Iterator[int]:
        sizes = [round_to_granule(storage.n_bytes) for storage in self.storages]
        in_use, kept = 0, set[str]()
        for kind, index in self.events:
            passing = 0
            if kind == "alloc":
                in_use += sizes[index]
            elif kind == "free":
                in_use -= sizes[index]
            elif kind == "call":
                for workspace in self.call_workspaces[index]:
                    if not workspace.kept_as:
                        passing += round_to_granule(workspace.n_bytes)
                    elif workspace.kept_as not in kept:
                        kept.add(workspace.kept_as)
                        in_use += round_to_granule(workspace.n_bytes)
            yield in_use + passing

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once, each storage rounded up to 512 bytes."""
        return max(self.in_use_bytes, default=0)

    @cached_property
    def peak(self) -> ReplayPeak:
        """What was alive when the most was, at the first such moment."""
        usage = self.in_use_bytes
        if not usage:
            return ReplayPeak(0, 0, "", "", "", ())
        event = usage.index(max(usage))
        return self.moment(event)

    def moment(self, event: int) -> ReplayPeak:
        """Return what is alive at an event."""
        alive = [
            storage
            for storage in self.storages
            if storage.born <= event and (storage.died is None or storage.died > event)
        ]
        kept = set[str]()
        for position, (kind, index) in enumerate(self.events[: event + 1]):
            if kind != "call":
                continue
            call = self.calls[index]
            call_workspaces = self.call_workspaces[index]
            passing = [
                workspace
                for workspace in call_workspaces
                if not workspace.kept_as and workspace.n_bytes
            ]
            if position == event:
                alive += [_as_storage(workspace.n_bytes, call, event) for workspace in passing]
            for workspace in call_workspaces:
                if workspace.kept_as and workspace.kept_as not in kept:
                    kept.add(workspace.kept_as)
                    alive.append(_as_storage(workspace.n_bytes, call, event))
        alive.sort(key=lambda storage: -storage.n_bytes)
        kind, index = self.events[event]
        at_work: Storage | OperatorCall | None = None
        if kind in ("alloc", "free"):
            at_work = self.storages[index]
        elif kind == "call":
            at_work = self.calls[index]
        return ReplayPeak(
            self.in_use_bytes[event],
            event,
            self.stage_at(event),
            at_work.op if at_work else "",
            at_work.module if at_work else "",
            tuple(alive),
        )

    def kept_workspaces(self) -> list[Workspace]:
        """Return the workspaces that stay when the step is over."""
        kept: dict[str, Workspace] = {}
        for call_workspaces in self.call_workspaces:
            for workspace in call_workspaces:
                if workspace.kept_as:
                    kept.setdefault(workspace.kept_as, workspace)
        return list(kept.values())

    def stage_at(self, event: int) -> str:
        """Return the stage that an event belongs to: the next mark's name."""
        return next((mark.name for mark in self.marks if mark.event >= event), "")

    def bytes_at(self, mark: str, occurrence: int = 0) -> int:
        """Return the bytes in use at a mark: of all storages that are alive, each rounded up.

        Parameters
        ----------
        mark : str
            Its name.
        occurrence : int
            Which of several of that name; -1 is the last.

        Raises
        ------
        KeyError
            If there is none, naming those that there are.
        """
        return self.in_use_bytes[self._marked(mark, occurrence).event]

    def _marked(self, mark: str, occurrence: int) -> StageMark:
        found = [m for m in self.marks if m.name == mark]
        if not found:
            known = ", ".join(dict.fromkeys(m.name for m in self.marks))
            raise KeyError(f"no mark {mark!r}; there are: {known}")
        return found[occurrence]

    def bytes_after(self, call: ModuleCall) -> int:
        """Return the bytes in use when a module's forward has returned."""
        return self.in_use_bytes[call.end - 1] if call.end else 0

    def steps(
        self,
        sizes: Sequence[int] | None = None,
        call_workspaces: Sequence[tuple[Workspace, ...]] | None = None,
    ) -> list[AllocatorRequest]:
        """Return allocations and frees as the allocator sees them, workspaces included.

        Parameters
        ----------
        sizes : sequence of int, optional
            Bytes of the storages, in place of their own.
        call_workspaces : sequence of tuple of Workspace, optional
            Workspaces of the calls, in place of their own.
        """
        return [step for asked in self.asked(sizes, call_workspaces) for step in asked]

    def asked(
        self,
        sizes: Sequence[int] | None = None,
        call_workspaces: Sequence[tuple[Workspace, ...]] | None = None,
    ) -> Iterator[Sequence[AllocatorRequest]]:
        """Yield what each event asks of the allocator, workspaces included.

        Parameters
        ----------
        sizes, call_workspaces
            As for `steps`.
        """
        taken = [s.n_bytes for s in self.storages] if sizes is None else sizes
        needed = self.call_workspaces if call_workspaces is None else call_workspaces
        next_key, kept = len(taken) + 1, set[str]()
        for kind, index in self.events:
            if kind == "alloc":
                yield ((index, taken[index]),)
            elif kind == "free":
                yield ((index, -1),)
            elif kind == "call":
                asked: list[AllocatorRequest] = []
                passing: list[AllocatorRequest] = []
                for workspace in needed[index]:
                    if workspace.kept_as in kept:
                        continue
                    key = -next_key if self.calls[index].kind in CONVOLUTIONS else next_key
                    asked.append((key, workspace.n_bytes))
                    if workspace.kept_as:
                        kept.add(workspace.kept_as)
                    else:
                        passing.append((key, -1))
                    next_key += 1
                yield [*asked, *reversed(passing)]
            else:
                yield ()

    def allocated_at(self, mark: str, occurrence: int = 0) -> int:
        """Return the bytes handed out at a mark: what ``torch.cuda.memory_allocated`` returns.

        More than `bytes_at` by what the allocator does not split off.

        Parameters
        ----------
        mark, occurrence
            As for `bytes_at`.
        """
        return self.handed_out_bytes[self._marked(mark, occurrence).event]

    @cached_property
    def handed_out_bytes(self) -> list[int]:
        """Bytes that the allocator has handed out at each event: after it, or while it runs."""
        allocator = CachingAllocator()
        at: list[int] = []
        for asked in self.asked():
            most = 0
            for step in asked:
                allocator.run((step,))
                most = max(most, allocator.allocated_bytes if step[1] >= 0 else 0)
            at.append(max(most, allocator.allocated_bytes))
        return at

    @cached_property
    def _simulated(self) -> CachingAllocator:
        allocator = CachingAllocator()
        allocator.run(self.steps())
        return allocator

    @property
    def allocated_bytes(self) -> int:
        """The most that the allocator hands out: ``torch.cuda.max_memory_allocated`` to the byte.

        More than `peak_bytes` by what it does not split off: up to 1 MiB for each of the
        larger blocks.
        """
        return self._simulated.peak_allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """The most that the allocator holds: what ``torch.cuda.max_memory_reserved`` returns."""
        return self._simulated.peak_reserved_bytes

    def fits(self, limit_bytes: int) -> bool:
        """Tell whether the step runs when the allocator may hold no more than `limit_bytes`.

        Where there is no room for the workspace of a convolution, another kernel is used.
        """
        return CachingAllocator(limit_bytes).run(self.steps())

    @cached_property
    def needed_bytes(self) -> int:
        """The smallest limit, to 2 MiB, from which on the step runs (see `fits`).

        Between `allocated_bytes` and `reserved_bytes`: before it fails, the allocator gives
        back what it holds and does not use.
        """
        return least_limit(self.steps(), self.allocated_bytes, self.reserved_bytes)


def _as_storage(n_bytes: int, call: OperatorCall, event: int) -> Storage:
    return Storage(n_bytes, "workspace", call.op, call.module, call.line, call.stage, born=event)


__all__ = ["Trace"]
