"""What a replay saw: storages from birth to death, in order, and what was alive at the peak.

Plain Python: a `Trace` needs no torch to be read, scaled or given to an allocator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from .caching_allocator import Allocator, Step, least_limit
from .storages import Event, Mark, ModuleCall, Peak, Storage, rounded
from .workspaces import CONVOLUTIONS, Area, Call, WorkAreas


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Events of a replayed step.

    Byte counts are those of the device's allocator: multiples of 512, work areas included
    as `work_areas` has them.
    """

    storages: tuple[Storage, ...]
    """All storages, in order of birth."""
    calls: tuple[Call, ...]
    """Operators that may need a work area."""
    marks: tuple[Mark, ...]
    """Ends of stages, and the user's marks, in order."""
    events: tuple[Event, ...]
    """What happened, in order."""
    modules: tuple[ModuleCall, ...] = ()
    """Calls of modules, in order of their beginning."""
    work_areas: WorkAreas = field(default_factory=WorkAreas.none)
    """What operators need beside their results."""
    duration_s: float = 0.0
    """How long the replay took."""
    notes: tuple[str, ...] = ()
    """What the replay could not follow to the letter."""

    def __repr__(self) -> str:
        peak = f"peak {self.peak_bytes / 2**20:.2f} MiB in {self.peak.stage or 'it'}"
        return f"<Trace of {len(self.storages)} storages, {peak}>"

    def with_work_areas(self, work_areas: WorkAreas) -> Trace:
        """Return this trace with other work areas; nothing is replayed."""
        return replace(self, work_areas=work_areas)

    @cached_property
    def in_use_bytes(self) -> list[int]:
        """Bytes in use at each event: after it, and for a call while it runs."""
        return list(self._usage())

    @cached_property
    def areas(self) -> list[tuple[Area, ...]]:
        """Work areas of each call."""
        return self.work_areas.for_calls(self.calls)

    def _usage(self) -> Iterator[int]:
        sizes = [rounded(storage.n_bytes) for storage in self.storages]
        in_use, kept = 0, set[str]()
        for kind, index in self.events:
            passing = 0
            if kind == "alloc":
                in_use += sizes[index]
            elif kind == "free":
                in_use -= sizes[index]
            elif kind == "call":
                for area in self.areas[index]:
                    if not area.kept_as:
                        passing += rounded(area.n_bytes)
                    elif area.kept_as not in kept:
                        kept.add(area.kept_as)
                        in_use += rounded(area.n_bytes)
            yield in_use + passing

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once, each storage rounded up to 512 bytes."""
        return max(self.in_use_bytes, default=0)

    @cached_property
    def peak(self) -> Peak:
        """What was alive when the most was, at the first such moment."""
        usage = self.in_use_bytes
        if not usage:
            return Peak(0, 0, "", "", "", ())
        event = usage.index(max(usage))
        return self.moment(event)

    def moment(self, event: int) -> Peak:
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
            areas = self.areas[index]
            passing = [area for area in areas if not area.kept_as and area.n_bytes]
            if position == event:
                alive += [_as_storage(area.n_bytes, call, event) for area in passing]
            for area in areas:
                if area.kept_as and area.kept_as not in kept:
                    kept.add(area.kept_as)
                    alive.append(_as_storage(area.n_bytes, call, event))
        alive.sort(key=lambda storage: -storage.n_bytes)
        kind, index = self.events[event]
        at_work: Storage | Call | None = None
        if kind in ("alloc", "free"):
            at_work = self.storages[index]
        elif kind == "call":
            at_work = self.calls[index]
        return Peak(
            self.in_use_bytes[event],
            event,
            self.stage_at(event),
            at_work.op if at_work else "",
            at_work.module if at_work else "",
            tuple(alive),
        )

    def kept_areas(self) -> list[Area]:
        """Return the work areas that stay when the step is over."""
        kept: dict[str, Area] = {}
        for areas in self.areas:
            for area in areas:
                if area.kept_as:
                    kept.setdefault(area.kept_as, area)
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

    def _marked(self, mark: str, occurrence: int) -> Mark:
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
        areas: Sequence[tuple[Area, ...]] | None = None,
    ) -> list[Step]:
        """Return allocations and frees as the allocator sees them, work areas included.

        Parameters
        ----------
        sizes : sequence of int, optional
            Bytes of the storages, in place of their own.
        areas : sequence of tuple of Area, optional
            Work areas of the calls, in place of their own.
        """
        return [step for asked in self.asked(sizes, areas) for step in asked]

    def asked(
        self,
        sizes: Sequence[int] | None = None,
        areas: Sequence[tuple[Area, ...]] | None = None,
    ) -> Iterator[Sequence[Step]]:
        """Yield what each event asks of the allocator, work areas included.

        Parameters
        ----------
        sizes, areas
            As for `steps`.
        """
        taken = [s.n_bytes for s in self.storages] if sizes is None else sizes
        needed = self.areas if areas is None else areas
        next_key, kept = len(taken) + 1, set[str]()
        for kind, index in self.events:
            if kind == "alloc":
                yield ((index, taken[index]),)
            elif kind == "free":
                yield ((index, -1),)
            elif kind == "call":
                asked: list[Step] = []
                passing: list[Step] = []
                for area in needed[index]:
                    if area.kept_as in kept:
                        continue
                    key = -next_key if self.calls[index].kind in CONVOLUTIONS else next_key
                    asked.append((key, area.n_bytes))
                    if area.kept_as:
                        kept.add(area.kept_as)
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
        allocator = Allocator()
        at: list[int] = []
        for asked in self.asked():
            most = 0
            for step in asked:
                allocator.run((step,))
                most = max(most, allocator.allocated_bytes if step[1] >= 0 else 0)
            at.append(max(most, allocator.allocated_bytes))
        return at

    @cached_property
    def _simulated(self) -> Allocator:
        allocator = Allocator()
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

        Where there is no room for the work area of a convolution, another kernel is used.
        """
        return Allocator(limit_bytes).run(self.steps())

    @cached_property
    def needed_bytes(self) -> int:
        """The smallest limit, to 2 MiB, from which on the step runs (see `fits`).

        Between `allocated_bytes` and `reserved_bytes`: before it fails, the allocator gives
        back what it holds and does not use.
        """
        return least_limit(self.steps(), self.allocated_bytes, self.reserved_bytes)


def _as_storage(n_bytes: int, call: Call, event: int) -> Storage:
    return Storage(n_bytes, "work area", call.op, call.module, call.line, call.stage, born=event)


__all__ = ["Trace", "rounded"]
