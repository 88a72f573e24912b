"""Traces made of allocations and frees, for these tests."""

from __future__ import annotations

from maxslices.nn.replay import ReplayEvent, StageMark, Storage, Trace

MIB = 2**20


def trace_of(*steps: list[tuple[str, float]]) -> Trace:
    """Return a trace of steps of named allocations in MiB. Negative sizes are frees."""
    storages: list[Storage] = []
    events: list[ReplayEvent] = []
    marks: list[StageMark] = []
    names: dict[str, int] = {}
    for step in steps:
        for name, size in step:
            if size < 0:
                storages[names[name]].died = len(events)
                events.append(ReplayEvent("free", names[name]))
                continue
            names[name] = len(storages)
            events.append(ReplayEvent("alloc", names[name]))
            made = Storage(int(size * MIB), "activations", born=len(events) - 1)
            storages.append(made)
        marks.append(StageMark("step", len(events)))
        events.append(ReplayEvent("mark", len(marks) - 1))
    return Trace(tuple(storages), (), tuple(marks), tuple(events))
